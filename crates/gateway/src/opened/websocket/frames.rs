//! Finds where the frames of a WebSocket end (RFC 6455, section 5.2).

/// The header of a frame without its length in more bytes and without a mask.
const MIN_HEADER: usize = 2;
const MASK: usize = 4;

/// Follows frames as they come.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The beginning of a header.
    header: Vec<u8>,
    /// How much of the present frame is still to come behind its header.
    left: u64,
}

impl Frames {
    /// How many of `bytes`, of which there is at least one, belong to the present frame, and whether it ends with them.
    pub(super) fn next(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut taken = 0;
        while self.left == 0 {
            let Some(byte) = bytes.get(taken) else {
                return (taken, false);
            };
            taken += 1;
            self.header.push(*byte);
            if let Some(length) = length(&self.header) {
                self.header.clear();
                if length == 0 {
                    return (taken, true);
                }
                self.left = length;
            }
        }
        let there = bytes.len() - taken;
        let part = usize::try_from(self.left).map_or(there, |left| left.min(there));
        self.left -= u64::try_from(part).unwrap_or(self.left);
        (taken + part, self.left == 0)
    }
}

/// How much follows a header; `None` if it is not whole.
fn length(header: &[u8]) -> Option<u64> {
    let second = *header.get(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { MASK };
    let short = second & 0x7f;
    let more = match short {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    if header.len() < MIN_HEADER + more + mask {
        return None;
    }
    let digits = header.get(MIN_HEADER..MIN_HEADER + more)?;
    match more {
        0 => Some(u64::from(short)),
        _ => Some(digits.iter().fold(0, |length, byte| length << 8 | u64::from(*byte))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where frames end, fed in pieces of `size`.
    fn ends(bytes: &[u8], size: usize) -> Vec<usize> {
        let mut frames = Frames::default();
        let mut ends = Vec::new();
        let mut at = 0;
        for mut piece in bytes.chunks(size) {
            while !piece.is_empty() {
                let (taken, ended) = frames.next(piece);
                at += taken;
                if ended {
                    ends.push(at);
                }
                piece = &piece[taken..];
            }
        }
        ends
    }

    #[test]
    fn frames_of_every_length_are_followed_however_they_are_cut() {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (header, content) in [
            (&[0x81, 3][..], 3),
            (&[0x8a, 0], 0),
            (&[0x01, 0x80 | 5, 1, 2, 3, 4], 5),
            (&[0x82, 126, 1, 0], 256),
            (&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 1], 65_537),
            (&[0x81, 0x80 | 126, 0, 126, 9, 9, 9, 9], 126),
        ] {
            bytes.extend_from_slice(header);
            bytes.resize(bytes.len() + content, 7);
            expected.push(bytes.len());
        }
        for size in [1, 2, 7, 1000, bytes.len()] {
            assert_eq!(ends(&bytes, size), expected, "{size}");
        }
    }
}
