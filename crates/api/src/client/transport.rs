//! One request after another: over a connection each to a socket, over one that is kept to a host.
//!
//! Nothing is followed: an answer that leads elsewhere is a refusal, so that a key is told to no other host.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HOST, HeaderValue, LOCATION};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use offleash_core::error::ErrorKind;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::endpoint::{Endpoint, EndpointKind, RemoteHost};
use super::{ClientError, malformed};
use crate::http::body::Body;
use crate::http::connect;

/// What is read of an answer that is no file.
const MAX_READ: usize = 64 << 20;

/// How long a daemon may take to accept a connection, its handshake included.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server at a URL may take to begin an answer to what only reads.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// How long a connection to a host is kept while nothing is asked; servers keep them for longer.
const IDLE: Duration = Duration::from_secs(5);

/// What `sockaddr_un` holds (unix(7)).
const MAX_SOCKET_PATH_LENGTH: usize = 107;

/// The field that names the sandbox of a request to its services; those are told no key.
const SANDBOX_FIELD: &str = "e2b-sandbox-id";
const KEY_FIELD: &str = "x-api-key";

/// Sends requests to one daemon. Copies share the connection that is kept, and belong to one event loop.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    endpoint: Endpoint,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// A connection on which nothing is asked now.
#[derive(Debug)]
struct Kept {
    sender: SendRequest<Body>,
    since: Instant,
}

/// An answer that is not a refusal.
#[derive(Debug)]
pub(super) struct Answer {
    asked: String,
    response: Response<Incoming>,
    /// The connection, which can be kept when all was read.
    connection: Option<(Transport, SendRequest<Body>)>,
}

/// An event loop on this thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, ClientError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|source| ClientError::Local {
        tried: "make an event loop".to_owned(),
        source,
    })
}

/// A request that was put together from what a person gave.
pub(super) fn built(request: http::Result<Request<Body>>, asked: &str) -> Result<Request<Body>, ClientError> {
    request.map_err(|error| ClientError::Refused {
        message: format!("`{asked}` cannot be asked for: {error}"),
        kind: ErrorKind::Invalid,
    })
}

