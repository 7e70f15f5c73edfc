//! The words and the decisions of offleash.
//!
//! What a sandbox is asked to be ([`spec`]), what that resolves to ([`plan`]), what happens in it ([`exec`]) and what
//! is reported afterwards ([`record`]); and the pure decisions: which path, variable, command or connection is allowed.
//!
//! Deliberately not here: I/O, async, clocks, randomness. Every other room uses this one; it uses none of them.

pub mod approval;
pub mod bucket;
pub mod build;
pub mod command;
pub mod command_trigger;
pub mod env;
pub mod error;
pub mod exec;
mod glob;
pub mod gpu;
pub mod id;
pub mod level;
pub mod limits;
pub mod log_level;
pub mod monitor;
pub mod network;
pub mod path_rules;
pub mod plan;
pub mod policy;
pub mod processor;
pub mod protected;
pub mod record;
pub mod runtime;
pub mod spec;
pub mod srt;
pub mod template;
pub mod text;
pub mod tool;
pub mod trust;
pub mod trusted;
pub mod units;
pub mod vm;
pub mod volume;
mod written;
