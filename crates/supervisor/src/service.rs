//! Sandboxes that outlive whoever asked for them: each is held by a process of its own, its supervisor.
//!
//! A supervisor makes the sandbox that it is ordered ([`order`]), serves a socket in the sandbox's directory ([`message`]),
//! and ends when the sandbox does; when it dies, the sandbox dies with it. Nothing of it needs the program that started
//! it, to which it says what came of its order ([`answer`]): a client ([`client`]) finds it by its directory. A supervisor has
//! one thread and the gateway's, and waits with poll; the client is made for an event loop.

pub mod answer;
pub mod client;
pub mod error;
pub mod files;
pub mod local;
pub mod log;
pub mod message;
pub mod order;

mod authority;
mod connection;
mod ends;
mod executions;
mod hold;
mod reached;
mod reason;
mod refusals;
mod replies;
mod sandbox_use;
mod serve;
mod users;
pub(crate) mod zygote;

pub use client::{ExecNews, ExecStream, SupervisorClient};
pub use error::SupervisorError;
pub use hold::{OF_THE_DAEMON, hold};
pub use sandbox_use::SandboxUse;
