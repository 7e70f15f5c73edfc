//! Who may read and write files: whoever has the sandbox's token, or a URL that was signed with it.

use std::time::{SystemTime, UNIX_EPOCH};

use http::request::Parts;
use http::{Method, StatusCode, Uri};

use super::super::SandboxAccess;
use super::super::headers::{Token, token};
use super::super::signature::{Operation, Signed};
use crate::answer::Refusal;
use crate::query;

/// Refuses requests that have no right to a sandbox's files.
///
/// # Errors
/// 401 with a wrong token, or with neither a token nor a good signature; 400 for a signature that cannot be one.
pub(super) fn check(sandbox: &SandboxAccess, parts: &Parts) -> Result<(), Refusal> {
    let expected = sandbox.access_token.as_deref();
    match token(&parts.headers, expected) {
        Token::Right => return Ok(()),
        Token::Wrong => return Err(unauthorized("access token present in header but does not match")),
        Token::Absent => {}
    }
    let signature = SignedUrl::of(&parts.method, &parts.uri)?;
    let signature = signature.ok_or_else(|| unauthorized("missing signature query parameter"))?;
    if !signature.is_signed_by(expected.unwrap_or_default()) {
        return Err(unauthorized("invalid signature"));
    }
    if signature.expiration.is_some_and(|expiration| expiration < now()) {
        return Err(unauthorized("signature is already expired"));
    }
    Ok(())
}

/// Whether the URL of a request was signed with this token: tells whose files are meant when nothing else does.
pub(crate) fn is_signed_by(token: &str, method: &Method, uri: &Uri) -> bool {
    matches!(SignedUrl::of(method, uri), Ok(Some(signature)) if signature.is_signed_by(token))
}

struct SignedUrl {
    path: Vec<u8>,
    operation: Operation,
    user: String,
    expiration: Option<i64>,
    signature: String,
}

impl SignedUrl {
    fn of(method: &Method, uri: &Uri) -> Result<Option<Self>, Refusal> {
        let pairs = query::pairs(uri.query());
        let Some(signature) = query::value(&pairs, "signature") else {
            return Ok(None);
        };
        let expiration = query::value(&pairs, "signature_expiration").map(str::parse).transpose();
        let expiration = expiration.map_err(|_| Refusal::bad_request("signature_expiration must be a number"))?;
        Ok(Some(Self {
            path: query::bytes(uri.query(), "path").unwrap_or_default(),
            operation: if method == Method::POST {
                Operation::Write
            } else {
                Operation::Read
            },
            user: query::value(&pairs, "username").unwrap_or_default().to_owned(),
            expiration,
            signature: signature.to_owned(),
        }))
    }

    fn is_signed_by(&self, token: &str) -> bool {
        let signed = Signed {
            path: &self.path,
            operation: self.operation,
            user: &self.user,
            expiration: self.expiration,
        };
        signed.is_signed_by(token, &self.signature)
    }
}

fn unauthorized(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, message)
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
