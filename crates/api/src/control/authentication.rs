//! Who calls: the key that a request shows, or the owner on its own socket.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use offleash_daemon::{ApiKey, Caller, Daemon, DaemonError};

use crate::http::peer::{ClientConnection, ClientPeer};

pub(crate) const API_KEY: &str = "x-api-key";
/// What Judge0's clients show theirs in, which others use for words of their own.
const AUTH_TOKEN: &str = "x-auth-token";

/// Who a request is from.
///
/// # Errors
/// `Unauthorized` without a key, with two that differ, and with one that is not valid; on the owner's socket, only with
/// the latter.
pub(super) fn caller(daemon: &Daemon, client: &ClientConnection, headers: &HeaderMap) -> Result<Caller, DaemonError> {
    match key(headers)? {
        Some(key) => daemon.authenticate(key),
        None if client.peer == ClientPeer::Owner => Ok(Caller::local()),
        None => Err(DaemonError::Unauthorized),
    }
}

/// The key that a request shows: `X-API-KEY`, or `Authorization`, with `Bearer` or by itself, or `X-Auth-Token`.
///
/// # Errors
/// `Unauthorized` for two that differ, and for what is no text.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<&str>, DaemonError> {
    let named = headers.get_all(API_KEY).iter().map(|value| value.to_str().ok());
    let borne = headers
        .get_all(AUTHORIZATION)
        .iter()
        .map(|value| borne(value.to_str().ok()?));
    let tokens = headers
        .get_all(AUTH_TOKEN)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let tokens = tokens.filter(|token| token.parse::<ApiKey>().is_ok()).map(Some);
    let mut found = None;
    for key in named.chain(borne).chain(tokens) {
        let key = key.ok_or(DaemonError::Unauthorized)?;
        match found.replace(key) {
            Some(other) if other != key => return Err(DaemonError::Unauthorized),
            _ => {}
        }
    }
    Ok(found)
}

/// The key of `Bearer KEY`, or one by itself, as Piston's clients show theirs.
fn borne(value: &str) -> Option<&str> {
    let is_key = || value.parse::<ApiKey>().is_ok();
    bearer(value).or_else(|| is_key().then_some(value))
}

/// The token of `Bearer TOKEN`.
pub(crate) fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn shown(fields: &[(&'static str, &'static str)]) -> Result<Option<String>, ()> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        key(&headers).map(|key| key.map(str::to_owned)).map_err(drop)
    }

    #[test]
    fn keys_are_shown_in_either_header() {
        let k = Ok(Some("k".to_owned()));
        assert_eq!(shown(&[]), Ok(None));
        assert_eq!(shown(&[("x-api-key", "k")]), k);
        assert_eq!(shown(&[("authorization", "Bearer k")]), k);
        assert_eq!(shown(&[("authorization", "bearer  k")]), k);
        assert_eq!(shown(&[("authorization", "Bearer k"), ("x-api-key", "k")]), k);
        let whole = "e2b_0123456789abcdef0123456789abcdef01234567";
        for header in ["authorization", "x-auth-token"] {
            assert_eq!(shown(&[(header, whole)]), Ok(Some(whole.to_owned())));
        }
        assert_eq!(shown(&[("x-auth-token", "a word")]), Ok(None));
        assert_eq!(shown(&[("x-auth-token", whole), ("x-api-key", "k")]), Err(()));
    }

    #[test]
    fn two_keys_or_none_that_can_be_read_are_no_key() {
        for fields in [
            &[("x-api-key", "k"), ("x-api-key", "l")][..],
            &[("authorization", "Bearer l"), ("x-api-key", "k")],
            &[("authorization", "Basic azo=")],
            &[("authorization", "k")],
        ] {
            assert_eq!(shown(fields), Err(()), "{fields:?}");
        }
    }
}
