//! Runs: from what was asked for to the record of what happened.
//!
//! A door (the command line, later a server) hands in a `SandboxSpec` and a command. The manager resolves them into a
//! plan ([`offleash_planner`]), has a backend of `isolation` make the sandbox, drives the execution ([`drive`]), and keeps
//! what the run leaves with `store` ([`lifecycle`]). Deliberately not here: how a sandbox is made, and printing.

pub mod capture;
pub mod changes;
pub mod clock;
pub mod drive;
pub mod keeper;
mod last_words;
pub mod lifecycle;
pub mod probe;
pub mod templates;
pub mod warm;
