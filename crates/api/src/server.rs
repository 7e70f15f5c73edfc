//! The server: listens, bounds how many clients there are, and says who answers a request.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};

use crate::answer::{self, Refusal};
use crate::body::{self, Body};
use crate::connection::{self, Client, Held, Peer};
use crate::envd::{self, SandboxAccess};
use crate::guard::Guard;
use crate::journal::{Event, Journal, RequestEvent};
use crate::json;
use crate::listen::{self, Listen, ListenError};
use crate::route::{self, ENVD_PORT, Route};
use crate::tls::{self, TlsError, TlsFiles};

/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many clients that are too many are told so at once; further ones are cut.
const TURNED_AWAY: usize = 64;

/// What the owner of a server can set.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Listen,
    /// Where the socket for the owner alone is to be; none if absent.
    pub local: Option<PathBuf>,
    /// What TLS is spoken with; none is spoken if absent.
    pub tls: Option<TlsFiles>,
    /// Whether an address that others can reach may be listened on without TLS.
    pub insecure_public: bool,
    /// The domain below which `PORT-ID.DOMAIN` names a port inside a sandbox.
    pub domain: Option<String>,
    /// Origins whose pages may call, as in `https://app.example`.
    pub allow_origins: Vec<String>,
    /// How many connections there may be at once.
    pub max_connections: usize,
    /// How many of them to the ports of one sandbox.
    pub max_connections_per_sandbox: usize,
    /// How long requests may go on once the server is told to end.
    pub drain: Duration,
}

impl ServerConfig {
    /// Listens at `listen`, and has the defaults for everything else.
    pub fn new(listen: Listen) -> Self {
        Self {
            listen,
            local: None,
            tls: None,
            insecure_public: false,
            domain: None,
            allow_origins: Vec::new(),
            max_connections: 16 * 1024,
            max_connections_per_sandbox: 512,
            drain: Duration::from_secs(10),
        }
    }
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    local: Option<UnixListener>,
    max_connections: usize,
    drain: Duration,
    state: Arc<State>,
}

/// What every request sees of the server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) guard: Guard,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) journal: Arc<dyn Journal>,
}

