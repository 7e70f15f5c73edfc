//! The native REST below `/v1`: what the API of E2B lacks. Its routes are in [`crate::routes`].

pub(crate) mod cells;
pub(crate) mod contexts;
pub(crate) mod keys;
mod openapi;
pub(crate) mod run;
pub(crate) mod sandboxes;
pub(crate) mod server;
mod shapes;

use http::{Response, StatusCode};

pub(crate) use self::cells::{CellEvent, NewCell, NewDefaultCell};
pub(crate) use self::contexts::{Context, ContextList, NewContext};
pub(crate) use self::openapi::{QueryDocs, RouteSchemas};
pub(crate) use self::shapes::{
    Audit, Called, ForkList, KeyList, MadeKey, NewCommand, NewForks, NewKey, NewPolicy, NewRun, NewSandbox, Policy,
    Resume, RunResult, Sandbox, SandboxList, SandboxUsage, Usage, Version,
};
use crate::answer;
use crate::body::Body;
use crate::routes::native_routes;

/// Whether a path is one of the native REST.
pub(crate) fn is_native(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Answers with the OpenAPI document.
pub(crate) fn document() -> Response<Body> {
    answer::json(StatusCode::OK, &openapi::document(native_routes()))
}
