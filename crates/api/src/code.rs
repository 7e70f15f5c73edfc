//! Contexts of code, as E2B's code interpreter SDKs expect them in every sandbox at port 49999.
//!
//! They are answered here, outside, like the services of [`crate::envd`]: no server listens in the sandbox, and a program
//! in it that listens on that port is not reached from outside.

mod cells;
mod lines;
mod messages;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_interpreter::cell::Cell;
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;
use offleash_manager::daemon::SandboxContexts;

pub(crate) use self::lines::{NDJSON, Told, streamed};
use self::messages::{Context, ExecuteBody, NewContextBody};
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::envd::{Token, token};
use crate::journal::Journal;
use crate::server::State;
use crate::{failure, json};

const EXECUTE: &str = "execute";

/// What the body of a cell may have: its code may have 16 MiB, and JSON writes some characters longer.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;

/// Fails unless whoever asks may: running code needs the sandbox's access token, with which one may do everything else,
/// too. SDKs send it with that alone.
///
/// # Errors
/// 401.
pub(crate) fn admit<B>(request: &Request<B>, access_token: Option<&str>) -> Result<(), Refusal> {
    if request.uri().path().trim_matches('/') != EXECUTE || token(request.headers(), access_token) == Token::Right {
        return Ok(());
    }
    let message = "the access token of the sandbox is missing or not valid";
    Err(Refusal::new(StatusCode::UNAUTHORIZED, message).final_answer())
}

/// Answers a request to a sandbox's contexts, which was admitted.
pub(crate) async fn answer(state: &State, contexts: &SandboxContexts, request: Request<Incoming>) -> Response<Body> {
    let answered = routed(contexts, request).await;
    answered.unwrap_or_else(|failed| failed.refusal(&*state.journal).answer())
}

/// Why a request is not answered.
enum Failed {
    Refused(Refusal),
    Context(ContextError),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ContextError> for Failed {
    fn from(error: ContextError) -> Self {
        Self::Context(error)
    }
}

impl Failed {
    fn refusal(self, journal: &dyn Journal) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Context(error) => refusal(journal, &error),
        }
    }
}

/// What a client is told of an error of contexts.
pub(crate) fn refusal(journal: &dyn Journal, error: &ContextError) -> Refusal {
    let status = match error.kind() {
        // Contexts and cells are the caller's to have fewer of.
        ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        kind => failure::of_kind(kind),
    };
    if failure::is_ours(status) {
        let told = "the sandbox does not run code";
        failure::record(journal, told, error);
        return Refusal::new(status, told);
    }
    Refusal::new(status, error.to_string()).final_answer()
}

async fn routed(contexts: &SandboxContexts, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
    let (parts, body) = request.into_parts();
    let segments: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
    match (&parts.method, segments.as_slice()) {
        (&Method::GET, ["health"]) => Ok(answer::json(StatusCode::OK, &"OK")),
        (&Method::POST, [EXECUTE]) => execute(contexts, body).await,
        (&Method::GET, ["contexts"]) => {
            let all = contexts.list().await?.into_iter().map(Context::from);
            Ok(answer::json(StatusCode::OK, &all.collect::<Vec<_>>()))
        }
        (&Method::POST, ["contexts"]) => {
            let new: NewContextBody = json::read(body).await?;
            let made = contexts.create(language(new.language.as_deref())?, new.cwd).await?;
            Ok(answer::json(StatusCode::OK, &Context::from(made)))
        }
        (&Method::DELETE, ["contexts", id]) => {
            contexts.remove(id).await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["contexts", id, "restart"]) => {
            contexts.restart(id).await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        (_, ["health" | EXECUTE | "contexts"] | ["contexts", _] | ["contexts", _, "restart"]) => {
            Err(crate::control::wrong_method(&parts.method).into())
        }
        _ => Err(Refusal::not_found("there is no such route").into()),
    }
}

/// The language of that name; Python if absent.
pub(crate) fn language(name: Option<&str>) -> Result<Language, ContextError> {
    let name = name.unwrap_or(Language::Python.name());
    Language::parse(name).ok_or_else(|| ContextError::Language {
        name: name.chars().take(60).collect(),
    })
}

async fn execute(contexts: &SandboxContexts, body: Incoming) -> Result<Response<Body>, Failed> {
    let asked: ExecuteBody = json::read_at_most(MAX_BODY, body).await?;
    let cell = Cell {
        code: asked.code,
        env: asked.env_vars.unwrap_or_default(),
        timeout: None,
    };
    let events = match (asked.context_id, asked.language) {
        (Some(_), Some(_)) => {
            let message = "either `context_id` or `language` may be given: a context has its language";
            return Err(Refusal::bad_request(message).into());
        }
        (Some(id), None) => contexts.execute(&id, cell).await?,
        (None, name) => contexts.execute_in_default(language(name.as_deref())?, cell).await?,
    };
    Ok(streamed(events, cells::told, cells::keepalive))
}
