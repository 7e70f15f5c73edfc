//! Carries a plan out.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::journal::{self, JournalHead, StagedSlots};
use super::plan::{ApplyAction, ApplyOperation, ApplyPlan, NEW_DIRECTORY};
use super::stage::{StagingDirectory, remove_staging, slot_name, sync_renames, timestamps};
use super::{ApplySteps, ConflictAt, ConflictReason, OperationFailure};
use crate::StoredRun;
use crate::change::{LayerChange, LayerTrees};
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeIdentity, NodeTime, identity_of};
use crate::tree::{chmod, magic_link, names_in, stat_at};

pub(crate) fn commit(
    run: &StoredRun,
    trees: &[LayerTrees],
    changes: &[LayerChange],
    plan: &ApplyPlan,
    steps: &mut ApplySteps,
) -> Result<(), OperationFailure> {
    let journal = JournalHead {
        id: run.id().clone(),
        layers: run.file.layers.clone(),
        operations: plan.operations.clone(),
        changes: journal::noted(changes),
    };
    steps.next()?;
    let mut file = journal.write(&run.directory)?;
    let mut commit = ApplyCommit {
        trees,
        staging: BTreeMap::new(),
        staged: StagedSlots::new(),
        moved: HashSet::new(),
        steps,
    };
    let unlocks = plan
        .operations
        .iter()
        .take_while(|operation| is_mode(operation))
        .count();
    let (first, rest) = if unlocks == plan.operations.len() {
        (0, 0)
    } else {
        (unlocks, unlocks)
    };
    commit.perform(&plan.operations[..first])?;
    commit.stage(run, changes, plan)?;
    commit.steps.next()?;
    journal::write_staged(&mut file, &commit.staged)?;
    commit.perform(&plan.operations[rest..])?;
    for (layer, trees) in trees.iter().enumerate() {
        sync_renames(&trees.host, &commit.staging, layer)?;
    }
    commit.steps.next()?;
    journal::commit(&run.directory)?;
    Ok(())
}

/// Removes what a committed apply needed. It counts as done, so a failure is no reason to undo anything.
pub(crate) fn clean(run: &StoredRun, trees: &[LayerTrees], steps: &mut ApplySteps) -> Result<(), OperationFailure> {
    steps.next()?;
    journal::note_applied(&run.directory)?;
    for trees in trees {
        steps.next()?;
        remove_staging(&trees.host, run.id())?;
    }
    steps.next()?;
    journal::remove(&run.directory)?;
    Ok(())
}

pub(super) fn is_mode(operation: &ApplyOperation) -> bool {
    matches!(operation.action, ApplyAction::Mode { .. } | ApplyAction::Finish { .. })
}

struct ApplyCommit<'a> {
    trees: &'a [LayerTrees],
    staging: BTreeMap<usize, StagingDirectory>,
    staged: StagedSlots,
    /// Inodes that were moved: the change time of their other hard links moved with them.
    moved: HashSet<(u64, u64)>,
    steps: &'a mut ApplySteps,
}

