//! The services that E2B's SDKs expect in every sandbox at port 49983, for one sandbox that was found.

use std::collections::BTreeMap;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::answer::{self, Refusal};
use crate::body::Body;

/// One live sandbox as its services see it. The request's access token was not checked yet.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "`/health`, the only service so far, needs nothing of it")]
pub(crate) struct SandboxAccess {
    /// The sandbox's id.
    pub(crate) id: String,
    /// What `X-Access-Token` must be and what signatures are made with; `None` when everybody may.
    pub(crate) access_token: Option<String>,
    /// The environment that every command of the sandbox gets.
    pub(crate) env: BTreeMap<String, String>,
}

/// Answers a request to a sandbox's services.
pub(crate) async fn handle(_sandbox: &SandboxAccess, request: Request<Incoming>) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        // Needs no token: it is how the SDKs ask whether the sandbox is there.
        (&Method::GET, "/health") => answer::empty(StatusCode::NO_CONTENT),
        (_, path) => Refusal::not_found(format!("no service `{}`", path.escape_debug())).answer(),
    }
}
