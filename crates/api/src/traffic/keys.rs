//! API keys that a client shows where no program may see them: they are left behind on the way into a sandbox.
//!
//! A program may have keys of its own, which look different.

use data_encoding::BASE64_NOPAD;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use offleash_daemon::ApiKey;

use crate::http::query::decoded;

/// Removes every header with a key, as it is or as name or password of basic authentication.
pub(super) fn remove_from_headers(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers
        .iter()
        .filter(|(name, value)| has_key(value.as_bytes()) || (*name == AUTHORIZATION && basic_has_key(value)))
        .map(|(name, _)| name.clone())
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// The same path, and a query without the pairs that have a key; all else stays as it was written.
pub(super) fn removed_from_query(path: PathAndQuery) -> PathAndQuery {
    let shows = |pair: &&str| has_key(decoded(pair).as_bytes());
    let Some(query) = path.query().filter(|query| query.split('&').any(|pair| shows(&pair))) else {
        return path;
    };
    let rest: Vec<&str> = query.split('&').filter(|pair| !shows(pair)).collect();
    let mark = if rest.is_empty() { "" } else { "?" };
    let left = format!("{}{mark}{}", path.path(), rest.join("&"));
    // Parts of what was a query are one; and the path alone shows no key of it.
    PathAndQuery::from_maybe_shared(left).unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

fn has_key(text: &[u8]) -> bool {
    let is_key = |word: &[u8]| str::from_utf8(word).is_ok_and(|word| word.parse::<ApiKey>().is_ok());
    let mut words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    words.any(is_key)
}

/// Basic authentication is `name:password` in Base64 (RFC 7617).
fn basic_has_key(value: &HeaderValue) -> bool {
    let Some((scheme, given)) = value.to_str().ok().and_then(|value| value.split_once(' ')) else {
        return false;
    };
    let given = BASE64_NOPAD.decode(given.trim().trim_end_matches('=').as_bytes());
    scheme.eq_ignore_ascii_case("basic") && given.is_ok_and(|given| has_key(&given))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn basic_authentication_shows_no_key() {
        for (pair, stays) in [
            (KEY.to_owned(), false),
            (format!("{KEY}:"), false),
            (format!("user:{KEY}"), false),
            (format!("u:x{KEY}"), true),
            ("user:mine".to_owned(), true),
        ] {
            for (scheme, padded) in [("Basic", true), ("basic", false)] {
                let mut value = data_encoding::BASE64.encode(pair.as_bytes());
                if !padded {
                    value = value.trim_end_matches('=').to_owned();
                }
                let value = HeaderValue::from_str(&format!("{scheme} {value}")).unwrap();
                let mut headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
                remove_from_headers(&mut headers);
                assert_eq!(headers.contains_key(AUTHORIZATION), stays, "{scheme} {pair}");
            }
        }
    }

    #[test]
    fn a_query_shows_no_key_and_stays_as_it_was() {
        let escaped = KEY.replace('_', "%5F");
        for (given, left) in [
            (format!("/a?k={KEY}"), "/a"),
            (format!("/a?k={escaped}&x=1"), "/a?x=1"),
            (format!("/a?x=%20+y&{KEY}&&z"), "/a?x=%20+y&&z"),
            (format!("/a?x=Bearer%20{KEY}"), "/a"),
            ("/a?k=mine&x=%zz&".to_owned(), "/a?k=mine&x=%zz&"),
            ("/a?".to_owned(), "/a?"),
            ("/a".to_owned(), "/a"),
        ] {
            let path = PathAndQuery::from_maybe_shared(given.clone()).unwrap();
            assert_eq!(removed_from_query(path), left, "{given}");
        }
    }
}
