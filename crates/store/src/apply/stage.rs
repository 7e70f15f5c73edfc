//! The staging directory in a workspace: new contents before they are moved in, originals after they were moved out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::nearest::NearestDirectories;
use super::plan::NEW_DIRECTORY;
use crate::change::{LayerChange, LayerTrees};
use crate::content::copy_contents;
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeIdentity, NodeKind, NodeTime, TreeNode, identity_of};
use crate::removal::remove_tree;
use crate::state::PRIVATE;
use crate::tree::{TreeRoot, chmod, names_in, reopen, stat_at};

const NEW: &str = "new";
const OLD: &str = "old";
/// Up to so many files are synced one by one; more by syncing the file system.
const SYNCED_SINGLY: usize = 64;

/// The open staging directory of one layer.
#[derive(Debug)]
pub(crate) struct StagingDirectory {
    pub(crate) new: OwnedFd,
    pub(crate) old: OwnedFd,
    unsynced: Vec<File>,
    count: usize,
    nearest: NearestDirectories,
}

/// The staging directory's name; the id keeps two applies apart.
pub(crate) fn staging_name(id: &RunId) -> String {
    format!(".offleash-{id}")
}

/// The name of a slot.
pub(crate) fn slot_name(slot: u64) -> String {
    slot.to_string()
}

impl StagingDirectory {
    pub(crate) fn create(host: &TreeRoot, id: &RunId) -> Result<Self, FileError> {
        let name = staging_name(id);
        rustix::fs::mkdirat(host.root(), &*name, PRIVATE).tried("creating", &name)?;
        for part in [NEW, OLD] {
            let path = format!("{name}/{part}");
            rustix::fs::mkdirat(host.root(), &*path, PRIVATE).tried("creating", &path)?;
        }
        Self::find(host, id)?.ok_or_else(|| FileError::new("opening", &name, Errno::NOENT))
    }

    /// Opens what a dead apply left; `None` if it left nothing.
    pub(crate) fn find(host: &TreeRoot, id: &RunId) -> Result<Option<Self>, FileError> {
        let name = staging_name(id);
        let part = |part: &str| match host.readable(Path::new(&format!("{name}/{part}"))) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(FileError::new("opening", &name, error)),
        };
        let (Some(new), Some(old)) = (part(NEW)?, part(OLD)?) else {
            return Ok(None);
        };
        Ok(Some(Self {
            new,
            old,
            unsynced: Vec::new(),
            count: 0,
            nearest: NearestDirectories::default(),
        }))
    }

    /// Whether no original is in it.
    pub(crate) fn holds_no_original(&self) -> Result<bool, FileError> {
        names_in(&self.old).map(|names| names.is_empty()).tried("listing", OLD)
    }

    /// Makes a copy of what the run left, ready to be moved into place.
    pub(crate) fn stage(
        &mut self,
        trees: &LayerTrees,
        change: &LayerChange,
        slot: u64,
    ) -> Result<NodeIdentity, FileError> {
        let name = slot_name(slot);
        let Some(after) = &change.after else {
            return Err(FileError::new("staging", &change.path, Errno::INVAL));
        };
        let owner = EntryOwner::of(trees, change, &mut self.nearest)?;
        match after.kind {
            NodeKind::File => self.stage_file(trees, &change.path, &name, after, &owner)?,
            NodeKind::Directory => {
                let mode = Mode::from_raw_mode(NEW_DIRECTORY);
                rustix::fs::mkdirat(&self.new, &*name, mode).tried("creating", &change.path)?;
                // Neither the umask nor a set-group-id bit from above may change it.
                rustix::fs::chmodat(&self.new, &*name, mode, AtFlags::empty())
                    .tried("changing the mode of", &change.path)?;
                owner
                    .give(&self.new, &name)
                    .tried("changing the owner of", &change.path)?;
            }
            NodeKind::Symlink => {
                let target = after.target.clone().unwrap_or_default();
                rustix::fs::symlinkat(&target, &self.new, &*name).tried("creating", &change.path)?;
                owner
                    .give(&self.new, &name)
                    .tried("changing the owner of", &change.path)?;
                let times = timestamps(after.identity.mtime);
                rustix::fs::utimensat(&self.new, &*name, &times, AtFlags::SYMLINK_NOFOLLOW)
                    .tried("dating", &change.path)?;
            }
            NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => {
                return Err(FileError::new("staging", &change.path, Errno::INVAL));
            }
        }
        let stat = stat_at(&self.new, OsStr::new(&name)).and_then(|stat| stat.ok_or(Errno::NOENT));
        Ok(identity_of(&stat.tried("examining", &change.path)?))
    }

    fn stage_file(
        &mut self,
        trees: &LayerTrees,
        path: &Path,
        name: &str,
        after: &TreeNode,
        owner: &EntryOwner,
    ) -> Result<(), FileError> {
        let mut from = trees.upper.file(path).tried("opening", path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.new, name, flags, Mode::RUSR | Mode::WUSR);
        let mut to = File::from(opened.tried("creating", path)?);
        copy_contents(&mut from, &mut to).tried("copying", path)?;
        owner.give(&self.new, name).tried("changing the owner of", path)?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(after.mode & 0o777)).tried("changing the mode of", path)?;
        rustix::fs::futimens(&to, &timestamps(after.identity.mtime)).tried("dating", path)?;
        self.count += 1;
        if self.count <= SYNCED_SINGLY {
            self.unsynced.push(to);
        }
        Ok(())
    }

    /// Waits until everything staged is on disk.
    pub(crate) fn sync(&mut self) -> Result<(), FileError> {
        if self.count > SYNCED_SINGLY {
            rustix::fs::syncfs(&self.new).tried("syncing", NEW)?;
        }
        for file in self.unsynced.drain(..) {
            file.sync_data().tried("syncing", NEW)?;
        }
        Ok(())
    }
}

