//! What pages of other origins are told that were allowed to call (CORS, <https://fetch.spec.whatwg.org/#cors-protocol>).
//!
//! Exactly the origins that were named, never every one, and nothing that a browser knows by itself: keys and tokens are
//! headers that a page sets. What programs in sandboxes answer is their own matter. Pure.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::http::answer;
use crate::http::body::Body;
use crate::http::guard::OriginGuard;

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
/// Headers of answers that pages may read beside those that every page may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "content-disposition, content-encoding, content-range, etag, mcp-session-id, retry-after, should-retry, \
     x-next-token, x-total-running",
);
/// How long a browser may remember what it was told, seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origin of the page that calls, if it was allowed by name.
pub(crate) fn allowed(guard: &OriginGuard, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let is_allowed = origin.to_str().is_ok_and(|origin| guard.allows(origin));
    is_allowed.then(|| origin.clone())
}

/// Whether a browser asks if a page may make a request, before it makes it.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that for a page that was allowed; [`tell`] says whose.
pub(crate) fn preflight(headers: &HeaderMap) -> Response<Body> {
    let mut response = answer::empty(StatusCode::NO_CONTENT);
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // What a header means is looked at when it comes; SDKs send a dozen that say what they are.
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    told.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    told.append(VARY, HeaderValue::from_static("access-control-request-headers"));
    response
}

/// Tells the browser that the page of `origin` may read an answer.
pub(crate) fn tell(response: &mut Response<Body>, origin: HeaderValue) {
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    told.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    told.append(VARY, HeaderValue::from_static("origin"));
}
