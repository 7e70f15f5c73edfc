//! What of a front's requests goes where. Pure: reads the head of a request, and knows no node.

use http::Method;
use http::request::Parts;

use crate::http::destination::{self, DestinationError, RequestDestination};

/// Who answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FrontRoute {
    /// The front: it is there.
    Health,
    /// The front: whether a node can take sandboxes.
    Ready,
    /// The node of a sandbox.
    Sandbox(String),
    /// The node that is chosen for a new sandbox.
    Create,
    /// All nodes, one after the other: sandboxes, in the form of a route.
    List(ListForm),
    /// The node that knows a name.
    Name,
    /// Any node, and the front's own address put in its place.
    Version,
    /// Any node.
    Any,
    /// Nobody: what belongs to one node, and is asked of it.
    OfOneNode,
}

/// How a list of sandboxes is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListForm {
    /// An array in one piece (`GET /sandboxes`).
    Whole,
    /// An array, with the next page's token in a header (`GET /v2/sandboxes`).
    Pages,
    /// An object with the token in it (`GET /v1/sandboxes`).
    Native,
}

/// Below these the segment that follows is the id of a sandbox.
const OF_SANDBOX: [&str; 8] = [
    "/v1/sandboxes/",
    "/v2/sandboxes/",
    "/sandboxes/",
    "/events/sandboxes/",
    "/v1/sessions/",
    "/api/sandbox/",
    "/api/toolbox/",
    destination::BROWSER_PREFIX,
];

/// Says who answers a request.
///
/// # Errors
/// As [`destination::destination`].
pub(super) fn route(parts: &Parts, domain: Option<&str>) -> Result<FrontRoute, DestinationError> {
    // It shortens the path, which the node is to see as it is.
    let mut copy = parts.clone();
    if let RequestDestination::Sandbox { id, .. } = destination::destination(&mut copy, domain)? {
        return Ok(FrontRoute::Sandbox(id));
    }
    // SDKs put their path behind an address that may end with a slash.
    let path = format!("/{}", parts.uri.path().trim_start_matches('/'));
    for prefix in OF_SANDBOX {
        let id = path.strip_prefix(prefix).and_then(|rest| rest.split('/').next());
        if let Some(id) = id.filter(|id| destination::is_id(id)) {
            return Ok(FrontRoute::Sandbox(id.to_owned()));
        }
    }
    Ok(match (&parts.method, path.as_str()) {
        (_, "/healthz") => FrontRoute::Health,
        (_, "/readyz") => FrontRoute::Ready,
        (&Method::POST, "/sandboxes" | "/v2/sandboxes" | "/v1/sandboxes" | "/v1/run" | "/v1/sessions") => {
            FrontRoute::Create
        }
        (&Method::POST, "/api/sandbox" | "/api/v2/execute" | "/api/v2/piston/execute") => FrontRoute::Create,
        (&Method::GET, "/api/v2/runtimes" | "/api/v2/piston/runtimes" | "/api/v2/packages") => FrontRoute::Any,
        (&Method::GET, "/sandboxes") => FrontRoute::List(ListForm::Whole),
        (&Method::GET, "/v2/sandboxes") => FrontRoute::List(ListForm::Pages),
        (&Method::GET, "/v1/sandboxes") => FrontRoute::List(ListForm::Native),
        (&Method::GET, "/v1/version") => FrontRoute::Version,
        (&Method::GET, "/v1/openapi.json") => FrontRoute::Any,
        (&Method::GET, path) if path.starts_with("/v1/names/") => FrontRoute::Name,
        _ => FrontRoute::OfOneNode,
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn routed(request: http::request::Builder) -> Result<FrontRoute, DestinationError> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let uri = parts.uri.clone();
        let route = route(&parts, Some("box.test"));
        assert_eq!(parts.uri, uri);
        route
    }

    #[test]
    fn every_way_to_a_sandbox_leads_to_its_node() {
        let node = Ok(FrontRoute::Sandbox("i1".to_owned()));
        for path in [
            "/sandboxes/i1",
            "//sandboxes/i1/pause",
            "/v2/sandboxes/i1/connect",
            "/v1/sandboxes/i1/run",
            "/v1/sessions/i1/release",
            "/api/sandbox/i1/stop",
            "/api/toolbox/i1/files/info?path=a",
            "/events/sandboxes/i1",
            "/_browser/i1",
            "/_port/i1/8000/a?b=c",
        ] {
            assert_eq!(routed(Request::get(path)), node, "{path}");
        }
        assert_eq!(routed(Request::get("/files").header("e2b-sandbox-id", "i1")), node);
        assert_eq!(routed(Request::get("/").header("host", "8000-i1.box.test")), node);
    }

    #[test]
    fn everything_else_has_its_place_or_none() {
        for (method, path, expected) in [
            (Method::GET, "/healthz", FrontRoute::Health),
            (Method::POST, "/sandboxes", FrontRoute::Create),
            (Method::POST, "/v1/run", FrontRoute::Create),
            (Method::POST, "/api/sandbox", FrontRoute::Create),
            (Method::POST, "/api/v2/execute", FrontRoute::Create),
            (Method::GET, "/api/v2/runtimes", FrontRoute::Any),
            (Method::GET, "/api/sandbox", FrontRoute::OfOneNode),
            (Method::GET, "/v2/sandboxes?limit=3", FrontRoute::List(ListForm::Pages)),
            (Method::GET, "/v1/version", FrontRoute::Version),
            (Method::GET, "/v1/names/a", FrontRoute::Name),
            (Method::GET, "/v1/volumes", FrontRoute::OfOneNode),
            (Method::GET, "/metrics", FrontRoute::OfOneNode),
            (Method::POST, "/mcp", FrontRoute::OfOneNode),
            (Method::GET, "/sandboxes/../x", FrontRoute::OfOneNode),
            (Method::GET, "/sandboxes/I1", FrontRoute::OfOneNode),
        ] {
            assert_eq!(
                routed(Request::builder().method(&method).uri(path)),
                Ok(expected),
                "{method} {path}"
            );
        }
        assert!(routed(Request::get("/_port/../8000/")).is_err());
    }
}
