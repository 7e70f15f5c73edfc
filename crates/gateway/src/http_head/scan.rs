//! Finds the end of a head, and refuses at the first byte what no head can hold.

use super::{HttpHeadError, MAX_FIELDS, MAX_HEAD, MAX_METHOD, fields::is_token_byte};

pub(super) enum Found {
    NeedMore,
    NotHttp,
    Invalid(HttpHeadError),
    /// The length of the head.
    End(usize),
}

/// How far a head was looked at. An odd byte is never passed, so that it is found again when asked again.
#[derive(Debug, Default)]
pub(super) struct Scan {
    seen: usize,
    line_start: usize,
    lines: usize,
    /// Whether the first space, behind the method, was seen.
    method_ended: bool,
}

impl Scan {
    pub(super) fn find_end(&mut self, received: &[u8]) -> Found {
        while let Some(&byte) = received.get(self.seen) {
            if self.seen == MAX_HEAD {
                return Found::Invalid(HttpHeadError::TooLong);
            }
            if !self.method_ended {
                match (byte, self.seen) {
                    (b' ', 1..) => self.method_ended = true,
                    (_, 0..MAX_METHOD) if is_token_byte(byte) => {}
                    _ => return Found::NotHttp,
                }
            }
            let after_cr = self.seen > self.line_start && received.get(self.seen - 1) == Some(&b'\r');
            match byte {
                b'\n' if after_cr => {
                    let line = received.get(self.line_start..self.seen - 1).unwrap_or_default();
                    if line.is_empty() {
                        return Found::End(self.seen + 1);
                    }
                    if let Err(refused) = self.judge_line(line) {
                        return refused;
                    }
                    self.lines += 1;
                    self.line_start = self.seen + 1;
                }
                _ if after_cr => return Found::Invalid(HttpHeadError::BareCr),
                b'\n' => return Found::Invalid(HttpHeadError::BareLf),
                b' ' | b'\t' if self.seen == self.line_start && self.lines > 0 => {
                    return Found::Invalid(HttpHeadError::Folded);
                }
                b'\r' | b'\t' => {}
                0..b' ' | 0x7f => return Found::Invalid(HttpHeadError::Control(byte)),
                _ => {}
            }
            self.seen += 1;
        }
        if self.seen == MAX_HEAD {
            return Found::Invalid(HttpHeadError::TooLong);
        }
        Found::NeedMore
    }

    fn judge_line(&self, line: &[u8]) -> Result<(), Found> {
        if self.lines == 0 && !ends_in_a_version(line) {
            return Err(Found::NotHttp);
        }
        if self.lines > MAX_FIELDS {
            return Err(Found::Invalid(HttpHeadError::ManyFields));
        }
        Ok(())
    }
}

/// Whether a first line is one of HTTP at all; of which version is asked later.
fn ends_in_a_version(line: &[u8]) -> bool {
    line.last_chunk().is_some_and(|end: &[u8; 9]| {
        end.starts_with(b" HTTP/") && end[6].is_ascii_digit() && end[7] == b'.' && end[8].is_ascii_digit()
    })
}
