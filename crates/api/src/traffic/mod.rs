//! Traffic to sandboxes: to the services that SDKs expect in each, and to every port that a program listens on.
//!
//! No key is asked for here. The services ask for the sandbox's access token, its ports for its traffic token where it
//! has one.

mod addressed;
mod awaited;
pub(crate) mod forward;
pub(crate) mod headers;
mod keys;
mod secured;
mod slots;
pub(crate) mod tunnel;
mod view_only;

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_daemon::{AccessRules, Daemon, DaemonError, VisibleState as SandboxState};
use offleash_supervisor::service::error::SupervisorError;
use serde::Serialize;
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

pub(crate) use self::addressed::Addressed;
use self::slots::PortSlots;
use crate::e2b::code;
use crate::e2b::envd::{self, EnvdService, SignedUrl};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::{CODE_PORT, ENVD_PORT};
use crate::http::failure;
use crate::http::peer::ClientConnection;
use crate::journal::Journal;

const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// What Daytona's clients show it in.
const PREVIEW_TOKEN: &str = "x-daytona-preview-token";

/// How long a signature that names no sandbox waits to be looked at, and when to ask again.
const SIGNATURE_TIMEOUT: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(1);
/// How many signatures that name no sandbox are looked at, at once: each with the token of every sandbox.
const MAX_SIGNATURES: usize = 2;

/// A request to a sandbox.
#[derive(Debug)]
pub(crate) struct PortTarget<'a> {
    pub(crate) id: &'a str,
    pub(crate) port: u16,
    /// Whether it was named by a path, below which a page of it must not be taken for one of ours.
    pub(crate) by_path: bool,
}

/// Why traffic does not get to a sandbox; the SDKs know these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrafficRefusal {
    /// It is gone, or paused for good.
    NotFound,
    /// Nobody listens on the port.
    PortClosed,
    /// It has a traffic token, and this is not it.
    Forbidden,
    /// It is being paused, resumed or ended.
    Changing,
    /// It has as many connections as it may have.
    Full,
    /// It is paused, and the quota of its key has no room for another that runs.
    OverQuota,
    /// It is paused, and the machine has too little left to resume it.
    Busy { retry_after: Duration },
    /// It is to be reached by TLS, and does not speak that.
    NoTls,
    /// It is a browser, and is reached by WebSocket alone.
    NoWebSocket,
    /// It is a screen, and is reached by WebSocket alone.
    NoScreen,
    /// The way there is broken.
    Failed,
}

#[derive(Serialize)]
struct TrafficRefusalBody<'a> {
    #[serde(rename = "sandboxId")]
    sandbox: &'a str,
    message: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

impl TrafficRefusal {
    fn answer(self, to: &PortTarget<'_>) -> Response<Body> {
        let (status, message) = match self {
            Self::NotFound => (StatusCode::BAD_GATEWAY, "The sandbox was not found"),
            Self::PortClosed => (StatusCode::BAD_GATEWAY, "The sandbox is running but port is not open"),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "The traffic access token is missing or not valid",
            ),
            Self::Changing => (StatusCode::CONFLICT, "The sandbox is being paused, resumed or ended"),
            Self::Full => (StatusCode::TOO_MANY_REQUESTS, "The sandbox has too many connections"),
            Self::OverQuota => (
                StatusCode::TOO_MANY_REQUESTS,
                "The sandbox is paused, and the quota of its key is used up",
            ),
            Self::Busy { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The sandbox is paused, and the machine has too little left to resume it",
            ),
            Self::NoTls => (
                StatusCode::BAD_GATEWAY,
                "The port is one of `httpsPorts`, and no TLS is spoken there",
            ),
            Self::NoWebSocket => (
                StatusCode::UPGRADE_REQUIRED,
                "The browser of a session is spoken to by WebSocket",
            ),
            Self::NoScreen => (
                StatusCode::UPGRADE_REQUIRED,
                "The screen of a desktop is looked at by WebSocket",
            ),
            Self::Failed => (StatusCode::BAD_GATEWAY, "The sandbox cannot be reached"),
        };
        let body = TrafficRefusalBody {
            sandbox: to.id,
            message,
            port: (self == Self::PortClosed).then_some(to.port),
            code: status.as_u16(),
        };
        let mut response = answer::json(status, &body);
        if let Self::Busy { retry_after } = self {
            let seconds = HeaderValue::from(retry_after.as_secs().max(1));
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}

/// The way to every sandbox's ports and services.
#[derive(Debug)]
pub(crate) struct TrafficService {
    daemon: Daemon,
    journal: Arc<dyn Journal>,
    envd: EnvdService,
    slots: PortSlots,
    /// The turns in which signatures that name no sandbox are looked at.
    signatures: Semaphore,
}

impl TrafficService {
    /// With at most `max_of_sandbox` connections to the ports of each sandbox.
    pub(crate) fn new(daemon: Daemon, journal: Arc<dyn Journal>, max_of_sandbox: usize) -> Self {
        Self {
            daemon,
            journal,
            envd: EnvdService::default(),
            slots: PortSlots::new(max_of_sandbox),
            signatures: Semaphore::new(MAX_SIGNATURES),
        }
    }

