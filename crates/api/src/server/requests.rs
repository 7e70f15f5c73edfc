//! Requests: who answers each, once it is known whom it is for and whether it may be made at all.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_daemon::Scope;

use super::connection::RequestService;
use super::figures::{self, AnswerTally};
use super::pages;
use crate::control::{ApiRequest, ControlPlane};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::{self, Body};
use crate::http::clients::ClientSlots;
use crate::http::cors;
use crate::http::destination::{self, CODE_PORT, ENVD_PORT, RequestDestination};
use crate::http::guard::OriginGuard;
use crate::http::peer::{ClientConnection, ClientPeer};
use crate::journal::{Event, Journal, RequestEvent};
use crate::mcp::http::McpService;
use crate::telemetry::{MetricSnapshot, RequestSubject, Telemetry};
use crate::traffic::{self, PortTarget, TrafficService};
use crate::{mcp, routes, ui};

/// When it is worth asking again whether a server is ready that was not.
const READY_AGAIN: Duration = Duration::from_secs(5);

/// The services of a server, each with its own state, and what is before them.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) control: Arc<ControlPlane>,
    pub(super) traffic: TrafficService,
    pub(super) mcp: McpService,
    pub(super) entrance: ServerEntrance,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) telemetry: Telemetry,
}

/// What every client passes: who may connect, under which names and from which pages; and how many came.
#[derive(Debug)]
pub(super) struct ServerEntrance {
    pub(super) guard: OriginGuard,
    pub(super) tls: Option<Arc<rustls::ServerConfig>>,
    pub(super) clients: Arc<ClientSlots>,
    pub(super) tally: AnswerTally,
    pub(super) metrics_need_key: bool,
}

impl ServerEntrance {
    /// Whether a request was made on this machine, by whatever program.
    fn is_local(&self, client: &ClientConnection, parts: &Parts) -> bool {
        let peer = client.peer.address();
        peer.is_some_and(|peer| peer.ip().is_loopback()) && self.guard.is_direct(parts)
    }
}

impl ServerState {
    /// The server's numbers.
    pub(super) fn numbers(&self) -> MetricSnapshot {
        let ServerEntrance {
            tally, clients, tls, ..
        } = &self.entrance;
        let families = figures::families(self.control.daemon(), clients, self.telemetry.lost());
        figures::snapshot(families, tally, tls.is_some())
    }

    /// The page with them.
    fn metrics(&self) -> Response<Body> {
        pages::metrics(&self.numbers())
    }
}

impl RequestService for ServerState {
    /// Answers one request, and tells of it.
    fn answer(
        &self,
        client: &ClientConnection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send {
        self.told(client, request)
    }

    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.entrance.tls.clone()
    }
}

