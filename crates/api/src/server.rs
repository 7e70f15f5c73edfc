//! The server: listens, bounds how many clients there are, and says who answers a request.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_daemon::{Daemon, Scope};
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use crate::answer::{self, Refusal};
use crate::body::{self, Body};
use crate::clients::{Clients, TooMany};
use crate::connection::{self, Client, Held, Peer};
use crate::control::Asked;
use crate::cors;
use crate::envd::{Listings, Watchers};
use crate::guard::Guard;
use crate::journal::{Event, Journal, RequestEvent};
use crate::large::Large;
use crate::listen::{self, Listen, ListenError};
use crate::mcp::http::{self as mcp, Sessions};
use crate::mcp::stream;
use crate::pages::{self, Tally};
use crate::route::{self, CODE_PORT, ENVD_PORT, Route};
use crate::tls::{self, Certificate, TlsError, TlsFiles};
use crate::trace::Tracer;
#[cfg(feature = "otel")]
use crate::trace::TracesEndpoint;
use crate::traffic::{self, Places, To};
use crate::{authentication, failure, routes};

/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many clients that are too many are told so at once; further ones are cut.
const TURNED_AWAY: usize = 64;
/// How many signatures that name no sandbox are looked at, at once: each with the token of every sandbox.
const SIGNATURES: usize = 2;

/// The domain of a server that only this machine reaches and that was given none: names below it are this machine's
/// (RFC 6761, section 6.3).
const LOCAL_DOMAIN: &str = "localhost";

/// When it is worth asking again whether a server is ready that was not.
const READY_AGAIN: Duration = Duration::from_secs(5);

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
    /// The domain below which `PORT-ID.DOMAIN` names a port inside a sandbox; with the port that it is reached at,
    /// unless that is the usual one. `localhost` with the server's port if absent and only this machine reaches it.
    pub domain: Option<String>,
    /// Origins whose pages may call, as in `https://app.example`.
    pub allow_origins: Vec<String>,
    /// Whether `/metrics` asks for a key even of programs on this machine: where a proxy stands in front that does not say
    /// so.
    pub metrics_need_key: bool,
    /// How many connections there may be at once, but for those of the owner's own socket.
    pub max_connections: usize,
    /// How many of them from one address; never more than three quarters of all.
    pub max_connections_per_address: usize,
    /// How many of them to the ports of one sandbox.
    pub max_connections_per_sandbox: usize,
    /// How long requests may go on once the server is told to end.
    pub drain: Duration,
    /// Who is told what requests took.
    #[cfg(feature = "otel")]
    pub traces: Option<TracesEndpoint>,
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
            metrics_need_key: false,
            max_connections: 16 * 1024,
            max_connections_per_address: 4096,
            max_connections_per_sandbox: 512,
            drain: Duration::from_secs(10),
            #[cfg(feature = "otel")]
            traces: None,
        }
    }

    /// Whether a server could begin with it, as far as that shows without listening.
    ///
    /// # Errors
    /// When it may not listen there, or its certificate cannot be used.
    pub fn check(&self) -> Result<(), ServeError> {
        if let Some(files) = &self.tls {
            tls::config(Certificate::read(files.clone())?)?;
        }
        match self.listen {
            Listen::Address(address) => self.check_public(address),
            Listen::Inherited(_) => Ok(()),
        }
    }

    /// Refuses an address at which others could read keys on their way.
    fn check_public(&self, address: SocketAddr) -> Result<(), ServeError> {
        if address.ip().is_loopback() || self.tls.is_some() || self.insecure_public {
            return Ok(());
        }
        Err(ListenError::Public { address }.into())
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

impl ServeError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Listen(ListenError::Address { .. }) => {
                "another program may have it; `--listen ADDRESS:PORT` names another, port 0 takes any"
            }
            Self::Listen(ListenError::Public { .. }) => {
                "give `--tls-cert` and `--tls-key`, listen on 127.0.0.1 behind a proxy that speaks TLS, or say \
                 `--insecure-public`"
            }
            Self::Listen(ListenError::Inherited(_)) => "the socket unit must have one `ListenStream=` with an address",
            Self::Listen(ListenError::Local { .. }) => "the state directory must be one that this user can write to",
            Self::Tls(_) => "both files must be PEM, the certificate first among those that lead to its authority",
        }
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: Option<UnixListener>,
    drain: Duration,
    state: Arc<State>,
}

/// What every request sees of the server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) daemon: Daemon,
    pub(crate) places: Places,
    pub(crate) mcp: Sessions,
    pub(crate) tally: Tally,
    pub(crate) clients: Arc<Clients>,
    metrics_need_key: bool,
    pub(crate) guard: Guard,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) listings: Listings,
    large: Large,
    /// How many signatures that name no sandbox are looked at, at once.
    pub(crate) signatures: Semaphore,
    /// What clients on this machine call the server.
    pub(crate) url: String,
    domain: Option<String>,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    certificate: Option<Arc<Certificate>>,
    pub(crate) journal: Arc<dyn Journal>,
    tracer: Tracer,
    /// Whether requests are cut from here on because the server ends.
    pub(crate) is_ending: Arc<AtomicBool>,
}