impl Server {
    /// Listens; requests wait until [`Server::run`].
    ///
    /// # Errors
    /// When it cannot listen there, or should not.
    pub async fn bind(config: ServerConfig, journal: Arc<dyn Journal>) -> Result<Self, ServeError> {
        let tls = config.tls.as_ref().map(tls::config).transpose()?;
        let (listener, address) = listen::tcp(config.listen).await?;
        let is_public = !address.ip().is_loopback();
        if is_public && tls.is_none() && !config.insecure_public {
            return Err(ListenError::Public { address }.into());
        }
        let local = config.local.as_deref().map(listen::local).transpose()?;
        let guard = Guard {
            local_only: !is_public,
            domain: config.domain.map(|domain| domain.to_ascii_lowercase()),
            origins: config.allow_origins,
        };
        let state = Arc::new(State { guard, tls, journal });
        Ok(Self {
            listener,
            address,
            local,
            max_connections: config.max_connections,
            drain: config.drain,
            state,
        })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `end` is there; then takes no more and lets those go on that began, for as long as
    /// [`ServerConfig::drain`] says.
    pub async fn run(self, end: impl Future<Output = ()>) {
        // Every connection holds a receiver: it hears of the end, and its own end is seen.
        let (ending, hears) = watch::channel(false);
        tokio::select! {
            () = end => {}
            () = self.accept(&hears) => {}
        }
        drop((self.listener, self.local, hears));
        // Nobody may be there to be told.
        let _told = ending.send(true);
        // What is not done by then is cut.
        let _drained = tokio::time::timeout(self.drain, ending.closed()).await;
    }

    async fn accept(&self, hears: &watch::Receiver<bool>) {
        let room = Arc::new(Semaphore::new(self.max_connections));
        let away = Arc::new(Semaphore::new(TURNED_AWAY));
        let held = || {
            let place = Arc::clone(&room).try_acquire_owned().ok()?;
            let ending = hears.clone();
            Some(Held { place, ending })
        };
        loop {
            let state = Arc::clone(&self.state);
            tokio::select! {
                accepted = self.listener.accept() => match (accepted, held()) {
                    (Ok((stream, peer)), Some(held)) => {
                        tokio::spawn(connection::serve_tcp(stream, peer, state, held));
                    }
                    (Ok((stream, _)), None) => {
                        state.journal.record(&Event::Full { most: self.max_connections });
                        if let Ok(place) = Arc::clone(&away).try_acquire_owned() {
                            tokio::spawn(connection::turn_away(stream, place));
                        }
                    }
                    (Err(error), _) => self.cannot_accept(&error).await,
                },
                accepted = accept_local(self.local.as_ref()) => match (accepted, held()) {
                    (Ok(stream), Some(held)) => {
                        tokio::spawn(connection::serve_local(stream, state, held));
                    }
                    (Ok(_), None) => state.journal.record(&Event::Full { most: self.max_connections }),
                    (Err(error), _) => self.cannot_accept(&error).await,
                },
            }
        }
    }

    async fn cannot_accept(&self, error: &std::io::Error) {
        // A client that was gone before it was taken is none of our troubles.
        if error.kind() != std::io::ErrorKind::ConnectionAborted {
            self.state.journal.record(&Event::Accept { error });
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn accept_local(listener: Option<&UnixListener>) -> std::io::Result<tokio::net::UnixStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

/// Answers one request, and tells of it.
pub(crate) async fn answer(state: &State, client: &Client, request: Request<Incoming>) -> Response<Body> {
    let answering = client.busy.begin();
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut subject = Subject::default();
    let response = match route(state, client, request, &mut subject).await {
        Ok(response) => response,
        Err(refusal) => refusal.answer(),
    };
    state.journal.record(&Event::Request(&RequestEvent {
        peer: client.peer.address(),
        key: subject.key.as_deref(),
        sandbox: subject.sandbox.as_deref(),
        port: subject.port,
        method: method.as_str(),
        path: &path,
        status: response.status().as_u16(),
        took: began.elapsed(),
    }));
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        answering.forever();
        return response;
    }
    response.map(|body| body::until_end(body, answering))
}

/// What a request turned out to be about, for the journal.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    pub(crate) key: Option<String>,
    pub(crate) sandbox: Option<String>,
    pub(crate) port: Option<u16>,
}

async fn route(
    state: &State,
    client: &Client,
    request: Request<Incoming>,
    subject: &mut Subject,
) -> Result<Response<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    if client.peer != Peer::Owner {
        check_address(&state.guard, &parts)?;
    }
    let guard = &state.guard;
    let route = route::route(&mut parts, guard.domain.as_deref());
    let route = route.map_err(|error| Refusal::bad_request(error.to_string()))?;
    let authority = route::authority(&parts.uri, &parts.headers);
    // A program's own port is its own matter: whoever knows the id of the sandbox may call it.
    let is_ours = !matches!(route, Route::Sandbox { port, .. } if port != ENVD_PORT);
    if is_ours && !guard.welcomes(&parts.headers, authority) {
        let message = "pages of this origin may not call; `--allow-origin` allows one";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message).final_answer());
    }
    let request = Request::from_parts(parts, body);
    match route {
        Route::ControlPlane => control_plane(request).await,
        Route::Sandbox { id, port } => {
            let found = access(&id);
            subject.sandbox = Some(id);
            subject.port = Some(port);
            match (found, port) {
                (Some(sandbox), ENVD_PORT) => Ok(envd::handle(&sandbox, request).await),
                _ => Err(Refusal::new(StatusCode::BAD_GATEWAY, "The sandbox was not found").final_answer()),
            }
        }
    }
}

/// Refuses what is addressed to somebody else.
fn check_address(guard: &Guard, parts: &Parts) -> Result<(), Refusal> {
    if parts.headers.get_all(http::header::HOST).iter().count() > 1 {
        return Err(Refusal::bad_request("`host` is there more than once").closing());
    }
    if guard.knows_host(route::host(&parts.uri, &parts.headers)) {
        return Ok(());
    }
    let message = "this server does not go by the name in `host`; `--domain` gives it one";
    Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message))
}

async fn control_plane(request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let (parts, body) = request.into_parts();
    match parts.uri.path() {
        "/healthz" => Ok(answer::empty(StatusCode::NO_CONTENT)),
        path => {
            let _read: serde_json::Value = json::read(body).await?;
            Err(Refusal::not_found(format!("no route `{}`", path.escape_debug())))
        }
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

    #[derive(Debug)]
    struct Silent;

    impl Journal for Silent {
        fn record(&self, _event: &Event<'_>) {}
    }

    /// What is answered to `request`, sent to a server of its own.
    fn answer_to(request: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let config = ServerConfig::new(Listen::Address(SocketAddr::from(([127, 0, 0, 1], 0))));
        let server = runtime.block_on(Server::bind(config, Arc::new(Silent))).unwrap();
        let address = server.address();
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