impl ApplyCommit<'_> {
    fn stage(&mut self, run: &StoredRun, changes: &[LayerChange], plan: &ApplyPlan) -> Result<(), OperationFailure> {
        for operation in plan.operations.iter().filter(|operation| !is_mode(operation)) {
            if !self.staging.contains_key(&operation.layer) {
                self.steps.next()?;
                let staging = StagingDirectory::create(&self.trees[operation.layer].host, run.id())?;
                self.staging.insert(operation.layer, staging);
            }
        }
        for (slot, index) in &plan.sources {
            let change = &changes[*index];
            self.steps.next()?;
            let staging = staging(&mut self.staging, change.layer)?;
            self.staged
                .insert(*slot, staging.stage(&self.trees[change.layer], change, *slot)?);
        }
        for staging in self.staging.values_mut() {
            staging.sync()?;
        }
        Ok(())
    }

    fn perform(&mut self, operations: &[ApplyOperation]) -> Result<(), OperationFailure> {
        for operation in operations {
            self.steps.next()?;
            let path = operation.path.as_path();
            let reason = match &operation.action {
                ApplyAction::Mode { from, to, original } => self.mode(operation.layer, path, original, (*from, *to))?,
                ApplyAction::Finish { slot, to, modified } => {
                    self.finish(operation.layer, path, *slot, *to, *modified)?
                }
                ApplyAction::Take {
                    slot,
                    original,
                    directory,
                } => self.take(operation.layer, path, *slot, original, *directory)?,
                ApplyAction::Put { slot, replaces: None } => self.put_new(operation.layer, path, *slot)?,
                ApplyAction::Put {
                    slot,
                    replaces: Some(original),
                } => self.exchange(operation.layer, path, *slot, original)?,
            };
            if let Some(reason) = reason {
                let (layer, path) = (operation.layer, path.to_owned());
                return Err(OperationFailure::Conflicts(vec![ConflictAt { layer, path, reason }]));
            }
        }
        Ok(())
    }

    fn mode(
        &self,
        layer: usize,
        path: &Path,
        original: &NodeIdentity,
        (from, to): (u32, u32),
    ) -> Result<Option<ConflictReason>, FileError> {
        let place = match self.place(layer, path)? {
            Ok(place) => place,
            Err(reason) => return Ok(Some(reason)),
        };
        let is_set = set_mode(&place, original, from, to).tried("changing the mode of", path)?;
        Ok((!is_set).then_some(ConflictReason::Changed))
    }

    fn finish(
        &self,
        layer: usize,
        path: &Path,
        slot: u64,
        to: u32,
        modified: NodeTime,
    ) -> Result<Option<ConflictReason>, FileError> {
        let place = match self.place(layer, path)? {
            Ok(place) => place,
            Err(reason) => return Ok(Some(reason)),
        };
        let Some(made) = self.staged.get(&slot) else {
            return Err(FileError::new("recognising", path, Errno::NOENT));
        };
        if !set_mode(&place, made, NEW_DIRECTORY, to).tried("changing the mode of", path)? {
            return Ok(Some(ConflictReason::Changed));
        }
        let times = timestamps(modified);
        rustix::fs::utimensat(rustix::fs::CWD, magic_link(&place), &times, AtFlags::empty()).tried("dating", path)?;
        Ok(None)
    }

    fn place(&self, layer: usize, path: &Path) -> Result<Result<OwnedFd, ConflictReason>, FileError> {
        match self.trees[layer].host.place(path) {
            Ok(place) => Ok(Ok(place)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Err(ConflictReason::Gone)),
            Err(Errno::LOOP | Errno::XDEV) => Ok(Err(ConflictReason::Unreachable)),
            Err(error) => Err(FileError::new("opening", path, error)),
        }
    }

    fn take(
        &mut self,
        layer: usize,
        path: &Path,
        slot: u64,
        original: &NodeIdentity,
        directory: bool,
    ) -> Result<Option<ConflictReason>, FileError> {
        let (parent, name) = match self.parent(layer, path)? {
            Ok(found) => found,
            Err(reason) => return Ok(Some(reason)),
        };
        if let Some(reason) = self.differs(&parent, name, path, original, directory)? {
            return Ok(Some(reason));
        }
        let slot = slot_name(slot);
        let old = &staging(&mut self.staging, layer)?.old;
        rename_new(&parent, name, old, OsStr::new(&slot)).tried("moving away", path)?;
        let taken = stat_at(old, OsStr::new(&slot)).tried("examining", path)?;
        let Some(taken) = taken.as_ref().map(identity_of) else {
            return Ok(Some(ConflictReason::Changed));
        };
        self.moved.insert((original.dev, original.ino));
        if directory {
            let is_empty = is_empty_directory(old, &slot).tried("examining", path)?;
            return Ok((!is_empty).then_some(ConflictReason::NotEmpty));
        }
        Ok((!taken.same_but_renamed(original)).then_some(ConflictReason::Changed))
    }

    fn put_new(&mut self, layer: usize, path: &Path, slot: u64) -> Result<Option<ConflictReason>, FileError> {
        let (parent, name) = match self.parent(layer, path)? {
            Ok(found) => found,
            Err(reason) => return Ok(Some(reason)),
        };
        let new = &staging(&mut self.staging, layer)?.new;
        match rename_new(new, OsStr::new(&slot_name(slot)), &parent, name) {
            Err(Errno::EXIST) => Ok(Some(ConflictReason::Appeared)),
            other => other.tried("moving into place", path).map(|()| None),
        }
    }

    fn exchange(
        &mut self,
        layer: usize,
        path: &Path,
        slot: u64,
        original: &NodeIdentity,
    ) -> Result<Option<ConflictReason>, OperationFailure> {
        let (parent, name) = match self.parent(layer, path)? {
            Ok(found) => found,
            Err(reason) => return Ok(Some(reason)),
        };
        if let Some(reason) = self.differs(&parent, name, path, original, false)? {
            return Ok(Some(reason));
        }
        let slot = slot_name(slot);
        let slot = OsStr::new(&slot);
        let without_exchange = self.steps.without_exchange;
        let staging = staging(&mut self.staging, layer)?;
        let exchanged = match without_exchange {
            false => rustix::fs::renameat_with(&staging.new, slot, &parent, name, RenameFlags::EXCHANGE),
            true => Err(Errno::INVAL),
        };
        let old = match exchanged {
            // Not all file systems can (NFS, some FUSE): then nothing is there for a moment.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rename_new(&parent, name, &staging.old, slot).tried("moving away", path)?;
                self.steps.next()?;
                rename_new(&staging.new, slot, &parent, name).tried("moving into place", path)?;
                &staging.old
            }
            other => {
                other.tried("replacing", path)?;
                &staging.new
            }
        };
        let taken = stat_at(old, slot).tried("examining", path)?.as_ref().map(identity_of);
        self.moved.insert((original.dev, original.ino));
        Ok((!taken.is_some_and(|taken| taken.same_but_renamed(original))).then_some(ConflictReason::Changed))
    }

    /// Looks once more at what is about to be replaced.
    fn differs(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        path: &Path,
        original: &NodeIdentity,
        directory: bool,
    ) -> Result<Option<ConflictReason>, FileError> {
        let Some(stat) = stat_at(parent, name).tried("examining", path)? else {
            return Ok(Some(ConflictReason::Gone));
        };
        let now = identity_of(&stat);
        let same_inode = (now.dev, now.ino) == (original.dev, original.ino);
        let same = if directory {
            same_inode
        } else if self.moved.contains(&(now.dev, now.ino)) {
            now.same_but_renamed(original)
        } else {
            now == *original
        };
        Ok((!same).then_some(ConflictReason::Changed))
    }

    fn parent<'p>(
        &self,
        layer: usize,
        path: &'p Path,
    ) -> Result<Result<(OwnedFd, &'p OsStr), ConflictReason>, FileError> {
        match self.trees[layer].host.parent(path) {
            Ok(found) => Ok(Ok(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Err(ConflictReason::Gone)),
            Err(Errno::LOOP | Errno::XDEV) => Ok(Err(ConflictReason::Unreachable)),
            Err(error) => Err(FileError::new("opening the directory of", path, error)),
        }
    }
}

