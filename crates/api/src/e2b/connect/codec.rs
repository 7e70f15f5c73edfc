//! The two forms of a message: JSON and Protocol Buffers' binary form.

use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ConnectCode, ConnectError, MAX_ANSWER};

/// A message in both forms.
pub(crate) trait ConnectMessage: prost::Message + Default + Serialize + DeserializeOwned {}

impl<M: prost::Message + Default + Serialize + DeserializeOwned> ConnectMessage for M {}

/// In which form the messages of a call are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageCodec {
    Json,
    Proto,
}

impl MessageCodec {
    /// What `bytes` say.
    ///
    /// # Errors
    /// `invalid_argument` for anything that is not exactly one message.
    pub(crate) fn decode<M: ConnectMessage>(self, bytes: &[u8]) -> Result<M, ConnectError> {
        match self {
            Self::Json => serde_json::from_slice(bytes)
                .map_err(|error| ConnectError::invalid(format!("the message is not what is expected: {error}"))),
            Self::Proto => M::decode(bytes)
                .map_err(|error| ConnectError::invalid(format!("the message is not what is expected: {error}"))),
        }
    }

    /// The bytes of a message.
    ///
    /// # Errors
    /// `resource_exhausted` if they are more than [`MAX_ANSWER`]; `internal` if the message cannot be written; none of ours
    /// is such.
    pub(crate) fn encode<M: ConnectMessage>(self, message: &M) -> Result<Bytes, ConnectError> {
        match self {
            Self::Json => {
                let mut written = BoundedWriter::default();
                serde_json::to_writer(&mut written, message).map_err(|error| match error.is_io() {
                    true => too_large(),
                    false => ConnectError::new(ConnectCode::Internal, format!("writing the answer: {error}")),
                })?;
                Ok(Bytes::from(written.bytes))
            }
            Self::Proto if message.encoded_len() > MAX_ANSWER => Err(too_large()),
            Self::Proto => Ok(Bytes::from(message.encode_to_vec())),
        }
    }
}

fn too_large() -> ConnectError {
    let text = format!("the answer is larger than {MAX_ANSWER} bytes; ask for less at once");
    ConnectError::new(ConnectCode::ResourceExhausted, text)
}

/// Bytes that are written, as many as an answer may have.
#[derive(Debug, Default)]
struct BoundedWriter {
    bytes: Vec<u8>,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_ANSWER - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
