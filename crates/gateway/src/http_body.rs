//! Tells where the body of a request ends, so that it is known where the next request begins.
//!
//! Pure: bytes in, their number out; a body is never held. Chunks (RFC 9112, 7.1) are read strictly: a size of up to 16
//! hexadecimal digits and nothing behind it, every line ended by CR LF. Extensions of chunks are refused: no client
//! needs them, and servers differ in where one ends. Trailers are bounded and name nothing that belongs in a head.

mod chunked;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use chunked::ChunkedReader;
pub(crate) use chunked::belongs_in_head;

use crate::http_head::Body;

/// The longest trailer section, its empty line included.
pub const MAX_TRAILERS: usize = 8 * 1024;

/// What of the bytes given belongs to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// So many bytes at the beginning.
    pub length: usize,
    /// Whether the body ends with them; what follows is the next request.
    pub ended: bool,
}

/// Why a body is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpBodyError {
    /// A chunk that does not begin with a hexadecimal number.
    #[error("a chunk whose size is not a hexadecimal number")]
    Size,
    /// A size of 2^63 and more, or of more than 16 digits.
    #[error("a chunk too large to be counted")]
    TooLarge,
    /// Something between the size of a chunk and the end of its line.
    #[error("an extension of a chunk")]
    Extension,
    /// A CR without LF, an LF without CR, or no line end where one is due.
    #[error("a malformed end of a line")]
    LineEnd,
    /// A trailer that is not a name, a colon and a value.
    #[error("a malformed trailer")]
    Trailer,
    /// A trailer that belongs in the head.
    #[error("a trailer that belongs in the head")]
    ForbiddenTrailer,
    /// More than [`MAX_TRAILERS`].
    #[error("trailers of more than {MAX_TRAILERS} bytes")]
    LongTrailers,
}

/// Follows the body of one request.
#[derive(Debug)]
pub enum BodyReader {
    /// So many bytes are still to come.
    Length(u64),
    /// In chunks.
    Chunked(ChunkedReader),
}

impl BodyReader {
    /// A reader of the body that a head announced.
    #[must_use]
    pub fn new(body: Body) -> Self {
        match body {
            Body::None => Self::Length(0),
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Chunked(ChunkedReader::default()),
        }
    }

    /// Takes what belongs to the body from the bytes that came next; to be asked once before any came, since a body may
    /// have none.
    ///
    /// # Errors
    /// As [`ChunkedReader::read`].
    pub fn read(&mut self, bytes: &[u8]) -> Result<Taken, HttpBodyError> {
        match self {
            Self::Length(left) => Ok(take(left, bytes)),
            Self::Chunked(chunks) => chunks.read(bytes),
        }
    }
}

/// Takes up to `left` bytes, and counts them.
fn take(left: &mut u64, bytes: &[u8]) -> Taken {
    let length = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= u64::try_from(length).unwrap_or(*left);
    Taken {
        length,
        ended: *left == 0,
    }
}
