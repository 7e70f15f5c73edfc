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
#[path = "escape/communication.rs"]
mod communication;
#[path = "escape/crashes.rs"]
mod crashes;
#[path = "escape/endings.rs"]
mod endings;
#[path = "escape/files.rs"]
mod files;
#[path = "escape/floods.rs"]
mod floods;
#[path = "escape/kernel.rs"]
mod kernel;
#[path = "escape/leftovers.rs"]
mod leftovers;
#[path = "escape/leveled.rs"]
mod leveled;
#[path = "escape/namespaces.rs"]
mod namespaces;
#[path = "escape/pitfalls.rs"]
mod pitfalls;
#[path = "escape/pitfalls_of_programs.rs"]
mod pitfalls_of_programs;
#[path = "escape/privileges.rs"]
mod privileges;
#[path = "escape/proc.rs"]
mod proc;
#[path = "escape/processes.rs"]
mod processes;
#[path = "escape/renames.rs"]
mod renames;
#[path = "escape/resources.rs"]
mod resources;
#[path = "escape/surface.rs"]
mod surface;
#[path = "escape/trusted.rs"]
mod trusted;
