//! E2B's control plane: sandboxes are made, found, changed and ended. Its routes are in [`crate::routes`].
//!
//! Every route asks for a key before it says whether it exists.

pub(crate) mod builds;
mod request;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
mod shapes;
pub(crate) mod snapshots;
pub(crate) mod templates;
pub(crate) mod volumes;
pub(crate) mod webhooks;

use http::Response;

pub(crate) use self::request::CallVersion;
use crate::http::answer;
use crate::http::body::Body;

/// An answer without a body.
fn done() -> Response<Body> {
    answer::empty(http::StatusCode::NO_CONTENT)
}
