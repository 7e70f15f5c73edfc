//! A directory of the host as a worker sees it: read-only, or below a writable layer in the form that overlayfs leaves.
//!
//! Everything is reached by descriptor, one name after another, and no link is followed: the worker follows links by
//! itself, among the paths that it sees. Names that a rule hides are there and cannot be read or replaced. What the layer takes is
//! counted as it is written, and refused beyond the limits.

mod annotations;
mod change;
mod copy_up;
mod names;
mod owners;
mod path;
mod quota;
mod read;
mod stack;

#[cfg(test)]
mod stack_tests;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::Path;

#[cfg(test)]
use offleash_core::limits::Limits;
use offleash_core::record::LimitHit;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::wire::{FileAnswer, FileFacts, FileKind, FileOperation};
pub(crate) use annotations::{Annotations, check as check_annotations};
pub(crate) use owners::{FileCaller, LayerOwners};
pub(crate) use path::InnerPath;
pub(crate) use quota::{LayerQuota, SharedQuota};
pub(crate) use read::OwnedFacts;
use stack::{Found, StackedDirectory, stat_at};

/// How directories on the way are opened. Reading is asked for, since they may be listed.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const OWNER_ENTERS: u32 = 0o100;

/// What a tree is made of.
#[derive(Debug)]
pub(crate) struct TreeParts<'p> {
    /// Directories that are only read, the topmost first.
    pub(crate) lowers: Vec<LowerPart<'p>>,
    /// Where what is written goes; none of a tree that is only read.
    pub(crate) upper: Option<(&'p Path, LayerOwners)>,
    /// What a rule hides, each with whether it is a directory.
    pub(crate) hidden: Vec<(InnerPath, bool)>,
    /// What counts what is written.
    pub(crate) quota: SharedQuota,
    /// The sandbox's usual user.
    pub(crate) user: FileCaller,
    /// Whether others may write to it meanwhile.
    pub(crate) is_shared: bool,
}

/// A directory that is only read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowerPart<'p> {
    pub(crate) path: &'p Path,
    pub(crate) owners: LayerOwners,
    /// Whether it has marks of what is removed below it.
    pub(crate) is_layer: bool,
}

