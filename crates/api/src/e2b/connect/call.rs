//! What the head of a request says about a call: its kind, the form of its messages, its timeout.

use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};

use super::{ConnectCode, ConnectError, MessageCodec};

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");

/// Most digits of a timeout in milliseconds, as the protocol says: 115 days.
const TIMEOUT_DIGITS: usize = 10;

/// Whether one message goes each way, or frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Unary,
    Stream,
}

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectCall {
    pub(crate) kind: CallKind,
    pub(crate) codec: MessageCodec,
}

impl ConnectCall {
    /// The call that a request with these headers makes; `None` if its content is of no type that calls have.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let content = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let content = content.split(';').next().unwrap_or_default().trim();
        let (kind, codec) = match content.to_ascii_lowercase().as_str() {
            "application/json" => (CallKind::Unary, MessageCodec::Json),
            "application/proto" => (CallKind::Unary, MessageCodec::Proto),
            "application/connect+json" => (CallKind::Stream, MessageCodec::Json),
            "application/connect+proto" => (CallKind::Stream, MessageCodec::Proto),
            _ => return None,
        };
        Some(Self { kind, codec })
    }

    /// The type of what the answers contain.
    pub(crate) fn content_type(self) -> &'static str {
        match (self.kind, self.codec) {
            (CallKind::Unary, MessageCodec::Json) => "application/json",
            (CallKind::Unary, MessageCodec::Proto) => "application/proto",
            (CallKind::Stream, MessageCodec::Json) => "application/connect+json",
            (CallKind::Stream, MessageCodec::Proto) => "application/connect+proto",
        }
    }

    /// Refuses what the protocol's version or an encoding of the body make unreadable.
    ///
    /// # Errors
    /// `invalid_argument` for a version other than 1, `unimplemented` for a compressed body.
    pub(crate) fn check(self, headers: &HeaderMap) -> Result<(), ConnectError> {
        if let Some(version) = headers.get(PROTOCOL_VERSION)
            && version.as_bytes() != b"1"
        {
            return Err(ConnectError::invalid("connect-protocol-version must be 1"));
        }
        let encoding = match self.kind {
            CallKind::Unary => headers.get(CONTENT_ENCODING),
            CallKind::Stream => headers.get(STREAM_ENCODING),
        };
        match encoding {
            Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
                let text = "unknown compression; supported encodings are identity";
                Err(ConnectError::new(ConnectCode::Unimplemented, text))
            }
            _ => Ok(()),
        }
    }

    /// After which time the caller wants the call to end; zero means never, like no header.
    ///
    /// # Errors
    /// `invalid_argument` for anything but up to ten digits.
    pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ConnectError> {
        let Some(value) = headers.get(TIMEOUT) else {
            return Ok(None);
        };
        let digits = value.to_str().unwrap_or_default();
        let is_number =
            !digits.is_empty() && digits.len() <= TIMEOUT_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
        let number = is_number.then(|| digits.parse::<u64>().ok()).flatten();
        match number {
            Some(0) => Ok(None),
            Some(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
            None => Err(ConnectError::invalid(
                "connect-timeout-ms must be a number of at most ten digits",
            )),
        }
    }
}
