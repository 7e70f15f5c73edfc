//! What E2B's control plane has and this one has not yet; and routes that nobody has.

use http::{Method, StatusCode};

use super::request::unsupported;
use crate::answer::Refusal;

/// Why no route answers a request.
pub(super) fn refusal(method: &Method, segments: &[&str]) -> Refusal {
    match segments {
        ["sandboxes", _, "snapshots"] | ["snapshots", ..] => unsupported("snapshots are"),
        ["templates", ..] | ["v2" | "v3", "templates", ..] => unsupported("builds of templates by this API are"),
        ["volumes", ..] | ["volumecontent", ..] => unsupported("volumes are"),
        ["secrets"] | ["secrets", _] => wrong_method(method),
        ["sandboxes"] | ["sandboxes", _] | ["v2", "sandboxes"] | ["events", "sandboxes", ..] => wrong_method(method),
        [
            "sandboxes",
            _,
            "connect" | "resume" | "timeout" | "refreshes" | "pause" | "fork" | "network" | "metrics" | "logs",
        ]
        | ["v2", "sandboxes", _, "connect" | "logs"] => wrong_method(method),
        _ => Refusal::not_found("there is no such route"),
    }
}

/// Why nothing is done by this method where others do something.
pub(crate) fn wrong_method(method: &Method) -> Refusal {
    let message = format!("`{method}` does nothing here");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_is_told_from_what_nobody_has() {
        let status = |path: &str| {
            let segments: Vec<&str> = path.split('/').collect();
            refusal(&Method::PATCH, &segments).status.as_u16()
        };
        for path in [
            "sandboxes/i1/snapshots",
            "snapshots",
            "v3/templates",
            "templates/x",
            "volumes",
        ] {
            assert_eq!(status(path), 501, "{path}");
        }
        assert_eq!(status("sandboxes/i1/pause"), 405);
        assert_eq!(status("sandboxes/i1/fork"), 405);
        assert_eq!(status("secrets/a"), 405);
        for path in ["", "teams", "sandboxes/i1/else", "v9/sandboxes"] {
            assert_eq!(status(path), 404, "{path}");
        }
    }
}
