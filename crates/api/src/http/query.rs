//! The query of a request: names and values, percent-encoded, a `+` for a space.

use std::fmt::Display;
use std::str::FromStr;

use percent_encoding::{percent_decode, percent_decode_str};

use crate::http::answer::ApiRefusal;

/// The pairs of a query, decoded; a name without `=` has an empty value.
///
/// What is not UTF-8 once it is decoded gets replacement characters, which no name, id or number has.
pub(crate) fn pairs(query: Option<&str>) -> Vec<(String, String)> {
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

/// The first value of `name`.
pub(crate) fn value<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs
        .iter()
        .find(|(given, _)| given == name)
        .map(|(_, value)| value.as_str())
}

/// The first value of `name`, decoded to bytes: a path need not be UTF-8.
pub(crate) fn bytes(query: Option<&str>, name: &str) -> Option<Vec<u8>> {
    query.unwrap_or_default().split('&').find_map(|part| {
        let (given, value) = part.split_once('=').unwrap_or((part, ""));
        let spaced = value.replace('+', " ");
        (decoded(given) == name).then(|| percent_decode(spaced.as_bytes()).collect())
    })
}

/// The first value of `name`, when it is a number in `range`.
///
/// # Errors
/// 400 for any other value.
pub(crate) fn number<T>(
    pairs: &[(String, String)],
    name: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<Option<T>, ApiRefusal>
where
    T: FromStr + PartialOrd + Display,
{
    let Some(text) = value(pairs, name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let number = text.parse().ok().filter(|number| range.contains(number));
    let (least, most) = (range.start(), range.end());
    let must = || ApiRefusal::bad_request(format!("{name}: must be a number from {least} to {most}"));
    number.map(Some).ok_or_else(must)
}

/// Whether the first value of `name` is `true`; not if there is none.
///
/// # Errors
/// 400 for anything but `true` and `false`.
pub(crate) fn flag(pairs: &[(String, String)], name: &str) -> Result<bool, ApiRefusal> {
    match value(pairs, name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiRefusal::bad_request(format!("{name}: must be `true` or `false`"))),
    }
}

/// A segment of a path as it is written.
pub(crate) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Text without its percent-encoding.
pub(crate) fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " "))
        .decode_utf8_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded_once() {
        let pairs = pairs(Some("a=1&b=x%20y+z&c&&d=%2525&a=2&%C3%A9=%FF"));
        assert_eq!(value(&pairs, "a"), Some("1"));
        assert_eq!(value(&pairs, "b"), Some("x y z"));
        assert_eq!(value(&pairs, "c"), Some(""));
        assert_eq!(value(&pairs, "d"), Some("%25"));
        assert_eq!(value(&pairs, "é"), Some("\u{fffd}"));
        assert_eq!(value(&pairs, "e"), None);
    }

    #[test]
    fn bytes_need_not_be_text() {
        let query = Some("path=%2Fa+b%2bc%ff%zz&path=second&empty");
        assert_eq!(bytes(query, "path").unwrap(), b"/a b+c\xff%zz");
        assert_eq!(bytes(query, "empty").unwrap(), b"");
        assert_eq!(bytes(query, "absent"), None);
        assert_eq!(bytes(None, "path"), None);
    }
}
