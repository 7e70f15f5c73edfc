//! Reads and writes the query of a request.

use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// All but what RFC 3986 calls unreserved (2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The parameters of a query as written: name and value, `None` where there is no `=`.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (parameter, None),
    })
}

/// `bytes` as part of a path or a query.
pub(super) fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, RESERVED).to_string()
}

/// What `text` stands for.
pub(super) fn decoded(text: &str) -> Vec<u8> {
    percent_decode(text.as_bytes()).collect()
}

/// The value of the first parameter `name`, decoded.
pub(super) fn value_of(query: &str, name: &str) -> Option<Vec<u8>> {
    parameters(query)
        .find(|(own, _)| decoded(own) == name.as_bytes())
        .map(|(_, value)| decoded(value.unwrap_or_default()))
}

/// Puts another query into `uri`; whether it fits.
pub(super) fn replace(uri: &mut Uri, query: &str) -> bool {
    let Ok(target) = PathAndQuery::try_from(format!("{}?{query}", uri.path())) else {
        return false;
    };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(target);
    match Uri::from_parts(parts) {
        Ok(replaced) => {
            *uri = replaced;
            true
        }
        Err(_) => false,
    }
}
