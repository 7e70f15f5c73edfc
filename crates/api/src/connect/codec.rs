//! The two forms of a message: JSON and Protocol Buffers' binary form.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Code, ConnectError};

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
    /// `internal` if the message cannot be written; none of ours is such.
    pub(crate) fn encode<M: Message>(self, message: &M) -> Result<Bytes, ConnectError> {
        match self {
            Self::Json => serde_json::to_vec(message)
                .map(Bytes::from)
                .map_err(|error| ConnectError::new(Code::Internal, format!("writing the answer: {error}"))),
            Self::Proto => Ok(Bytes::from(message.encode_to_vec())),
        }
    }
}
