//! The services that E2B's SDKs expect in every sandbox at port 49983, for one sandbox that was found.
//!
//! They are answered here, outside: the supervisor runs commands and a process inside serves files, so that no service
//! listens in the sandbox and every level has the same ones.

mod attended;
mod entry;
mod failure;
mod files;
mod filesystem;
mod headers;
mod listing;
mod measures;
mod messages;
mod process;
mod range;
#[cfg(test)]
mod recorded_tests;
mod signature;
mod watchers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{ALLOW, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_daemon::AccessRules;
use offleash_supervisor::service::client::SupervisorClient;

pub(crate) use self::attended::ENDS_WITH_CLIENT;
use self::failure::{ServiceFailure, gone};
pub(crate) use self::files::SignedUrl;
pub(crate) use self::headers::{TokenMatch, token};
use self::listing::ListingTurns;
use self::watchers::SandboxWatchers;
use crate::e2b::connect::{
    self, CallKind, ConnectCall, ConnectCode, ConnectError, ConnectMessage, read_message, refuse,
};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;

const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

/// What a call of a service must contain.
const CONTENT_TYPES: [(CallKind, HeaderValue); 2] = [
    (
        CallKind::Unary,
        HeaderValue::from_static("application/json, application/proto"),
    ),
    (
        CallKind::Stream,
        HeaderValue::from_static("application/connect+json, application/connect+proto"),
    ),
];

/// A request to the services of a sandbox that may be answered: the token that it needs was shown.
#[derive(Debug)]
pub(crate) enum EnvdRequest {
    /// Whether the sandbox is there.
    Health,
    /// The environment of its commands.
    Envs,
    /// What it uses.
    Metrics,
    /// Whole files.
    Files,
    /// A call of a method of `process.Process`.
    Process(String, ConnectCall),
    /// A call of a method of `filesystem.Filesystem`.
    Filesystem(String, ConnectCall),
}

impl EnvdRequest {
    /// Whether a paused sandbox may be resumed for it.
    pub(crate) fn resumes(&self) -> bool {
        // It needs no token, and asks whether a sandbox runs: that must not make it run.
        !matches!(self, Self::Health)
    }
}

/// One live sandbox as its services see it.
#[derive(Debug, Clone)]
pub(crate) struct SandboxAccess {
    /// The sandbox's id.
    id: String,
    /// Whose it is.
    key_id: String,
    /// The environment that every command of the sandbox gets.
    env: BTreeMap<String, String>,
    /// Who does what is asked.
    supervisor: SupervisorClient,
    /// The watchers of all sandboxes.
    watchers: Arc<SandboxWatchers>,
    /// The turns of large lists, of all sandboxes.
    listings: ListingTurns,
    /// Whether it is the server that goes away, and not its clients.
    server_ends: Arc<AtomicBool>,
}

/// The file and process services of all sandboxes: what they remember beside the sandboxes themselves.
#[derive(Debug, Default)]
pub(crate) struct EnvdService {
    watchers: Arc<SandboxWatchers>,
    listings: ListingTurns,
    server_ends: Arc<AtomicBool>,
}

impl EnvdService {
    /// The services of one sandbox, which runs.
    pub(crate) fn of(&self, access: AccessRules, supervisor: SupervisorClient) -> SandboxAccess {
        SandboxAccess {
            id: access.id,
            key_id: access.key_id,
            env: access.env,
            supervisor,
            watchers: Arc::clone(&self.watchers),
            listings: self.listings.clone(),
            server_ends: Arc::clone(&self.server_ends),
        }
    }

