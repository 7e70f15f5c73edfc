//! Bodies in chunks (RFC 9112, 7.1).

use super::{HttpBodyError, MAX_TRAILERS, Taken, take};
use crate::http_head::{imitated_field, is_token};

/// Digits of a size; leading zeros count.
const MAX_DIGITS: u8 = 16;

/// What a trailer must not be (RFC 9110, 6.5.1): about routing, framing, authentication, the request itself or its
/// content. Fields that decide about host and length are refused in every spelling.
const FORBIDDEN: [&str; 19] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "forwarded",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-http-method-override",
];

/// Follows one body in chunks.
///
/// Holds at most one trailer line, of up to [`MAX_TRAILERS`] bytes.
#[derive(Default)]
pub struct ChunkedReader {
    state: State,
    /// How much of the trailer section came.
    trailers: usize,
    /// What came of the present trailer line.
    line: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// In a size.
    Size {
        size: u64,
        digits: u8,
    },
    /// Behind the CR of a size.
    SizeEnd {
        size: u64,
    },
    /// In the content of a chunk.
    Content {
        left: u64,
    },
    /// Behind the content of a chunk.
    ContentCr,
    /// Behind the CR behind the content of a chunk.
    ContentLf,
    /// In a line of the trailer section.
    Trailer,
    /// Behind the CR of such a line.
    TrailerEnd,
    Ended,
    Failed(HttpBodyError),
}

impl Default for State {
    fn default() -> Self {
        Self::Size { size: 0, digits: 0 }
    }
}

impl std::fmt::Debug for ChunkedReader {
    // Not the bytes: they are what a command sends.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkedReader")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl ChunkedReader {
    /// Takes what belongs to the body from the bytes that came next; behind its end, nothing.
    ///
    /// # Errors
    /// When the bytes are no chunks as described in [`crate::http_body`]; from then on always. What was taken before
    /// may have been sent on: the connection to the server must be closed, not used again.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Taken, HttpBodyError> {
        let mut at = 0;
        loop {
            match &mut self.state {
                State::Ended => {
                    return Ok(Taken {
                        length: at,
                        ended: true,
                    });
                }
                State::Failed(error) => return Err(*error),
                State::Content { left } => {
                    let taken = take(left, &bytes[at..]);
                    at += taken.length;
                    if !taken.ended {
                        return Ok(Taken {
                            length: at,
                            ended: false,
                        });
                    }
                    self.state = State::ContentCr;
                }
                _ => {
                    let Some(&byte) = bytes.get(at) else {
                        return Ok(Taken {
                            length: at,
                            ended: false,
                        });
                    };
                    at += 1;
                    self.state = match self.step(byte) {
                        Ok(next) => next,
                        Err(error) => State::Failed(error),
                    };
                }
            }
        }
    }

    /// What follows one byte outside of content.
    fn step(&mut self, byte: u8) -> Result<State, HttpBodyError> {
        match (self.state, byte) {
            (State::Size { digits: 1.., size }, b'\r') => Ok(State::SizeEnd { size }),
            (State::Size { size, digits }, _) => add_digit(size, digits, byte),
            (State::SizeEnd { size: 0 }, b'\n') => Ok(State::Trailer),
            (State::SizeEnd { size }, b'\n') => Ok(State::Content { left: size }),
            (State::ContentCr, b'\r') => Ok(State::ContentLf),
            (State::ContentLf, b'\n') => Ok(State::default()),
            (State::Trailer | State::TrailerEnd, _) => self.step_in_trailers(byte),
            _ => Err(HttpBodyError::LineEnd),
        }
    }

    fn step_in_trailers(&mut self, byte: u8) -> Result<State, HttpBodyError> {
        self.trailers += 1;
        if self.trailers > MAX_TRAILERS {
            return Err(HttpBodyError::LongTrailers);
        }
        match (self.state, byte) {
            (State::TrailerEnd, b'\n') if self.line.is_empty() => Ok(State::Ended),
            (State::TrailerEnd, b'\n') => {
                check_trailer(&self.line)?;
                self.line.clear();
                Ok(State::Trailer)
            }
            (State::TrailerEnd, _) | (_, b'\n') => Err(HttpBodyError::LineEnd),
            (_, b'\r') => Ok(State::TrailerEnd),
            (_, b'\t' | b' '..=b'~' | 0x80..) => {
                self.line.push(byte);
                Ok(State::Trailer)
            }
            _ => Err(HttpBodyError::Trailer),
        }
    }
}

fn add_digit(size: u64, digits: u8, byte: u8) -> Result<State, HttpBodyError> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        b'\n' if digits > 0 => return Err(HttpBodyError::LineEnd),
        _ if digits > 0 => return Err(HttpBodyError::Extension),
        _ => return Err(HttpBodyError::Size),
    };
    if digits == MAX_DIGITS || size >> 59 != 0 {
        return Err(HttpBodyError::TooLarge);
    }
    Ok(State::Size {
        size: size << 4 | u64::from(digit),
        digits: digits + 1,
    })
}

/// A name directly followed by a colon, that is no folded line and may stand behind a body.
fn check_trailer(line: &[u8]) -> Result<(), HttpBodyError> {
    let colon = line
        .iter()
        .position(|byte| *byte == b':')
        .ok_or(HttpBodyError::Trailer)?;
    let name = &line[..colon];
    if !is_token(name) {
        return Err(HttpBodyError::Trailer);
    }
    if belongs_in_head(name) {
        return Err(HttpBodyError::ForbiddenTrailer);
    }
    Ok(())
}

/// Whether a field of this name must not stand behind a body.
pub(crate) fn belongs_in_head(name: &[u8]) -> bool {
    let forbidden = FORBIDDEN
        .iter()
        .any(|field| name.eq_ignore_ascii_case(field.as_bytes()));
    forbidden || imitated_field(name).is_some()
}
