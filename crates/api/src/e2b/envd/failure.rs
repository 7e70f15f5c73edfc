//! What failures of a sandbox are called in each kind of answer.

use http::{Response, StatusCode};
use offleash_supervisor::service::error::SupervisorError;
use rustix::io::Errno;
use serde::Serialize;

use crate::e2b::connect::{ConnectCode, ConnectError, StreamEnd};
use crate::http::answer;
use crate::http::body::Body;
use crate::http::path::PathError;

/// Why a call to a sandbox's services did not succeed.
#[derive(Debug)]
pub(super) enum ServiceFailure {
    /// The sandbox is not there, or not running.
    Gone,
    /// For the caller.
    Told(ConnectError),
}

impl From<ConnectError> for ServiceFailure {
    fn from(error: ConnectError) -> Self {
        Self::Told(error)
    }
}

impl From<PathError> for ServiceFailure {
    fn from(error: PathError) -> Self {
        Self::Told(ConnectError::invalid(error.to_string()))
    }
}

impl From<SupervisorError> for ServiceFailure {
    fn from(error: SupervisorError) -> Self {
        let (code, message) = match &error {
            SupervisorError::Gone | SupervisorError::Paused => return Self::Gone,
            SupervisorError::InvalidUser(name) => (
                ConnectCode::Unauthenticated,
                format!("invalid username: '{}'", name.escape_debug()),
            ),
            SupervisorError::NoProcess => (ConnectCode::NotFound, error.to_string()),
            SupervisorError::Directory { .. } | SupervisorError::NotFound | SupervisorError::NotExecutable { .. } => {
                (ConnectCode::InvalidArgument, error.to_string())
            }
            SupervisorError::NotStarted { errno, .. } if is_exhaustion(*errno) => {
                (ConnectCode::ResourceExhausted, error.to_string())
            }
            SupervisorError::NotStarted { .. } | SupervisorError::Invalid { .. } => {
                (ConnectCode::InvalidArgument, error.to_string())
            }
            SupervisorError::InputClosed | SupervisorError::NoTerminal => {
                (ConnectCode::FailedPrecondition, error.to_string())
            }
            SupervisorError::NotAllowed { .. } => (ConnectCode::PermissionDenied, error.to_string()),
            SupervisorError::Unsupported { .. } => (ConnectCode::Unimplemented, error.to_string()),
            SupervisorError::Exhausted { .. } => (ConnectCode::ResourceExhausted, error.to_string()),
            SupervisorError::Timeout { .. } => (ConnectCode::DeadlineExceeded, error.to_string()),
            SupervisorError::File { errno, .. } => (file_code(*errno), error.to_string()),
            // What these say is about the host.
            _ => (ConnectCode::Internal, "the sandbox's supervisor failed".to_owned()),
        };
        Self::Told(ConnectError::new(code, message))
    }
}

impl From<ServiceFailure> for StreamEnd {
    fn from(failure: ServiceFailure) -> Self {
        match failure {
            ServiceFailure::Gone => Self::Cut,
            ServiceFailure::Told(error) => Self::Failed(error),
        }
    }
}

/// Whether something ran out that may be there again later.
fn is_exhaustion(number: i32) -> bool {
    matches!(
        Errno::from_raw_os_error(number),
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::DQUOT | Errno::FBIG
    )
}

/// Whether there is no room for more bytes or files, or for so large a one.
fn is_full(number: i32) -> bool {
    matches!(
        Errno::from_raw_os_error(number),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG
    )
}

/// The code for what the kernel said about a file.
fn file_code(number: i32) -> ConnectCode {
    match Errno::from_raw_os_error(number) {
        Errno::NOENT => ConnectCode::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => ConnectCode::AlreadyExists,
        // A socket, and a device that nothing is behind, cannot be opened (open(2)).
        Errno::NXIO | Errno::NODEV => ConnectCode::InvalidArgument,
        Errno::NOTDIR | Errno::ISDIR | Errno::INVAL | Errno::NAMETOOLONG => ConnectCode::InvalidArgument,
        Errno::PERM | Errno::ACCESS | Errno::ROFS => ConnectCode::PermissionDenied,
        Errno::LOOP | Errno::BUSY => ConnectCode::FailedPrecondition,
        _ if is_exhaustion(number) => ConnectCode::ResourceExhausted,
        _ => ConnectCode::Internal,
    }
}

