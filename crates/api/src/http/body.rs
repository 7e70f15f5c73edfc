//! Bodies of requests, read within bounds, and bodies of answers.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, SizeHint};

/// Why the body of an answer ends early; the connection is cut then, so that nobody takes the part for the whole.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer: bytes at hand, or a stream.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is at hand.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// No body.
pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

/// `body`, with `held` kept until it was sent or given up.
pub(crate) fn until_end<H: Send + Unpin + 'static>(body: Body, held: H) -> Body {
    UntilEnd { body, _held: held }.boxed_unsync()
}

struct UntilEnd<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> hyper::body::Body for UntilEnd<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