fn staging(all: &mut BTreeMap<usize, StagingDirectory>, layer: usize) -> Result<&mut StagingDirectory, FileError> {
    all.get_mut(&layer)
        .ok_or_else(|| FileError::new("finding the staging directory of", layer.to_string(), Errno::NOENT))
}

/// A directory that forbids us to list it was not looked into either, so it is not taken for empty.
fn is_empty_directory(parent: &OwnedFd, name: &str) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(directory) => names_in(&directory).map(|names| names.is_empty()),
        Err(Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames to a name that must not exist.
///
/// Where the file system cannot check that itself (NFS), it is looked at just before.
pub(crate) fn rename_new(from: &OwnedFd, name: &OsStr, to: &OwnedFd, new_name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if stat_at(to, new_name)?.is_some() {
                return Err(Errno::EXIST);
            }
            rustix::fs::renameat(from, name, to, new_name)
        }
        other => other,
    }
}

/// Sets the mode of `original` if the present one is `from`; `false` if it is another mode or another entry.
pub(crate) fn set_mode(place: &OwnedFd, original: &NodeIdentity, from: u32, to: u32) -> Result<bool, Errno> {
    let found = rustix::fs::fstat(place)?;
    if (found.st_dev, found.st_ino) != (original.dev, original.ino) || found.st_mode & 0o7777 != from {
        return Ok(false);
    }
    if from != to {
        chmod(place, to)?;
    }
    Ok(true)
}