    /// Requests are cut from here on because the server ends.
    pub(crate) fn end(&self) {
        self.envd.end();
    }

    /// Answers a request to a sandbox.
    pub(crate) async fn answer(
        &self,
        client: &ClientConnection,
        to: &PortTarget<'_>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        match self.reach(client, to, request).await {
            Ok(response) => response,
            Err(unreached) => unreached.answer(to),
        }
    }

    async fn reach(
        &self,
        client: &ClientConnection,
        to: &PortTarget<'_>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let access = self.daemon.access(to.id).map_err(|error| self.unreached(&error))?;
        if access.state == SandboxState::Paused && !access.auto_resume {
            return Err(TrafficRefusal::NotFound);
        }
        if to.port == CODE_PORT {
            check_traffic_token(&access, request.headers())?;
            return self.code(access, request).await;
        }
        if to.port == ENVD_PORT {
            return self.services(access, request).await;
        }
        check_traffic_token(&access, request.headers())?;
        let place = self.slots.take(to.id).ok_or(TrafficRefusal::Full)?;
        let supervisor = self.daemon.supervisor(to.id).await;
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let place = place.used_by(supervisor.usage_guard());
        let stream = supervisor.port(to.port).await.map_err(|error| self.no_port(&error))?;
        let way = forward::ForwardPath {
            client,
            access: &access,
            to,
            only_looks: false,
        };
        // Not being able to is being slower.
        let _set = stream.set_nodelay(true);
        let answered = if access.https_ports.contains(&to.port) {
            let stream = secured::begin(stream).await.map_err(|error| {
                failure::record(&*self.journal, "TLS with a program in a sandbox", &error);
                TrafficRefusal::NoTls
            })?;
            forward::forward(&way, request, stream, place).await
        } else {
            forward::forward(&way, request, stream, place).await
        };
        answered.map_err(|error| {
            failure::record(&*self.journal, "The sandbox cannot be reached", &error);
            TrafficRefusal::Failed
        })
    }

