//! Writes what a caller gets: one message, or frames as they come.

use std::future::Future;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::frame::{end_frame, message_frame};
use super::{CallKind, ConnectCall, ConnectError, ConnectMessage, MessageCodec};
use crate::http::body::{Body, full};
use crate::http::driven::{BodyFeed, driven};

/// The answer to a unary call.
pub(crate) fn unary<M: ConnectMessage>(codec: MessageCodec, result: Result<M, ConnectError>) -> Response<Body> {
    let call = ConnectCall {
        kind: CallKind::Unary,
        codec,
    };
    match result.and_then(|message| codec.encode(&message)) {
        Ok(bytes) => answer(StatusCode::OK, call.content_type(), full(bytes)),
        Err(error) => refuse(call, &error),
    }
}

/// The answer to a unary call whose message was written.
pub(crate) fn written(codec: MessageCodec, body: Body) -> Response<Body> {
    let call = ConnectCall {
        kind: CallKind::Unary,
        codec,
    };
    answer(StatusCode::OK, call.content_type(), body)
}

/// The answer to a call that fails before anything is done: an HTTP status for a unary call, a last frame for a stream.
pub(crate) fn refuse(call: ConnectCall, error: &ConnectError) -> Response<Body> {
    match call.kind {
        CallKind::Unary => {
            let body = serde_json::to_vec(&error.json()).unwrap_or_default();
            answer(error.code.status(), "application/json", full(body))
        }
        CallKind::Stream => answer(StatusCode::OK, call.content_type(), full(end_frame(Some(error)))),
    }
}

/// The answer to a call that yields a stream: `serve` sends messages, and how it ends is said in the last frame.
///
/// `serve` runs while the caller reads and is dropped when the caller is gone.
pub(crate) fn stream<S, F>(codec: MessageCodec, serve: S) -> Response<Body>
where
    S: FnOnce(MessageSender) -> F,
    F: Future<Output = Result<(), StreamEnd>> + Send + 'static,
{
    let call = ConnectCall {
        kind: CallKind::Stream,
        codec,
    };
    let body = driven(|feed| {
        let served = serve(MessageSender {
            codec,
            feed: feed.clone(),
        });
        async move {
            let last = match served.await {
                Ok(()) => Ok(end_frame(None)),
                Err(StreamEnd::Failed(error)) => Ok(end_frame(Some(&error))),
                Err(StreamEnd::Cut) => Err("the sandbox is gone".into()),
            };
            feed.send(last).await;
        }
    });
    answer(StatusCode::OK, call.content_type(), body)
}

/// How a stream ends when it does not end well.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// With an error that the caller is told.
    Failed(ConnectError),
    /// Without an end: the connection is cut, because the sandbox is gone.
    Cut,
}

impl From<ConnectError> for StreamEnd {
    fn from(error: ConnectError) -> Self {
        Self::Failed(error)
    }
}

/// Where the messages of a stream go.
#[derive(Debug)]
pub(crate) struct MessageSender {
    codec: MessageCodec,
    feed: BodyFeed,
}

impl MessageSender {
    /// Sends a message; waits while the caller does not take what was sent before.
    ///
    /// # Errors
    /// `internal` for a message that no frame can hold.
    pub(crate) async fn send<M: ConnectMessage>(&self, message: &M) -> Result<(), ConnectError> {
        let bytes = self.codec.encode(message)?;
        self.feed.send(Ok(message_frame(&bytes)?)).await;
        Ok(())
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer's bytes for the tests of what is made here.
#[cfg(test)]
pub(crate) async fn collected(
    response: Response<Body>,
) -> (StatusCode, Result<bytes::Bytes, crate::http::body::BodyError>) {
    use http_body_util::BodyExt;
    let status = response.status();
    (
        status,
        response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes),
    )
}
