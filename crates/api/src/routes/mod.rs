//! The routes of E2B's control plane, of the native REST and of other APIs, in one table each.
//!
//! A row says everything about a route: its operation, method and path, who may call, how much its body may have, what
//! answers, and what documents say of it. Requests are found in it, and the OpenAPI document, the reference in `docs/` and
//! the tests of who may call are made from it.

mod daytona;
mod doors;
mod e2b;
mod judge0;
mod native;
mod openapi;
mod piston;
mod refused;
mod summary;

use std::future::Future;
use std::pin::Pin;

use http::request::Parts;
use http::{Method, Response};
use hyper::body::Incoming;
use offleash_daemon::Scope;

use self::openapi::RouteSchemas;
pub use self::summary::{RouteSummary, route_summaries};
use crate::control::{ApiRequest, ControlPlane};
use crate::e2b::control::builds::UploadCall;
use crate::e2b::volume_content::{ContentCall, ContentRefusal, ContentResult};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;

/// Who may call, and what answers then.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RouteHandler {
    /// Whoever can reach the server: no key is asked for, and nothing of a caller is known.
    Open(fn() -> Response<Body>),
    /// Whoever shows the token of the volume that the path names.
    ByVolumeToken(for<'a> fn(ContentCall<'a>) -> ContentFuture<'a>),
    /// Whoever shows the token that was given for the archive.
    ByUploadToken(for<'a> fn(UploadCall<'a>) -> RouteFuture<'a>),
    /// A key that has this scope.
    Keyed(Scope, for<'a> fn(RouteCall<'a>) -> RouteFuture<'a>),
}

/// An answer that is being made.
pub(crate) type RouteFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, ApiRefusal>> + Send + 'a>>;

/// An answer about what is in a volume.
pub(crate) type ContentFuture<'a> = Pin<Box<dyn Future<Output = ContentResult> + Send + 'a>>;

/// A request that has found its route.
#[derive(Debug)]
pub(crate) struct RouteCall<'a> {
    pub(crate) asked: &'a ApiRequest<'a>,
    /// The segments that stand in place of those in braces.
    pub(crate) segments: PathSegments<'a>,
    pub(crate) body: RequestBody,
}

/// One route.
#[derive(Debug)]
pub(crate) struct RouteEntry {
    /// The operation's name, which no other route has.
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    /// Segments in braces stand for any.
    pub(crate) path: &'static str,
    /// How many bytes its body may have; none is read if absent.
    pub(crate) max_body: Option<usize>,
    /// What it does, a sentence.
    pub(crate) summary: &'static str,
    /// What the OpenAPI document says of it; it describes the native REST alone.
    pub(crate) schemas: Option<RouteSchemas>,
    pub(crate) handler: RouteHandler,
}

impl<'a> RouteCall<'a> {
    /// The first segment in braces.
    fn first(&self) -> &'a str {
        self.segments[0]
    }
}

/// Keys that may look.
const READ: Scope = Scope::Read;
/// Keys that may make and end sandboxes.
const CREATE: Scope = Scope::Create;
/// Keys that may learn the ids of all sandboxes.
const OVERVIEW: Scope = Scope::Overview;
/// Keys that may do everything.
const ADMIN: Scope = Scope::Admin;

/// Writes a row as one reads it: operation, method, path, who may call, body, what it does, what answers.
macro_rules! route {
    ($operation:literal, $method:ident $path:literal, $scope:expr, $max_body:expr, $summary:literal, $schemas:expr, $handler:expr $(,)?) => {
        $crate::routes::RouteEntry {
            operation: $operation,
            method: http::Method::$method,
            path: $path,
            max_body: $max_body,
            summary: $summary,
            schemas: $schemas,
            handler: $crate::routes::RouteHandler::Keyed($scope, $handler),
        }
    };
}
use route;

/// An answer that is there at once.
fn at_once<'a>(answer: Result<Response<Body>, ApiRefusal>) -> RouteFuture<'a> {
    Box::pin(std::future::ready(answer))
}

