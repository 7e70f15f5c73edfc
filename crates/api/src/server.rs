//! The listening socket and its connections: HTTP/1.1 with bounds on how many, how long a head may be and may take.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::envd::{self, SandboxAccess};
use crate::route::{self, ENVD_PORT, Route};

/// The most that the head of a request may have, and fields in it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 100;
/// How long a kept connection may be without a request; SDKs keep theirs for 300 s.
const IDLE: Duration = Duration::from_secs(320);
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server is to do.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The address to listen on; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// The domain below which `PORT-ID.DOMAIN` names a port inside a sandbox, in lower case.
    pub domain: Option<String>,
    /// How many connections there may be at once.
    pub max_connections: usize,
    /// How long requests may go on once the server is told to end.
    pub drain: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3000)),
            domain: None,
            max_connections: 4096,
            drain: Duration::from_secs(10),
        }
    }
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listening on {address}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
}

/// What every request sees of the server.
#[derive(Debug)]
struct State {
    config: ServerConfig,
}

impl Server {
    /// Listens; requests wait until [`Server::run`].
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServeError> {
        let address = config.listen;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        let state = Arc::new(State { config });
        Ok(Self { listener, state })
    }

    /// The address that is listened on.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests until `end` is there; then takes no more and lets those go on that began, for as long as
    /// [`ServerConfig::drain`] says.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let room = Arc::new(Semaphore::new(self.state.config.max_connections));
        // Every connection holds a receiver: it hears of the end, and its own end is seen.
        let (ending, hears) = watch::channel(false);
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                () = &mut end => break,
                accepted = self.listener.accept() => accepted,
            };
            match (accepted, Arc::clone(&room).try_acquire_owned()) {
                (Ok((stream, _)), Ok(place)) => serve(stream, place, Arc::clone(&self.state), hears.clone()),
                // The client sees its connection end; whoever floods us is owed no more.
                (Ok(_), Err(_)) => {}
                (Err(_), _) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        drop((self.listener, hears));
        // Nobody may be there to be told.
        let _told = ending.send(true);
        // What is not done by then is cut.
        let _drained = tokio::time::timeout(self.state.config.drain, ending.closed()).await;
    }
}

/// Answers the requests of one connection, as a task of its own.
fn serve(stream: TcpStream, place: OwnedSemaphorePermit, state: Arc<State>, mut ending: watch::Receiver<bool>) {
    // Answers are small and awaited; without it they only get later.
    let _set = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(handle(&state, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_headers(MAX_FIELDS)
        .max_header_size(MAX_HEAD)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::spawn(async move {
        let mut connection = std::pin::pin!(connection);
        // A client that goes away or sends nonsense ends its connection, and that is all.
        tokio::select! {
            _ended = &mut connection => {}
            // It changes once.
            _told = ending.changed() => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            }
        }
        drop(place);
    });
}

/// Answers one request.
async fn handle(state: &State, request: Request<Incoming>) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let route = match route::route(&mut parts, state.config.domain.as_deref()) {
        Ok(route) => route,
        Err(error) => return Refusal::new(StatusCode::BAD_REQUEST, error.to_string()).answer(),
    };
    let request = Request::from_parts(parts, body);
    match route {
        Route::ControlPlane => control_plane(&request),
        Route::Sandbox { id, port } => match (access(&id), port) {
            (Some(sandbox), ENVD_PORT) => envd::handle(&sandbox, request).await,
            _ => Refusal::new(StatusCode::BAD_GATEWAY, "The sandbox was not found").answer(),
        },
    }
}

fn control_plane(request: &Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/healthz" => answer::empty(StatusCode::NO_CONTENT),
        path => Refusal::not_found(format!("no route `{}`", path.escape_debug())).answer(),
    }
}

/// The sandbox that a request is for, when it lives.
fn access(_id: &str) -> Option<SandboxAccess> {
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    /// What is answered to `request`, sent to a server of its own.
    fn answer_to(request: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let config = ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..ServerConfig::default()
        };
        let server = runtime.block_on(Server::bind(config)).unwrap();
        let address = server.address().unwrap();
        let request = request.to_owned();
        let (done, end) = tokio::sync::oneshot::channel::<()>();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            drop(done);
            answer
        });
        runtime.block_on(server.run(async {
            let _dropped = end.await;
        }));
        client.join().unwrap()
    }

    #[test]
    fn the_server_says_that_it_lives() {
        let answer = answer_to("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    }

    #[test]
    fn errors_are_json_that_names_their_status() {
        let answer = answer_to("GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(body, r#"{"code":404,"message":"no route `/nowhere`"}"#);
    }

    #[test]
    fn traffic_to_no_sandbox_is_a_bad_gateway() {
        for head in [
            "GET /health HTTP/1.1\r\nE2b-Sandbox-Id: i1",
            "GET /_port/i1/80/ HTTP/1.1",
        ] {
            let answer = answer_to(&format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        }
    }
}
