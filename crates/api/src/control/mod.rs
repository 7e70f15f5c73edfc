//! E2B's control plane: sandboxes are made, found, changed and ended.
//!
//! Every route asks for a key before it says whether it exists.

mod later;
mod request;
mod sandboxes;
mod secrets;
mod shapes;
mod templates;

use http::request::Parts;
use http::{Method, Response};
use hyper::body::Incoming;
use offleash_manager::daemon::{Caller, DaemonError, ListFilter, Scope};

pub(crate) use self::later::wrong_method;
use self::request::Version;
pub(crate) use self::request::unsupported;
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

/// Answers a request of the control plane.
pub(crate) async fn answer(asked: &Asked<'_>, body: Incoming) -> Result<Response<Body>, Refusal> {
    let path = asked.parts.uri.path();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let is = |method: &Method| asked.parts.method == *method;
    let (get, post, put, delete) = (
        is(&Method::GET),
        is(&Method::POST),
        is(&Method::PUT),
        is(&Method::DELETE),
    );
    match segments.as_slice() {
        ["sandboxes"] if post => sandboxes::create(asked, body, Version::First).await,
        ["v2", "sandboxes"] if post => sandboxes::create(asked, body, Version::Second).await,
        ["sandboxes"] if get => sandboxes::list(asked, Version::First),
        ["v2", "sandboxes"] if get => sandboxes::list(asked, Version::Second),
        ["sandboxes", id] if get => sandboxes::get(asked, id),
        ["sandboxes", id] if delete => sandboxes::kill(asked, id).await,
        ["sandboxes", id, "connect"] | ["v2", "sandboxes", id, "connect"] if post => {
            sandboxes::connect(asked, id, body).await
        }
        ["sandboxes", id, "resume"] if post => sandboxes::resume(asked, id, body).await,
        ["sandboxes", id, "timeout"] if post => sandboxes::set_timeout(asked, id, body).await,
        ["sandboxes", id, "refreshes"] if post => sandboxes::refresh(asked, id, body).await,
        ["sandboxes", id, "pause"] if post => sandboxes::pause(asked, id, body).await,
        ["sandboxes", id, "fork"] if post => sandboxes::fork(asked, id, body).await,
        ["sandboxes", id, "network"] if put => sandboxes::set_network(asked, id, body).await,
        ["sandboxes", id, "metrics"] if get => sandboxes::metrics(asked, id).await,
        ["sandboxes", id, "logs"] if get => sandboxes::logs(asked, id, Version::First).await,
        ["v2", "sandboxes", id, "logs"] if get => sandboxes::logs(asked, id, Version::Second).await,
        ["events", "sandboxes"] if get => sandboxes::events(asked, None).await,
        ["events", "sandboxes", id] if get => sandboxes::events(asked, Some(id)).await,
        ["secrets"] if get => secrets::list(asked),
        ["secrets"] if post => secrets::create(asked, body).await,
        ["secrets", which] if get => secrets::get(asked, which),
        ["secrets", which] if post => secrets::update(asked, which, body).await,
        ["secrets", which] if delete => secrets::remove(asked, which).await,
        ["templates"] if get => templates::list(asked).await,
        ["templates", "aliases", alias] if get => templates::alias(asked, alias).await,
        ["templates", name] if delete => templates::remove(asked, name).await,
        segments => Err(later::refusal(&asked.parts.method, segments)),
    }
}

/// An answer without a body.
fn done() -> Response<Body> {
    answer::empty(http::StatusCode::NO_CONTENT)
}
