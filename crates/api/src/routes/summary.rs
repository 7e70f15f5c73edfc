//! The table as documents and tests read it.

use offleash_daemon::Scope;

use super::{RouteEntry, RouteHandler, daytona, e2b, judge0, native, piston};

/// What there is to say about a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSummary {
    /// The operation's name, which no other route has.
    pub operation: &'static str,
    /// As in `GET`.
    pub method: &'static str,
    /// Segments in braces stand for any.
    pub path: &'static str,
    /// The scope that a key must have; no key is asked for if absent.
    pub scope: Option<&'static str>,
    /// Of what a token is asked for instead of a key: `volume` or `upload`.
    pub token: Option<&'static str>,
    /// How many bytes its body may have; none is read if absent.
    pub max_body: Option<usize>,
    /// What it does, a sentence.
    pub summary: &'static str,
}

impl RouteSummary {
    fn of(route: &'static RouteEntry) -> Self {
        Self {
            operation: route.operation,
            method: route.method.as_str(),
            path: route.path,
            scope: match route.handler {
                RouteHandler::Open(_) | RouteHandler::ByVolumeToken(_) | RouteHandler::ByUploadToken(_) => None,
                RouteHandler::Keyed(scope, _) => Some(Scope::as_str(scope)),
            },
            token: match route.handler {
                RouteHandler::ByVolumeToken(_) => Some("volume"),
                RouteHandler::ByUploadToken(_) => Some("upload"),
                RouteHandler::Open(_) | RouteHandler::Keyed(..) => None,
            },
            max_body: route.max_body,
            summary: route.summary,
        }
    }
}

/// Every route: those of E2B's control plane, of Piston, of Daytona and of Judge0, then those of the native REST.
pub fn route_summaries() -> Vec<RouteSummary> {
    all().map(RouteSummary::of).collect()
}

/// The same, as they are answered.
pub(super) fn all() -> impl Iterator<Item = &'static RouteEntry> {
    let doors = piston::ROUTES.iter().chain(&daytona::ROUTES).chain(&judge0::ROUTES);
    e2b::ROUTES.iter().chain(doors).chain(&native::ROUTES)
}