/// Whether a path is one of the native REST.
fn is_native(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Answers with the OpenAPI document.
fn document() -> Response<Body> {
    answer::json(http::StatusCode::OK, &openapi::document(&native::ROUTES))
}

/// The answer to a request that needs no key; `None` for all others, whether or not there is a route.
pub(crate) fn answer_open(method: &Method, path: &str) -> Option<Response<Body>> {
    match find(method, path).ok()?.0.handler {
        RouteHandler::Open(answer) => Some(answer()),
        RouteHandler::Keyed(..) | RouteHandler::ByVolumeToken(_) | RouteHandler::ByUploadToken(_) => None,
    }
}

/// Answers a request for what is in a volume, or with an archive, of whoever shows its token; gives the body back of all others.
///
/// # Errors
/// The body.
pub(crate) async fn answer_by_token(
    control: &ControlPlane,
    parts: &Parts,
    body: Incoming,
) -> Result<Response<Body>, Incoming> {
    let Ok((route, [first, second, _])) = find(&parts.method, parts.uri.path()) else {
        return Err(body);
    };
    let new_body = |body| RequestBody::new(body, route.max_body.unwrap_or(0));
    match route.handler {
        RouteHandler::ByVolumeToken(handler) => {
            let call = ContentCall {
                control,
                parts,
                volume: first,
                body: new_body(body),
            };
            Ok(handler(call).await.unwrap_or_else(ContentRefusal::answer))
        }
        RouteHandler::ByUploadToken(handler) => {
            let call = UploadCall {
                control,
                parts,
                hash: second,
                body: new_body(body),
            };
            Ok(handler(call).await.unwrap_or_else(|refusal| refusal.answer()))
        }
        RouteHandler::Open(_) | RouteHandler::Keyed(..) => Err(body),
    }
}

/// Answers a request of a caller with a key: finds its route, checks the caller's scope, and calls what answers.
///
/// # Errors
/// 404 and 405 for what nobody answers, 501 for what E2B's control plane has and this one has not, 403 without the scope,
/// and whatever the handler refuses.
pub(crate) async fn answer(asked: &ApiRequest<'_>, body: Incoming) -> Result<Response<Body>, ApiRefusal> {
    let (route, segments) = find(&asked.parts.method, asked.parts.uri.path())?;
    let body = RequestBody::new(body, route.max_body.unwrap_or(0));
    match route.handler {
        RouteHandler::Open(answer) => Ok(answer()),
        RouteHandler::ByVolumeToken(_) | RouteHandler::ByUploadToken(_) => {
            Err(MissingRoute::Nothing.refusal(&asked.parts.method))
        }
        RouteHandler::Keyed(scope, handler) => {
            asked.require(scope)?;
            let response = handler(RouteCall { asked, segments, body }).await?;
            asked.bounded(response).await
        }
    }
}

/// The route of a request, as the table has it.
pub(crate) fn pattern_of(method: &Method, path: &str) -> Option<&'static str> {
    find(method, path).ok().map(|(route, _)| route.path)
}

/// Finds the route of a request.
fn find<'a>(method: &Method, path: &'a str) -> Result<(&'static RouteEntry, PathSegments<'a>), ApiRefusal> {
    if is_native(path) {
        return found(&native::ROUTES, method, path).map_err(|missing| missing.refusal(method));
    }
    // SDKs put their path behind an address that may end with a slash.
    let path = path.trim_start_matches('/');
    if let Some(rest) = path.strip_prefix("api/") {
        return doors::find(method, path, rest);
    }
    if path.starts_with("judge0/") {
        let path = path.strip_suffix('/').unwrap_or(path);
        return found(&judge0::ROUTES, method, path).map_err(|missing| missing.refusal(method));
    }
    found(&e2b::ROUTES, method, path).map_err(|missing| refused::of_e2b(method, path, missing))
}

/// Why no route is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingRoute {
    /// The path is one, but not with this method.
    OtherMethod,
    Nothing,
}

impl MissingRoute {
    fn refusal(self, method: &Method) -> ApiRefusal {
        match self {
            Self::OtherMethod => ApiRefusal::wrong_method(method),
            Self::Nothing => ApiRefusal::not_found("there is no such route"),
        }
    }
}

fn found<'a>(
    routes: &'static [RouteEntry],
    method: &Method,
    path: &'a str,
) -> Result<(&'static RouteEntry, PathSegments<'a>), MissingRoute> {
    found_below("", routes, method, path)
}

/// Looks in one table, whose paths begin with `base`, for what is behind that.
fn found_below<'a>(
    base: &str,
    routes: &'static [RouteEntry],
    method: &Method,
    path: &'a str,
) -> Result<(&'static RouteEntry, PathSegments<'a>), MissingRoute> {
    let mut missing = MissingRoute::Nothing;
    for route in routes {
        let pattern = route.path.strip_prefix(base).unwrap_or(route.path);
        let Some(segments) = matched(pattern, path) else {
            continue;
        };
        if route.method == *method {
            return Ok((route, segments));
        }
        missing = MissingRoute::OtherMethod;
    }
    Err(missing)
}