impl Transport {
    /// One for an event loop.
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let kept = Arc::default();
        Self { endpoint, kept }
    }

    /// One to the same daemon, for another event loop.
    pub(super) fn for_another_loop(&self) -> Self {
        Self::new(self.endpoint.clone())
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&self, request: Request<Body>, asked: &str) -> Result<Answer, ClientError> {
        let answer = self.exchange(request, asked).await?;
        match answer.response.status() {
            status if status.is_success() => Ok(answer),
            status => Err(refused(status, answer).await),
        }
    }

    /// As [`Self::send`], and no longer than `patience` to a host: what listens there may be no server.
    pub(super) async fn send_within(
        &self,
        patience: Duration,
        request: Request<Body>,
        asked: &str,
    ) -> Result<Answer, ClientError> {
        let EndpointKind::Host(host) = &*self.endpoint.0 else {
            return self.send(request, asked).await;
        };
        let answered = tokio::time::timeout(patience, self.send(request, asked)).await;
        answered.unwrap_or_else(|_| {
            Err(ClientError::Silent {
                url: host.url.clone(),
                asked: asked.to_owned(),
                patience,
            })
        })
    }

    /// As [`Self::send`]; `None` where the answer has the status `except`.
    pub(super) async fn send_but(
        &self,
        except: StatusCode,
        request: Request<Body>,
        asked: &str,
    ) -> Result<Option<Answer>, ClientError> {
        let answer = self.exchange(request, asked).await?;
        match answer.response.status() {
            status if status == except => Ok(None),
            status if status.is_success() => Ok(Some(answer)),
            status => Err(refused(status, answer).await),
        }
    }

    /// Sends a request after which the connection is something else, and waits until it is.
    pub(super) async fn become_other(&self, request: Request<Body>, asked: &str) -> Result<Upgraded, ClientError> {
        let answer = self.exchange(request, asked).await?;
        match answer.response.status() {
            StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(answer.response)
                .await
                .map_err(|error| malformed(asked, error)),
            status => Err(refused(status, answer).await),
        }
    }

    async fn exchange(&self, mut request: Request<Body>, asked: &str) -> Result<Answer, ClientError> {
        let EndpointKind::Host(host) = &*self.endpoint.0 else {
            let mut sender = self.connect(asked).await?;
            let response = sender.send_request(request).await;
            return Ok(Answer {
                asked: asked.to_owned(),
                response: response.map_err(|error| malformed(asked, error))?,
                connection: None,
            });
        };
        address(&mut request, host, asked)?;
        if let Some(mut sender) = self.take_kept() {
            // What was not sent comes back, and goes over a new connection.
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(asked, response, sender)),
                Err(mut unsent) => match unsent.take_message() {
                    Some(given_back) => request = given_back,
                    None => return Err(malformed(asked, unsent.into_error())),
                },
            }
        }
        let mut sender = self.connect(asked).await?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| malformed(asked, error))?;
        Ok(self.answer(asked, response, sender))
    }

    fn answer(&self, asked: &str, response: Response<Incoming>, sender: SendRequest<Body>) -> Answer {
        Answer {
            asked: asked.to_owned(),
            response,
            connection: Some((self.clone(), sender)),
        }
    }

    fn take_kept(&self) -> Option<SendRequest<Body>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (kept.since.elapsed() < IDLE && kept.sender.is_ready()).then_some(kept.sender)
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let since = Instant::now();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept { sender, since });
    }

    async fn connect(&self, asked: &str) -> Result<SendRequest<Body>, ClientError> {
        match &*self.endpoint.0 {
            EndpointKind::Socket(socket) => {
                let not_running = |source| ClientError::NotRunning {
                    socket: socket.clone(),
                    source,
                };
                let stream = in_time(connect_to_socket(socket)).await.map_err(not_running)?;
                spoken(stream, asked).await
            }
            EndpointKind::Host(host) => {
                let unreachable = |source| ClientError::Unreachable {
                    url: host.url.clone(),
                    source,
                };
                let stream = in_time(connect::connect(host.url.host(), host.url.port())).await;
                let stream = stream.map_err(unreachable)?;
                check_peer(host, stream.peer_addr().map_err(unreachable)?.ip()).map_err(unreachable)?;
                // Not being able to is being slower.
                let _set = stream.set_nodelay(true);
                match &host.tls {
                    None => spoken(stream, asked).await,
                    Some((config, name)) => {
                        let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                        let secured = in_time(connector.connect(name.clone(), stream)).await;
                        spoken(secured.map_err(unreachable)?, asked).await
                    }
                }
            }
        }
    }
}

async fn in_time<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let connected = tokio::time::timeout(CONNECT, connecting).await;
    connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Refuses another machine that a name of this one stands for, where nothing is encrypted.
fn check_peer(host: &RemoteHost, peer: std::net::IpAddr) -> io::Result<()> {
    match host.tls.is_some() || host.settings.is_insecure || peer.is_loopback() {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "`{}` is {peer}, which is not this machine, and nothing is encrypted",
                host.url.host()
            ),
        )),
    }
}

/// A request as a host gets it: by its name, and with the key unless it is for the services of a sandbox.
fn address(request: &mut Request<Body>, host: &RemoteHost, asked: &str) -> Result<(), ClientError> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| malformed(asked, error));
    let headers = request.headers_mut();
    headers.insert(HOST, value(&host.url.authority())?);
    if let Some(key) = &host.settings.key
        && !headers.contains_key(SANDBOX_FIELD)
    {
        let mut key = value(key.reveal())?;
        key.set_sensitive(true);
        headers.insert(KEY_FIELD, key);
    }
    Ok(())
}

async fn spoken<S>(stream: S, asked: &str) -> Result<SendRequest<Body>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| malformed(asked, error))?;
    // Ends with the answer, or with the sender; what is wrong with it is told there.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

async fn connect_to_socket(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= MAX_SOCKET_PATH_LENGTH {
        return UnixStream::connect(socket).await;
    }
    // By way of its directory, whose descriptor has a short name.
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let opened = std::fs::File::open(directory)?;
    let short = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string());
    UnixStream::connect(short.join(name)).await
}