impl Server {
    /// Listens; requests wait until [`Server::run`].
    ///
    /// # Errors
    /// When it cannot listen there, or should not.
    pub async fn bind(config: ServerConfig, daemon: Daemon, journal: Arc<dyn Journal>) -> Result<Self, ServeError> {
        let certificate = config.tls.map(Certificate::read).transpose()?;
        let tls = certificate.clone().map(tls::config).transpose()?;
        let (listener, address) = listen::tcp(config.listen).await?;
        let is_public = !address.ip().is_loopback();
        if is_public && tls.is_none() && !config.insecure_public {
            return Err(ListenError::Public { address }.into());
        }
        let local = config.local.as_deref().map(listen::local).transpose()?;
        let usual = || (!is_public).then(|| format!("{LOCAL_DOMAIN}:{}", address.port()));
        let domain = config.domain.map(|domain| domain.to_ascii_lowercase()).or_else(usual);
        let guard = Guard {
            local_only: !is_public,
            domain: domain.as_deref().map(|domain| route::without_port(domain).to_owned()),
            origins: config.allow_origins,
        };
        #[cfg(feature = "otel")]
        let tracer = Tracer::start(config.traces, &journal);
        #[cfg(not(feature = "otel"))]
        let tracer = Tracer;
        let state = Arc::new(State {
            daemon,
            places: Places::new(config.max_connections_per_sandbox),
            mcp: Sessions::default(),
            tally: Tally::default(),
            clients: Clients::new(affordable(config.max_connections), config.max_connections_per_address),
            metrics_need_key: config.metrics_need_key,
            guard,
            watchers: Arc::default(),
            listings: Listings::default(),
            large: Large::default(),
            signatures: Semaphore::new(SIGNATURES),
            url: listen::url(address, tls.is_some()),
            domain,
            tls,
            certificate,
            journal,
            tracer,
            is_ending: Arc::default(),
        });
        Ok(Self {
            listener,
            local,
            drain: config.drain,
            state,
        })
    }

    /// What clients on this machine call the server, as in `http://127.0.0.1:3000`.
    pub fn url(&self) -> &str {
        &self.state.url
    }

