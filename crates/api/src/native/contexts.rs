//! Contexts of code in the native REST.

use std::sync::Arc;

use http::{Response, StatusCode};
use offleash_daemon::{SandboxContexts, VisibleState};
use offleash_interpreter::contexts::ContextInfo;
use offleash_interpreter::error::ContextError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cells::{context_refusal, language};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;

/// A context that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewContext {
    /// Its language; `python` if absent.
    pub(crate) language: Option<String>,
    /// The directory in which it works; the user's home if absent.
    pub(crate) cwd: Option<String>,
}

/// The contexts of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ContextList {
    /// The contexts, in the order in which they were made.
    pub(crate) contexts: Vec<ContextAnswer>,
}

/// A context: code that keeps its state from one cell to the next.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Context")]
pub(crate) struct ContextAnswer {
    /// Its id.
    pub(crate) id: String,
    /// Its language.
    pub(crate) language: String,
    /// The directory in which it was started.
    pub(crate) cwd: String,
    /// Whether it is that of its language for cells that name none.
    pub(crate) is_default: bool,
    /// `starting`, `idle`, `busy`, or `dead` when its process has ended: the next cell finds a new one.
    pub(crate) state: String,
    /// How many cells it has run since it was started last.
    pub(crate) count: u64,
}

impl From<ContextInfo> for ContextAnswer {
    fn from(info: ContextInfo) -> Self {
        Self {
            id: info.id,
            language: info.language.name().to_owned(),
            cwd: info.cwd,
            is_default: info.is_default,
            state: info.state.as_str().to_owned(),
            count: info.count,
        }
    }
}

/// The contexts of one of the caller's sandboxes, which is resumed if traffic resumes it.
pub(crate) async fn of(asked: &ApiRequest<'_>, given: &str) -> Result<Arc<SandboxContexts>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let daemon = &asked.daemon();
    daemon.get(&asked.caller, id).map_err(|error| asked.refused(&error))?;
    daemon.contexts(id).await.map_err(|error| asked.refused(&error))
}

/// The same, for those who only look: that must not resume it.
async fn shown(asked: &ApiRequest<'_>, given: &str) -> Result<Arc<SandboxContexts>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let view = asked.daemon().get(&asked.caller, id);
    if view.map_err(|error| asked.refused(&error))?.state == VisibleState::Paused {
        return Err(ApiRefusal::new(StatusCode::CONFLICT, "the sandbox is paused"));
    }
    of(asked, given).await
}

/// What the caller is told of an error of contexts.
pub(crate) fn refused(asked: &ApiRequest<'_>, error: &ContextError) -> ApiRefusal {
    context_refusal(asked.journal(), error)
}

pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let all = shown(asked, given).await?.list().await;
    let all = all.map_err(|error| refused(asked, &error))?;
    let contexts = all.into_iter().map(ContextAnswer::from).collect();
    Ok(answer::json(StatusCode::OK, &ContextList { contexts }))
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let contexts = of(asked, given).await?;
    let new: NewContext = body.read().await?;
    let language = language(new.language.as_deref()).map_err(|error| refused(asked, &error))?;
    let made = contexts.create(language, new.cwd).await;
    let made = made.map_err(|error| refused(asked, &error))?;
    Ok(answer::json(StatusCode::CREATED, &ContextAnswer::from(made)))
}

pub(crate) async fn get(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let found = shown(asked, given).await?.get(context).await;
    let found = found.map_err(|error| refused(asked, &error))?;
    Ok(answer::json(StatusCode::OK, &ContextAnswer::from(found)))
}

pub(crate) async fn remove(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let removed = of(asked, given).await?.remove(context).await;
    done(asked, removed)
}

pub(crate) async fn restart(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let restarted = of(asked, given).await?.restart(context).await;
    done(asked, restarted)
}

pub(crate) async fn interrupt(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let interrupted = of(asked, given).await?.interrupt(context).await;
    done(asked, interrupted)
}

fn done(asked: &ApiRequest<'_>, outcome: Result<(), ContextError>) -> Result<Response<Body>, ApiRefusal> {
    outcome.map_err(|error| refused(asked, &error))?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
