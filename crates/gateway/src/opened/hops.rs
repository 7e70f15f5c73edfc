//! What of a message belongs to one connection alone and is not sent on (RFC 9110, section 7.6.1).

use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};

/// Never sent on, named by `Connection` or not.
const OF_A_CONNECTION: [HeaderName; 4] = [CONNECTION, TRANSFER_ENCODING, TE, UPGRADE];
const OF_A_CONNECTION_TOO: [&str; 6] = [
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "proxy-status",
];
/// Never taken away because `Connection` names it: without them a message means something else.
const OF_THE_MESSAGE: [&str; 5] = ["host", "content-length", "content-type", "content-encoding", "cookie"];

/// Takes from a message what is about one connection. Whether it takes trailers is answered.
pub(super) fn strip(headers: &mut HeaderMap) -> bool {
    let takes_trailers = has_token(headers, &TE, "trailers");
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| !OF_THE_MESSAGE.contains(&name.as_str()))
        .collect();
    for name in named.iter().chain(&OF_A_CONNECTION) {
        headers.remove(name);
    }
    for name in OF_A_CONNECTION_TOO {
        headers.remove(name);
    }
    takes_trailers
}

/// Whether a header that is a list has `token` in it.
pub(super) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Several `Cookie` headers as one, which is the only form in HTTP/1.1 (RFC 9113, section 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(http::header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(http::header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_is_about_the_connection_is_taken_away_and_what_it_names() {
        let mut message = headers(&[
            ("host", "a.example"),
            ("connection", "keep-alive, X-Hop"),
            ("connection", "Content-Length, upgrade"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAE"),
            ("te", "gzip;q=0.5, trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic eA=="),
            ("content-length", "3"),
            ("x-kept", "1"),
        ]);
        assert!(strip(&mut message));
        let mut left: Vec<&str> = message.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "host", "x-kept"]);
        assert!(!strip(&mut message));
    }

    #[test]
    fn cookies_are_one_header() {
        let mut message = headers(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]);
        join_cookies(&mut message);
        let cookies: Vec<_> = message.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }
}