    /// The certificate that TLS is spoken with, to be read again when its files have changed.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.state.certificate.clone()
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
        self.state.is_ending.store(true, Ordering::Release);
        // Nobody may be there to be told.
        let _told = ending.send(true);
        // Their streams would last as long as their clients like.
        self.state.mcp.end();
        // What is not done by then is cut.
        let _drained = tokio::time::timeout(self.drain, ending.closed()).await;
        self.state.tracer.flush().await;
    }

    async fn accept(&self, hears: &watch::Receiver<bool>) {
        let away = Arc::new(Semaphore::new(TURNED_AWAY));
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.take(stream, peer, hears, &away),
                    Err(error) => self.cannot_accept(&error).await,
                },
                accepted = accept_local(self.local.as_ref()) => match accepted {
                    Ok(stream) => self.take_local(stream, hears),
                    Err(error) => self.cannot_accept(&error).await,
                },
            }
        }
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr, hears: &watch::Receiver<bool>, away: &Arc<Semaphore>) {
        let state = Arc::clone(&self.state);
        match state.clients.admit(Some(peer.ip())) {
            Ok(place) => {
                let ending = hears.clone();
                tokio::spawn(connection::serve_tcp(stream, peer, state, Held { place, ending }));
            }
            Err(why) => {
                let (most, address) = (why.most(), matches!(why, TooMany::OfAddress(_)).then_some(peer.ip()));
                state.journal.record(&Event::Full { most, address });
                if let Ok(turn) = Arc::clone(away).try_acquire_owned() {
                    tokio::spawn(connection::turn_away(stream, why, turn));
                }
            }
        }
    }

    fn take_local(&self, stream: UnixStream, hears: &watch::Receiver<bool>) {
        let state = Arc::clone(&self.state);
        match state.clients.admit(None) {
            Ok(place) => {
                let ending = hears.clone();
                tokio::spawn(connection::serve_local(stream, state, Held { place, ending }));
            }
            Err(why) => {
                let (most, address) = (why.most(), None);
                state.journal.record(&Event::Full { most, address });
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

/// How many clients the descriptors of this process are enough for: a client can need two, and what it asks for more.
fn affordable(asked: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(asked, |files| {
        asked.min(usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
    })
}

async fn accept_local(listener: Option<&UnixListener>) -> std::io::Result<UnixStream> {
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
    let span = state.tracer.request(&method, request.headers());
    let mut subject = Subject::default();
    let response = match span.hold(route(state, client, request, &mut subject)).await {
        Ok(response) => response,
        Err(refusal) => refusal.answer(),
    };
    let mut response = response;
    if let Some(origin) = subject.page.take() {
        cors::tell(&mut response, origin);
    }
    state.tally.answered(response.status());
    span.end(&subject, response.status());
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

/// What a request turned out to be about.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    pub(crate) key: Option<String>,
    pub(crate) sandbox: Option<String>,
    pub(crate) port: Option<u16>,
    /// The origin of a page that was allowed to call, and may read the answer.
    page: Option<HeaderValue>,
}

async fn route(
    state: &State,
    client: &Client,
    request: Request<Incoming>,
    subject: &mut Subject,
) -> Result<Response<Body>, Refusal> {
    let (mut parts, body) = request.into_parts();
    if matches!(parts.method, http::Method::CONNECT | http::Method::TRACE) {
        return Err(routes::wrong_method(&parts.method).closing());
    }
    if client.peer != Peer::Owner {
        check_address(&state.guard, &parts)?;
    }
    let guard = &state.guard;
    let route = route::route(&mut parts, guard.domain.as_deref());
    let route = route.map_err(|error| Refusal::bad_request(error.to_string()))?;
    // A page that a program in a sandbox serves is none of ours, although it comes from this address.
    let at_sandbox = route::is_at_sandbox(&parts.uri, &parts.headers, guard.domain.as_deref());
    let authority = route::authority(&parts.uri, &parts.headers).filter(|_| !at_sandbox);
    // A program's own port is its own matter: whoever knows the id of the sandbox may call it.
    let is_ours = !matches!(route, Route::Sandbox { port, .. } if ![ENVD_PORT, CODE_PORT].contains(&port));
    if is_ours && !guard.welcomes(&parts.headers, authority) {
        let message = "pages of this origin may not call; `--allow-origin` allows one";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message).final_answer());
    }
    if is_ours {
        subject.page = cors::allowed(guard, &parts.headers);
        if subject.page.is_some() && cors::is_preflight(&parts) {
            return Ok(cors::preflight(&parts.headers));
        }
    }
    let route = match route {
        Route::ControlPlane if traffic::is_signed(&parts) => signed(state, &parts).await?,
        other => other,
    };
    match route {
        Route::ControlPlane => control_plane(state, client, &parts, body, subject).await,
        Route::Sandbox { id, port, by_path } => {
            let to = To { id: &id, port, by_path };
            let answer = traffic::answer(state, client, &to, Request::from_parts(parts, body)).await;
            subject.sandbox = Some(id);
            subject.port = Some(port);
            Ok(answer)
        }
    }
}

/// Where a signed request goes that names no sandbox.
async fn signed(state: &State, parts: &Parts) -> Result<Route, Refusal> {
    let id = traffic::sandbox_of_signature(state, parts).await?;
    let (port, by_path) = (ENVD_PORT, false);
    Ok(Route::Sandbox { id, port, by_path })
}

/// Answers what is for the server itself.
async fn control_plane(
    state: &State,
    client: &Client,
    parts: &Parts,
    body: Incoming,
    subject: &mut Subject,
) -> Result<Response<Body>, Refusal> {
    let path = parts.uri.path();
    match path {
        "/healthz" => return Ok(answer::empty(StatusCode::NO_CONTENT)),
        "/readyz" => return ready(state).await,
        _ => {}
    }
    if let Some(answer) = routes::answer_open(&parts.method, path) {
        return Ok(answer);
    }
    if path == "/metrics" && !state.metrics_need_key && is_local(state, client, parts) {
        return Ok(pages::metrics(&state.daemon, &state.tally, &state.clients));
    }
    let caller = authentication::caller(state, client, &parts.headers);
    let caller = caller.map_err(|error| failure::refusal(&*state.journal, &error, false))?;
    subject.key = Some(caller.key_id.clone());
    let asked = Asked { state, caller, parts };
    if path == "/metrics" {
        asked.require(Scope::Admin)?;
        return Ok(pages::metrics(&state.daemon, &state.tally, &state.clients));
    }
    if path == mcp::PATH {
        asked.require(Scope::Create)?;
        return match stream::is_asked_for(client, parts) {
            true => stream::answer(&asked, client),
            false => mcp::answer(&asked, body).await,
        };
    }
    let response = routes::answer(&asked, body).await?;
    state.large.bounded(&asked.caller.key_id, response).await
}

/// Says whether the server can do what it is there for.
async fn ready(state: &State) -> Result<Response<Body>, Refusal> {
    let missing = state.daemon.missing().await;
    if missing.is_empty() {
        return Ok(answer::empty(StatusCode::NO_CONTENT));
    }
    let named: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let told = format!("not ready: {}", named.join("; "));
    Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(READY_AGAIN))
}

/// Whether a request was made on this machine, by whatever program.
fn is_local(state: &State, client: &Client, parts: &Parts) -> bool {
    let peer = client.peer.address();
    peer.is_some_and(|peer| peer.ip().is_loopback()) && state.guard.is_direct(parts)
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

impl State {
    /// The domain that SDKs are to build host names with.
    pub(crate) fn shown_domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }
}