/// The segments in place of those in braces, when the path fits. A slash before all of it need not be there.
fn matched<'a>(pattern: &str, path: &'a str) -> Option<PathSegments<'a>> {
    let mut found = PathSegments::default();
    let mut places = found.iter_mut();
    let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
    let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
    for expected in pattern.split('/') {
        let segment = given.next()?;
        if expected.starts_with('{') {
            *places.next()? = segment;
        } else if expected != segment {
            return None;
        }
    }
    given.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static RouteEntry> {
        summary::all()
    }

    #[test]
    fn requests_find_their_route() {
        for (method, path, operation, segments) in [
            (Method::POST, "/v1/run", "Run", ["", "", ""]),
            (Method::GET, "/v1/sandboxes/i1", "GetSandbox", ["i1", "", ""]),
            (
                Method::POST,
                "/v1/sandboxes/i1/contexts/c2/restart",
                "RestartContext",
                ["i1", "c2", ""],
            ),
            (Method::DELETE, "/v1/keys/", "RevokeKey", ["", "", ""]),
            (Method::POST, "/sandboxes", "E2bCreateSandboxFirst", ["", "", ""]),
            (Method::POST, "/v2/sandboxes", "E2bCreateSandbox", ["", "", ""]),
            (Method::GET, "//sandboxes/i1", "E2bGetSandbox", ["i1", "", ""]),
            (Method::GET, "/sandboxes/", "E2bGetSandbox", ["", "", ""]),
            (Method::GET, "/templates/aliases/a", "E2bFindTemplate", ["a", "", ""]),
            (Method::GET, "/judge0/submissions/batch", "Judge0GetBatch", ["", "", ""]),
            (
                Method::GET,
                "//judge0/submissions/b/",
                "Judge0GetSubmission",
                ["b", "", ""],
            ),
            (
                Method::GET,
                "/api/toolbox/i1/process/pty/create-connect",
                "DaytonaCreateConnectedTerminal",
                ["i1", "", ""],
            ),
        ] {
            let (route, found) = find(&method, path).unwrap();
            assert_eq!((route.operation, found), (operation, segments), "{method} {path}");
        }
    }

    #[test]
    fn what_is_no_route_is_told_from_what_is_one_with_another_method() {
        for (status, method, path) in [
            (405, Method::GET, "/v1/run"),
            (405, Method::PATCH, "/snapshots"),
            (405, Method::PATCH, "/sandboxes/i1/snapshots"),
            (405, Method::PATCH, "/sandboxes/i1/pause"),
            (405, Method::PATCH, "/sandboxes/i1/fork"),
            (405, Method::PATCH, "/secrets/a"),
            (405, Method::GET, "/v2/sandboxes/i1/connect"),
            (405, Method::POST, "/v2/sandboxes/i1/logs"),
            (405, Method::GET, "/events/sandboxes/a/b"),
            (405, Method::PUT, "/events/webhooks"),
            (405, Method::POST, "/events/webhooks/w1"),
            (404, Method::GET, "/v1"),
            (404, Method::GET, "/v1/"),
            (404, Method::POST, "/v1/run/"),
            (404, Method::GET, "/v1/sandboxes/i1/"),
            (404, Method::POST, "/v1/sandboxes/a/b/run"),
            (404, Method::POST, "/v1/sandboxes/a/contexts/b/c/restart"),
            (404, Method::POST, "/v2/run"),
            (404, Method::GET, "//v1/version"),
            (404, Method::GET, "/"),
            (404, Method::GET, "/teams"),
            (404, Method::PATCH, "/sandboxes/i1/else"),
            (404, Method::GET, "/v9/sandboxes"),
            (404, Method::POST, "/v2/sandboxes/i1/pause"),
            (404, Method::GET, "/sandboxes/i1/pause/now"),
            (404, Method::GET, "/judge0"),
            (404, Method::GET, "/submissions"),
            (405, Method::PUT, "/judge0/submissions/a"),
            (405, Method::POST, "/api/v2/connect"),
            (405, Method::POST, "/api/toolbox/i1/process/interpreter/execute"),
        ] {
            let refusal = find(&method, path).unwrap_err();
            assert_eq!(refusal.status.as_u16(), status, "{method} {path}");
        }
    }

    #[test]
    fn what_e2b_has_and_this_has_not_is_told_from_what_nobody_has() {
        for path in [
            "/templates",
            "/templates/x",
            "/templates/x/builds/y",
            "/templates/x/tags/groups",
        ] {
            let refusal = find(&Method::POST, path).unwrap_err();
            assert_eq!(refusal.status.as_u16(), 501, "{path}");
        }
    }

    #[test]
    fn every_route_is_there_once_and_says_what_it_does() {
        for (index, one) in all().enumerate() {
            assert!(one.summary.ends_with('.'), "{one:?}");
            let in_braces = one.path.split('/').filter(|segment| segment.starts_with('{'));
            assert!(in_braces.count() <= PathSegments::default().len(), "{one:?}");
            for other in all().skip(index + 1) {
                assert_ne!(one.operation, other.operation);
                assert_ne!((&one.method, one.path), (&other.method, other.path));
            }
        }
    }

    #[test]
    fn a_route_that_takes_a_body_says_so_in_its_schemas_and_the_other_way_round() {
        for route in &native::ROUTES {
            let has_schema = route.schemas.as_ref().is_some_and(|schemas| schemas.request.is_some());
            assert_eq!(has_schema, route.max_body.is_some(), "{route:?}");
        }
    }
}
