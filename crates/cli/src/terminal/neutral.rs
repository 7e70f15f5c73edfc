//! Takes from output what drives a terminal, and leaves what a person reads.
//!
//! Without `-t`, a command has no business with the user's terminal; yet what it writes ends up there. Escape
//! sequences could set the clipboard (OSC 52), the title, links, the cursor, and make text appear that nobody wrote
//! (THREATS A11). Colours are left alone: `ESC [ … m` changes nothing but how text looks.

use offleash_core::text::is_visible;

/// A filter for one stream; a sequence may be split over several writes.
#[derive(Debug, Default)]
pub(crate) struct Neutralizer {
    held: Vec<u8>,
}

/// The longest colour sequence that is waited for.
const MAX_LENGTH: usize = 64;

impl Neutralizer {
    /// The bytes that may be shown; the beginning of an unfinished sequence is kept for the next call.
    pub(crate) fn filter(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.held);
        input.extend_from_slice(bytes);
        let mut shown = Vec::with_capacity(input.len());
        let mut rest = input.as_slice();
        while let Some((&first, after)) = rest.split_first() {
            rest = match first {
                b'\n' | b'\t' | b'\r' | 0x08 => {
                    shown.push(first);
                    after
                }
                0x1b => match colour(rest) {
                    Sequence::Whole(length) => {
                        let (sequence, after) = rest.split_at(length);
                        shown.extend_from_slice(sequence);
                        after
                    }
                    Sequence::Unfinished => {
                        self.held = rest.to_vec();
                        break;
                    }
                    Sequence::Other => {
                        shown.extend_from_slice("␛".as_bytes());
                        after
                    }
                },
                0..0x80 => {
                    push_ascii(&mut shown, first);
                    after
                }
                0x80.. => match first_character(rest) {
                    Piece::Character(length) => {
                        let (character, after) = rest.split_at(length);
                        shown.extend_from_slice(if is_c1(character) { REPLACEMENT } else { character });
                        after
                    }
                    Piece::Unfinished => {
                        self.held = rest.to_vec();
                        break;
                    }
                    Piece::Stray => {
                        push_stray(&mut shown, first);
                        after
                    }
                },
            };
        }
        shown
    }

    /// What was kept and never finished, made visible.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut shown = Vec::new();
        for byte in std::mem::take(&mut self.held) {
            if byte == 0x1b {
                shown.extend_from_slice("␛".as_bytes());
            } else {
                push_stray(&mut shown, byte);
            }
        }
        shown
    }
}

/// Text in which nothing hides: of controls only tabs and ends of lines are left, the rest is shown as what it is.
///
/// For text that is to be judged, such as a patch, in which colours could conceal lines and a carriage return or a
/// character that turns the direction could put one over another.
pub(crate) fn literal(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = match first {
            b'\n' | b'\t' => {
                shown.push(first);
                after
            }
            b'\r' if after.first() == Some(&b'\n') => {
                shown.push(first);
                after
            }
            0..0x80 => {
                push_ascii(&mut shown, first);
                after
            }
            0x80.. => match first_character(rest) {
                Piece::Character(length) => {
                    let (character, after) = rest.split_at(length);
                    push_visible(&mut shown, character);
                    after
                }
                Piece::Unfinished | Piece::Stray => {
                    push_stray(&mut shown, first);
                    after
                }
            },
        };
    }
    shown
}

/// A byte of ASCII, or the picture of a control character: U+2400 and on.
fn push_ascii(shown: &mut Vec<u8>, byte: u8) {
    match byte {
        0..0x20 => shown.extend_from_slice(&[0xe2, 0x90, 0x80 + byte]),
        0x7f => shown.extend_from_slice("␡".as_bytes()),
        _ => shown.push(byte),
    }
}

fn push_visible(shown: &mut Vec<u8>, character: &[u8]) {
    match std::str::from_utf8(character).ok().and_then(|text| text.chars().next()) {
        Some(hidden) if !is_visible(hidden) => {
            shown.extend_from_slice(format!("<U+{:04X}>", u32::from(hidden)).as_bytes());
        }
        _ => shown.extend_from_slice(character),
    }
}

/// What is shown in place of a control character that has no picture.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// What bytes that are not ASCII begin with.
enum Piece {
    /// A character of so many bytes.
    Character(usize),
    /// The beginning of one, up to the end of the bytes.
    Unfinished,
    /// A byte that is not part of UTF-8.
    Stray,
}

fn first_character(bytes: &[u8]) -> Piece {
    let longest = bytes.get(..4).unwrap_or(bytes);
    let valid = match std::str::from_utf8(longest) {
        Ok(valid) => valid,
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => return Piece::Unfinished,
        Err(error) => std::str::from_utf8(&longest[..error.valid_up_to()]).unwrap_or_default(),
    };
    valid
        .chars()
        .next()
        .map_or(Piece::Stray, |first| Piece::Character(first.len_utf8()))
}

/// Whether a character in UTF-8 is one of U+0080 to U+009F; some terminals take U+009B as `ESC [`.
fn is_c1(character: &[u8]) -> bool {
    matches!(character, [0xc2, 0x80..0xa0])
}

