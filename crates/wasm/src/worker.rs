//! The worker's process, which is that of level `simulated` with another engine and another filter.

use std::ffi::CStr;
use std::io;

use offleash_sys::seccomp;

/// The word of its role behind `offleash supervise`.
pub const WORKER_ROLE: &str = "wasm";
/// What lists of processes show.
const SHORT_NAME: &CStr = c"wasm";

/// Is the worker whose supervisor's socket is descriptor 0, until the supervisor is gone.
///
/// # Errors
/// What keeps it from being one.
pub fn run() -> io::Result<()> {
    offleash_simulated::run_worker_with(SHORT_NAME, seccomp::compile_code_worker(), |host, setup| {
        #[cfg(feature = "engine")]
        return Some(Box::new(crate::engine::WasmEngine::new(host.clone(), setup)));
        #[cfg(not(feature = "engine"))]
        {
            let _without_engine = (host, setup);
            None
        }
    })
}
