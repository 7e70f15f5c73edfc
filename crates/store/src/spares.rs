//! Directories of runs that changed nothing, for the runs after them: making and removing one takes longer than all
//! else that a short run needs of the disk.
//!
//! ```text
//! spare/used-N     as its run left it, with what overlayfs made
//! spare/ready-N    as a new one
//! ```
//!
//! A run that ends untouched moves its directory to a free `used`; a later one, while its command runs, makes it
//! `ready` ([`SpareMaintenance`]); a new run moves a `ready` one to its own name. Each move is one rename that replaces nothing,
//! so that nothing is taken or given twice, there are never more than [`SLOTS`] of either, and a process that is killed
//! leaves a spare, a run, or a spare half tended, which the next one goes on with.
//!
//! Nothing passes from one run to another: the upper directory, the only one that a sandbox sees, is made anew, so
//! that contents, permissions, lists of access, attributes, flags and times that a run set are gone with the old one.
//! So is the one that overlayfs works in: a mount that outlives its run shares none of them with a later one.
//!
//! Only runs with one layer, which nearly all have, leave and take spares. Whatever fails here, the directory is made
//! or removed as if there were no spares.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::StateDirectory;
use crate::clock::NOW;
use crate::removal::remove_tree;
use crate::run::{UPPER, layer_name, open_run};
use crate::skeleton::{UNMAKE_STEPS, WORK, is_bare, open_below, unmake};
use crate::state::PRIVATE;
use crate::tree::{names_in, stat_at};

/// How many spares of each kind there can be.
const SLOTS: usize = 4;
const SPARE: &str = "spare";
/// The mode of most workspaces, so that the mode of a spare seldom has to be changed when it is taken.
const USUAL_MODE: Mode = Mode::RWXU
    .union(Mode::RGRP)
    .union(Mode::XGRP)
    .union(Mode::ROTH)
    .union(Mode::XOTH);

fn used(slot: usize) -> String {
    format!("{SPARE}/used-{slot}")
}

fn ready(slot: usize) -> String {
    format!("{SPARE}/ready-{slot}")
}

/// Makes a spare the directory of the run `id`, whose one layer lies over a directory with `mode`.
///
/// `None` if there is none; then the run's name is free, or belongs to another run.
pub(crate) fn take(state: &StateDirectory, id: &RunId, mode: u32) -> Option<OwnedFd> {
    for slot in 0..SLOTS {
        match rename(&state.root, &ready(slot), &state.runs, id.as_str()) {
            Ok(()) => {}
            // Nothing is there, or another run was faster.
            Err(Errno::NOENT) => continue,
            Err(_) => return None,
        }
        if let Ok(directory) = open_run(state, id)
            && prepare(&directory, mode) == Ok(true)
        {
            return Some(directory);
        }
        // Should this fail, so does making the run, and that is told.
        let _ = remove_tree(&state.runs, id.as_str().as_ref());
    }
    None
}

/// Gives the layer of a spare what depends on the run. `false` if it is not what it should be.
///
/// The times are those of a new directory: the sandbox shall not read from them when another run was.
fn prepare(directory: &OwnedFd, mode: u32) -> Result<bool, Errno> {
    let upper = open_below(directory, &format!("{}/{UPPER}", layer_name(0)))?;
    let found = rustix::fs::fstat(&upper)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || !names_in(&upper)?.is_empty() {
        return Ok(false);
    }
    if found.st_mode & 0o7777 != mode {
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(mode))?;
    }
    rustix::fs::futimens(&upper, &NOW)?;
    Ok(true)
}

/// Keeps the directory of a run that ended and changed nothing. `false` if it cannot be of use; then it is where it was.
pub(crate) fn keep(state: &StateDirectory, id: &RunId, directory: &OwnedFd, layers: usize) -> bool {
    if layers != 1 || !is_bare(directory) {
        return false;
    }
    let mut slots = 0..SLOTS;
    let mut slot = slots.next();
    let mut made = false;
    while let Some(number) = slot {
        match rename(&state.runs, id.as_str(), &state.root, &used(number)) {
            Ok(()) => return true,
            Err(Errno::EXIST) => slot = slots.next(),
            Err(Errno::NOENT) if !made => {
                made = true;
                // Another run may make it at this moment.
                let _ = rustix::fs::mkdirat(&state.root, SPARE, PRIVATE);
            }
            Err(_) => return false,
        }
    }
    false
}

fn rename(from: &OwnedFd, name: &str, to: &OwnedFd, new_name: &str) -> Result<(), Errno> {
    rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE)
}

/// Makes one used spare ready, step by step, for times when there is nothing else to do.
///
/// Each step is a few calls at most, of which one writes. What a step cannot do is left, or the spare is removed.
#[derive(Debug)]
pub struct SpareMaintenance {
    root: Arc<OwnedFd>,
    next: TendStep,
}

