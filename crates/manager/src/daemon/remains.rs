//! What a sandbox leaves on the host when its keeper was killed, and how it is removed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_store::{RunError, SandboxDirectories, StateDirectory, erase, remove_directory};

use crate::lifecycle::remove_leftover_groups;

/// How long who still holds a run may take: what a keeper had just started dies a moment after it, and another keeper
/// may look at the same moment for what a crash left.
const PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Removes the cgroups, the layers and the directory of `id`, whose keeper has ended. What is not there is no error.
///
/// # Errors
/// What is in the way, as text for the log; the rest may be gone.
pub(super) fn remove(state: &StateDirectory, directories: &SandboxDirectories, id: &RunId) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match erase(state, id, &mut remove_leftover_groups) {
            Ok(()) => break,
            Err(RunError::Busy { .. }) if Instant::now() < deadline => sleep(BETWEEN_TRIES),
            Err(error) => return Err(error.to_string()),
        }
    }
    // What belongs to subordinate ids stays: only a process with one thread can remove it, and the next keeper does.
    let _removed = remove_directory(&state.path().join("scratch").join(id.as_str()));
    directories.remove(id).map_err(|error| error.to_string())
}