impl ServerState {
    async fn told(&self, client: &ClientConnection, request: Request<Incoming>) -> Response<Body> {
        let answering = client.busy.begin();
        let began = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let span = self.telemetry.request(&method, request.headers());
        let mut subject = RequestSubject::default();
        let response = match span.hold(self.route(client, request, &mut subject)).await {
            Ok(response) => response,
            Err(refusal) => refusal.answer(),
        };
        let mut response = response;
        if let Some(origin) = subject.page.take() {
            cors::tell(&mut response, origin);
        }
        self.entrance
            .tally
            .answered(&method, response.status(), began.elapsed());
        span.end(&subject, response.status());
        self.journal.record(&Event::Request(&RequestEvent {
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

    async fn route(
        &self,
        client: &ClientConnection,
        request: Request<Incoming>,
        subject: &mut RequestSubject,
    ) -> Result<Response<Body>, ApiRefusal> {
        let (mut parts, body) = request.into_parts();
        if matches!(parts.method, http::Method::CONNECT | http::Method::TRACE) {
            return Err(ApiRefusal::wrong_method(&parts.method).closing());
        }
        if client.peer != ClientPeer::Owner {
            check_address(&self.entrance.guard, &parts)?;
        }
        let guard = &self.entrance.guard;
        let route = destination::destination(&mut parts, guard.domain.as_deref());
        let route = route.map_err(|error| ApiRefusal::bad_request(error.to_string()))?;
        // A page that a program in a sandbox serves is none of ours, although it comes from this address.
        let at_sandbox = destination::is_at_sandbox(&parts.uri, &parts.headers, guard.domain.as_deref());
        let authority = destination::authority(&parts.uri, &parts.headers).filter(|_| !at_sandbox);
        // A program's own port is its own matter: whoever knows the id of the sandbox may call it.
        let is_ours =
            !matches!(route, RequestDestination::Sandbox { port, .. } if ![ENVD_PORT, CODE_PORT].contains(&port));
        if is_ours && !guard.welcomes(&parts.headers, authority) {
            let message = "pages of this origin may not call; `--allow-origin` allows one";
            return Err(ApiRefusal::new(StatusCode::FORBIDDEN, message).final_answer());
        }
        if is_ours {
            subject.page = cors::allowed(guard, &parts.headers);
            if subject.page.is_some() && cors::is_preflight(&parts) {
                return Ok(cors::preflight(&parts.headers));
            }
        }
        let route = match route {
            RequestDestination::ControlPlane if traffic::is_signed(&parts) => self.signed(&parts).await?,
            other => other,
        };
        if route == RequestDestination::ControlPlane
            && let Some((what, id)) = traffic::Addressed::of(&parts)
        {
            let request = Request::from_parts(parts, body);
            let answer = self.traffic.addressed(client, (what, &id), request).await;
            subject.sandbox = Some(id);
            return Ok(answer);
        }
        match route {
            RequestDestination::ControlPlane => self.control_plane(client, &parts, body, subject).await,
            RequestDestination::Sandbox { id, port, by_path } => {
                let to = PortTarget { id: &id, port, by_path };
                let answer = self.traffic.answer(client, &to, Request::from_parts(parts, body)).await;
                subject.sandbox = Some(id);
                subject.port = Some(port);
                Ok(answer)
            }
        }
    }

    /// Where a signed request goes that names no sandbox.
    async fn signed(&self, parts: &Parts) -> Result<RequestDestination, ApiRefusal> {
        let id = self.traffic.sandbox_of_signature(parts).await?;
        let (port, by_path) = (ENVD_PORT, false);
        Ok(RequestDestination::Sandbox { id, port, by_path })
    }

    /// Answers what is for the server itself.
    async fn control_plane(
        &self,
        client: &ClientConnection,
        parts: &Parts,
        body: Incoming,
        subject: &mut RequestSubject,
    ) -> Result<Response<Body>, ApiRefusal> {
        let path = parts.uri.path();
        if self.telemetry.traces() {
            subject.route = route_of(&parts.method, path);
        }
        match path {
            "/healthz" => return Ok(answer::empty(StatusCode::NO_CONTENT)),
            "/readyz" => return self.ready().await,
            _ => {}
        }
        if let Some(answer) = ui::answer(parts) {
            return Ok(answer);
        }
        if let Some(answer) = routes::answer_open(&parts.method, path) {
            return Ok(answer);
        }
        if path == "/metrics" && !self.entrance.metrics_need_key && self.entrance.is_local(client, parts) {
            return Ok(self.metrics());
        }
        let body = match routes::answer_by_token(&self.control, parts, body).await {
            Ok(answer) => return Ok(answer),
            Err(body) => body,
        };
        let caller = self.control.caller(client, &parts.headers)?;
        subject.key = Some(caller.key_id.clone());
        let control = &self.control;
        let asked = ApiRequest {
            control,
            client,
            caller,
            parts,
        };
        if path == "/metrics" {
            asked.require(Scope::Admin)?;
            return Ok(self.metrics());
        }
        if let Some(target) = traffic::tunnel::asked_for(parts) {
            let (id, port) = target?;
            asked.require(Scope::Create)?;
            asked
                .daemon()
                .get(&asked.caller, &id)
                .map_err(|error| asked.refused(&error))?;
            (subject.sandbox, subject.port) = (Some(id.clone()), Some(port));
            return Ok(self.traffic.tunnel(client, &id, port, parts).await);
        }
        if path == mcp::http::PATH {
            asked.require(Scope::Create)?;
            return match mcp::stream::is_asked_for(client, parts) {
                true => mcp::stream::answer(&self.mcp, &asked, client),
                false => self.mcp.answer(&asked, body).await,
            };
        }
        routes::answer(&asked, body).await
    }

    /// Says whether the server can do what it is there for.
    async fn ready(&self) -> Result<Response<Body>, ApiRefusal> {
        let missing = self.control.daemon().missing().await;
        if missing.is_empty() {
            return Ok(answer::empty(StatusCode::NO_CONTENT));
        }
        let named: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let told = format!("not ready: {}", named.join("; "));
        Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, told).retry_after(READY_AGAIN))
    }
}

/// The route of a request for the server itself, without what the caller put into it.
fn route_of(method: &Method, path: &str) -> Option<&'static str> {
    const OWN: [&str; 4] = ["/healthz", "/readyz", "/metrics", mcp::http::PATH];
    let own = OWN.iter().find(|own| **own == path).copied();
    own.or_else(|| routes::pattern_of(method, path))
}

/// Refuses what is addressed to somebody else.
fn check_address(guard: &OriginGuard, parts: &Parts) -> Result<(), ApiRefusal> {
    if parts.headers.get_all(http::header::HOST).iter().count() > 1 {
        return Err(ApiRefusal::bad_request("`host` is there more than once").closing());
    }
    if guard.knows_host(destination::host(&parts.uri, &parts.headers)) {
        return Ok(());
    }
    let message = "this server does not go by the name in `host`; `--domain` gives it one";
    Err(ApiRefusal::new(StatusCode::MISDIRECTED_REQUEST, message))
}
