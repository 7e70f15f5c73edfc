//! What of a front's requests goes where. Pure: reads the head of a request, and knows no node.

use http::Method;
use http::header::HOST;
use http::request::Parts;

use crate::http::destination::{self, DestinationError, RequestDestination};

/// Who answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FrontRoute {
    /// The front: it is there.
    Health,
    /// The front: whether a node can take sandboxes.
    Ready,
    /// The node of a sandbox, and what is inside: whoever asks shows a key, a token, a signature, or nothing.
    Sandbox(String),
    /// The node that knows a sandbox, also one that has ended: whoever asks shows a key.
    SandboxApi(String),
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
    /// The front: files of the page that shows a desktop's screen.
    Viewer,
    /// The front: its nodes, to whoever may look after it.
    Nodes,
    /// The front: has a node take no new sandboxes, and moves those that it has, with the key of who asks.
    Drain,
    /// The front: its numbers, to the same.
    Metrics,
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
    /// An object with an array of that name, in one piece (`GET /v1/sessions`).
    Named(&'static str),
}

impl ListForm {
    /// Whether it has no pages.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Named(_))
    }
}

/// Below these the segment that follows is the id of a sandbox.
const OF_SANDBOX: [&str; 8] = [
    "/v1/sandboxes/",
    "/v2/sandboxes/",
    "/sandboxes/",
    "/events/sandboxes/",
    "/api/sandbox/",
    "/api/toolbox/",
    SESSIONS,
    DESKTOPS,
];
const SESSIONS: &str = "/v1/sessions/";
const DESKTOPS: &str = "/v1/desktops/";

/// What the page is made of that shows a desktop's screen. The dashboard is not among it: most of that is one node's.
const VIEWER: [&str; 7] = [
    "/ui/desktop.html",
    "/ui/desktop.js",
    "/ui/dom.js",
    "/ui/screen.js",
    "/ui/rfb.js",
    "/ui/style.css",
    "/ui/icon.svg",
];

impl FrontRoute {
    /// Whether nobody is answered who shows no key.
    pub(super) fn needs_key(&self) -> bool {
        matches!(
            self,
            Self::SandboxApi(_) | Self::Create | Self::List(_) | Self::Name | Self::Nodes | Self::Drain | Self::Metrics
        )
    }
}

/// Whether a request says twice, and differently, what it is addressed to: who gets it might go by the other one.
pub(super) fn is_addressed_twice(parts: &Parts) -> bool {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    let differs = match (parts.uri.authority(), host) {
        (Some(authority), Some(host)) => !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()),
        _ => false,
    };
    differs || hosts.next().is_some()
}

