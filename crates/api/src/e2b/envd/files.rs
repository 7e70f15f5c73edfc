//! `/files`: whole files in and out over plain HTTP, of any size.
//!
//! Bytes go between the client and a process inside that acts as the user; a piece at a time is all that is ever held.

mod access;
mod download;
mod upload;

use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use offleash_supervisor::service::error::SupervisorError;
use rustix::io::Errno;

pub(crate) use self::access::SignedUrl;
pub(super) use self::access::check;
use super::SandboxAccess;
use super::failure::{ServiceFailure, file_status, gone};
use super::filesystem::FileCaller;
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::query;

/// Answers a request for `/files` that was admitted.
pub(super) async fn answer(sandbox: &SandboxAccess, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let pairs = query::pairs(parts.uri.query());
    let caller = FileCaller {
        sandbox,
        user: query::value(&pairs, "username").filter(|name| !name.is_empty()),
    };
    let result = match parts.method {
        Method::POST => upload::answer(&caller, &parts, body).await,
        _ => download::answer(&caller, &parts).await,
    };
    match result {
        Ok(response) => response,
        Err(FileFailure::Gone) => gone(&sandbox.id),
        Err(FileFailure::Told(refusal)) => refusal.answer(),
    }
}

/// Why a file was not given or taken.
#[derive(Debug)]
enum FileFailure {
    Gone,
    Told(ApiRefusal),
}

impl FileFailure {
    fn told(status: StatusCode, message: impl Into<String>) -> Self {
        Self::Told(ApiRefusal::new(status, message))
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::told(StatusCode::BAD_REQUEST, message)
    }

    /// What an error about `path` is to the client.
    fn about(error: SupervisorError, path: &[u8]) -> Self {
        let shown = String::from_utf8_lossy(path);
        let shown = shown.escape_debug();
        match error {
            SupervisorError::InvalidUser(name) => {
                let text = format!(
                    "error looking up user '{0}': user: unknown user {0}",
                    name.escape_debug()
                );
                Self::told(StatusCode::UNAUTHORIZED, text)
            }
            SupervisorError::File { errno, step } => {
                let status = file_status(errno);
                let errno = Errno::from_raw_os_error(errno);
                let text = match errno {
                    Errno::NOENT => format!("path '{shown}' does not exist"),
                    Errno::ISDIR => format!("path '{shown}' is a directory"),
                    Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
                        format!("path '{shown}': not enough disk space available")
                    }
                    errno => format!("path '{shown}': {}: {errno}", step.escape_debug()),
                };
                Self::told(status, text)
            }
            error => ServiceFailure::from(error).into(),
        }
    }
}

impl From<ServiceFailure> for FileFailure {
    fn from(failure: ServiceFailure) -> Self {
        match failure {
            ServiceFailure::Gone => Self::Gone,
            ServiceFailure::Told(error) => Self::told(error.code.status(), error.message),
        }
    }
}

/// What other methods are answered.
fn wrong_method() -> Response<Body> {
    let refusal = ApiRefusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "files are read with GET and written with POST",
    );
    let mut response = refusal.answer();
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
    response
}
