//! What a sandbox leaves on the host when its supervisor was killed, and how it is removed.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_planner::base::{new_of, scratch_of};
use offleash_store::{RunError, SandboxDirectories, StateDirectory, erase, remove_directory};
use offleash_supervisor::lifecycle::remove_leftover_groups;

use crate::launch;

/// How long who still holds a run may take: what a supervisor had just started dies a moment after it, and another supervisor
/// may look at the same moment for what a crash left.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Removes the cgroups, the layers and the directory of `id`, whose supervisor has ended. What is not there is no error.
///
/// What belongs to subordinate ids `program`, ours if `None`, removes: that takes a process with one thread.
///
/// # Errors
/// What is in the way, as text for the log; the rest may be gone.
pub(crate) fn remove(
    state: &StateDirectory,
    directories: &SandboxDirectories,
    program: Option<&Path>,
    id: &RunId,
) -> Result<(), String> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    remove_run(state, id, deadline)?;
    let layers = [new_of(state.path(), id), scratch_of(state.path(), id)];
    while layers.iter().any(|layer| remove_directory(layer).is_err()) {
        match launch::remove_layer(program, state.path(), id) {
            Ok(()) => break,
            Err(_) if Instant::now() < deadline => sleep(BETWEEN_TRIES),
            Err(error) => return Err(format!("removing its files: {error}")),
        }
    }
    directories.remove(id).map_err(|error| error.to_string())
}

/// As [`remove`], but for its files, which are kept.
///
/// # Errors
/// As [`remove`].
pub(crate) fn remove_but_files(
    state: &StateDirectory,
    directories: &SandboxDirectories,
    id: &RunId,
) -> Result<(), String> {
    remove_run(state, id, Instant::now() + BUSY_TIMEOUT)?;
    directories.remove(id).map_err(|error| error.to_string())
}

/// Removes the cgroups and what there is of a run.
fn remove_run(state: &StateDirectory, id: &RunId, deadline: Instant) -> Result<(), String> {
    loop {
        match erase(state, id, &mut remove_leftover_groups) {
            Ok(()) => return Ok(()),
            Err(RunError::Busy { .. }) if Instant::now() < deadline => sleep(BETWEEN_TRIES),
            Err(error) => return Err(error.to_string()),
        }
    }
}