/// Where a node says whether it knows a sandbox, living or ended, that a request names.
pub(super) fn known_at(path: &str, id: &str) -> String {
    let path = format!("/{}", path.trim_start_matches('/'));
    let own = [SESSIONS, DESKTOPS].into_iter().find(|prefix| path.starts_with(prefix));
    let prefix = own.unwrap_or("/v1/sandboxes/");
    format!("{prefix}{id}")
}

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
    let below = |prefix: &str| {
        let id = path.strip_prefix(prefix)?.split('/').next();
        id.filter(|id| destination::is_id(id)).map(str::to_owned)
    };
    if let Some(id) = [destination::BROWSER_PREFIX, destination::DESKTOP_PREFIX]
        .into_iter()
        .find_map(below)
    {
        return Ok(FrontRoute::Sandbox(id));
    }
    if let Some(id) = OF_SANDBOX.into_iter().find_map(below) {
        return Ok(FrontRoute::SandboxApi(id));
    }
    Ok(match (&parts.method, path.as_str()) {
        (_, "/healthz") => FrontRoute::Health,
        (_, "/readyz") => FrontRoute::Ready,
        (&Method::POST, "/sandboxes" | "/v2/sandboxes" | "/v1/sandboxes" | "/v1/run") => FrontRoute::Create,
        (&Method::POST, "/v1/sessions" | "/v1/desktops") => FrontRoute::Create,
        (&Method::POST, "/api/sandbox" | "/api/v2/execute" | "/api/v2/piston/execute") => FrontRoute::Create,
        (&Method::GET, "/api/v2/runtimes" | "/api/v2/piston/runtimes" | "/api/v2/packages") => FrontRoute::Any,
        (&Method::GET, "/sandboxes") => FrontRoute::List(ListForm::Whole),
        (&Method::GET, "/v2/sandboxes") => FrontRoute::List(ListForm::Pages),
        (&Method::GET, "/v1/sandboxes") => FrontRoute::List(ListForm::Native),
        (&Method::GET, "/v1/sessions") => FrontRoute::List(ListForm::Named("sessions")),
        (&Method::GET, "/v1/desktops") => FrontRoute::List(ListForm::Named("desktops")),
        (&Method::GET, "/v1/front/nodes") => FrontRoute::Nodes,
        (&Method::POST, "/v1/front/drain") => FrontRoute::Drain,
        (&Method::GET, "/metrics") => FrontRoute::Metrics,
        (&Method::GET | &Method::HEAD, path) if VIEWER.contains(&path) => FrontRoute::Viewer,
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
        let api = Ok(FrontRoute::SandboxApi("i1".to_owned()));
        for path in [
            "/sandboxes/i1",
            "//sandboxes/i1/pause",
            "/v2/sandboxes/i1/connect",
            "/v1/sandboxes/i1/run",
            "/v1/sessions/i1/release",
            "/v1/desktops/i1/recording",
            "/api/sandbox/i1/stop",
            "/api/toolbox/i1/files/info?path=a",
            "/events/sandboxes/i1",
        ] {
            assert_eq!(routed(Request::get(path)), api, "{path}");
        }
        let node = Ok(FrontRoute::Sandbox("i1".to_owned()));
        for path in ["/_browser/i1", "/_desktop/i1?token=t", "/_port/i1/8000/a?b=c"] {
            assert_eq!(routed(Request::get(path)), node, "{path}");
        }
        assert_eq!(routed(Request::get("/files").header("e2b-sandbox-id", "i1")), node);
        assert_eq!(routed(Request::get("/").header("host", "8000-i1.box.test")), node);
    }

    #[test]
    fn a_request_is_addressed_once() {
        for (uri, hosts, expected) in [
            ("/sandboxes", &["box.test"][..], false),
            ("/sandboxes", &[], false),
            ("http://box.test:3000/x", &["Box.Test:3000"], false),
            ("http://box.test/x", &[], false),
            ("http://box.test/x", &["8000-i1.box.test"], true),
            ("http://u@box.test/x", &["box.test"], true),
            ("/x", &["box.test", "8000-i1.box.test"], true),
        ] {
            let mut request = Request::get(uri);
            for host in hosts {
                request = request.header("host", *host);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_addressed_twice(&parts), expected, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn what_has_ended_is_asked_for_where_it_is_known() {
        for (path, expected) in [
            ("/v1/sessions/i1/release", "/v1/sessions/i1"),
            ("//v1/sessions/i1", "/v1/sessions/i1"),
            ("/v1/desktops/i1/release", "/v1/desktops/i1"),
            ("/sandboxes/i1/pause", "/v1/sandboxes/i1"),
        ] {
            assert_eq!(known_at(path, "i1"), expected);
        }
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
            (Method::GET, "/metrics", FrontRoute::Metrics),
            (Method::GET, "/v1/front/nodes", FrontRoute::Nodes),
            (Method::DELETE, "/v1/front/nodes", FrontRoute::OfOneNode),
            (Method::POST, "/v1/front/drain", FrontRoute::Drain),
            (Method::GET, "/v1/front/drain", FrontRoute::OfOneNode),
            (Method::POST, "/v1/desktops", FrontRoute::Create),
            (
                Method::GET,
                "/v1/sessions",
                FrontRoute::List(ListForm::Named("sessions")),
            ),
            (
                Method::GET,
                "/v1/desktops",
                FrontRoute::List(ListForm::Named("desktops")),
            ),
            (Method::GET, "/ui/desktop.html", FrontRoute::Viewer),
            (Method::GET, "/ui/", FrontRoute::OfOneNode),
            (Method::GET, "/ui/app.js", FrontRoute::OfOneNode),
            (Method::POST, "/v1/drain", FrontRoute::OfOneNode),
            (Method::GET, "/templates", FrontRoute::OfOneNode),
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
