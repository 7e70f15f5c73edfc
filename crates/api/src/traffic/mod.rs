//! Traffic to sandboxes: to the services that SDKs expect in each, and to every port that a program listens on.
//!
//! No key is asked for here. The services ask for the sandbox's access token, its ports for its traffic token where it
//! has one.

mod forward;
mod headers;
mod places;

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_manager::daemon::{Access, DaemonError, State as SandboxState};
use offleash_manager::keeper::client::Keeper;
use offleash_manager::keeper::error::KeeperError;
use serde::Serialize;
use subtle::ConstantTimeEq as _;

pub(crate) use self::places::Places;
use crate::answer;
use crate::body::Body;
use crate::connection::Client;
use crate::envd::{self, SandboxAccess};
use crate::failure;
use crate::route::ENVD_PORT;
use crate::server::State;

const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// A request to a sandbox.
#[derive(Debug)]
pub(crate) struct To<'a> {
    pub(crate) id: &'a str,
    pub(crate) port: u16,
    /// Whether it was named by a path, below which a page of it must not be taken for one of ours.
    pub(crate) by_path: bool,
}

/// Why traffic does not get to a sandbox; the SDKs know these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreached {
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
    /// The way there is broken.
    Failed,
}

#[derive(Serialize)]
struct UnreachedBody<'a> {
    #[serde(rename = "sandboxId")]
    sandbox: &'a str,
    message: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
}

impl Unreached {
    fn answer(self, to: &To<'_>) -> Response<Body> {
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
            Self::Failed => (StatusCode::BAD_GATEWAY, "The sandbox cannot be reached"),
        };
        let body = UnreachedBody {
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

/// Answers a request to a sandbox.
pub(crate) async fn answer(state: &State, client: &Client, to: &To<'_>, request: Request<Incoming>) -> Response<Body> {
    match reach(state, client, to, request).await {
        Ok(response) => response,
        Err(unreached) => unreached.answer(to),
    }
}

async fn reach(
    state: &State,
    client: &Client,
    to: &To<'_>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Unreached> {
    let access = state.daemon.access(to.id).map_err(|error| unreached(state, &error))?;
    if access.state == SandboxState::Paused && !access.auto_resume {
        return Err(Unreached::NotFound);
    }
    if to.port != ENVD_PORT {
        check_traffic_token(&access, request.headers())?;
    }
    let keeper = keeper(state, to.id).await?;
    if to.port == ENVD_PORT {
        let sandbox = SandboxAccess {
            id: access.id,
            access_token: access.access_token,
            env: access.env,
            keeper,
            watchers: Arc::clone(&state.watchers),
        };
        return Ok(envd::handle(&sandbox, request).await);
    }
    let place = state.places.take(to.id).ok_or(Unreached::Full)?;
    let stream = keeper.port(to.port).await.map_err(|error| no_port(state, &error))?;
    let way = forward::Way {
        client,
        access: &access,
        to,
    };
    let answered = forward::forward(&way, request, stream, place).await;
    answered.map_err(|error| {
        failure::record(&*state.journal, "The sandbox cannot be reached", &error);
        Unreached::Failed
    })
}

/// The way to a sandbox, which is resumed by this when it may be.
async fn keeper(state: &State, id: &str) -> Result<Keeper, Unreached> {
    state.daemon.keeper(id).await.map_err(|error| unreached(state, &error))
}

fn check_traffic_token(access: &Access, headers: &HeaderMap) -> Result<(), Unreached> {
    let Some(expected) = &access.traffic_token else {
        return Ok(());
    };
    let given = headers.get(TRAFFIC_TOKEN).and_then(|token| token.to_str().ok());
    // In a time that does not say where the two differ.
    if given.is_some_and(|given| expected.as_bytes().ct_eq(given.as_bytes()).into()) {
        Ok(())
    } else {
        Err(Unreached::Forbidden)
    }
}

fn unreached(state: &State, error: &DaemonError) -> Unreached {
    match error {
        DaemonError::NotFound { .. } => Unreached::NotFound,
        DaemonError::Conflict { .. } => Unreached::Changing,
        DaemonError::QuotaExceeded { .. } => Unreached::OverQuota,
        DaemonError::Overloaded { retry_after, .. } => Unreached::Busy {
            retry_after: *retry_after,
        },
        _ => {
            failure::record(&*state.journal, "The sandbox cannot be reached", error);
            Unreached::Failed
        }
    }
}

fn no_port(state: &State, error: &KeeperError) -> Unreached {
    match error {
        KeeperError::PortClosed => Unreached::PortClosed,
        KeeperError::Gone => Unreached::NotFound,
        KeeperError::Paused => Unreached::Changing,
        KeeperError::Exhausted { .. } => Unreached::Full,
        _ => {
            failure::record(&*state.journal, "The sandbox cannot be reached", error);
            Unreached::Failed
        }
    }
}

/// Whether a request asks for a file by a signed URL, which need not name a sandbox.
pub(crate) fn is_signed(parts: &Parts) -> bool {
    let query = parts.uri.query().unwrap_or_default();
    parts.uri.path() == "/files" && query.split('&').any(|pair| pair.starts_with("signature="))
}

/// The sandbox with whose token a request was signed.
///
/// SDKs that are told one address for all sandboxes make URLs of a path and a signature alone.
pub(crate) async fn sandbox_of_signature(state: &State, parts: &Parts) -> Option<String> {
    let _turn = state.signatures.acquire().await;
    let is_signer = |access: &Access| {
        let token = access.access_token.as_deref();
        token.is_some_and(|token| envd::is_signed_by(token, &parts.method, &parts.uri))
    };
    state.daemon.live().into_iter().find(is_signer).map(|access| access.id)
}
