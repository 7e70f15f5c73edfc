//! Answers of our own: JSON, and errors in the shape that the SDKs read.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::body::{self, Body};

/// An error that a client is told: `{"code": status, "message": text}` with the same status.
///
/// JavaScript's SDK reads `code`, Python's reads the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

#[derive(Serialize)]
struct RefusalBody<'a> {
    code: u16,
    message: &'a str,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn answer(&self) -> Response<Body> {
        let body = RefusalBody {
            code: self.status.as_u16(),
            message: &self.message,
        };
        json(self.status, &body)
    }
}

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Nothing that is answered has keys other than text, or fails to be written.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(body::full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = status;
    response
}
