//! Takes from output what drives a terminal, and leaves what a person reads.
//!
//! Without `-t`, a command has no business with the user's terminal; yet what it writes ends up there. Escape
//! sequences could set the clipboard (OSC 52), the title, links, the cursor, and make text appear that nobody wrote
//! (THREATS A11). Colours are left alone: `ESC [ … m` changes nothing but how text looks.

/// A filter for one stream; a sequence may be split over several writes.
#[derive(Debug, Default)]
pub(crate) struct Neutralizer {
    held: Vec<u8>,
}

/// The longest colour sequence that is waited for.
const LONGEST: usize = 64;

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
                0..0x20 => {
                    // The pictures of control characters: U+2400 and on.
                    shown.extend_from_slice(&[0xe2, 0x90, 0x80 + first]);
                    after
                }
                0x7f => {
                    shown.extend_from_slice("␡".as_bytes());
                    after
                }
                // C1 controls in UTF-8; some terminals take U+009B as `ESC [`.
                0xc2 if after.is_empty() => {
                    self.held = rest.to_vec();
                    break;
                }
                0xc2 if after.first().is_some_and(|next| (0x80..0xa0).contains(next)) => {
                    shown.extend_from_slice("\u{fffd}".as_bytes());
                    after.get(1..).unwrap_or_default()
                }
                _ => {
                    shown.push(first);
                    after
                }
            };
        }
        shown
    }

    /// What was kept and never finished, made visible.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let visible = |byte: u8| {
            if byte == 0x1b {
                "␛".as_bytes().to_vec()
            } else {
                vec![byte]
            }
        };
        held.into_iter().flat_map(visible).collect()
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
            b'0'..=b'9' | b';' | b':' if position < LONGEST => {}
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
            (b"\x1b]0;title\x1b\\", "␛]0;title␛\\"),
            (b"\x0e\x7f", "␎␡"),
            (b"\x1bP+q\x1b\\", "␛P+q␛\\"),
        ] {
            assert_eq!(shown(&[bytes]), expected);
        }
    }

    #[test]
    fn a_sequence_split_over_writes_is_seen_as_one() {
        assert_eq!(shown(&[b"\x1b", b"[3", b"2mok"]), "\x1b[32mok");
        assert_eq!(shown(&[b"\x1b", b"]52;x\x07"]), "␛]52;x␇");
        assert_eq!(shown(&[b"end\x1b"]), "end␛");
        assert_eq!(shown(&[b"\xc2", b"\x9bA", b"\xc2", b"\xa9"]), "\u{fffd}A©");
    }
}
