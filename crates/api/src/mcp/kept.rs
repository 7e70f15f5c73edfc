//! Output, of which the beginning and the end are kept.

use std::collections::VecDeque;

/// How much of the beginning of a stream is kept, and how much of its end, in bytes.
const HEAD: usize = 32 * 1024;
const TAIL: usize = 16 * 1024;
/// Longest line that is shown as progress, in characters.
const MAX_LINE_LENGTH: usize = 200;

/// One stream of output.
#[derive(Debug, Default)]
pub(super) struct KeptText {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl KeptText {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        // Of what is longer than all that is kept, only the end comes into question.
        let skipped = rest.len().saturating_sub(TAIL);
        self.tail.extend(&rest[skipped..]);
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
        self.dropped += u64::try_from(skipped + excess).unwrap_or(u64::MAX);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// The last line that is not empty, as far as a line of progress goes.
    pub(super) fn last_line(&self) -> Option<String> {
        let end: Vec<u8> = if self.tail.is_empty() {
            self.head.iter().rev().take(4096).rev().copied().collect()
        } else {
            self.tail.iter().rev().take(4096).rev().copied().collect()
        };
        let text = String::from_utf8_lossy(&end);
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(MAX_LINE_LENGTH).collect())
    }

    /// All that is kept, with a mark where something was left out.
    pub(super) fn into_text(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        if self.dropped == 0 {
            let whole = [self.head, tail].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        let (head, tail) = (without_broken_end(&self.head), without_broken_start(&tail));
        format!(
            "{}\n[… {} bytes are left out here …]\n{}",
            String::from_utf8_lossy(head),
            self.dropped,
            String::from_utf8_lossy(tail),
        )
    }
}

/// Text that has more than a stream may have is cut as one.
pub(super) fn cut(text: &str) -> String {
    let mut kept = KeptText::default();
    kept.take(text.as_bytes());
    kept.into_text()
}

/// `bytes` without a character of UTF-8 at the end that is not whole.
pub(super) fn without_broken_end(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        // Only what more bytes could have made whole.
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

fn without_broken_start(bytes: &[u8]) -> &[u8] {
    let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
    let broken = bytes.iter().take(3).take_while(continues).count();
    &bytes[broken..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_whole() {
        let mut kept = KeptText::default();
        kept.take(b"a\nb\n\n");
        assert_eq!(kept.last_line().as_deref(), Some("b"));
        assert_eq!(kept.into_text(), "a\nb\n\n");
        let all = "x".repeat(HEAD + TAIL);
        assert_eq!(cut(&all), all);
    }

    #[test]
    fn the_middle_of_what_does_not_fit_is_left_out() {
        let mut kept = KeptText::default();
        let piece = "é".repeat(50_001);
        for piece in piece.as_bytes().chunks(777) {
            kept.take(piece);
        }
        kept.take(b"end");
        let text = kept.into_text();
        assert!(text.starts_with("éé") && text.ends_with("éend"));
        assert!(!text.contains('\u{fffd}'), "a character was cut");
        let dropped = 2 * 50_001 + 3 - HEAD - TAIL;
        assert!(text.contains(&format!("[… {dropped} bytes are left out here …]")));
    }

    #[test]
    fn any_division_into_pieces_is_the_same() {
        let all: Vec<u8> = (0..100_000_u32)
            .map(|number| b'a' + u8::try_from(number % 26).unwrap())
            .collect();
        let whole = cut(std::str::from_utf8(&all).unwrap());
        for size in [1, 1000, 16 * 1024, 40_000] {
            let mut kept = KeptText::default();
            all.chunks(size).for_each(|piece| kept.take(piece));
            assert_eq!(kept.into_text(), whole, "{size}");
        }
    }
}
