//! Stateful code: contexts in which one cell runs after another and finds what the one before left.
//!
//! A context is a driver, a program of its language that was started inside the sandbox as any command is, and that
//! speaks to us in frames over its standard streams ([`protocol`]). Nothing in the sandbox listens, nothing has to be
//! installed for the driver itself, and everything that it says is untrusted and bounded.
//!
//! Deliberately not here: HTTP (`api`), and how a process is started, which a room above provides ([`process`]).

pub mod ahead;
pub mod cell;
mod context;
pub mod contexts;
mod driver;
pub mod error;
pub mod id;
pub mod language;
pub mod limits;
pub mod obstacle;
mod past;
pub mod process;
pub mod protocol;
pub mod result;
mod run;
pub mod state;
pub mod text;
pub mod zygote;
