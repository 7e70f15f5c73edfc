//! Attacks from inside a sandbox, each of which must fail there and, where it can be tried without harm, succeeds
//! without a sandbox.
//!
//! Tests are named by the threat they stand for. What a machine or a user does not allow even without a sandbox is
//! told by a line `NOT PROVEN`; a test that cannot run at all is a counted skip.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "escape/arena.rs"]
mod arena;
#[path = "escape/crashes.rs"]
mod crashes;
#[path = "escape/files.rs"]
mod files;
#[path = "escape/kernel.rs"]
mod kernel;
#[path = "escape/pitfalls.rs"]
mod pitfalls;
#[path = "escape/proc.rs"]
mod proc;
#[path = "escape/processes.rs"]
mod processes;
#[path = "escape/resources.rs"]
mod resources;
