//! Contexts of code, as E2B's code interpreter SDKs expect them in every sandbox at port 49999.
//!
//! They are answered here, outside, like the services of [`crate::e2b::envd`]: no server listens in the sandbox, and a program
//! in it that listens on that port is not reached from outside.

mod cells;
mod messages;
mod result;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_daemon::SandboxContexts;
use offleash_interpreter::cell::Cell;
use offleash_interpreter::error::ContextError;
use offleash_interpreter::language::Language;

use self::messages::{CodeContext, ExecuteBody, NewContextBody};
use crate::cells::{CellEvents, CellTarget, MAX_CELL_BODY, context_refusal, language, streamed};
use crate::e2b::envd::{TokenMatch, token};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json;
use crate::journal::Journal;

/// Languages whose default contexts are in every list, as E2B has them from the start.
const DEFAULTS: [Language; 2] = [Language::Python, Language::JavaScript];

/// A request that may be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeRequest {
    wanted: CodeOperation,
    /// Whether it came with the sandbox's access token.
    by_right: bool,
}

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodeOperation {
    Health,
    Execute,
    List,
    Create,
    Remove(String),
    Restart(String),
}

impl CodeRequest {
    /// Whether a paused sandbox may be resumed for it.
    pub(crate) fn resumes(&self) -> bool {
        // Whether a sandbox runs is asked with the token, too, and must not make it run.
        self.by_right && self.wanted != CodeOperation::Health
    }
}

/// Says whether a request may be answered, which needs no look at the sandbox itself. Running code needs the sandbox's
/// access token, with which one may do everything else, too. SDKs send it with that alone: what else there is needs none,
/// and is for a sandbox that runs.
///
/// # Errors
/// 401; 404 and 405 for what nobody answers.
pub(crate) fn admit<B>(request: &Request<B>, access_token: Option<&str>) -> Result<CodeRequest, ApiRefusal> {
    let wanted = wanted(request.method(), request.uri().path())?;
    let by_right = token(request.headers(), access_token) == TokenMatch::Right;
    if wanted == CodeOperation::Execute && !by_right {
        let message = "the access token of the sandbox is missing or not valid";
        return Err(ApiRefusal::new(StatusCode::UNAUTHORIZED, message).final_answer());
    }
    Ok(CodeRequest { wanted, by_right })
}

fn wanted(method: &Method, path: &str) -> Result<CodeOperation, ApiRefusal> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method, segments.as_slice()) {
        (&Method::GET, ["health"]) => Ok(CodeOperation::Health),
        (&Method::POST, ["execute"]) => Ok(CodeOperation::Execute),
        (&Method::GET, ["contexts"]) => Ok(CodeOperation::List),
        (&Method::POST, ["contexts"]) => Ok(CodeOperation::Create),
        (&Method::DELETE, ["contexts", id]) => Ok(CodeOperation::Remove((*id).to_owned())),
        (&Method::POST, ["contexts", id, "restart"]) => Ok(CodeOperation::Restart((*id).to_owned())),
        (_, ["health" | "execute" | "contexts"] | ["contexts", _] | ["contexts", _, "restart"]) => {
            Err(ApiRefusal::wrong_method(method))
        }
        _ => Err(ApiRefusal::not_found("there is no such route")),
    }
}

/// Answers a request to a sandbox's contexts, which was admitted; `journal` is told of failures that are ours.
pub(crate) async fn answer(
    journal: &dyn Journal,
    contexts: &SandboxContexts,
    admitted: CodeRequest,
    body: Incoming,
) -> Response<Body> {
    let answered = done(contexts, admitted.wanted, body).await;
    answered.unwrap_or_else(|failed| failed.refusal(journal).answer())
}

/// Why a request is not answered.
enum CodeFailure {
    Refused(ApiRefusal),
    Context(ContextError),
}

