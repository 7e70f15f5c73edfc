//! The frames of a stream: one byte of flags, the length in four bytes, the message.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;

use super::error::{EXIT_CODE, ErrorJson};
use super::{ConnectCode, ConnectError};

/// Bytes before the message.
pub(crate) const HEADER: usize = 5;

/// The message is compressed.
const COMPRESSED: u8 = 0x01;

/// The last frame of a stream.
const END: u8 = 0x02;

/// A frame as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message.
    Message(Bytes),
    /// The client says that nothing follows; what it says beside is for servers.
    End,
}

/// Takes frames out of bytes as they arrive.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    bytes: BytesMut,
    most: usize,
}

impl FrameDecoder {
    /// One that takes messages of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            most,
        }
    }

    /// Adds bytes that arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether the bytes so far end between two frames.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next whole frame, if it is there.
    ///
    /// # Errors
    /// `resource_exhausted` for one that says it is larger than may be, before more of it is read; `unimplemented`
    /// for a compressed one; `invalid_argument` for other flags.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, ConnectError> {
        let Some((header, _)) = self.bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [flags, length @ ..] = *header;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        match flags {
            0 | END => {}
            flags if flags & COMPRESSED != 0 => {
                let text = "compressed messages are not taken; send them as they are (identity)";
                return Err(ConnectError::new(ConnectCode::Unimplemented, text));
            }
            flags => return Err(ConnectError::invalid(format!("a frame has unknown flags {flags:#04x}"))),
        }
        if length > self.most {
            let text = format!("a message of {length} bytes is larger than {} bytes", self.most);
            return Err(ConnectError::new(ConnectCode::ResourceExhausted, text));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        let message = self.bytes.split_to(length).freeze();
        Ok(Some(if flags == END {
            Frame::End
        } else {
            Frame::Message(message)
        }))
    }
}

/// A message in its frame.
///
/// # Errors
/// `internal` for a message of 4 GiB and more.
pub(crate) fn message_frame(message: &[u8]) -> Result<Bytes, ConnectError> {
    framed(0, message)
}

/// The frame that ends a stream, well or with an error.
pub(crate) fn end_frame(error: Option<&ConnectError>) -> Bytes {
    #[derive(Serialize)]
    struct End<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<ErrorJson<'a>>,
        /// As headers: each name with its values.
        #[serde(skip_serializing_if = "Option::is_none")]
        metadata: Option<BTreeMap<&'static str, [String; 1]>>,
    }
    let exit_code = error.and_then(|error| error.exit_code);
    let end = End {
        error: error.map(ConnectError::json),
        metadata: exit_code.map(|code| BTreeMap::from([(EXIT_CODE, [code.to_string()])])),
    };
    let body = serde_json::to_vec(&end).unwrap_or_else(|_| br#"{"error":{"code":"internal"}}"#.to_vec());
    framed(END, &body).unwrap_or_default()
}

fn framed(flags: u8, body: &[u8]) -> Result<Bytes, ConnectError> {
    let length = u32::try_from(body.len())
        .map_err(|_| ConnectError::new(ConnectCode::Internal, "the answer is larger than a frame can be"))?;
    let mut frame = BytesMut::with_capacity(HEADER + body.len());
    frame.put_u8(flags);
    frame.put_u32(length);
    frame.put_slice(body);
    Ok(frame.freeze())
}
