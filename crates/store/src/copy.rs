//! Copies a writable layer of a sandbox that does not change meanwhile, entry by entry and by directory descriptor.
//!
//! What overlayfs left in it is copied as it is: whiteouts, opaque directories and its other attributes, so that the copy
//! over the same lower directories shows the same files. Kept are contents and holes, modes, owners, times, extended
//! attributes and which names are links of one file. Sockets and pipes are made anew, devices never.
//!
//! Two directories are open at any depth, and there is no recursion: the way up is `..`, and where it leads is compared
//! with where the way down came from. Deliberately not here: stopping the sandbox, and who may read what is in the layer.

mod attributes;
mod contents;
mod index;
mod refresh;

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use offleash_core::error::{ErrorKind, Explained};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

pub use self::attributes::OwnerShift;
use self::attributes::{copy_attributes, copy_owner_and_times};
pub use self::index::{LayerIndex, MAX_INDEX};
use self::refresh::make_entry;
pub use self::refresh::{CopyRound, LayerRefresh, SharedLayer, link_layer};
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeKind, kind_of};
use crate::removal::remove_tree;
pub use contents::copy_contents;
pub(crate) use contents::next_data;

/// What the copy of a file with several names is linked from, beside the copy until that is whole.
const LINKS: &str = ".links";
/// Most bytes of names of directories that wait for their turn: what of a tree is in memory at a time.
const MAX_WAITING: usize = 64 * 1024 * 1024;

/// How much may still be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyBudget {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

/// Why a layer was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// There is more in it than was allowed.
    #[error("the layer holds more {what} than the copy may have")]
    TooLarge {
        /// `bytes`, `files` or `directories in one another`.
        what: &'static str,
    },
    /// The layer was changed while it was copied.
    #[error("`{}` was changed while it was copied", .path.escape_debug())]
    Changed {
        /// What.
        path: String,
    },
    /// A call failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Explained for CopyError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLarge { .. } => ErrorKind::Exhausted,
            Self::Changed { .. } => ErrorKind::Conflict,
            Self::File(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::TooLarge { .. } => Some("remove what the sandbox does not need, or give it a larger disk".to_owned()),
            Self::Changed { .. } => None,
            Self::File(error) => error.hint(),
        }
    }
}

impl CopyBudget {
    /// Counts a name, before it is made.
    fn take_name(&mut self) -> Result<(), CopyError> {
        self.entries = self
            .entries
            .checked_sub(1)
            .ok_or(CopyError::TooLarge { what: "files" })?;
        Ok(())
    }

    /// Counts what takes so much on disk, before it is copied; once, however many names it has.
    fn take_content(&mut self, stat: &Stat) -> Result<(), CopyError> {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
        self.bytes = self
            .bytes
            .checked_sub(blocks.saturating_mul(512))
            .ok_or(CopyError::TooLarge { what: "bytes" })?;
        Ok(())
    }
}

/// Copies what is in the directory `from` into `to`, which is empty and gets its attributes; takes from `budget` what
/// it takes. Meanwhile there is another directory beside `to`.
///
/// The caller must be allowed to read all of it and to give files to their owners: root, or the superuser of a user
/// namespace with the owners' ids. Nobody may change either tree meanwhile.
///
/// # Errors
/// `TooLarge` as soon as the budget is used up, `File`, `Changed`. What was copied until then stays in `to`.
pub fn copy_layer(from: &Path, to: &Path, budget: &mut CopyBudget) -> Result<(), CopyError> {
    let (source, target, parent) = (open(from)?, open(to)?, open(&to.join(".."))?);
    rustix::fs::mkdirat(&parent, LINKS, Mode::RWXU).tried("creating", LINKS)?;
    let copied = open(&to.with_file_name(LINKS))
        .map_err(CopyError::from)
        .and_then(|links| {
            let mut copy = TreeCopy {
                source,
                target,
                links,
                above: Vec::new(),
                waiting: 0,
                shift: OwnerShift::default(),
                budget,
            };
            copy.run()
        });
    let removed = remove_tree(&parent, LINKS.as_ref());
    copied.and(removed.map_err(CopyError::from))
}

/// What differs when a file was written to in between. Blocks may also differ when the kernel has put on the disk what was
/// written before.
fn written(stat: &Stat) -> (i64, i64, u64) {
    (stat.st_size, stat.st_ctime, stat.st_ctime_nsec)
}

fn open(path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).tried("opening", path)
}

/// The copying of one tree, in which it goes down into one directory after the other.
struct TreeCopy<'budget> {
    /// The directory that is copied now.
    source: OwnedFd,
    /// Its copy.
    target: OwnedFd,
    links: OwnedFd,
    /// Those that it lies in.
    above: Vec<ParentDirectory>,
    /// Bytes of the names in them.
    waiting: usize,
    shift: OwnerShift,
    budget: &'budget mut CopyBudget,
}

/// A directory in which one below is copied.
struct ParentDirectory {
    /// Which it is, and which its copy is.
    source: (u64, u64),
    target: (u64, u64),
    /// Directories in it that are not copied yet.
    left: Vec<CString>,
}

