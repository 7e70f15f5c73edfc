//! Bytes that are usually text: names and arguments, which Linux does not require to be UTF-8.
//!
//! Whatever a sandbox, a file system or a user named is shown through [`one_line`], so that it cannot drive a
//! terminal, break a log line or pass for another name.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::Error as _;

/// A path, name or argument. In JSON it is a string where it is UTF-8 and `{"base64": "…"}` where it is not;
/// displayed, it is quoted so that it cannot drive a terminal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as the operating system's string.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// The bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_os_str())
    }
}

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<OsString> for Text {
    fn from(text: OsString) -> Self {
        Self(text.into_vec())
    }
}

impl From<&OsString> for Text {
    fn from(text: &OsString) -> Self {
        Self::from(text.as_os_str())
    }
}

impl From<&Path> for Text {
    fn from(path: &Path) -> Self {
        Self::from(path.as_os_str())
    }
}

impl From<PathBuf> for Text {
    fn from(path: PathBuf) -> Self {
        Self::from(path.into_os_string())
    }
}

impl From<&PathBuf> for Text {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_os_str())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.0))
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodedText<'a> {
    base64: Cow<'a, str>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TextForm<'a> {
    Plain(String),
    Encoded(#[serde(borrow)] EncodedText<'a>),
}

impl serde::Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => EncodedText {
                base64: Cow::Owned(encode_base64(&self.0)),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return bytes::deserialize(deserializer).map(Self);
        }
        match TextForm::deserialize(deserializer)? {
            TextForm::Plain(text) => Ok(Self::from(text)),
            TextForm::Encoded(encoded) => decode_base64(&encoded.base64)
                .map(Self)
                .ok_or_else(|| D::Error::custom("not base64 (RFC 4648, section 4)")),
        }
    }
}

/// Renders untrusted bytes as one line that cannot drive a terminal.
///
/// Harmless text comes back as it is. Anything else (control characters, ESC, newlines, bidirectional and invisible
/// characters, bytes that are not UTF-8, the empty text) comes back in the `$'…'` form that shells read, so that it
/// can be pasted. No two inputs look the same: text that begins like the quoted form is quoted too.
pub fn one_line(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_harmless(text) => Cow::Borrowed(text),
        _ => Cow::Owned(quoted(bytes)),
    }
}

fn is_harmless(text: &str) -> bool {
    let looks_quoted = text.starts_with("$'") || text.starts_with('\'');
    !text.is_empty() && !looks_quoted && !text.starts_with(' ') && !text.ends_with(' ') && text.chars().all(is_visible)
}

fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 8);
    out.push_str("$'");
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_character(&mut out, character);
        }
        for byte in chunk.invalid() {
            push_hex(&mut out, *byte);
        }
    }
    out.push('\'');
    out
}

fn push_character(out: &mut String, character: char) {
    match character {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\'' => out.push_str("\\'"),
        '\\' => out.push_str("\\\\"),
        visible if is_visible(visible) => out.push(visible),
        hidden => {
            let mut buffer = [0; 4];
            for byte in hidden.encode_utf8(&mut buffer).bytes() {
                push_hex(out, byte);
            }
        }
    }
}

fn push_hex(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push_str("\\x");
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Whether a character has a glyph of its own or combines with one, by the tables of the standard library: control,
/// format (which includes bidirectional and zero-width), private, unassigned and separator characters have none.
pub fn is_visible(character: char) -> bool {
    if character.is_ascii() {
        return character == ' ' || character.is_ascii_graphic();
    }
    // After a first character, `escape_debug` leaves combining marks alone and escapes only what is not printable.
    let mut pair = String::from("a");
    pair.push(character);
    pair.escape_debug().eq(pair.chars())
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648, section 4).
pub fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .zip([16, 8, 0])
            .fold(0_u32, |group, (byte, shift)| group | (u32::from(*byte) << shift));
        for (position, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let digit = usize::try_from((group >> shift) & 63).unwrap_or(0);
            out.push(if position <= chunk.len() {
                char::from(BASE64[digit])
            } else {
                '='
            });
        }
    }
    out
}

/// Decodes base64 with padding (RFC 4648, section 4); `None` when `text` is anything else, stray bits included.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = BASE64.iter().position(|known| *known == digit)?;
        held = (held << 6) | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push(u8::try_from(held >> bits).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    (held == 0).then_some(out)
}

/// Bytes as one piece, for `#[serde(with = …)]`: serde takes a `Vec<u8>` for a list of numbers and goes through them one
/// by one. For formats that know bytes, and lend them.
pub(crate) mod bytes {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        <&[u8]>::deserialize(deserializer).map(<[u8]>::to_vec)
    }
}

/// A path as [`bytes`]: paths need not be UTF-8.
pub(crate) mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::{Path, PathBuf};

    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        super::bytes::serialize(path.as_os_str().as_bytes(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        super::bytes::deserialize(deserializer).map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// A path that may be absent, likewise.
pub(crate) mod option_path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::PathBuf;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| path.as_os_str().as_bytes());
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        let bytes = Option::<Vec<u8>>::deserialize(deserializer)?;
        Ok(bytes.map(|bytes| PathBuf::from(OsString::from_vec(bytes))))
    }
}

/// Paths as bytes, likewise.
pub(crate) mod paths_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::PathBuf;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| path.as_os_str().as_bytes()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<Vec<u8>>::deserialize(deserializer)?;
        Ok(paths
            .into_iter()
            .map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn harmless_names_are_shown_as_they_are() {
        for name in [
            "a.txt",
            "with space",
            "naïve.rs",
            "日本語",
            "e\u{301}",
            "it's",
            "/a/b-c_d",
            "a\\b",
            "🦀",
        ] {
            assert_eq!(Text::from(name).to_string(), name);
        }
    }

    #[test]
    fn what_could_drive_a_terminal_is_quoted() {
        for (bytes, shown) in [
            (&b"a\nb"[..], r"$'a\nb'"),
            (b"\x1b]52;c;aGk=\x07", r"$'\x1b]52;c;aGk=\x07'"),
            (b"\xff", r"$'\xff'"),
            (b"", "$''"),
            (b"$'a'", r"$'$\'a\''"),
            (b" a", "$' a'"),
            (b"\x7f", r"$'\x7f'"),
            ("\u{9b}2J".as_bytes(), r"$'\xc2\x9b2J'"),
            ("a\u{202e}txt.exe".as_bytes(), r"$'a\xe2\x80\xaetxt.exe'"),
            ("\u{200b}".as_bytes(), r"$'\xe2\x80\x8b'"),
            ("\u{2028}".as_bytes(), r"$'\xe2\x80\xa8'"),
            ("\u{e0041}".as_bytes(), r"$'\xf3\xa0\x81\x81'"),
        ] {
            assert_eq!(one_line(bytes), shown);
        }
    }

    #[test]
    fn base64_agrees_with_the_vectors_of_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encode_base64(plain.as_bytes()), encoded);
            assert_eq!(decode_base64(encoded).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["Zg", "Zg=", "Zh==", "Z===", "====", "Zm9v\n", "Zm 9", "Zg==Zg=="] {
            assert_eq!(decode_base64(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn json_gives_back_the_same_bytes(bytes: Vec<u8>) {
            let text = Text(bytes);
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
        }

        #[test]
        fn nothing_shown_is_a_control_character(bytes: Vec<u8>) {
            prop_assert!(!one_line(&bytes).chars().any(char::is_control));
        }

        #[test]
        fn different_bytes_look_different(left: Vec<u8>, right: Vec<u8>) {
            prop_assert_eq!(one_line(&left) == one_line(&right), left == right);
        }
    }
}
