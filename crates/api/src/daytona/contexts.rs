//! Contexts of code, which keep their state from one piece of code to the next, and code that is run in one over a WebSocket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use offleash_core::exec::OutputStream;
use offleash_daemon::SandboxContexts;
use offleash_interpreter::cell::Cell;
use offleash_interpreter::contexts::{ContextInfo, ContextState};
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::process::MAX_SECONDS;
use super::socket::{self, NORMAL, REFUSED, WENT_WRONG};
use super::{MAX_CODE_BODY, done};
use crate::cells::{CellEvents, CellOutcome, CellTarget, RenderedEnd, RenderedEvent, context_refusal, language};
use crate::control::{ApiRequest, LastingRequest};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;
use crate::http::time;
use crate::http::websocket::{SocketGone, WebSocket};

/// How long a client may take to say what is to be run.
const CODE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long code may take if nothing is said, as Daytona has it, in seconds.
const USUAL_SECONDS: u64 = 600;

/// How a conversation ends whose code took too long, as Daytona numbers it.
const TIMED_OUT: u16 = 4008;

#[derive(Debug, Default, Deserialize)]
struct NewContext {
    cwd: Option<String>,
    language: Option<String>,
}

#[derive(Debug, Serialize)]
struct ContextList {
    contexts: Vec<ContextAnswer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextAnswer {
    id: String,
    language: &'static str,
    cwd: String,
    active: bool,
    /// When its sandbox was made: of a context nobody knows it.
    created_at: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewExecution {
    code: String,
    context_id: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; zero is none.
    timeout: Option<u64>,
}

/// What is told of code that runs.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Chunk {
    Stdout {
        text: String,
    },
    Stderr {
        text: String,
    },
    Error {
        name: String,
        value: String,
        traceback: String,
    },
    Control {
        text: &'static str,
    },
}

/// The contexts of a sandbox of the caller's, and when that was made. One that sleeps is woken by this.
async fn of(asked: &ApiRequest<'_>, given: &str) -> Result<(Arc<SandboxContexts>, String), ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let view = asked.daemon().get(&asked.caller, id);
    let view = view.map_err(|error| asked.refused(&error))?;
    let contexts = asked.daemon().contexts(id).await;
    let contexts = contexts.map_err(|error| asked.refused(&error))?;
    Ok((contexts, time::text(view.started_at)))
}

fn refused(asked: &ApiRequest<'_>, error: &ContextError) -> ApiRefusal {
    context_refusal(asked.journal(), error)
}

fn shown(info: ContextInfo, created_at: String) -> ContextAnswer {
    ContextAnswer {
        id: info.id,
        language: info.language.name(),
        cwd: info.cwd,
        active: !matches!(info.state, ContextState::Dead),
        created_at,
    }
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let new: NewContext = body.read().await?;
    let language = language(new.language.as_deref()).map_err(|error| refused(asked, &error))?;
    let (contexts, created_at) = of(asked, given).await?;
    let made = contexts.create(language, new.cwd.filter(|cwd| !cwd.is_empty())).await;
    let made = made.map_err(|error| refused(asked, &error))?;
    Ok(answer::json(StatusCode::OK, &shown(made, created_at)))
}

/// Those that were made; the usual one is none of them.
pub(crate) async fn list(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let (contexts, created_at) = of(asked, given).await?;
    let all = contexts.list().await.map_err(|error| refused(asked, &error))?;
    let made = all.into_iter().filter(|context| !context.is_default);
    let contexts = made.map(|context| shown(context, created_at.clone())).collect();
    Ok(answer::json(StatusCode::OK, &ContextList { contexts }))
}

pub(crate) async fn delete(
    asked: &ApiRequest<'_>,
    [given, context, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let (contexts, _) = of(asked, given).await?;
    let found = contexts.get(context).await.map_err(|error| refused(asked, &error))?;
    if found.is_default {
        return Err(ApiRefusal::bad_request("the usual context cannot be deleted").final_answer());
    }
    contexts.remove(context).await.map_err(|error| refused(asked, &error))?;
    Ok(done(StatusCode::NO_CONTENT))
}

/// Runs code that a client says, and tells what comes of it.
pub(crate) async fn execute(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let (contexts, _) = of(asked, given).await?;
    let request = socket::asked_for(asked)?;
    let lasting = asked.lasting();
    Ok(request.answer(MAX_CODE_BODY, |mut socket| async move {
        let (code, reason) = match talk(&lasting, &contexts, &mut socket).await {
            Ok(end) => closing(end),
            Err(TalkError::Gone(_)) => return,
            Err(TalkError::Refused(refusal)) => (REFUSED, refusal.message),
        };
        socket.close(code, &reason).await;
    }))
}

/// Why nothing more is said.
#[derive(Debug)]
enum TalkError {
    Gone(SocketGone),
    Refused(ApiRefusal),
}

impl From<SocketGone> for TalkError {
    fn from(gone: SocketGone) -> Self {
        Self::Gone(gone)
    }
}

impl From<ApiRefusal> for TalkError {
    fn from(refusal: ApiRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Answers how the code ended; `None` when what runs it is gone.
async fn talk(
    lasting: &LastingRequest,
    contexts: &SandboxContexts,
    socket: &mut WebSocket,
) -> Result<Option<RenderedEnd>, TalkError> {
    let late = |_| ApiRefusal::bad_request("the code was not said in time");
    let message = timeout(CODE_TIMEOUT, socket.next()).await.map_err(late)?;
    let message = message.ok_or(SocketGone)?;
    let new: NewExecution = serde_json::from_slice(message.bytes())
        .map_err(|error| ApiRefusal::bad_request(format!("the message is not what it must be: {error}")))?;
    let target = match new.context_id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => CellTarget::Context(id),
        None => CellTarget::Default(Language::Python),
    };
    let cell = Cell {
        timeout: seconds(new.timeout)?,
        code: new.code,
        env: new.envs.unwrap_or_default(),
    };
    let asked = lasting.asked();
    let begun = CellEvents::begin(contexts, target, cell).await;
    let mut events = begun.map_err(|error| refused(&asked, &error))?;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            // What else it says is nobody's; code whose client is gone is interrupted.
            said = socket.next() => {
                said.ok_or(SocketGone)?;
                continue;
            }
        };
        match event {
            Some(RenderedEvent::End(end)) => {
                if let Some(text) = last_word(end.outcome) {
                    say(socket, &Chunk::Control { text }).await?;
                }
                return Ok(Some(end));
            }
            Some(event) => {
                if let Some(chunk) = chunk(event) {
                    say(socket, &chunk).await?;
                }
            }
            None => return Ok(None),
        }
    }
}

async fn say(socket: &mut WebSocket, chunk: &Chunk) -> Result<(), SocketGone> {
    socket.text(serde_json::to_string(chunk).unwrap_or_default()).await
}

fn seconds(given: Option<u64>) -> Result<Option<Duration>, ApiRefusal> {
    match given.unwrap_or(USUAL_SECONDS) {
        0 => Ok(None),
        seconds if seconds <= MAX_SECONDS => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(ApiRefusal::bad_request(format!(
            "timeout: it may be {MAX_SECONDS} seconds"
        ))),
    }
}

/// What is told of an event. Values of expressions have no place in this API.
fn chunk(event: RenderedEvent) -> Option<Chunk> {
    match event {
        RenderedEvent::Output { stream, text, .. } => Some(match stream {
            OutputStream::Stdout => Chunk::Stdout { text },
            OutputStream::Stderr => Chunk::Stderr { text },
        }),
        RenderedEvent::Error(error) => Some(Chunk::Error {
            name: error.name,
            value: error.value,
            traceback: error.traceback,
        }),
        RenderedEvent::Truncated { part, limit } => Some(Chunk::Stderr {
            text: format!("offleash: {} beyond {limit} bytes is left out\n", part.as_str()),
        }),
        RenderedEvent::Begin { .. } | RenderedEvent::Result(_) | RenderedEvent::End(_) => None,
    }
}

fn last_word(outcome: CellOutcome) -> Option<&'static str> {
    match outcome {
        CellOutcome::Done => Some("completed"),
        CellOutcome::Interrupted => Some("interrupted"),
        CellOutcome::TimedOut | CellOutcome::Died | CellOutcome::NotRun => None,
    }
}

/// With which code and word it ends.
fn closing(end: Option<RenderedEnd>) -> (u16, String) {
    let Some(end) = end else {
        return (WENT_WRONG, "the context is gone".to_owned());
    };
    match end.outcome {
        CellOutcome::Done | CellOutcome::Interrupted => (NORMAL, String::new()),
        CellOutcome::TimedOut => (TIMED_OUT, "the time of the code was over".to_owned()),
        CellOutcome::Died | CellOutcome::NotRun => {
            let why = end.reason.unwrap_or_default();
            (WENT_WRONG, format!("the context has lost its state: {why}"))
        }
    }
}
