//! Frames: a length in four bytes, little-endian, and one message of exactly that length.

use alloc::vec::Vec;
use core::marker::PhantomData;

use crate::message::Dialogue;

/// Bytes before the body of a frame.
pub const HEADER: usize = 4;

/// Why bytes are not a frame, or a message does not fit in one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is zero or beyond what this direction allows.
    #[error("a frame of {length} bytes, where 1 to {limit} are allowed")]
    Size {
        /// The length announced or needed.
        length: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// The body is not one message, or the message cannot be laid down.
    #[error("a frame of {length} bytes is not one message")]
    Malformed {
        /// The body's length.
        length: usize,
    },
}

/// Lays a message down as one frame.
///
/// # Errors
/// `Size` when it is larger than [`Dialogue::MAX_FRAME`], `Malformed` when a list has more than
/// [`crate::MAX_STRINGS`] entries.
pub fn encode<M: Dialogue>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut frame = Vec::new();
    encode_into(message, &mut frame)?;
    Ok(frame)
}

/// Appends a message to `out` as one frame; on an error `out` is as it was.
///
/// # Errors
/// As [`encode`].
pub fn encode_into<M: Dialogue>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let body = start + HEADER;
    let laid_down = postcard::serialize_with_flavor(message, AppendWriter(out)).is_ok();
    let length = out.len() - body;
    let checked = if laid_down {
        checked_length::<M>(length)
    } else {
        Err(FrameError::Malformed { length })
    };
    match checked {
        Ok(announced) => {
            out[start..body].copy_from_slice(&announced.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Writes behind what a vector holds already.
struct AppendWriter<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for AppendWriter<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn checked_length<M: Dialogue>(length: usize) -> Result<u32, FrameError> {
    let refused = FrameError::Size {
        length,
        limit: M::MAX_FRAME,
    };
    if length == 0 || length > M::MAX_FRAME {
        Err(refused)
    } else {
        u32::try_from(length).map_err(|_| refused)
    }
}

/// Turns the bytes of a stream back into messages.
///
/// Holds one unfinished frame and what was pushed since [`next`](Self::next) last answered `None`; nothing is
/// allocated for a length that was announced but has not arrived. After an error nothing more is decoded.
pub struct MessageDecoder<M> {
    held: Vec<u8>,
    /// Where the next frame starts in `held`.
    start: usize,
    failed: Option<FrameError>,
    direction: PhantomData<fn() -> M>,
}

impl<M> core::fmt::Debug for MessageDecoder<M> {
    // Not the bytes: they are a command's output.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Decoder")
            .field("held", &(self.held.len() - self.start))
            .field("failed", &self.failed)
            .finish()
    }
}

impl<M: Dialogue> Default for MessageDecoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Dialogue> MessageDecoder<M> {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self {
            held: Vec::new(),
            start: 0,
            failed: None,
            direction: PhantomData,
        }
    }

    /// Takes bytes as they came; ignored after an error.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if self.start > 0 {
            self.held.drain(..self.start);
            self.start = 0;
        }
        self.held.extend_from_slice(bytes);
    }

    /// The next message, or `None` until more bytes are pushed.
    ///
    /// Not an `Iterator`: after `None` there may be more.
    ///
    /// # Errors
    /// The first thing that is wrong with the stream; the same again on every later call.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end at the first `None`")]
    pub fn next(&mut self) -> Result<Option<M>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.decode().inspect_err(|error| {
            self.failed = Some(error.clone());
            self.held = Vec::new();
            self.start = 0;
        })
    }

    /// Bytes that were pushed and belong to no message yet; not zero at the end of a stream means that it was cut.
    pub fn pending(&self) -> usize {
        self.held.len() - self.start
    }

    fn decode(&mut self) -> Result<Option<M>, FrameError> {
        let held = &self.held[self.start..];
        let Some((header, rest)) = held.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let announced = u32::from_le_bytes(*header);
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        checked_length::<M>(length)?;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let (message, left) = postcard::take_from_bytes(body).map_err(|_| FrameError::Malformed { length })?;
        if !left.is_empty() {
            return Err(FrameError::Malformed { length });
        }
        self.start += HEADER + length;
        Ok(Some(message))
    }
}