/// The status for what the kernel said about a file.
pub(super) fn file_status(number: i32) -> StatusCode {
    match number {
        number if is_full(number) => StatusCode::INSUFFICIENT_STORAGE,
        number => match file_code(number) {
            ConnectCode::NotFound => StatusCode::NOT_FOUND,
            ConnectCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ConnectCode::PermissionDenied => StatusCode::FORBIDDEN,
            ConnectCode::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::BAD_REQUEST,
        },
    }
}

/// What is answered for a sandbox that is not there, or paused: the SDKs ask for this body.
pub(crate) fn gone(id: &str) -> Response<Body> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Gone<'a> {
        sandbox_id: &'a str,
        message: &'static str,
        code: u16,
    }
    let body = Gone {
        sandbox_id: id,
        message: "The sandbox was not found",
        code: StatusCode::BAD_GATEWAY.as_u16(),
    };
    answer::json(StatusCode::BAD_GATEWAY, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(error: SupervisorError) -> (ConnectCode, String) {
        match ServiceFailure::from(error) {
            ServiceFailure::Told(error) => (error.code, error.message),
            ServiceFailure::Gone => panic!("gone"),
        }
    }

    #[test]
    fn failures_have_the_codes_that_the_sdks_know() {
        let (code, message) = told(SupervisorError::InvalidUser("x'\n".to_owned()));
        assert_eq!(
            (code, message.as_str()),
            (ConnectCode::Unauthenticated, r"invalid username: 'x\'\n'")
        );
        assert_eq!(
            told(SupervisorError::Directory { errno: 2 }).0,
            ConnectCode::InvalidArgument
        );
        assert_eq!(told(SupervisorError::NotFound).0, ConnectCode::InvalidArgument);
        assert_eq!(told(SupervisorError::NoProcess).0, ConnectCode::NotFound);
        for errno in [11, 12, 23, 24, 28] {
            let step = "clone".to_owned();
            assert_eq!(
                told(SupervisorError::NotStarted { step, errno }).0,
                ConnectCode::ResourceExhausted
            );
        }
        assert!(matches!(
            ServiceFailure::from(SupervisorError::Gone),
            ServiceFailure::Gone
        ));
        assert!(matches!(
            ServiceFailure::from(SupervisorError::Paused),
            ServiceFailure::Gone
        ));
    }

    #[test]
    fn what_failed_on_the_host_is_not_told() {
        let reason = "/var/lib/x: broken".to_owned();
        let (code, message) = told(SupervisorError::Failed { reason });
        assert_eq!(
            (code, message.as_str()),
            (ConnectCode::Internal, "the sandbox's supervisor failed")
        );
    }

    #[test]
    fn numbers_of_the_kernel_have_codes_and_statuses() {
        for (number, code, status) in [
            (2, ConnectCode::NotFound, 404),
            (17, ConnectCode::AlreadyExists, 400),
            (20, ConnectCode::InvalidArgument, 400),
            (21, ConnectCode::InvalidArgument, 400),
            (13, ConnectCode::PermissionDenied, 403),
            (6, ConnectCode::InvalidArgument, 400),
            (27, ConnectCode::ResourceExhausted, 507),
            (28, ConnectCode::ResourceExhausted, 507),
            (122, ConnectCode::ResourceExhausted, 507),
            (24, ConnectCode::ResourceExhausted, 429),
            (5, ConnectCode::Internal, 500),
        ] {
            assert_eq!(file_code(number), code, "{number}");
            assert_eq!(file_status(number).as_u16(), status, "{number}");
        }
    }
}
