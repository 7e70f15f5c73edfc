//! Sandboxes that are kept: what their supervisors do for clients, for hostile ones, and when somebody dies.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "supervisor/base.rs"]
mod base;
#[path = "supervisor/commands.rs"]
mod commands;
#[path = "supervisor/lives.rs"]
mod lives;
#[path = "supervisor/memory.rs"]
mod memory;
#[path = "supervisor/pauses.rs"]
mod pauses;
#[path = "supervisor/whole.rs"]
mod whole;
#[path = "supervisor/world.rs"]
mod world;
#[path = "supervisor/zygote.rs"]
mod zygote;
