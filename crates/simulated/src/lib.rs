//! Levels without an operating system: a shell that is simulated, in a process of ours that has nothing of the machine.
//!
//! Two walls. The first is the engine, which carries commands out in its own memory and knows no process, no file of the
//! host and no socket (`engine`). The second is the worker that it runs in: this program started anew, with one socket, an
//! empty root directory, a filter of few system calls, and limits of the kernel (`worker`). The supervisor's side makes it
//! ([`SimulatedBackend`]), and serves it the files that the plan grants (`tree`): whatever comes from a worker is taken as that of
//! a hostile guest.
//!
//! Deliberately not here: what is granted (`planner`), where layers lie and what becomes of them (`store`), and printing.

mod backend;
mod channel;
mod code;
#[cfg_attr(
    not(feature = "shell"),
    allow(dead_code, unused_imports, reason = "what only an engine uses")
)]
pub mod engine;
#[cfg(test)]
mod fixture;
mod interpreters;
mod next_level;
mod sandbox;
mod served;
mod shared;
mod tree;
mod wire;
#[cfg_attr(
    not(feature = "shell"),
    allow(dead_code, unused_imports, reason = "what only an engine uses")
)]
mod worker;
mod worker_process;
mod worker_use;

pub use backend::SimulatedBackend;
pub use engine::EngineKind;
pub use worker::{WORKER_ROLE, run as run_worker, run_with as run_worker_with, script_filter};
