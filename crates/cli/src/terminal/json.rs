//! JSON that may be shown on a terminal.
//!
//! What a sandbox named or wrote stands in it as text. JSON itself escapes the control characters below U+0020 only; the
//! others, and characters that hide or turn round what is around them (U+202E), are escaped here as well. Who parses it
//! gets the same text.

use std::fmt::Write as _;

use offleash_core::text::is_visible;
use serde::Serialize;

use crate::failure::Failure;

/// `value` as one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let json = serde_json::to_string(value).map_err(|error| Failure::from_error(&error))?;
    Ok(visible(&json).into_bytes())
}

/// `value` as a document for people.
pub(crate) fn json_document(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    serde_json::to_string_pretty(value).map(|json| visible(&json).into_bytes())
}

/// Escapes what is not visible, and ends the line. Outside strings JSON is visible or white space, so that no more needs
/// to be known of it.
fn visible(json: &str) -> String {
    let mut shown = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        if character == '\n' || is_visible(character) {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _written = write!(shown, "\\u{unit:04x}");
        }
    }
    shown.push('\n');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_turns_text_is_escaped_and_read_back_the_same() {
        for (text, shown) in [
            ("a\u{202e}gpj.exe", r#""a\u202egpj.exe""#),
            ("\u{9b}2J\u{7f}", r#""\u009b2J\u007f""#),
            ("\x1b[2J\n\r", r#""\u001b[2J\n\r""#),
            ("\u{200b}\u{2066}\u{feff}", r#""\u200b\u2066\ufeff""#),
            ("\u{e0041}", r#""\udb40\udc41""#),
            ("ß 日本語 🦀 e\u{301}", "\"ß 日本語 🦀 e\u{301}\""),
        ] {
            let line = String::from_utf8(json_line(&text).unwrap_or_default()).unwrap();
            assert_eq!(line, format!("{shown}\n"));
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }
    }

    #[test]
    fn a_document_keeps_its_lines() {
        let document = json_document(&["a\u{202e}"]).unwrap();
        assert_eq!(String::from_utf8(document).unwrap(), "[\n  \"a\\u202e\"\n]\n");
    }
}