async fn refused(status: StatusCode, answer: Answer) -> ClientError {
    if status.is_redirection() {
        return ClientError::Redirected {
            to: answer.header(LOCATION.as_str()).unwrap_or_default(),
        };
    }
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        StatusCode::TOO_MANY_REQUESTS => ErrorKind::Exhausted,
        StatusCode::NOT_IMPLEMENTED => ErrorKind::Unsupported,
        status if status.is_client_error() => ErrorKind::Invalid,
        status if status == StatusCode::BAD_GATEWAY || status == StatusCode::SERVICE_UNAVAILABLE => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Internal,
    };
    let bytes = answer.bytes().await.unwrap_or_default();
    let told: Option<Value> = serde_json::from_slice(&bytes).ok();
    let message = told
        .as_ref()
        .and_then(|told| told.get("message"))
        .and_then(Value::as_str);
    ClientError::Refused {
        message: message.map_or_else(|| format!("the daemon answered {status}"), str::to_owned),
        kind,
    }
}

impl Answer {
    /// A header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let value = self.response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    }

    /// All headers of a name that are text.
    pub(super) fn headers(&self, name: &str) -> Vec<String> {
        let values = self.response.headers().get_all(name).into_iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        texts.map(str::to_owned).collect()
    }

    /// Whether it is the part that was asked for.
    pub(super) fn is_partial(&self) -> bool {
        self.response.status() == StatusCode::PARTIAL_CONTENT
    }

    /// The whole body.
    pub(super) async fn bytes(self) -> Result<Bytes, ClientError> {
        let asked = self.asked;
        let read = Limited::new(self.response.into_body(), MAX_READ).collect().await;
        let bytes = read.map_err(|error| malformed(&asked, error))?.to_bytes();
        if let Some((transport, sender)) = self.connection {
            // The loop is to see that the answer has ended.
            tokio::task::yield_now().await;
            transport.keep(sender);
        }
        Ok(bytes)
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let Some(frame) = self.response.body_mut().frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| malformed(&self.asked, error))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::RemoteSettings;
    use super::*;
    use crate::http::body;

    fn host(url: &str) -> Endpoint {
        let settings = RemoteSettings {
            key: Some(format!("e2b_{}", "0".repeat(40)).parse().unwrap()),
            is_insecure: true,
            ..RemoteSettings::default()
        };
        Endpoint::host(url.parse().unwrap(), settings).unwrap()
    }

    fn addressed(request: http::request::Builder) -> Request<Body> {
        let endpoint = host("http://box.example:8000");
        let EndpointKind::Host(host) = &*endpoint.0 else {
            panic!("no host")
        };
        let mut request = request.body(body::empty()).unwrap();
        address(&mut request, host, "/").unwrap();
        request
    }

    #[tokio::test]
    async fn a_host_that_accepts_and_says_nothing_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let transport = Transport::new(host(&url));
        let request = Request::get("/v1/usage").body(body::empty()).unwrap();
        let asking = transport.send_within(Duration::from_millis(50), request, "/v1/usage");
        let (answered, _accepted) = tokio::join!(asking, listener.accept());
        let error = answered.unwrap_err();
        assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
        assert!(error.to_string().contains(&url), "{error}");
    }

    #[test]
    fn a_key_is_told_to_the_server_and_to_no_service_of_a_sandbox() {
        let asked = addressed(Request::get("/v1/usage").header("host", "localhost"));
        assert_eq!(asked.headers()[HOST], "box.example:8000");
        assert!(asked.headers()[KEY_FIELD].is_sensitive());
        let service = addressed(Request::post("/files").header(SANDBOX_FIELD, "i1"));
        assert!(!service.headers().contains_key(KEY_FIELD));
    }

    #[test]
    fn a_name_of_this_machine_that_leads_elsewhere_is_refused() {
        let endpoint = Endpoint::host("http://localhost:1".parse().unwrap(), RemoteSettings::default()).unwrap();
        let EndpointKind::Host(local) = &*endpoint.0 else {
            panic!("no host")
        };
        assert!(check_peer(local, "127.0.0.1".parse().unwrap()).is_ok());
        assert!(check_peer(local, "192.0.2.1".parse().unwrap()).is_err());
    }
}
