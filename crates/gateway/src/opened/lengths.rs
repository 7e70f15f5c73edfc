//! How long a message says it is. It is written anew with the length that was understood, so nothing in it may say
//! another one (RFC 9112, section 6.3).

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use thiserror::Error;

/// Why the length of a message is not clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum LengthError {
    /// Both fields.
    #[error("both `Content-Length` and `Transfer-Encoding`")]
    TwoLengths,
    /// A body is carried without the codings of one connection; others than `chunked` would be lost.
    #[error("a transfer coding other than `chunked`")]
    Coding,
    /// No number, or several.
    #[error("an ambiguous `Content-Length`")]
    ContentLength,
}

/// Checks what a request says of its length.
pub(super) fn check_request(headers: &HeaderMap) -> Result<(), LengthError> {
    check_coding(headers)?;
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(length), None) if is_number(length) => Ok(()),
        _ => Err(LengthError::ContentLength),
    }
}

/// Checks what an answer says of its length; what it says again in the same words, as some servers do, is said once from
/// then on.
pub(super) fn check_answer(headers: &mut HeaderMap) -> Result<(), LengthError> {
    check_coding(headers)?;
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(());
    };
    if !is_number(length) || !lengths.all(|other| other == length) {
        return Err(LengthError::ContentLength);
    }
    let length = length.clone();
    headers.insert(CONTENT_LENGTH, length);
    Ok(())
}

fn check_coding(headers: &HeaderMap) -> Result<(), LengthError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            if headers.contains_key(CONTENT_LENGTH) {
                return Err(LengthError::TwoLengths);
            }
            Ok(())
        }
        _ => Err(LengthError::Coding),
    }
}

/// It is sent on as it is, and to some readers a zero at the beginning makes it octal.
fn is_number(length: &HeaderValue) -> bool {
    let digits = length.as_bytes();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || !digits.starts_with(b"0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: &str = "content-length";
    const CODING: &str = "transfer-encoding";

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_length_is_said_in_one_way() {
        for fields in [&[][..], &[(CODING, "Chunked")], &[(LENGTH, "0")], &[(LENGTH, "10")]] {
            assert_eq!(check_request(&headers(fields)), Ok(()), "{fields:?}");
            assert_eq!(check_answer(&mut headers(fields)), Ok(()), "{fields:?}");
        }
        for (fields, error) in [
            (&[(LENGTH, "5"), (CODING, "chunked")][..], LengthError::TwoLengths),
            (&[(CODING, "gzip, chunked")], LengthError::Coding),
            (&[(CODING, "chunked"), (CODING, "chunked")], LengthError::Coding),
            (&[(CODING, "identity"), (LENGTH, "5")], LengthError::Coding),
            (&[(LENGTH, "5"), (LENGTH, "6")], LengthError::ContentLength),
            (&[(LENGTH, "5, 5")], LengthError::ContentLength),
            (&[(LENGTH, "+5")], LengthError::ContentLength),
            (&[(LENGTH, "05")], LengthError::ContentLength),
            (&[(LENGTH, "")], LengthError::ContentLength),
        ] {
            assert_eq!(check_request(&headers(fields)), Err(error), "{fields:?}");
            assert_eq!(check_answer(&mut headers(fields)), Err(error), "{fields:?}");
        }
    }

    #[test]
    fn what_an_answer_says_twice_is_said_once() {
        let twice = [(LENGTH, "5"), (LENGTH, "5")];
        let mut answer = headers(&twice);
        assert_eq!(check_answer(&mut answer), Ok(()));
        assert_eq!(answer.get_all(LENGTH).iter().collect::<Vec<_>>(), ["5"]);
        assert_eq!(check_request(&headers(&twice)), Err(LengthError::ContentLength));
    }
}
