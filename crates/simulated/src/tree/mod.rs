//! A directory of the host as a worker sees it: read-only, or below a writable layer in the form that overlayfs leaves.
//!
//! Everything is reached by descriptor, one name after another, and no link is followed: the worker follows links by
//! itself, among the paths that it sees. Names that a rule hides are there and cannot be read or replaced. What the layer takes is
//! counted as it is written, and refused beyond the limits.

mod change;
mod names;
mod path;
mod quota;
mod read;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use offleash_core::limits::Limits;
use offleash_core::record::LimitHit;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::wire::{FileAnswer, FileFacts, FileKind, FileOperation};
pub(crate) use path::InnerPath;
use quota::LayerQuota;

/// How directories on the way are opened. Reading is asked for, since they may be listed.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const OWNER_ENTERS: u32 = 0o100;

/// A served directory.
#[derive(Debug)]
pub(crate) struct ServedTree {
    lower: OwnedFd,
    /// Where what is written goes; none of a directory that is only read.
    upper: Option<OwnedFd>,
    /// What a rule hides, each with whether it is a directory.
    hidden: Vec<(InnerPath, bool)>,
    quota: LayerQuota,
    /// Whose the host's files are that are granted, where this process may read those of all users: the tree's owner. Others
    /// have to be open to everybody, as they would have to be for the sandbox's user at other levels.
    owner: Option<u32>,
    /// The directory that was opened last: most of what is asked is about its neighbours.
    last: Option<(InnerPath, DirectoryPair)>,
}

/// A directory in both places.
#[derive(Debug)]
struct DirectoryPair {
    upper: Option<OwnedFd>,
    lower: Option<OwnedFd>,
}

/// What a name stands for.
#[derive(Debug)]
enum Found {
    Directory(DirectoryPair),
    /// Something else, in the layer.
    Upper(Stat),
    /// Something else, on the host.
    Lower(Stat),
    Nothing,
}

impl ServedTree {
    /// The host's directory `lower`, below the layer `upper`, which is empty.
    ///
    /// # Errors
    /// When one of them cannot be opened.
    pub(crate) fn open(
        lower: &Path,
        upper: Option<&Path>,
        hidden: Vec<(InnerPath, bool)>,
        limits: &Limits,
    ) -> Result<Self, Errno> {
        let open = |path: &Path| rustix::fs::open(path, DIRECTORY, Mode::empty());
        let lower = open(lower)?;
        let owner = rustix::fs::fstat(&lower)?.st_uid;
        Ok(Self {
            owner: rustix::process::geteuid().is_root().then_some(owner),
            lower,
            upper: upper.map(open).transpose()?,
            hidden,
            quota: LayerQuota::new(limits),
            last: None,
        })
    }

    /// A program of another level has written into the layer.
    pub(crate) fn changed_by_others(&mut self) {
        self.last = None;
        self.quota.stop_giving_back();
    }

    /// Whether a file's mode lets its owner do something, or everybody where the tree's owner is not its own.
    fn lets(&self, stat: &Stat, is_upper: bool, owner_bit: u32) -> bool {
        lets(self.owner, stat, is_upper, owner_bit)
    }

    /// Limits that were hit since this was asked last.
    pub(crate) fn take_hits(&mut self) -> Vec<LimitHit> {
        self.quota.take_hits()
    }

    /// What the layer takes, in bytes.
    pub(crate) fn layer_bytes(&self) -> u64 {
        self.quota.bytes()
    }

    /// Carries an operation out.
    pub(crate) fn answer(&mut self, path: &[u8], operation: FileOperation) -> FileAnswer {
        let answered = InnerPath::parse(path).and_then(|path| self.carry_out(&path, operation));
        answered.unwrap_or_else(|errno| FileAnswer::Failed {
            errno: errno.raw_os_error(),
        })
    }

