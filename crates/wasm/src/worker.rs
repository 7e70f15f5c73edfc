//! The worker's process, which is that of level `simulated` with another engine and another filter.

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use offleash_simulated::engine::ScriptRunner;
use offleash_simulated::script_filter;

/// The word of its role behind `offleash supervise`.
pub const WORKER_ROLE: &str = "wasm";
/// What lists of processes show.
const SHORT_NAME: &CStr = c"wasm";

/// Is the worker whose supervisor's socket is descriptor 0, until the supervisor is gone.
///
/// # Errors
/// What keeps it from being one.
pub fn run() -> io::Result<()> {
    offleash_simulated::run_worker_with(SHORT_NAME, script_filter, |host, setup| {
        #[cfg(feature = "engine")]
        return Some(Box::new(crate::engine::WasmEngine::new(host.clone(), setup)));
        #[cfg(not(feature = "engine"))]
        {
            let _without_engine = (host, setup);
            None
        }
    })
}

/// Is the worker of a simulated shell, which has the interpreters of this build.
///
/// # Errors
/// What keeps it from being one.
pub fn run_shell() -> io::Result<()> {
    #[cfg(feature = "engine")]
    let scripts: Option<Arc<dyn ScriptRunner>> = Some(Arc::new(crate::engine::scripts::ScriptEngine::default()));
    #[cfg(not(feature = "engine"))]
    let scripts: Option<Arc<dyn ScriptRunner>> = None;
    offleash_simulated::run_worker(scripts)
}
