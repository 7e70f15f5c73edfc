//! Daytona's API: sandboxes below `/api/sandbox`, and below `/api/toolbox/ID` what its SDKs ask of one. Its routes are in
//! [`crate::routes`].
//!
//! Nothing is kept here: what a sandbox is, the daemon knows; sessions are shells in it, and files beside them.

pub(crate) mod contexts;
pub(crate) mod files;
mod followed;
pub(crate) mod git;
mod git_output;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod sandboxes;
pub(crate) mod sessions;
mod shapes;
mod socket;
pub(crate) mod terminals;
mod toolbox;
pub(crate) mod transfer;
pub(crate) mod volumes;

use http::{Response, StatusCode};

use crate::http::answer;
use crate::http::body::Body;

/// The most that a body with code or a command may have.
pub(crate) const MAX_CODE_BODY: usize = 4 * 1024 * 1024;

/// An answer without a body.
fn done(status: StatusCode) -> Response<Body> {
    answer::empty(status)
}
