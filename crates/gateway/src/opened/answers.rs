//! Answers of the gateway's own.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;

use super::bodies::AnswerBody;
use super::requests::Refused;
use crate::http::words;
use crate::http_requests::RequestError;
use crate::stopped::Stopped;

/// Why a request is not answered by the server.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// It is refused.
    Refused(Refused),
    /// The server cannot be reached, or not as it must be.
    Failed(String),
}

impl Unanswered {
    /// What the program is told.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::FORBIDDEN,
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
        }
    }

    pub(super) fn answer(&self) -> Response<AnswerBody> {
        let text = match self {
            Self::Refused(refused) => words(&refused.reason, refused.hint.as_deref()),
            Self::Failed(reason) => words(reason, None),
        };
        let mut response = Response::new(AnswerBody::Ours(Full::new(Bytes::new())));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        *response.body_mut() = AnswerBody::Ours(Full::new(Bytes::from(text)));
        response
    }
}

/// The answer to what is no request that could be judged.
pub(super) fn unreadable(error: &RequestError) -> Response<AnswerBody> {
    let mut answer = Unanswered::from(error).answer();
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

impl From<&RequestError> for Unanswered {
    fn from(error: &RequestError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<Refused> for Unanswered {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Stopped> for Unanswered {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Refused(reason) | Stopped::Cut(reason) => Self::Refused(Refused::because(reason)),
            Stopped::Failed(reason) => Self::Failed(reason),
            Stopped::Limited(reached) => Self::Refused(Refused::because(reached.to_string())),
        }
    }
}
