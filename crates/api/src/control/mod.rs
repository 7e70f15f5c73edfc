//! E2B's control plane: sandboxes are made, found, changed and ended.
//!
//! Every route asks for a key before it says whether it exists.

mod request;
pub(crate) mod sandboxes;
pub(crate) mod secrets;
mod shapes;
pub(crate) mod templates;

use http::Response;
use http::request::Parts;
use offleash_daemon::{Caller, DaemonError, ListFilter, Scope};

pub(crate) use self::request::{Version, unsupported};
pub(crate) use self::sandboxes::{forks, id, idempotency_key, whole};
pub(crate) use self::shapes::state_word;
use crate::answer::Refusal;
use crate::body::Body;
use crate::server::State;
use crate::{answer, failure};

/// A request of the control plane, whose caller is known.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) state: &'a State,
    pub(crate) caller: Caller,
    pub(crate) parts: &'a Parts,
}

impl Asked<'_> {
    /// Fails unless the caller has `scope`.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Refusal> {
        self.caller.require(scope).map_err(|error| self.refused(&error))
    }

    pub(crate) fn refused(&self, error: &DaemonError) -> Refusal {
        let is_owner = self.caller.scopes.allow(Scope::Admin);
        failure::refusal(&*self.state.journal, error, is_owner)
    }

    pub(crate) fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }
}

/// Which sandboxes a request asks for.
pub(crate) fn filter(asked: &Asked<'_>) -> Result<ListFilter, Refusal> {
    request::filter(asked.query(), Version::Second)
}

/// An answer without a body.
fn done() -> Response<Body> {
    answer::empty(http::StatusCode::NO_CONTENT)
}
