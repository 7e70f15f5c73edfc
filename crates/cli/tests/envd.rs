//! The services of a sandbox as a client sees them that sends what it wants, however wrong.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

#[path = "envd/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "api/client.rs"]
mod client;
#[path = "envd/files.rs"]
mod files;
#[path = "envd/hostile.rs"]
mod hostile;
#[path = "envd/input.rs"]
mod input;
#[path = "envd/sandbox.rs"]
mod sandbox;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "api/server.rs"]
mod server;
