//! The native REST below `/v1`: what the API of E2B lacks.

mod cells;
mod contexts;
mod keys;
mod openapi;
mod operations;
mod run;
mod sandboxes;
mod schema;
mod shapes;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use offleash_manager::daemon::ENVD_VERSION;

use self::operations::{Found, Name};
use self::shapes::{Audit, Usage, Version};
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::control::{Asked, filter, unsupported, wrong_method};
use crate::query;

/// Whether a path is one of the native REST.
pub(crate) fn is_native(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// The OpenAPI document, which needs no key.
pub(crate) const DOCUMENT: &str = "/v1/openapi.json";

/// Answers with the OpenAPI document.
pub(crate) fn document() -> Response<Body> {
    answer::json(StatusCode::OK, &openapi::document())
}

/// Answers a request of the native REST.
pub(crate) async fn answer(asked: &Asked<'_>, body: Incoming) -> Result<Response<Body>, Refusal> {
    let parts = asked.parts;
    let (operation, [segment, below]) = match operations::find(&parts.method, parts.uri.path()) {
        Found::Operation(operation, segments) => (operation, segments),
        Found::OtherMethod => return Err(wrong_method(&parts.method)),
        Found::Nothing => return Err(Refusal::not_found("there is no such route")),
    };
    if let Some(scope) = operation.scope {
        asked.require(scope)?;
    }
    match operation.name {
        Name::OpenApi => Ok(document()),
        Name::Version => Ok(version(asked)),
        Name::Run => run::run(asked, body).await,
        Name::ListSandboxes => sandboxes::list(asked),
        Name::CreateSandbox => sandboxes::create(asked, body).await,
        Name::GetSandbox => Ok(answer::json(StatusCode::OK, &sandboxes::shown(asked, segment)?)),
        Name::KillSandbox => sandboxes::kill(asked, segment).await,
        Name::ResumeSandbox => sandboxes::resume(asked, segment, body).await,
        Name::ForkSandbox => sandboxes::fork(asked, segment, body).await,
        Name::RunInSandbox => run::run_in(asked, segment, body).await,
        Name::Execute => cells::execute_in_default(asked, segment, body).await,
        Name::ListContexts => contexts::list(asked, segment).await,
        Name::CreateContext => contexts::create(asked, segment, body).await,
        Name::GetContext => contexts::get(asked, segment, below).await,
        Name::RemoveContext => contexts::remove(asked, segment, below).await,
        Name::RestartContext => contexts::restart(asked, segment, below).await,
        Name::InterruptContext => contexts::interrupt(asked, segment, below).await,
        Name::ExecuteInContext => cells::execute(asked, segment, below, body).await,
        Name::SandboxUsage => sandboxes::usage(asked, segment).await,
        Name::GetPolicy => Ok(answer::json(StatusCode::OK, &sandboxes::shown(asked, segment)?.policy)),
        Name::SetPolicy => sandboxes::set_policy(asked, segment, body).await,
        Name::WorkspaceDiff | Name::WorkspaceApply => {
            // That the sandbox is not there comes first.
            sandboxes::shown(asked, segment)?;
            Err(unsupported("workspaces of the host are"))
        }
        Name::Called => sandboxes::called(asked, segment).await,
        Name::Audit => audit(asked).await,
        Name::Usage => usage(asked),
        Name::ListKeys => keys::list(asked).await,
        Name::CreateKey => keys::create(asked, body).await,
        Name::RevokeKey => keys::revoke(asked, segment).await,
    }
}

fn version(asked: &Asked<'_>) -> Response<Body> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        url: asked.state.url.clone(),
    };
    answer::json(StatusCode::OK, &version)
}

/// How many events a page has at most, and usually.
const MOST_EVENTS: u32 = 1000;
const EVENTS: u32 = 100;

async fn audit(asked: &Asked<'_>) -> Result<Response<Body>, Refusal> {
    let pairs = query::pairs(asked.query());
    let sandbox = match query::value(&pairs, "sandbox") {
        Some(sandbox) => Some(crate::control::id(asked, sandbox)?),
        None => None,
    };
    let limit = query::number(&pairs, "limit", 1..=MOST_EVENTS)?.unwrap_or(EVENTS);
    let after = query::number(&pairs, "after", 0..=i64::MAX)?;
    // From the beginning of what is new to whoever has seen some, or from the end.
    let (after, descending) = (after.unwrap_or(0), after.is_none());
    let events = asked
        .state
        .daemon
        .events(&asked.caller, sandbox, after, descending, limit)
        .await;
    let events = events.map_err(|error| asked.refused(&error))?;
    let events = events.into_iter().map(Into::into).collect();
    Ok(answer::json(StatusCode::OK, &Audit { events }))
}

fn usage(asked: &Asked<'_>) -> Result<Response<Body>, Refusal> {
    let page = asked.state.daemon.list(&asked.caller, &filter(asked)?);
    let page = page.map_err(|error| asked.refused(&error))?;
    let usage = Usage {
        running: u64::try_from(page.total_running).unwrap_or(u64::MAX),
        quota: asked.caller.quota.into(),
    };
    Ok(answer::json(StatusCode::OK, &usage))
}