/// Terminals that do not read UTF-8, or read it carelessly, take the byte 0x9b as `ESC [`; others are text in an older
/// encoding.
fn push_stray(shown: &mut Vec<u8>, byte: u8) {
    match byte {
        0x80..0xa0 => shown.extend_from_slice(REPLACEMENT),
        _ => shown.push(byte),
    }
}

enum Sequence {
    Whole(usize),
    Unfinished,
    Other,
}

/// Whether `bytes`, which begin with ESC, are a colour sequence: `ESC [`, digits and separators, `m`.
fn colour(bytes: &[u8]) -> Sequence {
    match bytes.get(1) {
        None => return Sequence::Unfinished,
        Some(b'[') => {}
        Some(_) => return Sequence::Other,
    }
    for (position, byte) in bytes.iter().enumerate().skip(2) {
        match byte {
            b'0'..=b'9' | b';' | b':' if position < MAX_LENGTH => {}
            b'm' => return Sequence::Whole(position + 1),
            _ => return Sequence::Other,
        }
    }
    Sequence::Unfinished
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(writes: &[&[u8]]) -> String {
        let mut neutralizer = Neutralizer::default();
        let mut all: Vec<u8> = writes.iter().flat_map(|bytes| neutralizer.filter(bytes)).collect();
        all.extend(neutralizer.finish());
        String::from_utf8_lossy(&all).into_owned()
    }

    #[test]
    fn text_and_colours_pass() {
        assert_eq!(
            shown(&["a\tß\n\x1b[1;31mred\x1b[0m".as_bytes()]),
            "a\tß\n\x1b[1;31mred\x1b[0m"
        );
    }

    #[test]
    fn what_drives_a_terminal_is_made_visible() {
        for (bytes, expected) in [
            (&b"\x1b]52;c;aGk=\x07"[..], "␛]52;c;aGk=␇"),
            (b"\x1b[2J", "␛[2J"),
            (b"\x1bc", "␛c"),
            (b"\xc2\x9b2J", "\u{fffd}2J"),
            (b"\x9b2J\x85", "\u{fffd}2J\u{fffd}"),
            (b"\xc2\x80\xc2\x9f", "\u{fffd}\u{fffd}"),
            (b"\xe2\x9b2J", "\u{fffd}\u{fffd}2J"),
            (b"\x1b]0;title\x1b\\", "␛]0;title␛\\"),
            (b"\x0e\x7f", "␎␡"),
            (b"\x1bP+q\x1b\\", "␛P+q␛\\"),
        ] {
            assert_eq!(shown(&[bytes]), expected);
        }
    }

    /// The test's own reading replaces what is not UTF-8, so this looks at the bytes.
    #[test]
    fn no_byte_that_is_taken_for_a_control_is_left_and_other_text_is() {
        let filtered = |bytes: &[u8]| {
            let mut neutralizer = Neutralizer::default();
            [neutralizer.filter(bytes), neutralizer.finish()].concat()
        };
        let controls: Vec<u8> = (0x80..0xa0).collect();
        assert_eq!(filtered(&controls), REPLACEMENT.repeat(32));
        assert_eq!(filtered(b"\xe2\x9b"), [b"\xe2", REPLACEMENT].concat());
        assert_eq!(filtered(b"\xf0\x9f\x9b"), [b"\xf0", REPLACEMENT, REPLACEMENT].concat());
        assert_eq!(filtered(b"\xed\xa0\x80"), [b"\xed\xa0", REPLACEMENT].concat());
        assert_eq!(filtered(b"gr\xfc\xdfe\xa0"), b"gr\xfc\xdfe\xa0");
        let text = "ß ü \u{a0} € 日本語 🛀 \u{dc}\u{db}";
        assert_eq!(filtered(text.as_bytes()), text.as_bytes());
    }

    #[test]
    fn nothing_hides_in_text_that_is_to_be_judged() {
        for (text, shown) in [
            ("+\x1b[8mos.system(evil)\x1b[0m\n", "+␛[8mos.system(evil)␛[0m\n"),
            ("+evil()\rgood\n", "+evil()␍good\n"),
            ("+dos\r\n", "+dos\r\n"),
            ("+a\x08b\x7f\n", "+a␈b␡\n"),
            (
                "+\u{202e}txt.exe\u{200b}\u{9b}8m\n",
                "+<U+202E>txt.exe<U+200B><U+009B>8m\n",
            ),
            ("+ß 日本語 🛀\t.\n", "+ß 日本語 🛀\t.\n"),
        ] {
            assert_eq!(String::from_utf8(literal(text.as_bytes())).unwrap(), shown);
        }
        assert_eq!(literal(b"gr\xfc\x9b"), [b"gr\xfc", REPLACEMENT].concat());
    }

    #[test]
    fn a_sequence_split_over_writes_is_seen_as_one() {
        assert_eq!(shown(&[b"\x1b", b"[3", b"2mok"]), "\x1b[32mok");
        assert_eq!(shown(&[b"\x1b", b"]52;x\x07"]), "␛]52;x␇");
        assert_eq!(shown(&[b"end\x1b"]), "end␛");
        assert_eq!(shown(&[b"\xc2", b"\x9bA", b"\xc2", b"\xa9"]), "\u{fffd}A©");
        assert_eq!(shown(&[b"\xf0", b"\x9f\x9b", b"\x80."]), "🛀.");
    }
}
