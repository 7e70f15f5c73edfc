//! What the heads of requests to a sandbox's services say: tokens, users, encodings, metadata.

use std::time::Duration;

use data_encoding::BASE64;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION};
use http::{HeaderMap, HeaderName};

use super::signature::same;

const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
const KEEPALIVE: HeaderName = HeaderName::from_static("keepalive-ping-interval");
const METADATA: &str = "x-metadata-";

/// Seconds between two signs of life on a stream, if the client does not say.
const DEFAULT_KEEPALIVE_S: u64 = 90;
/// And what a client may say.
const KEEPALIVE_S: std::ops::RangeInclusive<u64> = 1..=3600;

/// What an extended attribute's name may have after `user.e2b.`, and what all of a file's may have (xattr(7) limits
/// names to 255 bytes with their prefix, and ext4 the whole to a block).
const MAX_KEY_LENGTH: usize = 246;
const MAX_METADATA_BYTES: usize = 4096;

/// Names and values.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a request says about its right to be here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenMatch {
    Absent,
    Right,
    Wrong,
}

/// Compares the token of a request with the sandbox's; without one, every request is right.
pub(crate) fn token(headers: &HeaderMap, expected: Option<&str>) -> TokenMatch {
    let Some(expected) = expected else {
        return TokenMatch::Right;
    };
    match headers
        .get(ACCESS_TOKEN)
        .map(|given| given.to_str().unwrap_or_default())
    {
        None | Some("") => TokenMatch::Absent,
        Some(given) if same(expected, given) => TokenMatch::Right,
        Some(_) => TokenMatch::Wrong,
    }
}

/// The user that a call is made as: the name before the colon of basic authentication; `None` for the usual one.
pub(super) fn user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64.decode(credentials.trim().as_bytes()).ok()?;
    let name = decoded.split(|byte| *byte == b':').next()?;
    Some(String::from_utf8_lossy(name).into_owned()).filter(|name| !name.is_empty())
}

/// How often a stream shows signs of life.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let said = headers
        .get(KEEPALIVE)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let seconds = said.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_KEEPALIVE_S);
    Duration::from_secs(seconds.clamp(*KEEPALIVE_S.start(), *KEEPALIVE_S.end()))
}

/// Whether a download is to be packed: `None` if neither packed nor plain is welcome.
///
/// Libraries ask for gzip among others by themselves. Packing is slower than the machine's own network, so it is done
/// only for a client that names gzip alone, or refuses what is not packed.
pub(super) fn wants_gzip(headers: &HeaderMap) -> Option<bool> {
    let mut others = false;
    let (mut gzip, mut anything, mut plain_refused) = (false, false, false);
    let listed = headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    for coding in listed.flat_map(|value| value.split(',')) {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = quality
            .trim()
            .strip_prefix("q=")
            .and_then(|q| q.trim().parse::<f32>().ok());
        let wanted = quality != Some(0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "" => {}
            "gzip" | "x-gzip" => gzip |= wanted,
            "identity" if wanted => others = true,
            "identity" => plain_refused = true,
            "*" if wanted => anything = true,
            "*" => plain_refused = true,
            _ => others |= wanted,
        }
    }
    match (plain_refused, gzip || anything) {
        (true, true) => Some(true),
        (true, false) => None,
        (false, _) => Some(gzip && !others && !anything),
    }
}

/// What a file is to be annotated with: headers `X-Metadata-KEY`.
///
/// # Errors
/// The reason, if a key is too long, a value is not ASCII, or there is too much of it all.
pub(super) fn metadata(headers: &HeaderMap) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    let mut size = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA) else {
            continue;
        };
        if key.is_empty() || key.len() > MAX_KEY_LENGTH {
            return Err(format!("a metadata key must have 1 to {MAX_KEY_LENGTH} bytes"));
        }
        if !value.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte)) {
            return Err(format!("the value of metadata key `{key}` must be printable ASCII"));
        }
        if pairs.iter().any(|(other, _)| other == key.as_bytes()) {
            return Err(format!("metadata key `{key}` is there twice"));
        }
        size += key.len() + value.len();
        pairs.push((key.as_bytes().to_vec(), value.as_bytes().to_vec()));
    }
    if size > MAX_METADATA_BYTES {
        return Err(format!("metadata must have at most {MAX_METADATA_BYTES} bytes"));
    }
    pairs.sort();
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn tokens_are_compared_whole() {
        let given = |value: &str| token(&headers(&[("x-access-token", value)]), Some("secret"));
        assert_eq!(given("secret"), TokenMatch::Right);
        assert_eq!(given("secre"), TokenMatch::Wrong);
        assert_eq!(given("secrets"), TokenMatch::Wrong);
        assert_eq!(given(""), TokenMatch::Absent);
        assert_eq!(token(&HeaderMap::new(), Some("secret")), TokenMatch::Absent);
        assert_eq!(token(&HeaderMap::new(), None), TokenMatch::Right);
    }

    #[test]
    fn users_come_from_basic_authentication() {
        for (value, expected) in [
            ("Basic cm9vdDo=", Some("root")),
            ("basic dXNlcjpwdw==", Some("user")),
            ("Basic Og==", None),
            ("Basic !", None),
            ("Bearer cm9vdDo=", None),
            ("cm9vdDo=", None),
        ] {
            assert_eq!(
                user(&headers(&[("authorization", value)])).as_deref(),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn keepalives_are_bounded() {
        for (value, expected) in [("50", 50), ("0", 90), ("-1", 90), ("x", 90), ("99999999", 3600)] {
            assert_eq!(
                keepalive(&headers(&[("keepalive-ping-interval", value)])).as_secs(),
                expected
            );
        }
        assert_eq!(keepalive(&HeaderMap::new()).as_secs(), 90);
    }

    #[test]
    fn downloads_are_packed_for_those_who_ask_for_that_alone() {
        for (value, expected) in [
            ("gzip", Some(true)),
            ("GZIP;q=0.5", Some(true)),
            ("gzip, deflate, br", Some(false)),
            ("gzip;q=0", Some(false)),
            ("identity, gzip", Some(false)),
            ("*", Some(false)),
            ("", Some(false)),
            ("identity;q=0, gzip, br", Some(true)),
            ("identity;q=0, *", Some(true)),
            ("identity;q=0", None),
            ("br, *;q=0", None),
        ] {
            assert_eq!(wants_gzip(&headers(&[("accept-encoding", value)])), expected, "{value}");
        }
        assert_eq!(wants_gzip(&HeaderMap::new()), Some(false));
    }

    #[test]
    fn metadata_is_bounded() {
        let good = headers(&[("x-metadata-b", "2"), ("x-metadata-a", "1"), ("x-other", "3")]);
        let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(metadata(&good), Ok(vec![pair("a", "1"), pair("b", "2")]));
        assert!(metadata(&headers(&[("x-metadata-", "1")])).is_err());
        assert!(metadata(&headers(&[("x-metadata-a", &"v".repeat(4096))])).is_err());
        assert!(metadata(&headers(&[("x-metadata-a", "1"), ("x-metadata-a", "2")])).is_err());
        assert!(metadata(&headers(&[("x-metadata-a", "é")])).is_err());
    }
}
