//! What failures of a sandbox are called in each kind of answer.

use http::{Response, StatusCode};
use offleash_manager::keeper::error::KeeperError;
use rustix::io::Errno;
use serde::Serialize;

use super::path::PathError;
use crate::answer;
use crate::body::Body;
use crate::connect::{Code, ConnectError, StreamEnd};

/// Why a call to a sandbox's services did not succeed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The sandbox is not there, or not running.
    Gone,
    /// For the caller.
    Told(ConnectError),
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Told(error)
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Self::Told(ConnectError::invalid(error.to_string()))
    }
}

impl From<KeeperError> for Failure {
    fn from(error: KeeperError) -> Self {
        let (code, message) = match &error {
            KeeperError::Gone | KeeperError::Paused => return Self::Gone,
            KeeperError::InvalidUser(name) => (
                Code::Unauthenticated,
                format!("invalid username: '{}'", name.escape_debug()),
            ),
            KeeperError::NoProcess => (Code::NotFound, error.to_string()),
            KeeperError::Directory { .. } | KeeperError::NotFound | KeeperError::NotExecutable { .. } => {
                (Code::InvalidArgument, error.to_string())
            }
            KeeperError::NotStarted { errno, .. } if is_exhaustion(*errno) => {
                (Code::ResourceExhausted, error.to_string())
            }
            KeeperError::NotStarted { .. } | KeeperError::Invalid { .. } => (Code::InvalidArgument, error.to_string()),
            KeeperError::InputClosed | KeeperError::NoTerminal => (Code::FailedPrecondition, error.to_string()),
            KeeperError::Unsupported { .. } => (Code::Unimplemented, error.to_string()),
            KeeperError::Exhausted { .. } => (Code::ResourceExhausted, error.to_string()),
            KeeperError::Timeout { .. } => (Code::DeadlineExceeded, error.to_string()),
            KeeperError::File { errno, .. } => (file_code(*errno), error.to_string()),
            // What these say is about the host.
            _ => (Code::Internal, "the sandbox's keeper failed".to_owned()),
        };
        Self::Told(ConnectError::new(code, message))
    }
}

impl From<Failure> for StreamEnd {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gone => Self::Cut,
            Failure::Told(error) => Self::Failed(error),
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
fn file_code(number: i32) -> Code {
    match Errno::from_raw_os_error(number) {
        Errno::NOENT => Code::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => Code::AlreadyExists,
        // A socket, and a device that nothing is behind, cannot be opened (open(2)).
        Errno::NXIO | Errno::NODEV => Code::InvalidArgument,
        Errno::NOTDIR | Errno::ISDIR | Errno::INVAL | Errno::NAMETOOLONG => Code::InvalidArgument,
        Errno::PERM | Errno::ACCESS | Errno::ROFS => Code::PermissionDenied,
        Errno::LOOP | Errno::BUSY => Code::FailedPrecondition,
        _ if is_exhaustion(number) => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

/// The status for what the kernel said about a file.
pub(super) fn file_status(number: i32) -> StatusCode {
    match number {
        number if is_full(number) => StatusCode::INSUFFICIENT_STORAGE,
        number => match file_code(number) {
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
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

    fn told(error: KeeperError) -> (Code, String) {
        match Failure::from(error) {
            Failure::Told(error) => (error.code, error.message),
            Failure::Gone => panic!("gone"),
        }
    }

    #[test]
    fn failures_have_the_codes_that_the_sdks_know() {
        let (code, message) = told(KeeperError::InvalidUser("x'\n".to_owned()));
        assert_eq!(
            (code, message.as_str()),
            (Code::Unauthenticated, r"invalid username: 'x\'\n'")
        );
        assert_eq!(told(KeeperError::Directory { errno: 2 }).0, Code::InvalidArgument);
        assert_eq!(told(KeeperError::NotFound).0, Code::InvalidArgument);
        assert_eq!(told(KeeperError::NoProcess).0, Code::NotFound);
        for errno in [11, 12, 23, 24, 28] {
            let step = "clone".to_owned();
            assert_eq!(told(KeeperError::NotStarted { step, errno }).0, Code::ResourceExhausted);
        }
        assert!(matches!(Failure::from(KeeperError::Gone), Failure::Gone));
        assert!(matches!(Failure::from(KeeperError::Paused), Failure::Gone));
    }

    #[test]
    fn what_failed_on_the_host_is_not_told() {
        let reason = "/var/lib/x: broken".to_owned();
        let (code, message) = told(KeeperError::Failed { reason });
        assert_eq!(
            (code, message.as_str()),
            (Code::Internal, "the sandbox's keeper failed")
        );
    }

    #[test]
    fn numbers_of_the_kernel_have_codes_and_statuses() {
        for (number, code, status) in [
            (2, Code::NotFound, 404),
            (17, Code::AlreadyExists, 400),
            (20, Code::InvalidArgument, 400),
            (21, Code::InvalidArgument, 400),
            (13, Code::PermissionDenied, 403),
            (6, Code::InvalidArgument, 400),
            (27, Code::ResourceExhausted, 507),
            (28, Code::ResourceExhausted, 507),
            (122, Code::ResourceExhausted, 507),
            (24, Code::ResourceExhausted, 429),
            (5, Code::Internal, 500),
        ] {
            assert_eq!(file_code(number), code, "{number}");
            assert_eq!(file_status(number).as_u16(), status, "{number}");
        }
    }
}
