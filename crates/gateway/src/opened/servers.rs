//! The connections to the server that one connection of the sandbox leads to.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Request, Response, Version};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use rustls::crypto::ring;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use super::answers::Unanswered;
use super::bodies::RequestBody;
use super::client::LocalExecutor;
use super::gateway_trust::GatewayTrust;
use super::log::Log;
use super::requests::{self, Destination};
use super::server_stream::Stream;
use super::{Opening, hops, server_name};
use crate::http_head::Scheme;
use crate::shared::Shared;
use crate::stopped::Stopped;

/// How long a handshake with a server may take.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How many requests of a connection a server that takes one at a time is sent at once.
const AT_ONCE: usize = 8;
/// How long a request waits for a connection where no more can be made.
const WAITS: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_millis(5);
/// How often a request is sent that connections ended under.
const AGAIN: usize = 3;
/// The most that the headers of an answer may have.
const MAX_HEAD: usize = 128 * 1024;
const MAX_HEAD_OF_STREAM: u32 = 128 * 1024;
const MAX_FIELDS: usize = 256;
/// How much of answers is on its way before the sandbox takes it.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const SEND_BUFFER: usize = 64 * 1024;

/// How to speak TLS with servers.
pub(super) struct Connectors {
    any: TlsConnector,
    /// For what can be asked of HTTP/1.1 alone.
    only_http1: TlsConnector,
}

impl Connectors {
    pub(super) fn new(trust: &GatewayTrust) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trust.roots().iter().cloned());
        let roots = Arc::new(roots);
        let connector = |protocols: &[&[u8]]| -> io::Result<TlsConnector> {
            let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?
                .with_root_certificates(Arc::clone(&roots))
                .with_no_client_auth();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Ok(TlsConnector::from(Arc::new(config)))
        };
        Ok(Self {
            any: connector(&[b"h2", b"http/1.1"])?,
            only_http1: connector(&[b"http/1.1"])?,
        })
    }
}

impl fmt::Debug for Connectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connectors")
    }
}

type Http1 = http1::SendRequest<RequestBody>;
type Http2 = http2::SendRequest<RequestBody>;

/// What is known of the server, and the connections to it.
#[derive(Default)]
struct Known {
    version: Option<Version>,
    http2: Option<Http2>,
    http1: Vec<(Http1, Option<OwnedSemaphorePermit>)>,
}

/// The server of one connection of the sandbox.
pub(super) struct Servers {
    shared: Rc<Shared>,
    to: Destination,
    log: Rc<Log>,
    known: RefCell<Known>,
    /// Held while it is found out what the server speaks.
    finding_out: Mutex<()>,
    places: Arc<Semaphore>,
    more: Arc<Semaphore>,
}

/// An answer, and the place among the requests at once that is free when its body has ended.
pub(super) type Answered = (Response<Incoming>, Option<OwnedSemaphorePermit>);

/// Why a request was not answered, and the request if the server has seen nothing of it.
type Unsent = (hyper::Error, Option<Request<RequestBody>>);

enum Sender {
    Http1(Http1, Option<OwnedSemaphorePermit>),
    Http2(Http2),
}

impl Servers {
    pub(super) fn new(shared: Rc<Shared>, to: Destination, log: Rc<Log>, opening: &Opening) -> Self {
        Self {
            shared,
            to,
            log,
            known: RefCell::default(),
            finding_out: Mutex::new(()),
            places: Arc::new(Semaphore::new(AT_ONCE)),
            more: Arc::clone(&opening.more_servers),
        }
    }

    /// Sends a request, whose target is in origin form, and waits for the head of the answer.
    pub(super) async fn send(&self, mut request: Request<RequestBody>, trailers: bool) -> Result<Answered, Unanswered> {
        let mut place = None;
        for _ in 0..AGAIN {
            let spare = spare(&request);
            let (error, message) = match self.attempt(request, trailers, &mut place).await? {
                Ok(response) => return Ok((response, place)),
                Err(failed) => failed,
            };
            // A server may hang up on a connection at any time. What it has not seen is asked again, and so is what may
            // be asked twice.
            request = match (message, spare) {
                (Some(message), _) => message,
                (None, Some(spare)) if error.is_incomplete_message() || error.is_closed() => spare,
                _ => return Err(self.failed(&error)),
            };
        }
        Err(self.failed(&"it hangs up again and again"))
    }