    fn carry_out(&mut self, path: &InnerPath, operation: FileOperation) -> Result<FileAnswer, Errno> {
        match &operation {
            FileOperation::Stat => return self.stat(path).map(FileAnswer::Facts),
            FileOperation::List => return self.list(path).map(FileAnswer::Entries),
            FileOperation::Read { offset } => return self.read(path, *offset),
            FileOperation::ReadLink => return self.read_link(path).map(FileAnswer::Target),
            _ => {}
        }
        if self.upper.is_none() {
            return Err(Errno::ROFS);
        }
        self.refuse_hidden(path)?;
        match operation {
            FileOperation::Replace { total, bytes } => self.replace(path, total, &bytes)?,
            FileOperation::Append(bytes) => self.append(path, &bytes)?,
            FileOperation::Write { offset, bytes } => self.write(path, offset, &bytes)?,
            FileOperation::Resize { size } => self.resize(path, size)?,
            FileOperation::MakeDirectory => self.make_directory(path)?,
            FileOperation::Remove => self.remove(path)?,
            FileOperation::Rename { to } => {
                let to = InnerPath::parse(&to)?;
                self.refuse_hidden(&to)?;
                self.rename(path, &to)?;
            }
            FileOperation::Symlink { target } => self.symlink(path, &target)?,
            FileOperation::Chmod { mode } => self.chmod(path, mode)?,
            FileOperation::Touch { seconds, nanoseconds } => self.touch(path, seconds, nanoseconds)?,
            _ => return Err(Errno::INVAL),
        }
        Ok(FileAnswer::Done)
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

    /// The directory at `path`, in both places.
    fn directory(&mut self, path: &InnerPath) -> Result<&DirectoryPair, Errno> {
        if self.last.as_ref().is_none_or(|(known, _)| known != path) {
            self.refuse_hidden(path)?;
            let mut pair = DirectoryPair {
                upper: self
                    .upper
                    .as_ref()
                    .map(OwnedFd::try_clone)
                    .transpose()
                    .map_err(|_| Errno::MFILE)?,
                lower: Some(self.lower.try_clone().map_err(|_| Errno::MFILE)?),
            };
            for name in path.names() {
                pair = match pair.find(name)? {
                    Found::Directory(below) => {
                        if let Some(lower) = &below.lower
                            && !lets(self.owner, &rustix::fs::fstat(lower)?, false, OWNER_ENTERS)
                        {
                            return Err(Errno::ACCESS);
                        }
                        below
                    }
                    Found::Upper(_) | Found::Lower(_) => return Err(Errno::NOTDIR),
                    Found::Nothing => return Err(Errno::NOENT),
                };
            }
            self.last = Some((path.clone(), pair));
        }
        self.last.as_ref().map(|(_, pair)| pair).ok_or(Errno::NOENT)
    }

    /// What is at `path`, which is not the root.
    fn find(&mut self, path: &InnerPath) -> Result<Found, Errno> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        self.directory(&parent)?.find(name)
    }
}

impl DirectoryPair {
    /// What `name` stands for in it.
    fn find(&self, name: &[u8]) -> Result<Found, Errno> {
        let mut is_opaque = false;
        let mut above = None;
        if let Some(upper) = &self.upper {
            match stat_at(upper.as_fd(), name) {
                Ok(stat) if names::is_whiteout(upper.as_fd(), name, &stat)? => return Ok(Found::Nothing),
                Ok(stat) if is_directory(&stat) => {
                    let opened = rustix::fs::openat(upper, name, DIRECTORY, Mode::empty())?;
                    is_opaque = names::is_opaque(&opened)?;
                    above = Some(opened);
                }
                Ok(stat) => return Ok(Found::Upper(stat)),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let mut below = None;
        if let Some(lower) = self.lower.as_ref().filter(|_| !is_opaque) {
            match stat_at(lower.as_fd(), name) {
                Ok(stat) if is_directory(&stat) => {
                    below = Some(rustix::fs::openat(lower, name, DIRECTORY, Mode::empty())?);
                }
                Ok(stat) if above.is_none() => return Ok(Found::Lower(stat)),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match (above, below) {
            (None, None) => Found::Nothing,
            (upper, lower) => Found::Directory(DirectoryPair { upper, lower }),
        })
    }

    /// Whether the host has the name, whatever the layer says of it.
    fn has_below(&self, name: &[u8]) -> Result<bool, Errno> {
        let Some(lower) = &self.lower else { return Ok(false) };
        match stat_at(lower.as_fd(), name) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn stat(&self) -> Result<Stat, Errno> {
        let shown = self.upper.as_ref().or(self.lower.as_ref()).ok_or(Errno::NOENT)?;
        rustix::fs::fstat(shown)
    }
}

fn stat_at(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// See [`ServedTree::lets`]. What is in the layer is the sandbox's own.
fn lets(owner: Option<u32>, stat: &Stat, is_upper: bool, owner_bit: u32) -> bool {
    let is_anothers = !is_upper && owner.is_some_and(|owner| stat.st_uid != owner);
    let bit = if is_anothers { owner_bit >> 6 } else { owner_bit };
    stat.st_mode & bit != 0
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
