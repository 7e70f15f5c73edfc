//! The two forms of a message: JSON and Protocol Buffers' binary form.

use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Code, ConnectError, MAX_ANSWER};

/// A message in both forms.
pub(crate) trait Message: prost::Message + Default + Serialize + DeserializeOwned {}

impl<M: prost::Message + Default + Serialize + DeserializeOwned> Message for M {}

/// In which form the messages of a call are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Proto,
}

impl Codec {
    /// What `bytes` say.
    ///
    /// # Errors
    /// `invalid_argument` for anything that is not exactly one message.
    pub(crate) fn decode<M: Message>(self, bytes: &[u8]) -> Result<M, ConnectError> {
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
    pub(crate) fn encode<M: Message>(self, message: &M) -> Result<Bytes, ConnectError> {
        match self {
            Self::Json => {
                let mut written = Bounded::default();
                serde_json::to_writer(&mut written, message).map_err(|error| match error.is_io() {
                    true => too_large(),
                    false => ConnectError::new(Code::Internal, format!("writing the answer: {error}")),
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
    ConnectError::new(Code::ResourceExhausted, text)
}

/// Bytes that are written, as many as an answer may have.
#[derive(Debug, Default)]
struct Bounded {
    bytes: Vec<u8>,
}

impl Write for Bounded {
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
