//! What the host and the guest say to each other over one stream socket, and how it is framed.
//!
//! Pure: no sockets, no clock. Bytes go in, messages come out, and the reverse ([`MessageDecoder`], [`encode`]). Each side
//! treats the other's bytes as untrusted: sizes are checked before anything is allocated, and a frame that is not
//! exactly one message is an error after which nothing more is decoded. Deliberately not here: what a message does,
//! which is the business of `guest` and of `isolation`, the two callers.
//!
//! Flow is bounded in both directions. The host may have at most [`INPUT_WINDOW`] bytes of input unacknowledged for
//! each execution ([`FromGuest::InputTaken`] acknowledges); the guest stops reading a command's output while the
//! host does not take what was sent before.

#![no_std]

extern crate alloc;

pub mod bytes;
pub mod files;
mod frame;
mod message;
pub mod rename;
pub mod sudo;
pub mod tools;
pub mod vm;

pub use frame::{FrameError, HEADER, MessageDecoder, encode, encode_into};
pub use message::{
    Dialogue, ExecCommand, ExitReport, FromGuest, GuestIds, GuestStream, MAX_STRINGS, SandboxUsage, StartFailure,
    StdinKind, TmpfsUsage, ToGuest,
};

/// Version of the messages; the first thing that a guest says ([`FromGuest::Ready`]).
pub const VERSION: u32 = 2;

/// Bytes of input that may be on the way to one execution without having been acknowledged.
///
/// More is a violation of the protocol, upon which the guest ends the sandbox.
pub const INPUT_WINDOW: usize = 256 * 1024;

/// Largest piece of output in one [`FromGuest::Output`].
pub const OUTPUT_CHUNK: usize = 64 * 1024;