/// A served directory.
#[derive(Debug)]
pub(crate) struct ServedTree {
    root: StackedDirectory,
    /// Whose files the layer has.
    upper_owners: LayerOwners,
    hidden: Vec<(InnerPath, bool)>,
    quota: SharedQuota,
    user: FileCaller,
    /// Who asks.
    caller: FileCaller,
    is_shared: bool,
    /// The directory that was opened last, and for whom: most of what is asked is about its neighbours.
    last: Option<(InnerPath, FileCaller, StackedDirectory)>,
    /// What changed since this was asked for last, where somebody asks.
    changes: Option<Vec<TreeChange>>,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeChange {
    pub(crate) path: InnerPath,
    pub(crate) kind: TreeChangeKind,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeChangeKind {
    Made,
    Written,
    Removed,
    MovedAway,
    Attributes,
}

impl ServedTree {
    /// The host's directory `lower`, below the layer `upper`, which is empty.
    ///
    /// # Errors
    /// When one of them cannot be opened.
    #[cfg(test)]
    pub(crate) fn open(
        lower: &Path,
        upper: Option<&Path>,
        hidden: Vec<(InnerPath, bool)>,
        limits: &Limits,
    ) -> Result<Self, Errno> {
        Self::assemble(TreeParts {
            lowers: vec![LowerPart {
                path: lower,
                owners: owners_of(lower)?,
                is_layer: false,
            }],
            upper: upper.map(|upper| (upper, LayerOwners::One)),
            hidden,
            quota: SharedQuota::new(LayerQuota::new(limits)),
            user: FileCaller { uid: 1000, gid: 1000 },
            is_shared: false,
        })
    }

    /// Opens what a tree is made of.
    ///
    /// # Errors
    /// When one of its directories cannot be opened.
    pub(crate) fn assemble(parts: TreeParts<'_>) -> Result<Self, Errno> {
        let upper = parts.upper.map(|(path, _)| path);
        Ok(Self {
            root: StackedDirectory::open(upper, &parts.lowers)?,
            upper_owners: parts.upper.map_or(LayerOwners::One, |(_, owners)| owners),
            hidden: parts.hidden,
            quota: parts.quota,
            user: parts.user,
            caller: parts.user,
            is_shared: parts.is_shared,
            last: None,
            changes: None,
        })
    }

    /// A program of another level has written into the layer.
    pub(crate) fn changed_by_others(&mut self) {
        self.last = None;
        self.quota.lock().stop_giving_back();
    }

    /// Has what changes be told from now on, or no more.
    pub(crate) fn tell_changes(&mut self, is_wanted: bool) {
        self.changes = is_wanted.then(|| self.changes.take().unwrap_or_default());
    }

    /// What has changed since this was asked last.
    pub(crate) fn take_changes(&mut self) -> Vec<TreeChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Limits that were hit since this was asked last.
    pub(crate) fn take_hits(&mut self) -> Vec<LimitHit> {
        self.quota.lock().take_hits()
    }

    /// What counts what is written to it.
    pub(crate) fn quota(&self) -> &SharedQuota {
        &self.quota
    }

    /// Carries an operation out for the usual user.
    pub(crate) fn answer(&mut self, path: &[u8], operation: FileOperation) -> FileAnswer {
        self.answer_to(self.user, path, operation)
    }

    /// Carries an operation out for `caller`.
    pub(crate) fn answer_to(&mut self, caller: FileCaller, path: &[u8], operation: FileOperation) -> FileAnswer {
        let answered = InnerPath::parse(path).and_then(|path| self.carry_out_for(caller, &path, operation));
        answered.unwrap_or_else(|errno| FileAnswer::Failed {
            errno: errno.raw_os_error(),
        })
    }

    /// The same, of a path that was read.
    pub(crate) fn carry_out_for(
        &mut self,
        caller: FileCaller,
        path: &InnerPath,
        operation: FileOperation,
    ) -> Result<FileAnswer, Errno> {
        self.caller = caller;
        self.carry_out(path, operation)
    }

    fn carry_out(&mut self, path: &InnerPath, operation: FileOperation) -> Result<FileAnswer, Errno> {
        match &operation {
            FileOperation::Stat => return self.stat(path).map(FileAnswer::Facts),
            FileOperation::List => return self.list(path).map(FileAnswer::Entries),
            FileOperation::Read { offset } => return self.read(path, *offset),
            FileOperation::ReadLink => return self.read_link(path).map(FileAnswer::Target),
            _ => {}
        }
        if self.root.upper.is_none() {
            return Err(Errno::ROFS);
        }
        self.refuse_hidden(path)?;
        let changed = self.change(path, operation)?;
        if let Some(changes) = &mut self.changes {
            changes.extend(changed);
        }
        Ok(FileAnswer::Done)
    }

    /// Changes something; says what.
    fn change(&mut self, path: &InnerPath, operation: FileOperation) -> Result<Vec<TreeChange>, Errno> {
        use TreeChangeKind::{Attributes, Made, MovedAway, Removed, Written};
        let kinds: &[TreeChangeKind] = match operation {
            FileOperation::Replace { total, bytes } => match self.replace(path, total, &bytes)? {
                true => &[Made, Written],
                false => &[Written],
            },
            FileOperation::Append(bytes) => match self.append(path, &bytes)? {
                true => &[Made, Written],
                false => &[Written],
            },
            FileOperation::Write { offset, bytes } => {
                self.write(path, offset, &bytes)?;
                &[Written]
            }
            FileOperation::Resize { size } => {
                self.resize(path, size)?;
                &[Written]
            }
            FileOperation::MakeDirectory => {
                self.make_directory(path)?;
                &[Made]
            }
            FileOperation::Remove => {
                self.remove(path)?;
                &[Removed]
            }
            FileOperation::Rename { to } => {
                let to = InnerPath::parse(&to)?;
                self.refuse_hidden(&to)?;
                self.rename(path, &to)?;
                let changed = |path: &InnerPath, kind| TreeChange {
                    path: path.clone(),
                    kind,
                };
                return Ok(vec![changed(path, MovedAway), changed(&to, Made)]);
            }
            FileOperation::Symlink { target } => {
                self.symlink(path, &target)?;
                &[Made]
            }
            FileOperation::Chmod { mode } => {
                self.chmod(path, mode)?;
                &[Attributes]
            }
            FileOperation::Touch { seconds, nanoseconds } => {
                self.touch(path, seconds, nanoseconds)?;
                &[Attributes]
            }
            _ => return Err(Errno::INVAL),
        };
        let change = |kind: &TreeChangeKind| TreeChange {
            path: path.clone(),
            kind: *kind,
        };
        Ok(kinds.iter().map(change).collect())
    }

    /// Whether a rule hides the path, and whether what it hides there is a directory.
    fn hidden_at(&self, path: &InnerPath) -> Option<bool> {
        let at = self.hidden.iter().find(|(hidden, _)| hidden == path);
        at.map(|(_, is_directory)| *is_directory)
    }

    fn refuse_hidden(&self, path: &InnerPath) -> Result<(), Errno> {
        match self.hidden.iter().any(|(hidden, _)| path.starts_with(hidden)) {
            true => Err(Errno::ACCESS),
            false => Ok(()),
        }
    }

    /// The directory at `path`, in all places.
    fn directory(&mut self, path: &InnerPath) -> Result<&StackedDirectory, Errno> {
        let is_last = |(known, caller, _): &(InnerPath, FileCaller, StackedDirectory)| {
            known == path && *caller == self.caller && !self.is_shared
        };
        if !self.last.as_ref().is_some_and(is_last) {
            self.refuse_hidden(path)?;
            let mut here = self.root.try_clone()?;
            for name in path.names() {
                here = match here.find(name)? {
                    Found::Directory(below) if below.may_enter(self.caller, self.upper_owners)? => below,
                    Found::Directory(_) => return Err(Errno::ACCESS),
                    Found::Upper(_) | Found::Lower(..) => return Err(Errno::NOTDIR),
                    Found::Nothing => return Err(Errno::NOENT),
                };
            }
            self.last = Some((path.clone(), self.caller, here));
        }
        self.last.as_ref().map(|(.., found)| found).ok_or(Errno::NOENT)
    }

    /// What is at `path`, which is not the root.
    fn find(&mut self, path: &InnerPath) -> Result<Found, Errno> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        self.directory(&parent)?.find(name)
    }

    /// Whether the mode of a directory lets whoever asks do something.
    fn lets_in(&mut self, path: &InnerPath, owner_bit: u32) -> Result<bool, Errno> {
        let (caller, owners) = (self.caller, self.upper_owners);
        let (stat, owners) = self.directory(path)?.shown(owners)?;
        Ok(owners.lets(caller, &stat, owner_bit))
    }

    /// Whether the mode of something else lets whoever asks do something.
    fn lets(&self, stat: &Stat, owners: LayerOwners, owner_bit: u32) -> bool {
        owners.lets(self.caller, stat, owner_bit)
    }
}

/// Whose the files of a directory of the host are, as a workspace's or a mount's are.
pub(crate) fn owners_of(directory: &Path) -> Result<LayerOwners, Errno> {
    let owner = rustix::fs::stat(directory)?.st_uid;
    Ok(match rustix::process::geteuid().is_root() {
        true => LayerOwners::Only(owner),
        false => LayerOwners::One,
    })
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn facts_of(stat: &Stat) -> FileFacts {
    FileFacts {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Special,
        },
        mode: stat.st_mode & 0o7777,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        seconds: stat.st_mtime,
        nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    }
}

/// What is shown in place of something hidden.
fn hidden_facts(is_directory: bool) -> FileFacts {
    FileFacts {
        kind: if is_directory {
            FileKind::Directory
        } else {
            FileKind::File
        },
        mode: 0,
        size: 0,
        seconds: 0,
        nanoseconds: 0,
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}
