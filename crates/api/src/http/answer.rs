//! Answers of our own: JSON, and errors in the shape that the SDKs read.

use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use serde::Serialize;

use crate::http::body::{self, Body};

/// Names nodes of a front whose sandboxes are not in a list, because they are lost or did not answer it.
pub(crate) const NODES_MISSING: &str = "offleash-nodes-missing";
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// An error that a client is told: `{"code": status, "message": text}` with the same status, and `error_code` where the
/// SDKs look for one.
///
/// JavaScript's SDK reads `code`, Python's reads the status. Nothing in `message` comes from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiRefusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    error_code: Option<&'static str>,
    retry: Option<RetryAdvice>,
    closes: bool,
}

/// Whether asking again is any use, which Python's SDK would otherwise guess from the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryAdvice {
    Never,
    After(Duration),
}

#[derive(Serialize)]
struct RefusalBody<'a> {
    code: u16,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
}

impl ApiRefusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            error_code: None,
            retry: None,
            closes: false,
        }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// What is not there, whoever asks; asking again is no use.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("{what} not supported yet")).final_answer()
    }

    /// Why nothing is done by this method where others do something.
    pub(crate) fn wrong_method(method: &Method) -> Self {
        let message = format!("`{method}` does nothing here");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// Names what the status alone does not tell, in a word that SDKs know.
    pub(crate) fn with_error_code(mut self, code: &'static str) -> Self {
        self.error_code = Some(code);
        self
    }

    /// Says that asking again is no use.
    pub(crate) fn final_answer(mut self) -> Self {
        self.retry = Some(RetryAdvice::Never);
        self
    }

    /// Says after how long asking again may be of use.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = Some(RetryAdvice::After(wait));
        self
    }

    /// Ends the connection after the answer: the rest of the request is not worth waiting for.
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    pub(crate) fn answer(&self) -> Response<Body> {
        let body = RefusalBody {
            code: self.status.as_u16(),
            message: &self.message,
            error_code: self.error_code,
        };
        let mut response = json(self.status, &body);
        let headers = response.headers_mut();
        match self.retry {
            Some(RetryAdvice::Never) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Some(RetryAdvice::After(wait)) => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("true"));
                // Whole seconds, and at least one: none would be at once.
                headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
            }
            None => {}
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Nothing that is answered has keys other than text, or fails to be written.
    written(status, serde_json::to_vec(value).unwrap_or_default())
}

/// An answer of JSON that is written already.
pub(crate) fn written(status: StatusCode, text: Vec<u8>) -> Response<Body> {
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
