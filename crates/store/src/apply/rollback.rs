//! Undoes an apply that failed or whose process died, or cleans up after one that was complete.
//!
//! Every operation is undone by what is found on disk, so that it does not matter how far the apply, or an earlier
//! rollback, came. Nothing that is not recognised as our own doing is touched.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::commit::{is_mode, rename_new, set_mode};
use super::journal::{self, FoundJournal, JournalHead, StagedSlots};
use super::plan::{ApplyAction, ApplyOperation, NEW_DIRECTORY};
use super::restored;
use super::stage::{StagingDirectory, remove_staging, slot_name, staging_name};
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeIdentity, identity_of, kind_of};
use crate::run_file::LayerFile;
use crate::tree::{TreeRoot, stat_at};

/// Finishes what a dead or failed apply of the run in `directory` left; whether there was one.
pub(crate) fn recover(directory: &OwnedFd) -> Result<bool, FileError> {
    match journal::find(directory)? {
        FoundJournal::Nothing => return Ok(false),
        FoundJournal::Unreadable => {}
        FoundJournal::Open(journal, staged) => undo_all(directory, &journal, staged.as_ref())?,
        FoundJournal::Committed(journal) => {
            journal::note_applied(directory)?;
            for layer in &journal.layers {
                remove_staging(&open(layer)?, &journal.id)?;
            }
        }
    }
    journal::remove(directory)?;
    Ok(true)
}

fn open(layer: &LayerFile) -> Result<TreeRoot, FileError> {
    let root = layer.root.as_path();
    let tree = TreeRoot::host(root).tried("opening", root)?;
    let found = rustix::fs::fstat(tree.root()).tried("examining", root)?;
    if found.st_ino != layer.root_inode {
        return Err(FileError::new("recognising", root, Errno::STALE));
    }
    Ok(tree)
}

fn undo_all(directory: &OwnedFd, journal: &JournalHead, staged: Option<&StagedSlots>) -> Result<(), FileError> {
    let mut layers = Vec::with_capacity(journal.layers.len());
    for layer in &journal.layers {
        let host = open(layer)?;
        layers.push(RollbackLayer { host, staging: None });
    }
    let reversed = || journal.operations.iter().rev();
    // The last modes may have closed a workspace to its owner: then nothing is found in it until they are undone.
    let closing = reversed().take_while(|operation| is_mode(operation)).count();
    for operation in reversed().take(closing) {
        layers[operation.layer].undo(operation, staged)?;
    }
    for layer in &mut layers {
        layer.staging = StagingDirectory::find(&layer.host, &journal.id)?;
    }
    for operation in reversed().skip(closing) {
        layers[operation.layer].undo(operation, staged)?;
    }
    layers.iter().try_for_each(|layer| layer.clean(&journal.id))?;
    let operations = journal.operations.iter();
    restored::note(
        directory,
        operations.map(|operation| (operation, &layers[operation.layer].host)),
    )
}

struct RollbackLayer {
    host: TreeRoot,
    staging: Option<StagingDirectory>,
}

impl RollbackLayer {
    fn undo(&self, operation: &ApplyOperation, staged: Option<&StagedSlots>) -> Result<(), FileError> {
        let path = operation.path.as_path();
        let made = |slot: &u64| staged.and_then(|staged| staged.get(slot));
        match &operation.action {
            ApplyAction::Mode { from, to, original } => return self.undo_mode(path, original, *from, *to),
            ApplyAction::Finish { slot, to, .. } => {
                return made(slot).map_or(Ok(()), |made| self.undo_mode(path, made, NEW_DIRECTORY, *to));
            }
            ApplyAction::Take { .. } | ApplyAction::Put { .. } => {}
        }
        let Some(staging) = &self.staging else {
            return Ok(());
        };
        let (parent, name) = match self.host.parent(path) {
            // Nothing of ours is behind a directory that somebody removed or replaced by a link.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(()),
            other => other.tried("opening the directory of", path)?,
        };
        let here = OperationPlace {
            parent,
            name,
            path,
            staging,
        };
        match &operation.action {
            ApplyAction::Take { slot, .. } => here.put_back(&slot_name(*slot)),
            ApplyAction::Put { slot, .. } => made(slot).map_or(Ok(()), |ours| here.take_out(&slot_name(*slot), ours)),
            ApplyAction::Mode { .. } | ApplyAction::Finish { .. } => Ok(()),
        }
    }

    fn undo_mode(&self, path: &Path, original: &NodeIdentity, from: u32, to: u32) -> Result<(), FileError> {
        match self.host.place(path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(()),
            Err(error) => Err(FileError::new("opening", path, error)),
            Ok(place) => set_mode(&place, original, to, from)
                .map(|_| ())
                .tried("changing the mode of", path),
        }
    }

    /// An original that could not be put back, because something else is in its place, is kept.
    fn clean(&self, id: &RunId) -> Result<(), FileError> {
        if let Some(staging) = &self.staging
            && !staging.holds_no_original()?
        {
            return Err(FileError::new(
                "putting back the originals in",
                staging_name(id),
                Errno::EXIST,
            ));
        }
        remove_staging(&self.host, id)
    }
}

/// The place of one operation.
struct OperationPlace<'a> {
    parent: OwnedFd,
    name: &'a OsStr,
    path: &'a Path,
    staging: &'a StagingDirectory,
}

impl OperationPlace<'_> {
    /// Moves an original back, unless it never was moved away or something else is in its place.
    fn put_back(&self, slot: &str) -> Result<(), FileError> {
        match rename_new(&self.staging.old, OsStr::new(slot), &self.parent, self.name) {
            Ok(()) | Err(Errno::NOENT | Errno::EXIST) => Ok(()),
            Err(error) => Err(FileError::new("moving back", self.path, error)),
        }
    }

    /// Takes what we put away again; the original comes back by exchange or from where it was moved.
    fn take_out(&self, slot: &str, ours: &NodeIdentity) -> Result<(), FileError> {
        let found = stat_at(&self.parent, self.name).tried("examining", self.path)?;
        let is_directory = found
            .as_ref()
            .is_some_and(|stat| kind_of(stat) == crate::NodeKind::Directory);
        let found = found.as_ref().map(identity_of);
        let is_ours = found.is_some_and(|found| match is_directory {
            true => (found.dev, found.ino) == (ours.dev, ours.ino),
            false => found.same_but_renamed(ours),
        });
        if is_ours && is_directory {
            // Not if somebody put something into it: then it stays.
            return match rustix::fs::unlinkat(&self.parent, self.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                Err(error) => Err(FileError::new("removing", self.path, error)),
            };
        }
        if is_ours {
            self.take_file_out(OsStr::new(slot))?;
        }
        self.put_back(slot)
    }

    fn take_file_out(&self, slot: &OsStr) -> Result<(), FileError> {
        let new = &self.staging.new;
        let flags = match stat_at(new, slot).tried("examining", self.path)? {
            Some(_) => RenameFlags::EXCHANGE,
            None => return rename_new(&self.parent, self.name, new, slot).tried("moving away", self.path),
        };
        rustix::fs::renameat_with(&self.parent, self.name, new, slot, flags).tried("moving back", self.path)
    }
}
