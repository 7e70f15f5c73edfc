//! What a sandbox leaves on the host when its keeper was killed, and how it is removed.

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::id::RunId;
use offleash_store::{LeftoverFate, Run, RunError, SandboxDirectories, StateDirectory, reap_one, remove_directory};

use crate::lifecycle::remove_leftover_groups;

/// Removes the cgroups, the layers and the directory of `id`, whose keeper has ended. What is not there is no error.
///
/// # Errors
/// What is in the way, as text for the log; the rest may be gone.
pub(super) fn remove(state: &StateDirectory, directories: &SandboxDirectories, id: &RunId) -> Result<(), String> {
    let reaped = reap_one(state, id, &mut remove_leftover_groups).map_err(|error| error.to_string())?;
    if let Some(LeftoverFate::Postponed(why)) = reaped.map(|leftover| leftover.fate) {
        return Err(why);
    }
    match Run::open(state, id).and_then(Run::discard) {
        Ok(()) | Err(RunError::NotFound { .. } | RunError::Discarded { .. }) => {}
        Err(RunError::Damaged { .. }) => match Run::discard_damaged(state, id) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.to_string()),
            _ => {}
        },
        Err(error) => return Err(error.to_string()),
    }
    // What belongs to subordinate ids stays: only a process with one thread can remove it, and the next keeper does.
    let _removed = remove_directory(&state.path().join("scratch").join(id.as_str()));
    directories.remove(id).map_err(|error| error.to_string())
}