    /// Requests are cut from here on because the server ends.
    pub(crate) fn end(&self) {
        self.server_ends.store(true, Ordering::Release);
    }
}

/// Says whether a request to the services of a sandbox may be answered, which needs no look at the sandbox itself:
/// whoever has no right must not even make it resume.
///
/// `expected` is what `X-Access-Token` must be and what signatures are made with; `None` when everybody may.
///
/// # Errors
/// With the answer to a request that may not, or that nobody answers.
pub(crate) fn admit<B>(expected: Option<&str>, request: &Request<B>) -> Result<EnvdRequest, Box<Response<Body>>> {
    let path = request.uri().path();
    let get = request.method() == Method::GET;
    match path {
        "/health" if get => Ok(EnvdRequest::Health),
        "/files" => match files::check(expected, request) {
            Ok(()) => Ok(EnvdRequest::Files),
            Err(refusal) => Err(Box::new(refusal.answer())),
        },
        "/envs" | "/metrics" if token(request.headers(), expected) != TokenMatch::Right => Err(Box::new(
            ApiRefusal::new(StatusCode::UNAUTHORIZED, UNAUTHORIZED).answer(),
        )),
        "/envs" if get => Ok(EnvdRequest::Envs),
        "/metrics" if get => Ok(EnvdRequest::Metrics),
        _ => match path.trim_start_matches('/').split_once('/') {
            Some(("process.Process", method)) => {
                let call = admit_call(expected, request, process::kind(method))?;
                Ok(EnvdRequest::Process(method.to_owned(), call))
            }
            Some(("filesystem.Filesystem", method)) => {
                let call = admit_call(expected, request, filesystem::kind(method))?;
                Ok(EnvdRequest::Filesystem(method.to_owned(), call))
            }
            _ => {
                let refusal = ApiRefusal::not_found(format!("no service `{}`", path.escape_debug()));
                Err(Box::new(refusal.answer()))
            }
        },
    }
}

/// Answers a request to a sandbox's services that was admitted.
pub(crate) async fn handle(
    sandbox: &SandboxAccess,
    admitted: EnvdRequest,
    request: Request<Incoming>,
) -> Response<Body> {
    match admitted {
        EnvdRequest::Health => health(sandbox).await,
        EnvdRequest::Envs => answer::json(StatusCode::OK, &sandbox.env),
        EnvdRequest::Metrics => measures::answer(sandbox).await,
        EnvdRequest::Files => files::answer(sandbox, request).await,
        EnvdRequest::Process(method, call) => process::answer(sandbox, &method, call, request).await,
        EnvdRequest::Filesystem(method, call) => filesystem::answer(sandbox, &method, call, request).await,
    }
}

const UNAUTHORIZED: &str = "unauthorized access, please provide a valid access token or method signing if supported";

async fn health(sandbox: &SandboxAccess) -> Response<Body> {
    match sandbox.supervisor.hello().await {
        Ok(hello) if !hello.paused => answer::empty(StatusCode::NO_CONTENT),
        _ => gone(&sandbox.id),
    }
}

/// The call that a request makes of a method of that kind, if it may and if it can be understood.
fn admit_call<B>(
    expected: Option<&str>,
    request: &Request<B>,
    kind: Option<CallKind>,
) -> Result<ConnectCall, Box<Response<Body>>> {
    let Some(kind) = kind else {
        let path = request.uri().path().escape_debug();
        return Err(Box::new(ApiRefusal::not_found(format!("no method `{path}`")).answer()));
    };
    if request.method() != Method::POST {
        let refusal = ApiRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "methods are called with POST");
        let mut response = refusal.answer();
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(Box::new(response));
    }
    let Some(call) = ConnectCall::of(request.headers()).filter(|call| call.kind == kind) else {
        let refusal = ApiRefusal::new(
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
    let checked = match token(request.headers(), expected) {
        TokenMatch::Right => call.check(request.headers()),
        TokenMatch::Absent | TokenMatch::Wrong => Err(ConnectError::new(ConnectCode::Unauthenticated, UNAUTHORIZED)),
    };
    checked.map_err(|error| Box::new(refuse(call, &error)))?;
    Ok(call)
}

/// The message of a unary call.
async fn read<Q: ConnectMessage>(call: ConnectCall, body: Incoming) -> Result<Q, ServiceFailure> {
    Ok(read_message(call.codec, body).await?)
}

/// The answer to a unary call.
fn unary<A: ConnectMessage>(
    sandbox: &SandboxAccess,
    call: ConnectCall,
    result: Result<A, ServiceFailure>,
) -> Response<Body> {
    match result {
        Ok(message) => connect::unary(call.codec, Ok(message)),
        Err(ServiceFailure::Told(error)) => refuse(call, &error),
        Err(ServiceFailure::Gone) => gone(&sandbox.id),
    }
}
