//! Bodies of requests, read within bounds, and bodies of answers.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

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