/// Removes the staging directory, even from a workspace whose own mode forbids us to.
pub(crate) fn remove_staging(host: &TreeRoot, id: &RunId) -> Result<(), FileError> {
    let name = staging_name(id);
    let stat = rustix::fs::fstat(host.root()).tried("examining", ".")?;
    let (mode, ours) = (
        stat.st_mode & 0o7777,
        stat.st_uid == rustix::process::geteuid().as_raw(),
    );
    // Where it cannot be looked for, it may be.
    let locked = ours && mode & 0o300 != 0o300 && !matches!(stat_at(host.root(), OsStr::new(&name)), Ok(None));
    if locked {
        chmod(host.root(), mode | 0o700).tried("changing the mode of", ".")?;
    }
    let result = remove_tree(host.root(), OsStr::new(&name));
    if locked {
        chmod(host.root(), mode).tried("changing the mode of", ".")?;
    }
    result
}

pub(crate) fn timestamps(modified: NodeTime) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanoseconds.into(),
        },
    }
}

/// Who is to own an entry: the owner of what it replaces, or of the directory it comes into; never the sandbox's user.
struct EntryOwner {
    uid: Option<Uid>,
    gid: Option<Gid>,
}

impl EntryOwner {
    fn of(trees: &LayerTrees, change: &LayerChange, nearest: &mut NearestDirectories) -> Result<Self, FileError> {
        let node = match &change.before {
            Some(before) => before,
            None => nearest.of(&trees.host, &change.path)?,
        };
        let is_root = rustix::process::geteuid().is_root();
        let group_is_inherited = node.is_directory() && node.mode & 0o2000 != 0;
        Ok(Self {
            uid: is_root.then(|| Uid::from_raw(node.uid)),
            gid: (is_root || group_is_inherited).then(|| Gid::from_raw(node.gid)),
        })
    }

    fn give(&self, directory: &OwnedFd, name: &str) -> Result<(), Errno> {
        if self.uid.is_none() && self.gid.is_none() {
            return Ok(());
        }
        rustix::fs::chownat(directory, name, self.uid, self.gid, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Syncs a directory that was opened for reading, and with it the renames in it.
pub(crate) fn sync_renames(
    host: &TreeRoot,
    staging: &BTreeMap<usize, StagingDirectory>,
    layer: usize,
) -> Result<(), FileError> {
    if let Some(staging) = staging.get(&layer) {
        rustix::fs::fsync(&staging.new).tried("syncing", NEW)?;
    }
    match reopen(host.root(), OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(root) => rustix::fs::fsync(&root).tried("syncing", "."),
        Err(Errno::ACCESS) => Ok(()),
        Err(error) => Err(FileError::new("opening", ".", error)),
    }
}
