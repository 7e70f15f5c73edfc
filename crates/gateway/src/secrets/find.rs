//! Finds placeholders in requests, in the spellings in which servers would read them.

use data_encoding::{BASE64, BASE64_NOPAD};
use http::HeaderValue;
use http::header::HeaderName;
use http::request::Parts;
use memchr::memmem;
use offleash_core::network::secret::NamedSecret;
use percent_encoding::percent_decode;

/// The secret whose placeholder is in the head of a request, as it came over the wire.
pub(super) fn in_head<'a>(secrets: &'a [NamedSecret], head: &[u8]) -> Option<&'a NamedSecret> {
    if secrets.is_empty() {
        return None;
    }
    let decoded: Vec<u8> = percent_decode(head).collect();
    let credentials: Vec<Vec<u8>> = head
        .split(|byte| matches!(byte, b'\r' | b'\n' | b':'))
        .filter_map(|part| basic_credentials(part.trim_ascii()))
        .collect();
    secrets.iter().find(|secret| {
        contains(head, secret)
            || contains(&decoded, secret)
            || contains_in_any_case(head, secret)
            || credentials.iter().any(|credentials| contains(credentials, secret))
    })
}

/// Whether the placeholder of `secret` is in path, query or headers.
pub(super) fn in_parts(secret: &NamedSecret, parts: &Parts) -> bool {
    in_target(secret, parts) || parts.headers.iter().any(|(name, value)| in_field(secret, name, value))
}

/// Whether the placeholder of `secret` is in a header or a trailer.
pub(super) fn in_field(secret: &NamedSecret, name: &HeaderName, value: &HeaderValue) -> bool {
    contains_in_any_case(name.as_str().as_bytes(), secret) || in_value(secret, value.as_bytes())
}

fn in_target(secret: &NamedSecret, parts: &Parts) -> bool {
    let target = parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
    let authority = parts.uri.authority().map_or("", http::uri::Authority::as_str);
    in_text(secret, target.as_bytes()) || contains_in_any_case(authority.as_bytes(), secret)
}

fn in_value(secret: &NamedSecret, value: &[u8]) -> bool {
    in_text(secret, value) || basic_credentials(value).is_some_and(|credentials| contains(&credentials, secret))
}

fn in_text(secret: &NamedSecret, text: &[u8]) -> bool {
    if contains(text, secret) {
        return true;
    }
    // Decoded twice, as by a proxy in front of a server.
    let mut decoded = text.to_vec();
    for _ in 0..2 {
        if !decoded.contains(&b'%') {
            return false;
        }
        decoded = percent_decode(&decoded).collect();
        if contains(&decoded, secret) {
            return true;
        }
    }
    false
}

/// The secret whose placeholder is part of a name, in which case means nothing.
pub(super) fn in_name<'a>(secrets: &'a [NamedSecret], name: &[u8]) -> Option<&'a NamedSecret> {
    secrets.iter().find(|secret| contains_in_any_case(name, secret))
}

/// Whether the placeholder stands in `text` as it is.
pub(super) fn contains(text: &[u8], secret: &NamedSecret) -> bool {
    memmem::find(text, secret.placeholder.as_str().as_bytes()).is_some()
}

fn contains_in_any_case(text: &[u8], secret: &NamedSecret) -> bool {
    let needle = secret.placeholder.as_str().as_bytes().to_ascii_lowercase();
    text.len() >= needle.len() && memmem::find(&text.to_ascii_lowercase(), &needle).is_some()
}

/// User and password of the value of a header (RFC 7617, 2).
pub(super) fn basic_credentials(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let encoded = encoded.trim_ascii();
    BASE64.decode(encoded).or_else(|_| BASE64_NOPAD.decode(encoded)).ok()
}

/// User and password of the value of a header whose writer left it to us to encode them: encoded ones have no colon.
pub(super) fn unencoded_basic(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, credentials) = value.split_at_checked(6)?;
    let credentials = credentials.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"basic ") && credentials.contains(&b':')).then(|| credentials.to_vec())
}
