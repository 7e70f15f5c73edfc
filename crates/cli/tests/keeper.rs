//! Sandboxes that are kept: what their keepers do for clients, for hostile ones, and when somebody dies.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed, and starts programs itself"
)]

mod support;

#[path = "keeper/base.rs"]
mod base;
#[path = "keeper/commands.rs"]
mod commands;
#[path = "keeper/lives.rs"]
mod lives;
#[path = "keeper/memory.rs"]
mod memory;
#[path = "keeper/pauses.rs"]
mod pauses;
#[path = "keeper/whole.rs"]
mod whole;
#[path = "keeper/world.rs"]
mod world;
#[path = "keeper/zygote.rs"]
mod zygote;
