//! Sandboxes that wait, ready, for a later run of the same request: `offleash run` hands its command to one instead of
//! making its own.
//!
//! Each is held by a process of its own, the supervisor, which has done all of a run up to its command and waits at a socket
//! `warm/KEY/ID` of the state directory; its place there is reserved before it is started ([`SocketPlace`]). A run that finds one
//! there passes its command, environment, directory and standard streams ([`hand_over()`]); the supervisor makes sure that the run
//! would have made this very sandbox, says so, carries the run out, and ends. Nothing that ran is ever handed out again.
//!
//! The key is what both can say of themselves without asking anybody: program, arguments, directory, and all that a
//! process inherits. What the arguments lead to (policies, files, mounts) the supervisor looks at again when it is asked.
//!
//! No command is started twice: a supervisor that has said that the sandbox is taken may have started the command, so that whoever
//! read that never starts it again; whoever goes on without having read it makes sure first that it cannot be said any more.

mod claim;
mod hand_over;
mod key;
mod message;
mod place;
mod reserved;
mod socket;
mod start;
mod words;

pub use claim::Lost;
pub use hand_over::hand_over;
pub use key::{Key, VARIABLES};
pub use message::{Handover, PrewarmedOrder};
pub use place::{Described, Warm, all, stop, tidy};
pub use reserved::{PlaceError, SocketPlace};
pub use socket::{Asked, Caller, HandedRun, PrewarmedSocket};
pub use start::{StartError, start};
pub use words::RunWords;