impl TreeCopy<'_> {
    fn run(&mut self) -> Result<(), CopyError> {
        let mut left = self.copy_entries()?;
        loop {
            match left.pop() {
                Some(name) => {
                    self.waiting -= name.as_bytes().len();
                    let above = self.descend(&name, left)?;
                    self.above.push(above);
                    left = self.copy_entries()?;
                }
                None => {
                    self.finish()?;
                    let Some(above) = self.above.pop() else { return Ok(()) };
                    self.ascend(&above)?;
                    left = above.left;
                }
            }
        }
    }

    /// Copies what is in the directory but directories; answers those.
    fn copy_entries(&mut self) -> Result<Vec<CString>, CopyError> {
        let mut directories = Vec::new();
        // A descriptor of its own: reading moves it.
        let listed = reopen(&self.source, c".")?;
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.tried("listing", ".")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = stat_of(&self.source, name)?;
            self.budget.take_name()?;
            if kind_of(&stat) == NodeKind::Directory {
                self.budget.take_content(&stat)?;
                self.waiting += name.to_bytes().len();
                if self.waiting > MAX_WAITING {
                    return Err(CopyError::TooLarge {
                        what: "directories in one another",
                    });
                }
                directories.push(name.to_owned());
            } else {
                self.copy_entry(name, &stat)?;
            }
        }
        Ok(directories)
    }

    fn copy_entry(&mut self, name: &CStr, stat: &Stat) -> Result<(), CopyError> {
        if stat.st_nlink < 2 {
            self.budget.take_content(stat)?;
            return self.make(&self.target, name, name, stat);
        }
        // Several names of one file, of which some may be outside of what is copied.
        let shared = CString::new(format!("{:x}-{:x}", stat.st_dev, stat.st_ino)).unwrap_or_default();
        let none = AtFlags::empty();
        match rustix::fs::linkat(&self.links, &shared, &self.target, name, none) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            // It has as many names as a file can have.
            Err(Errno::MLINK) => {
                self.budget.take_content(stat)?;
                return self.make(&self.target, name, name, stat);
            }
            Err(error) => return Err(error).tried("linking", path_of(name))?,
        }
        self.budget.take_content(stat)?;
        self.make(&self.links, &shared, name, stat)?;
        match rustix::fs::linkat(&self.links, &shared, &self.target, name, none) {
            // Device files of whiteouts may belong to nobody who may link them (protected_hardlinks).
            Err(Errno::PERM) => self.make(&self.target, name, name, stat),
            linked => Ok(linked.tried("linking", path_of(name))?),
        }
    }

    /// Makes `made` in `parent` as the entry `name` is.
    fn make(&self, parent: &OwnedFd, made: &CStr, name: &CStr, stat: &Stat) -> Result<(), CopyError> {
        make_entry(&self.source, parent, made, name, stat, self.shift, CopyRound::Still)
    }

    /// Goes down into `name`; what is left to do here is answered.
    fn descend(&mut self, name: &CStr, left: Vec<CString>) -> Result<ParentDirectory, CopyError> {
        rustix::fs::mkdirat(&self.target, name, Mode::RWXU).tried("creating", path_of(name))?;
        let (source, target) = (reopen(&self.source, name)?, reopen(&self.target, name)?);
        let above = ParentDirectory {
            source: identity(&self.source)?,
            target: identity(&self.target)?,
            left,
        };
        (self.source, self.target) = (source, target);
        Ok(above)
    }

    /// Goes up again; nothing but where it came from is good enough.
    fn ascend(&mut self, above: &ParentDirectory) -> Result<(), CopyError> {
        let (source, target) = (reopen(&self.source, c"..")?, reopen(&self.target, c"..")?);
        if identity(&source)? != above.source || identity(&target)? != above.target {
            return Err(changed(c".."));
        }
        (self.source, self.target) = (source, target);
        Ok(())
    }

    /// A directory's copy has its attributes once nothing more is made in it.
    fn finish(&self) -> Result<(), CopyError> {
        let stat = rustix::fs::fstat(&self.source).tried("examining", ".")?;
        copy_attributes((&self.source, c"."), (&self.target, c"."), self.shift)
            .tried("copying the attributes of", ".")?;
        copy_owner_and_times(&stat, &self.target, c".", self.shift).tried("copying the owner of", ".")?;
        Ok(())
    }
}

fn reopen(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).tried("opening", path_of(name))
}

fn stat_of(directory: &OwnedFd, name: &CStr) -> Result<Stat, FileError> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).tried("examining", path_of(name))
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), FileError> {
    let stat = rustix::fs::fstat(directory).tried("examining", ".")?;
    Ok((stat.st_dev, stat.st_ino))
}

fn changed(name: &CStr) -> CopyError {
    CopyError::Changed {
        path: name.to_string_lossy().into_owned(),
    }
}

fn path_of(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

#[cfg(test)]
mod tests;
