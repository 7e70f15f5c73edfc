//! What is answered where no route is: what E2B's control plane has and this one has not, and what nobody has.

use http::Method;

use super::MissingRoute;
use crate::http::answer::ApiRefusal;

/// Paths of E2B's control plane that nothing answers yet, by what begins them, and of what that is said.
const UNSUPPORTED: [(&str, &str); 2] = [
    (
        "templates",
        "builds of images that are pushed, and lists of what tags meant before, are",
    ),
    ("default-templates", "lists of default templates are"),
];
/// Below these, what is there is there for some methods alone.
const EVENTS: [&str; 2] = ["events/sandboxes", "events/webhooks"];

/// Why no route of E2B's control plane answers a request.
pub(super) fn of_e2b(method: &Method, path: &str, missing: MissingRoute) -> ApiRefusal {
    for (beginning, what) in UNSUPPORTED {
        if begins(path, beginning) {
            return ApiRefusal::unsupported(what);
        }
    }
    if EVENTS.iter().any(|events| begins(path, events)) {
        return ApiRefusal::wrong_method(method);
    }
    missing.refusal(method)
}

/// Whether the segments of `path` begin with those of `beginning`.
pub(super) fn begins(path: &str, beginning: &str) -> bool {
    let mut given = path.split('/');
    beginning.split('/').all(|expected| given.next() == Some(expected))
}