    /// Answers a request to the services of a sandbox, which is resumed by this when it may be, and only for those who have
    /// a right to it.
    async fn services(
        &self,
        access: AccessRules,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, TrafficRefusal> {
        let admitted = match envd::admit(access.access_token.as_deref(), &request) {
            Ok(admitted) => admitted,
            Err(answer) => return Ok(*answer),
        };
        let supervisor = if admitted.resumes() {
            self.daemon.supervisor(&access.id).await
        } else if access.state == SandboxState::Paused {
            return Err(TrafficRefusal::NotFound);
        } else {
            self.daemon.supervisor_unless_paused(&access.id).await
        };
        let supervisor = supervisor.map_err(|error| self.unreached(&error))?;
        let sandbox = self.envd.of(access, supervisor);
        Ok(envd::handle(&sandbox, admitted, request).await)
    }

    /// Answers for the contexts of a sandbox, which is resumed by this when it may be, and only for those who may run code in
    /// it.
    async fn code(&self, access: AccessRules, request: Request<Incoming>) -> Result<Response<Body>, TrafficRefusal> {
        let admitted = match code::admit(&request, access.access_token.as_deref()) {
            Ok(admitted) => admitted,
            Err(refusal) => return Ok(refusal.answer()),
        };
        let contexts = if admitted.resumes() {
            self.daemon.contexts(&access.id).await
        } else if access.state == SandboxState::Paused {
            return Err(TrafficRefusal::NotFound);
        } else {
            self.daemon.contexts_unless_paused(&access.id).await
        };
        let contexts = contexts.map_err(|error| self.unreached(&error))?;
        Ok(code::answer(&*self.journal, &contexts, admitted, request.into_body()).await)
    }

    /// The sandbox with whose token a request was signed.
    ///
    /// SDKs that are told one address for all sandboxes make URLs of a path and a signature alone.
    ///
    /// # Errors
    /// 401 if it is none, or the signature's time is over; 400 for what cannot have been signed; 503 while too many are looked
    /// at.
    pub(crate) async fn sandbox_of_signature(&self, parts: &Parts) -> Result<String, ApiRefusal> {
        let unknown = || ApiRefusal::new(StatusCode::UNAUTHORIZED, "the signature is not valid for any sandbox");
        let url = SignedUrl::of(&parts.method, &parts.uri)?.filter(SignedUrl::is_shaped);
        let url = url.ok_or_else(unknown)?;
        url.check_time()?;
        let turn = tokio::time::timeout(SIGNATURE_TIMEOUT, self.signatures.acquire()).await;
        let busy =
            || ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many signatures are looked at").retry_after(SOON);
        let _turn = turn.map_err(|_| busy())?;
        let found = self.daemon.find_by_access_token(|token| url.is_signed_by(token));
        found.ok_or_else(unknown)
    }

    fn unreached(&self, error: &DaemonError) -> TrafficRefusal {
        match error {
            DaemonError::NotFound { .. } => TrafficRefusal::NotFound,
            DaemonError::Conflict { .. } => TrafficRefusal::Changing,
            DaemonError::QuotaExceeded { .. } => TrafficRefusal::OverQuota,
            DaemonError::Overloaded { retry_after, .. } => TrafficRefusal::Busy {
                retry_after: *retry_after,
            },
            _ => {
                failure::record(&*self.journal, "The sandbox cannot be reached", error);
                TrafficRefusal::Failed
            }
        }
    }

    fn no_port(&self, error: &SupervisorError) -> TrafficRefusal {
        match error {
            SupervisorError::PortClosed => TrafficRefusal::PortClosed,
            SupervisorError::Gone => TrafficRefusal::NotFound,
            SupervisorError::Paused => TrafficRefusal::Changing,
            SupervisorError::Exhausted { .. } => TrafficRefusal::Full,
            _ => {
                failure::record(&*self.journal, "The sandbox cannot be reached", error);
                TrafficRefusal::Failed
            }
        }
    }
}

fn check_traffic_token(access: &AccessRules, headers: &HeaderMap) -> Result<(), TrafficRefusal> {
    let Some(expected) = &access.traffic_token else {
        return Ok(());
    };
    let given = headers.get(TRAFFIC_TOKEN).or_else(|| headers.get(PREVIEW_TOKEN));
    check_token(expected, given.and_then(|token| token.to_str().ok()))
}

fn check_token(expected: &str, given: Option<&str>) -> Result<(), TrafficRefusal> {
    match is_token(expected, given) {
        true => Ok(()),
        false => Err(TrafficRefusal::Forbidden),
    }
}

/// Compares in a time that does not say where the two differ.
fn is_token(expected: &str, given: Option<&str>) -> bool {
    given.is_some_and(|given| expected.as_bytes().ct_eq(given.as_bytes()).into())
}

/// Whether a request asks for a file by a signed URL, which need not name a sandbox.
pub(crate) fn is_signed(parts: &Parts) -> bool {
    let query = parts.uri.query().unwrap_or_default();
    parts.uri.path() == "/files" && query.split('&').any(|pair| pair.starts_with("signature="))
}
