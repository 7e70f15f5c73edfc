//! What is answered where no route is: what E2B's control plane has and this one has not, and what nobody has.

use http::Method;

use super::MissingRoute;
use crate::http::answer::ApiRefusal;

/// Paths of E2B's control plane that nothing answers yet, by what begins them, and of what that is said. A `*` stands for
/// any segment.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("snapshots", "snapshots are"),
    ("templates", "builds of templates by this API are"),
    ("v2/templates", "builds of templates by this API are"),
    ("v3/templates", "builds of templates by this API are"),
    ("sandboxes/*/snapshots", "snapshots are"),
];
/// Those of [`UNSUPPORTED`] with nothing below.
const WITHOUT_BELOW: &str = "sandboxes/*/snapshots";
/// Below this, what is there is there for one method alone.
const EVENTS: &str = "events/sandboxes";

/// Why no route of E2B's control plane answers a request.
pub(super) fn of_e2b(method: &Method, path: &str, missing: MissingRoute) -> ApiRefusal {
    for (beginning, what) in UNSUPPORTED {
        if begins(path, beginning, beginning != WITHOUT_BELOW) {
            return ApiRefusal::unsupported(what);
        }
    }
    if begins(path, EVENTS, true) {
        return ApiRefusal::wrong_method(method);
    }
    missing.refusal(method)
}

fn begins(path: &str, beginning: &str, with_below: bool) -> bool {
    let mut given = path.split('/');
    let fits = |expected: &str, segment: &str| expected == "*" || expected == segment;
    beginning
        .split('/')
        .all(|expected| given.next().is_some_and(|segment| fits(expected, segment)))
        && (with_below || given.next().is_none())
}
