//! Runs: from what was asked for to the record of what happened.
//!
//! A door (the command line, later a server) hands in a `SandboxSpec` and a command. The supervisor resolves them into a
//! plan ([`offleash_planner`]), has a backend of `isolation` make the sandbox, serves it and its clients in one loop
//! (`sandbox_loop`), and keeps
//! what the run leaves with `store` ([`lifecycle`]). Deliberately not here: how a sandbox is made, and printing.

pub mod buckets;
pub mod builds;
pub mod capture;
pub mod changes;
pub mod clock;
pub mod frames;
pub mod images;
pub mod lifecycle;
mod monitor;
mod output_tail;
pub mod prewarmed;
pub mod probe;
pub mod process_list;
pub mod roles;
pub mod run_client;
mod sandbox_loop;
pub mod service;
pub mod snapshot_archives;
pub mod templates;
pub mod tools;
mod trusted_socket;
pub mod volumes;

/// The process of a gateway: what this program is under the name [`gateway_process::PROCESS_NAME`].
pub use offleash_gateway::process as gateway_process;
