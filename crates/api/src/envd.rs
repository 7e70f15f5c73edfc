//! The services that E2B's SDKs expect in every sandbox at port 49983, for one sandbox that was found.
//!
//! They are answered here, outside: the keeper runs commands and a process inside serves files, so that no service
//! listens in the sandbox and every level has the same ones.

mod entry;
mod failure;
mod files;
mod filesystem;
mod filesystem_messages;
mod headers;
mod measures;
mod multipart;
mod path;
mod process;
mod process_messages;
mod range;
#[cfg(test)]
mod recorded_tests;
mod signature;
mod source;
mod watchers;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{ALLOW, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_manager::keeper::client::Keeper;

use self::failure::{Failure, gone};
pub(crate) use self::files::is_signed_by;
use self::headers::{Token, token};
pub(crate) use self::watchers::Watchers;
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::connect::{self, Call, Code, ConnectError, Kind, Message, read_message, refuse};

const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

/// What a call of a service must contain.
const CONTENT_TYPES: [(Kind, HeaderValue); 2] = [
    (
        Kind::Unary,
        HeaderValue::from_static("application/json, application/proto"),
    ),
    (
        Kind::Stream,
        HeaderValue::from_static("application/connect+json, application/connect+proto"),
    ),
];

/// One live sandbox as its services see it. The request's access token was not checked yet.
#[derive(Debug, Clone)]
pub(crate) struct SandboxAccess {
    /// The sandbox's id.
    pub(crate) id: String,
    /// What `X-Access-Token` must be and what signatures are made with; `None` when everybody may.
    pub(crate) access_token: Option<String>,
    /// The environment that every command of the sandbox gets.
    pub(crate) env: BTreeMap<String, String>,
    /// Who does what is asked.
    pub(crate) keeper: Keeper,
    /// The watchers of all sandboxes.
    pub(crate) watchers: Arc<Watchers>,
}

/// Answers a request to a sandbox's services.
pub(crate) async fn handle(sandbox: &SandboxAccess, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    match path {
        // Needs no token: it is how the SDKs ask whether the sandbox is there.
        "/health" if request.method() == Method::GET => health(sandbox).await,
        "/files" => files::answer(sandbox, request).await,
        "/envs" | "/metrics" if token(request.headers(), sandbox.access_token.as_deref()) != Token::Right => {
            Refusal::new(StatusCode::UNAUTHORIZED, UNAUTHORIZED).answer()
        }
        "/envs" if request.method() == Method::GET => answer::json(StatusCode::OK, &sandbox.env),
        "/metrics" if request.method() == Method::GET => measures::answer(sandbox).await,
        _ => match path.trim_start_matches('/').split_once('/') {
            Some(("process.Process", method)) => {
                let (kind, method) = (process::kind(method), method.to_owned());
                match admitted(sandbox, &request, kind) {
                    Ok(call) => process::answer(sandbox, &method, call, request).await,
                    Err(response) => *response,
                }
            }
            Some(("filesystem.Filesystem", method)) => {
                let (kind, method) = (filesystem::kind(method), method.to_owned());
                match admitted(sandbox, &request, kind) {
                    Ok(call) => filesystem::answer(sandbox, &method, call, request).await,
                    Err(response) => *response,
                }
            }
            _ => Refusal::not_found(format!("no service `{}`", path.escape_debug())).answer(),
        },
    }
}

const UNAUTHORIZED: &str = "unauthorized access, please provide a valid access token or method signing if supported";

async fn health(sandbox: &SandboxAccess) -> Response<Body> {
    match sandbox.keeper.hello().await {
        Ok(hello) if !hello.paused => answer::empty(StatusCode::NO_CONTENT),
        _ => gone(&sandbox.id),
    }
}

/// The call that a request makes of a method of that kind, if it may and if it can be understood.
fn admitted<B>(sandbox: &SandboxAccess, request: &Request<B>, kind: Option<Kind>) -> Result<Call, Box<Response<Body>>> {
    let Some(kind) = kind else {
        let path = request.uri().path().escape_debug();
        return Err(Box::new(Refusal::not_found(format!("no method `{path}`")).answer()));
    };
    if request.method() != Method::POST {
        let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "methods are called with POST");
        let mut response = refusal.answer();
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(Box::new(response));
    }
    let Some(call) = Call::of(request.headers()).filter(|call| call.kind == kind) else {
        let refusal = Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the content is of no type that this method takes",
        );
        let mut response = refusal.answer();
        let types = CONTENT_TYPES.into_iter().find(|(of, _)| *of == kind);
        response
            .headers_mut()
            .extend(types.map(|(_, types)| (ACCEPT_POST, types)));
        return Err(Box::new(response));
    };
    let checked = match token(request.headers(), sandbox.access_token.as_deref()) {
        Token::Right => call.check(request.headers()),
        Token::Absent | Token::Wrong => Err(ConnectError::new(Code::Unauthenticated, UNAUTHORIZED)),
    };
    checked.map_err(|error| Box::new(refuse(call, &error)))?;
    Ok(call)
}

/// The message of a unary call.
async fn read<Q: Message>(call: Call, body: Incoming) -> Result<Q, Failure> {
    Ok(read_message(call.codec, body).await?)
}

/// The answer to a unary call.
fn unary<A: Message>(sandbox: &SandboxAccess, call: Call, result: Result<A, Failure>) -> Response<Body> {
    match result {
        Ok(message) => connect::unary(call.codec, Ok(message)),
        Err(Failure::Told(error)) => refuse(call, &error),
        Err(Failure::Gone) => gone(&sandbox.id),
    }
}
