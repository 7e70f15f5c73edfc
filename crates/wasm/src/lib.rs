//! Level `wasm`: WebAssembly commands, compiled and run in a process of ours that has nothing of the machine.
//!
//! Two walls. The first is wasmtime: compiled code reaches its own memory and what its imports do. The second is the locked worker
//! of level `simulated`, whose supervisor serves it the files of the plan; here it has another engine, and a filter that lets
//! memory become code. Modules of WASI preview 1 and components of preview 2 are told apart by their bytes.
//!
//! What was compiled is kept by the supervisor (`store`), under the digest of what it was made of. Interpreters of Python and
//! JavaScript are modules that this build has (`interpreters`), for this level and for the shell of level `simulated`.
//! Deliberately not here: sockets and HTTP, and what is granted (`planner`).

#[cfg(feature = "engine")]
mod artifacts;
mod backend;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod interpreters;
mod roles;
mod scripts;
mod store;
mod worker;

pub use backend::WasmBackend;
pub use roles::COMPILER_ROLE;
pub use scripts::{compile_interpreter, has_interpreters, interpreter_store, is_compiled};
pub use worker::{WORKER_ROLE, run as run_worker, run_shell as run_shell_worker};
