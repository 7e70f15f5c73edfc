//! Who may read and write files: whoever has the sandbox's token, or a URL that was signed with it.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{Method, Request, StatusCode, Uri};
use sha2::Sha256;

use super::super::headers::{TokenMatch, token};
use super::super::signature::{SignedRequest, SpanOperation, is_shaped, same, signature};
use crate::http::answer::ApiRefusal;
use crate::http::path::{MAX_PATH_LENGTH, PathError};
use crate::http::query;

/// Longest name of a user that a URL may have: Linux takes none that is longer (LOGIN_NAME_MAX).
const MAX_USER_LENGTH: usize = 256;

/// Refuses requests that have no right to a sandbox's files; `expected` is its token.
///
/// # Errors
/// 401 with a wrong token, or with neither a token nor a good signature; 400 for a signature that cannot be one.
pub(crate) fn check<B>(expected: Option<&str>, request: &Request<B>) -> Result<(), ApiRefusal> {
    match token(request.headers(), expected) {
        TokenMatch::Right => return Ok(()),
        TokenMatch::Wrong => return Err(unauthorized("access token present in header but does not match")),
        TokenMatch::Absent => {}
    }
    let signed = SignedUrl::of(request.method(), request.uri())?;
    let signed = signed.ok_or_else(|| unauthorized("missing signature query parameter"))?;
    if !signed.is_signed_by(expected.unwrap_or_default()) {
        return Err(unauthorized("invalid signature"));
    }
    signed.check_time()
}

/// A URL with a signature, which can be tried with the tokens of many sandboxes: what comes before the token was hashed
/// once.
#[derive(Debug)]
pub(crate) struct SignedUrl {
    begun: Sha256,
    expiration: Option<i64>,
    signature: String,
}

impl SignedUrl {
    /// What the URL of a request says; `None` without a signature.
    ///
    /// # Errors
    /// 400 for an expiration that is no number, and for a path or a user that is longer than there can be any.
    pub(crate) fn of(method: &Method, uri: &Uri) -> Result<Option<Self>, ApiRefusal> {
        let pairs = query::pairs(uri.query());
        let Some(signature) = query::value(&pairs, "signature") else {
            return Ok(None);
        };
        let expiration = query::value(&pairs, "signature_expiration").map(str::parse).transpose();
        let expiration = expiration.map_err(|_| ApiRefusal::bad_request("signature_expiration must be a number"))?;
        let path = query::bytes(uri.query(), "path").unwrap_or_default();
        if path.len() > MAX_PATH_LENGTH {
            return Err(ApiRefusal::bad_request(PathError::TooLong.to_string()));
        }
        let user = query::value(&pairs, "username").unwrap_or_default();
        if user.len() > MAX_USER_LENGTH {
            let text = format!("the username is longer than {MAX_USER_LENGTH} bytes");
            return Err(ApiRefusal::bad_request(text));
        }
        let operation = if method == Method::POST {
            SpanOperation::Write
        } else {
            SpanOperation::Read
        };
        let path = path.as_slice();
        Ok(Some(Self {
            begun: SignedRequest { path, operation, user }.begun(),
            expiration,
            signature: signature.to_owned(),
        }))
    }

    /// Whether the signature can be one at all, of whatever token.
    pub(crate) fn is_shaped(&self) -> bool {
        is_shaped(&self.signature)
    }

    /// Whether the URL was signed with this token; takes as long for one that is nearly right.
    pub(crate) fn is_signed_by(&self, token: &str) -> bool {
        same(&signature(self.begun.clone(), token, self.expiration), &self.signature)
    }

    /// Refuses a signature whose time is over.
    ///
    /// # Errors
    /// 401.
    pub(crate) fn check_time(&self) -> Result<(), ApiRefusal> {
        if self.expiration.is_some_and(|expiration| expiration < now()) {
            return Err(unauthorized("signature is already expired"));
        }
        Ok(())
    }
}

fn unauthorized(message: &str) -> ApiRefusal {
    ApiRefusal::new(StatusCode::UNAUTHORIZED, message)
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
