//! The Connect protocol: how the SDKs call the services of a sandbox.
//!
//! Unary calls and streams in both directions, in JSON and in Protocol Buffers' binary form, over HTTP/1.1 or 2
//! (<https://connectrpc.com/docs/protocol/>). Sizes are checked before anything is allocated. Nothing is compressed:
//! clients and server share a machine or a network that is faster than compressing. Deliberately not here: what the
//! services do ([`crate::e2b::envd`]).

mod body;
mod call;
mod codec;
mod error;
mod frame;
pub(crate) mod json;
mod reply;
mod timestamp;

pub(crate) use body::{MessageFrames, read_message};
pub(crate) use call::{CallKind, ConnectCall};
pub(crate) use codec::{ConnectMessage, MessageCodec};
pub(crate) use error::{ConnectCode, ConnectError, EXIT_CODE};
pub(crate) use reply::{MessageSender, StreamEnd, refuse, stream, unary, written};
pub(crate) use timestamp::Timestamp;

/// Largest message that a client may send, in bytes.
pub(crate) const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// Largest message that a client gets, in bytes.
pub(crate) const MAX_ANSWER: usize = 48 * 1024 * 1024;

#[cfg(test)]
mod tests;
