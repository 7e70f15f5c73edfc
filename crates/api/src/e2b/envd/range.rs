//! Which part of a file a request wants: `Range`, and the conditions that go with it (RFC 9110, sections 13 and 14).

use http::HeaderMap;
use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE};

/// How a version of a file is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileVersion {
    /// The entity tag, in quotes.
    pub(super) tag: String,
    /// When it changed last, in seconds since 1970.
    pub(super) modified_s: i64,
}

/// What to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePart {
    /// All of it.
    Whole,
    /// So many bytes from there on.
    Bytes {
        /// Where it begins.
        offset: u64,
        /// How many bytes, at least one.
        length: u64,
    },
    /// Nothing of it is where the range says.
    Unsatisfiable,
    /// The client has this version already.
    NotModified,
}

/// Whether an answer to this request can be anything but the whole file.
pub(super) fn is_conditional(headers: &HeaderMap) -> bool {
    [RANGE, IF_RANGE, IF_NONE_MATCH, IF_MODIFIED_SINCE]
        .iter()
        .any(|name| headers.contains_key(name))
}

/// What of a file with `size` bytes a request is to be answered with.
///
/// Several ranges, other units and what cannot be read are ignored, as a server may.
pub(super) fn part(headers: &HeaderMap, size: u64, version: &FileVersion) -> FilePart {
    if has_it_already(headers, version) {
        return FilePart::NotModified;
    }
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    match range {
        Some(range) if is_for(headers, version) => bytes(range, size),
        _ => FilePart::Whole,
    }
}

fn has_it_already(headers: &HeaderMap, version: &FileVersion) -> bool {
    if let Some(tags) = headers.get(IF_NONE_MATCH) {
        let tags = tags.to_str().unwrap_or_default();
        return tags
            .split(',')
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || tag == version.tag);
    }
    date(headers, &IF_MODIFIED_SINCE).is_some_and(|since| version.modified_s <= since)
}

/// Whether a range is meant for this version: `If-Range` is absent or names it.
fn is_for(headers: &HeaderMap, version: &FileVersion) -> bool {
    let Some(value) = headers.get(IF_RANGE) else {
        return true;
    };
    value.as_bytes() == version.tag.as_bytes() || date(headers, &IF_RANGE) == Some(version.modified_s)
}

fn date(headers: &HeaderMap, name: &http::HeaderName) -> Option<i64> {
    let time = httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

fn bytes(range: &str, size: u64) -> FilePart {
    let Some(range) = range.trim().strip_prefix("bytes=") else {
        return FilePart::Whole;
    };
    let Some((first, last)) = range.split_once('-') else {
        return FilePart::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let number = |digits: &str| -> Option<u64> {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // More than any file has is as good as the most that fits.
        plain.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let (offset, end) = match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) => (size.saturating_sub(count), size),
        (_, Some(offset), "", _) => (offset, size),
        (_, Some(offset), _, Some(last)) if offset <= last => (offset, last.saturating_add(1).min(size)),
        _ => return FilePart::Whole,
    };
    match end.checked_sub(offset) {
        Some(length) if length > 0 => FilePart::Bytes { offset, length },
        _ => FilePart::Unsatisfiable,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn asked(fields: &[(&'static str, &str)], size: u64) -> FilePart {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        let version = FileVersion {
            tag: "\"a-1\"".to_owned(),
            modified_s: 784_111_777,
        };
        part(&fields.collect::<HeaderMap>(), size, &version)
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        let some = |offset, length| FilePart::Bytes { offset, length };
        for (range, expected) in [
            ("bytes=0-9", some(0, 10)),
            ("bytes=10-", some(10, 90)),
            ("bytes=-5", some(95, 5)),
            ("bytes=-500", some(0, 100)),
            ("bytes=90-500", some(90, 10)),
            ("bytes=99-99", some(99, 1)),
            ("bytes=0-99999999999999999999999", some(0, 100)),
            ("bytes=100-", FilePart::Unsatisfiable),
            ("bytes=99999999999999999999999-", FilePart::Unsatisfiable),
            ("bytes=-0", FilePart::Unsatisfiable),
            ("bytes=5-4", FilePart::Whole),
            ("bytes=-", FilePart::Whole),
            ("bytes=", FilePart::Whole),
            ("bytes=+1-2", FilePart::Whole),
            ("bytes=0-1,5-6", FilePart::Whole),
            ("lines=0-1", FilePart::Whole),
        ] {
            assert_eq!(asked(&[("range", range)], 100), expected, "{range}");
        }
        assert_eq!(asked(&[("range", "bytes=0-")], 0), FilePart::Unsatisfiable);
        assert_eq!(asked(&[], 100), FilePart::Whole);
    }

    #[test]
    fn a_range_for_another_version_is_ignored() {
        let range = ("range", "bytes=0-1");
        let first = FilePart::Bytes { offset: 0, length: 2 };
        assert_eq!(asked(&[range, ("if-range", "\"a-1\"")], 9), first);
        assert_eq!(asked(&[range, ("if-range", "\"b-1\"")], 9), FilePart::Whole);
        assert_eq!(asked(&[range, ("if-range", "Sun, 06 Nov 1994 08:49:37 GMT")], 9), first);
        assert_eq!(
            asked(&[range, ("if-range", "Sun, 06 Nov 1994 08:49:36 GMT")], 9),
            FilePart::Whole
        );
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        for fields in [
            [("if-none-match", "\"x\", W/\"a-1\"")],
            [("if-none-match", "*")],
            [("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")],
        ] {
            assert_eq!(asked(&fields, 9), FilePart::NotModified, "{fields:?}");
        }
        assert_eq!(asked(&[("if-none-match", "\"b\"")], 9), FilePart::Whole);
        assert_eq!(
            asked(&[("if-modified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], 9),
            FilePart::Whole
        );
    }
}