impl From<ApiRefusal> for CodeFailure {
    fn from(refusal: ApiRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ContextError> for CodeFailure {
    fn from(error: ContextError) -> Self {
        Self::Context(error)
    }
}

impl CodeFailure {
    fn refusal(self, journal: &dyn Journal) -> ApiRefusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Context(error) => context_refusal(journal, &error),
        }
    }
}

async fn done(
    contexts: &SandboxContexts,
    wanted: CodeOperation,
    body: Incoming,
) -> Result<Response<Body>, CodeFailure> {
    match wanted {
        CodeOperation::Health if contexts.are_coming_back().await => {
            let message = "an interpreter has ended and is being started again";
            Err(ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, message).into())
        }
        CodeOperation::Health => Ok(answer::json(StatusCode::OK, &"OK")),
        CodeOperation::Execute => execute(contexts, body).await,
        CodeOperation::List => {
            let all = contexts
                .list_with_defaults(&DEFAULTS)
                .await?
                .into_iter()
                .map(CodeContext::from);
            Ok(answer::json(StatusCode::OK, &all.collect::<Vec<_>>()))
        }
        CodeOperation::Create => {
            let new: NewContextBody = json::read(body).await?;
            let made = contexts.create(language(new.language.as_deref())?, new.cwd).await?;
            Ok(answer::json(StatusCode::OK, &CodeContext::from(made)))
        }
        CodeOperation::Remove(id) => {
            contexts.remove(&id).await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
        CodeOperation::Restart(id) => {
            contexts.restart(&id).await?;
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
    }
}

async fn execute(contexts: &SandboxContexts, body: Incoming) -> Result<Response<Body>, CodeFailure> {
    let asked: ExecuteBody = json::read_at_most(MAX_CELL_BODY, body).await?;
    let cell = Cell {
        code: asked.code,
        env: asked.env_vars.unwrap_or_default(),
        timeout: None,
    };
    let target = match (&asked.context_id, asked.language.as_deref()) {
        (Some(_), Some(_)) => {
            let message = "either `context_id` or `language` may be given: a context has its language";
            return Err(ApiRefusal::bad_request(message).into());
        }
        (Some(id), None) => CellTarget::Context(id),
        (None, name) => CellTarget::Default(language(name)?),
    };
    let events = CellEvents::begin(contexts, target, cell).await?;
    Ok(streamed(events, cells::DIALECT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_shows_the_token_resumes_and_not_to_ask_for_health() {
        let resumes = |line: &str, given: Option<&str>, expected: Option<&str>| {
            let (method, path) = line.split_once(' ').unwrap();
            let mut request = Request::builder().method(method).uri(path);
            if let Some(given) = given {
                request = request.header("x-access-token", given);
            }
            let admitted = admit(&request.body(()).unwrap(), expected);
            admitted
                .map(|admitted| admitted.resumes())
                .map_err(|refusal| refusal.status.as_u16())
        };
        let routes = [
            ("GET /health", Ok(false), Ok(false)),
            ("POST /execute", Ok(true), Err(401)),
            ("GET /contexts", Ok(true), Ok(false)),
            ("POST /contexts", Ok(true), Ok(false)),
            ("DELETE /contexts/c", Ok(true), Ok(false)),
            ("POST /contexts/c/restart/", Ok(true), Ok(false)),
            ("GET /nonsense", Err(404), Err(404)),
            ("POST /%65xecute", Err(404), Err(404)),
            ("OPTIONS /contexts", Err(405), Err(405)),
            ("GET /execute", Err(405), Err(405)),
        ];
        for (line, by_right, without) in routes {
            assert_eq!(resumes(line, Some("t"), Some("t")), by_right, "{line}");
            assert_eq!(resumes(line, None, None), by_right, "{line}: everybody may");
            for given in [None, Some(""), Some("wrong")] {
                assert_eq!(resumes(line, given, Some("t")), without, "{line} {given:?}");
            }
        }
    }
}
