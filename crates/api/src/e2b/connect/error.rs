//! Why a call failed: one of Connect's codes and a text for the caller.

use std::fmt;

use http::StatusCode;
use serde::Serialize;

/// The codes of Connect that the services use (<https://connectrpc.com/docs/protocol/#error-codes>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectCode {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unauthenticated,
}

impl ConnectCode {
    /// As it is written on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// The HTTP status of a unary call that failed so.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectError {
    /// Which kind of failure.
    pub(crate) code: ConnectCode,
    /// For the caller: what was tried, on what, why it failed. No path of the host.
    pub(crate) message: String,
    /// What a shell would say of a command that was not started: 127 if there is none, 126 if it cannot be executed.
    pub(crate) exit_code: Option<u8>,
}

/// Under which name the metadata of a stream's end has [`ConnectError::exit_code`].
pub(crate) const EXIT_CODE: &str = "offleash-exit-code";

impl ConnectError {
    pub(crate) fn new(code: ConnectCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            exit_code: None,
        }
    }

    /// Adds what a shell would have said.
    pub(crate) fn with_exit_code(self, code: u8) -> Self {
        Self {
            exit_code: Some(code),
            ..self
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ConnectCode::InvalidArgument, message)
    }

    /// The error as JSON: the body of a unary answer, or `error` in the last frame of a stream.
    pub(crate) fn json(&self) -> ErrorJson<'_> {
        ErrorJson {
            code: self.code.name(),
            message: &self.message,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for ConnectError {}

/// A failure as the wire has it.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorJson<'a> {
    code: &'static str,
    message: &'a str,
}
