//! What a command has while it runs.

use std::sync::Arc;
use std::time::Instant;

use offleash_core::exec::OutputStream;
use offleash_simulated::engine::{MAX_PIECE, ScriptHost};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use wasmtime::component::ResourceTable;

use super::descriptors::Descriptors;
use super::limits::ModuleLimits;
use super::paths::Files;
use super::scripts::ScriptState;

/// What the imports of a module act on.
pub(super) struct CommandState {
    pub(super) host: Arc<dyn ScriptHost>,
    pub(super) files: Files,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) descriptors: Descriptors,
    pub(super) limits: ModuleLimits,
    /// Of components: what their handles stand for.
    pub(super) table: ResourceTable,
    /// When its monotonic clock was zero.
    pub(super) began: Instant,
    /// Whether nobody takes any more of its output.
    pub(super) is_output_full: bool,
    /// What an interpreter's own imports have.
    pub(super) script: ScriptState,
}

impl CommandState {
    /// Passes output on and waits until it is taken; how much of it that was.
    pub(super) fn output(&mut self, stream: OutputStream, bytes: &[u8]) -> usize {
        let taken = bytes.get(..MAX_PIECE).unwrap_or(bytes);
        if !taken.is_empty() {
            self.is_output_full |= !self.host.output(stream, taken.to_vec());
        }
        taken.len()
    }

    /// Nanoseconds since the command began.
    pub(super) fn monotonic(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds since 1970.
pub(super) fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Fills the buffer with randomness of the kernel.
pub(super) fn fill_randomly(mut buffer: &mut [u8]) -> Result<(), i32> {
    while !buffer.is_empty() {
        match getrandom(&mut *buffer, GetRandomFlags::empty()) {
            Ok(count) => buffer = buffer.get_mut(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.raw_os_error()),
        }
    }
    Ok(())
}
