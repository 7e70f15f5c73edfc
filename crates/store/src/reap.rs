//! Finishes what a crash left: looked at when offleash starts, and nothing but one empty directory in the usual case.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::claim::RunClaim;
use crate::failure::{FailedCall, FileError};
use crate::removal::remove_tree;
use crate::run::{LAYER_PREFIX, UPPER};
use crate::run_file::RunPhase;
use crate::tree::{TreeRoot, stat_at};
use crate::{RunError, StateDirectory, StoredRun, run};

/// A run whose process died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftoverRun {
    /// Its id.
    pub id: RunId,
    /// The cgroups that it recorded.
    pub cgroups: Vec<PathBuf>,
    /// What became of it.
    pub fate: LeftoverFate,
}

/// What became of a run whose process died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftoverFate {
    /// It had changed nothing and was removed.
    Removed,
    /// Its changes are kept as those of a crashed run.
    Kept,
    /// An `apply` was rolled back or, if it was complete but for cleaning up, cleaned up.
    ApplyFinished,
    /// It could not be finished and is tried again next time; the text says why.
    Postponed(String),
}

/// Finishes the runs whose process died, none of which left a cgroup.
///
/// # Errors
/// As [`reap_with`].
pub fn reap(state: &StateDirectory) -> Result<Vec<LeftoverRun>, FileError> {
    reap_with(state, &mut |_| true)
}

/// Finishes the runs whose process died, after `remove_cgroups` has removed what each recorded.
///
/// The groups come first: a run that is finished is forgotten, and its groups with it, should this process die too. A
/// run whose groups cannot be removed is left for the next time.
///
/// # Errors
/// Only if the list of live runs cannot be read; what is wrong with one run is in its [`LeftoverRun`].
pub fn reap_with(
    state: &StateDirectory,
    remove_cgroups: &mut dyn FnMut(&[PathBuf]) -> bool,
) -> Result<Vec<LeftoverRun>, FileError> {
    let mut leftovers = Vec::new();
    for id in live(state)? {
        let Some(claim) = RunClaim::take_over(state, &id)? else {
            continue;
        };
        state.forget_unfinished_programs(&id);
        let cgroups = cgroups(state, &id);
        let fate = if remove_cgroups(&cgroups) {
            finish(state, &id, claim).unwrap_or_else(|error| LeftoverFate::Postponed(chain(&error)))
        } else {
            LeftoverFate::Postponed("its control groups cannot be removed".to_owned())
        };
        leftovers.push(LeftoverRun { id, cgroups, fate });
    }
    Ok(leftovers)
}

/// Removes all that is left of the run `id`, wherever it was in its life: its cgroups by `remove_cgroups`, its changes,
/// its record. It is in no list afterwards. What is not there is no error.
///
/// For runs that are somebody else's to list, as those of a daemon's sandboxes.
///
/// # Errors
/// `Busy` if somebody works on it: its process, one that dies just now, or whoever finishes what it left. `File` if it
/// cannot be removed, also for the sake of its cgroups.
pub fn erase(
    state: &StateDirectory,
    id: &RunId,
    remove_cgroups: &mut dyn FnMut(&[PathBuf]) -> bool,
) -> Result<(), RunError> {
    let failed = |source| RunError::File { id: id.clone(), source };
    let claim = RunClaim::take(state, id)
        .map_err(failed)?
        .ok_or_else(|| RunError::Busy { id: id.clone() })?;
    if !remove_cgroups(&cgroups(state, id)) {
        let stays = FileError::new("removing the control groups of run", id.as_str(), Errno::BUSY);
        return Err(failed(stays));
    }
    remove_tree(&state.runs, id.as_str().as_ref()).map_err(failed)?;
    claim.release().map_err(failed)
}

fn live(state: &StateDirectory) -> Result<Vec<RunId>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let again = rustix::fs::openat(&*state.live, ".", flags, Mode::empty()).tried("opening", "live")?;
    let names = crate::tree::names_in(&again).tried("listing", "live")?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// The cgroups are returned even if the rest of the run cannot be finished, or is gone already.
fn cgroups(state: &StateDirectory, id: &RunId) -> Vec<PathBuf> {
    let recorded = match run::open_run(state, id) {
        Ok(directory) => run::record(state, id, &directory),
        Err(_) => RunClaim::record(state, id),
    };
    match recorded {
        Ok(Some(Ok(file))) => file.cgroups.iter().map(|path| path.as_path().to_owned()).collect(),
        _ => Vec::new(),
    }
}

fn finish(state: &StateDirectory, id: &RunId, claim: RunClaim) -> Result<LeftoverFate, RunError> {
    let failed = |source| RunError::File { id: id.clone(), source };
    let fate = match StoredRun::open(state, id) {
        Ok(run) => finish_run(run)?,
        // After a power failure the record can be lost while changes are there: those stay until discarded.
        Err(RunError::Damaged { .. }) if holds_changes(state, id).map_err(failed)? => LeftoverFate::Kept,
        // It died while it was being made: no sandbox has run.
        Err(RunError::NotFound { .. } | RunError::Damaged { .. }) => {
            remove_tree(&state.runs, id.as_str().as_ref()).map_err(failed)?;
            LeftoverFate::Removed
        }
        Err(error) => return Err(error),
    };
    claim.release().map_err(failed)?;
    Ok(fate)
}

fn holds_changes(state: &StateDirectory, id: &RunId) -> Result<bool, FileError> {
    let run = TreeRoot::ours(run::open_run(state, id)?);
    let names = |path: &Path| match run.names(path) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        other => other.tried("listing", path),
    };
    for layer in names(Path::new(""))? {
        let is_layer = layer.as_os_str().as_bytes().starts_with(LAYER_PREFIX.as_bytes());
        if is_layer && !names(&layer.join(UPPER))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn finish_run(mut run: StoredRun) -> Result<LeftoverFate, RunError> {
    let was_applying = crate::apply::recover(&run.directory).map_err(|source| run.failed(source))?;
    match run.file.phase {
        RunPhase::Started => {
            match run.changes() {
                Ok(changes) if changes.is_empty() => {
                    run.remove()?;
                    return Ok(LeftoverFate::Removed);
                }
                Ok(changes) => run.note_seen(&changes)?,
                Err(_) if is_half_removed(&run)? => {
                    run.remove()?;
                    return Ok(LeftoverFate::Removed);
                }
                // Whoever looks at the changes is told why they cannot be read.
                Err(_) => {}
            }
            run.file.cgroups = Vec::<Text>::new();
            run.enter(RunPhase::Crashed)?;
        }
        RunPhase::Kept | RunPhase::Crashed => {
            if was_applying && run.changes()?.is_empty() {
                run.enter(RunPhase::Applied)?;
                run.drop_layers()?;
            }
        }
        RunPhase::Applied | RunPhase::Discarded => run.drop_layers()?,
    }
    Ok(if was_applying {
        LeftoverFate::ApplyFinished
    } else {
        LeftoverFate::Kept
    })
}

/// Whether a run is missing a layer, and has no changes in the others: it died when it was removed.
fn is_half_removed(run: &StoredRun) -> Result<bool, RunError> {
    let is_missing = |layer| {
        let upper = format!("{}/{UPPER}", run::layer_name(layer));
        matches!(stat_at(&run.directory, upper.as_ref()), Ok(None))
    };
    Ok((0..run.file.layers.len()).any(is_missing)
        && !holds_changes(&run.state, run.id()).map_err(|source| run.failed(source))?)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