#[derive(Debug)]
enum TendStep {
    Choose,
    Clean { spare: UsedSpare, step: usize },
    Nothing,
}

/// A used spare that nobody else tends.
#[derive(Debug)]
struct UsedSpare {
    slot: usize,
    /// Holds the lock, too, which the kernel drops should we die.
    directory: OwnedFd,
    stat: Stat,
}

impl SpareMaintenance {
    /// Nothing is done before the first step.
    pub(crate) fn new(state: &StateDirectory) -> Self {
        Self {
            root: Arc::clone(&state.root),
            next: TendStep::Choose,
        }
    }

    /// Does a little. `false` when there is no more to do.
    pub fn step(&mut self) -> bool {
        self.next = match std::mem::replace(&mut self.next, TendStep::Nothing) {
            TendStep::Choose => match self.choose() {
                Some(spare) => TendStep::Clean { spare, step: 0 },
                None => TendStep::Nothing,
            },
            TendStep::Clean { spare, step } => self.clean(spare, step),
            TendStep::Nothing => TendStep::Nothing,
        };
        !matches!(self.next, TendStep::Nothing)
    }

    fn choose(&self) -> Option<UsedSpare> {
        let is_there = |path: String| matches!(stat_at(&self.root, path.as_ref()), Ok(Some(_)));
        if (0..SLOTS).all(|slot| is_there(ready(slot))) {
            return None;
        }
        (0..SLOTS).find_map(|slot| UsedSpare::claim(&self.root, slot).ok().flatten())
    }

    fn clean(&self, spare: UsedSpare, step: usize) -> TendStep {
        let done = match step {
            _ if step < UNMAKE_STEPS => unmake(&spare.directory, 0, step).is_ok(),
            UNMAKE_STEPS => spare.renew(UPPER, USUAL_MODE).is_ok(),
            _ if step == UNMAKE_STEPS + 1 => spare.renew(WORK, PRIVATE).is_ok(),
            _ => {
                if spare.give_back().is_err() || !is_bare(&spare.directory) {
                    spare.remove(&self.root);
                } else {
                    spare.make_ready(&self.root);
                }
                return TendStep::Nothing;
            }
        };
        if done {
            return TendStep::Clean { spare, step: step + 1 };
        }
        spare.remove(&self.root);
        TendStep::Nothing
    }
}

impl UsedSpare {
    /// The spare in `slot`, unless there is none or somebody else tends it.
    fn claim(root: &OwnedFd, slot: usize) -> Result<Option<Self>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(root, used(slot), flags, Mode::empty())?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
        let stat = rustix::fs::fstat(&directory)?;
        // Before it was locked, another may have made it ready, and a third may have put another in its place.
        let there = stat_at(root, used(slot).as_ref())?;
        let is_same = there.is_some_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino));
        Ok(is_same.then_some(Self { slot, directory, stat }))
    }

    /// Puts a new directory in the place of one that a mount had, which must be empty.
    ///
    /// That mount may live on for a moment after its run, and works in the old one.
    fn renew(&self, part: &str, mode: Mode) -> Result<(), Errno> {
        let path = format!("{}/{part}", layer_name(0));
        match rustix::fs::unlinkat(&self.directory, &*path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => rustix::fs::mkdirat(&self.directory, &*path, mode),
            Err(error) => Err(error),
        }
    }

    /// Takes the layer back from the user that the sandbox had.
    fn give_back(&self) -> Result<(), Errno> {
        let layer = layer_name(0);
        let found = rustix::fs::statat(&self.directory, &*layer, AtFlags::SYMLINK_NOFOLLOW)?;
        if (found.st_uid, found.st_gid) == (self.stat.st_uid, self.stat.st_gid) {
            return Ok(());
        }
        rustix::fs::chownat(
            &self.directory,
            &*layer,
            Some(rustix::fs::Uid::from_raw(self.stat.st_uid)),
            Some(rustix::fs::Gid::from_raw(self.stat.st_gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    fn make_ready(&self, root: &OwnedFd) {
        for slot in 0..SLOTS {
            // If others have filled all of them, it is taken care of another time.
            if rename(root, &used(self.slot), root, &ready(slot)) != Err(Errno::EXIST) {
                return;
            }
        }
    }

    /// It is not what a run without changes leaves.
    fn remove(&self, root: &OwnedFd) {
        if let Ok(spares) = open_below(root, SPARE) {
            // What cannot be removed takes up its slot, and no more.
            let _ = remove_tree(&spares, format!("used-{}", self.slot).as_ref());
        }
    }
}

#[cfg(test)]
mod tests;