    fn failed(&self, reason: &dyn fmt::Display) -> Unanswered {
        Unanswered::Failed(format!("`{}` does not answer: {reason}", self.to.authority()))
    }

    async fn attempt(
        &self,
        request: Request<RequestBody>,
        trailers: bool,
        place: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Result<Response<Incoming>, Unsent>, Unanswered> {
        let sent = match self.sender(place).await? {
            Sender::Http2(mut sender) => {
                let request = self.addressed(request, Version::HTTP_2, trailers)?;
                if let Err(error) = sender.ready().await {
                    return Ok(Err((error, Some(request))));
                }
                sender.try_send_request(request).await
            }
            Sender::Http1(mut sender, more) => {
                let request = self.addressed(request, Version::HTTP_11, trailers)?;
                let answer = sender.try_send_request(request);
                self.known.borrow_mut().http1.push((sender, more));
                answer.await
            }
        };
        Ok(sent.map_err(|mut failed| {
            let message = failed.take_message();
            (failed.into_error(), message)
        }))
    }

    /// The request in the form that `version` has.
    fn addressed(
        &self,
        request: Request<RequestBody>,
        version: Version,
        trailers: bool,
    ) -> Result<Request<RequestBody>, Unanswered> {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().cloned();
        let target = target.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        parts.uri = requests::address(&self.to, &target, version)?;
        parts.version = version;
        parts.headers.remove(HOST);
        if version == Version::HTTP_2 {
            if trailers {
                parts.headers.insert(TE, HeaderValue::from_static("trailers"));
            }
        } else {
            let host = HeaderValue::try_from(self.to.authority());
            parts
                .headers
                .insert(HOST, host.map_err(|_| self.failed(&"its name is none"))?);
            hops::join_cookies(&mut parts.headers);
            let has_odd_body = matches!(parts.method, Method::GET | Method::HEAD)
                && !body.is_end_stream()
                && body.size_hint().exact().is_none();
            if has_odd_body {
                parts
                    .headers
                    .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        Ok(Request::from_parts(parts, body))
    }

    /// A connection that takes a request now.
    async fn sender(&self, place: &mut Option<OwnedSemaphorePermit>) -> Result<Sender, Unanswered> {
        if self.is_unknown() {
            let _finding_out = self.finding_out.lock().await;
            if self.is_unknown() {
                let stream = self.dial(false).await?;
                self.keep(stream, None).await?;
            }
        }
        if let Some(sender) = self.http2() {
            return Ok(Sender::Http2(sender));
        }
        if place.is_none() {
            *place = Arc::clone(&self.places).acquire_owned().await.ok();
        }
        let until = Instant::now() + WAITS;
        loop {
            if let Some((sender, more)) = self.idle() {
                return Ok(Sender::Http1(sender, more));
            }
            let is_first = self.known.borrow().http1.is_empty();
            let more = Arc::clone(&self.more).try_acquire_owned().ok();
            if is_first || more.is_some() {
                let stream = self.dial(false).await?;
                self.keep(stream, more.filter(|_| !is_first)).await?;
                if let Some(sender) = self.http2() {
                    return Ok(Sender::Http2(sender));
                }
            } else if Instant::now() > until {
                return Err(self.failed(&"there are too many connections"));
            } else {
                sleep(TURN).await;
            }
        }
    }

    fn is_unknown(&self) -> bool {
        let known = self.known.borrow();
        match known.version {
            None => true,
            Some(Version::HTTP_2) => known.http2.as_ref().is_none_or(Http2::is_closed),
            Some(_) => false,
        }
    }

    fn http2(&self) -> Option<Http2> {
        let known = self.known.borrow();
        known.http2.clone().filter(|sender| !sender.is_closed())
    }

    /// A connection that is not in use; those that have ended are forgotten.
    fn idle(&self) -> Option<(Http1, Option<OwnedSemaphorePermit>)> {
        let connections = &mut self.known.borrow_mut().http1;
        connections.retain(|(sender, _)| !sender.is_closed());
        let position = connections.iter().position(|(sender, _)| sender.is_ready())?;
        Some(connections.swap_remove(position))
    }

    /// Begins to speak HTTP on `stream`.
    async fn keep(&self, stream: Stream, more: Option<OwnedSemaphorePermit>) -> Result<(), Unanswered> {
        if stream.is_http2() {
            let (sender, connection) = http2::Builder::new(LocalExecutor)
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(MAX_HEAD_OF_STREAM)
                .handshake(stream.into_io())
                .await
                .map_err(|error| self.failed(&error))?;
            // How it ends is seen by those whose requests end with it.
            spawn_local(async move { drop(connection.await) });
            let mut known = self.known.borrow_mut();
            known.version = Some(Version::HTTP_2);
            known.http2 = Some(sender);
            return Ok(());
        }
        let sender = self.begin_http1(stream).await?;
        let mut known = self.known.borrow_mut();
        known.version = Some(Version::HTTP_11);
        known.http2 = None;
        known.http1.push((sender, more));
        Ok(())
    }

    async fn begin_http1(&self, stream: Stream) -> Result<Http1, Unanswered> {
        let (mut sender, connection) = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(MAX_HEAD)
            .handshake(stream.into_io())
            .await
            .map_err(|error| self.failed(&error))?;
        spawn_local(async move { drop(connection.with_upgrades().await) });
        sender.ready().await.map_err(|error| self.failed(&error))?;
        Ok(sender)
    }

    /// Sends a request that asks for another protocol, on a connection of its own.
    pub(super) async fn send_upgrade(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, Unanswered> {
        // The others are not needed any more: what follows is not HTTP, or the client begins anew.
        *self.known.borrow_mut() = Known::default();
        let stream = self.dial(true).await?;
        let mut sender = self.begin_http1(stream).await?;
        let (upgrade, connection) = {
            let headers = request.headers();
            (headers.get(UPGRADE).cloned(), headers.get(CONNECTION).cloned())
        };
        let mut request = self.addressed(request, Version::HTTP_11, false)?;
        for (name, value) in [(UPGRADE, upgrade), (CONNECTION, connection)] {
            if let Some(value) = value {
                request.headers_mut().insert(name, value);
            }
        }
        sender.send_request(request).await.map_err(|error| self.failed(&error))
    }

    async fn dial(&self, only_http1: bool) -> Result<Stream, Unanswered> {
        let dialled = self.shared.dial(&self.to.host, self.to.port, &self.log.led_to).await;
        let (made, leading) = dialled.map_err(Stopped::from)?;
        self.log.made.set(true);
        self.log.address.set(made.address);
        let stream = made.stream;
        // Latency counts more than packets.
        let _ = stream.set_nodelay(true);
        let (Scheme::Https, Some(opening)) = (self.to.scheme, &self.shared.opening) else {
            return Ok(Stream::plain(stream, leading));
        };
        let name = server_name(&self.to.host).map_err(Unanswered::Failed)?;
        let connector = if only_http1 {
            &opening.connectors.only_http1
        } else {
            &opening.connectors.any
        };
        match timeout(HANDSHAKE, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Stream::tls(stream, leading)),
            Ok(Err(error)) => Err(Unanswered::Failed(distrust(&self.to, &error))),
            Err(_) => Err(self.failed(&"its TLS handshake took too long")),
        }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("to", &self.to).finish_non_exhaustive()
    }
}

/// The same request again, if asking twice means the same as asking once and it has no body.
fn spare(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let may_be_repeated = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !may_be_repeated || !request.body().is_end_stream() {
        return None;
    }
    let mut spare = Request::new(request.body().without_contents());
    *spare.method_mut() = request.method().clone();
    *spare.uri_mut() = request.uri().clone();
    *spare.headers_mut() = request.headers().clone();
    Some(spare)
}

/// Why a server is not trusted, or not understood.
fn distrust(to: &Destination, error: &io::Error) -> String {
    let host = &to.host;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match inner {
        Some(rustls::Error::InvalidCertificate(reason)) => reason,
        _ => return format!("TLS with `{host}` failed: {error}"),
    };
    let why = match reason {
        // The latter where an authority has the same name as one that is trusted.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "nobody whom this machine trusts has issued it".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name".to_owned()
        }
        other => other.to_string(),
    };
    format!("the certificate of `{host}` is not trusted: {why}")
}
