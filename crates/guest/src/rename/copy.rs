//! A copy of a directory with everything in it, under another name of the same file system.
//!
//! Directories are made anew. Of all else the copy has a link to the same file, which an overlay brings to its own layer
//! with all that it has; contents are copied only where the kernel forbids the link (`fs.protected_hardlinks`) or cannot
//! take the owner along. Whoever writes to a file meanwhile therefore writes to the copy's, too. Nothing recurses, and what
//! is kept is bounded, because whoever lives in the sandbox made the files.

use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use offleash_sys::rename;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, Stat};
use rustix::io::Errno;

use super::place::{self, FileIdentity, is_self};
use super::{attributes, contents};

/// Levels of directories. Each takes three descriptors, of which a process may have 4096 unless it was given another limit.
pub(super) const DEEPEST: usize = 1024;

/// Files with several names that are kept in mind, so that the copy has them too; those beyond become several files.
const MAX_LINKED: usize = 65_536;

const SET_GROUP: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const OWNER_ALL: u32 = 0o700;

/// Copies the directory `source` to `name` in `parent`, where nothing is; answers the copy.
pub(super) fn copy(source: &OwnedFd, parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let stat = rustix::fs::fstat(source)?;
    let copying = TreeCopy {
        device: stat.st_dev,
        user: rustix::process::getuid().as_raw(),
        name,
    };
    let target = copying.make_directory(source, &stat, parent, name)?;
    let (source, root) = (place::again(source)?, place::again(&target)?);
    let mut linked = LinkedFiles {
        root,
        names: BTreeMap::new(),
    };
    let mut levels = alloc::vec![CopyLevel::new(source, place::again(&target)?, stat, Vec::new())?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next()? else {
            level.finish()?;
            levels.pop();
            continue;
        };
        if let Some(below) = copying.entry(level, &entry, &mut linked)? {
            if levels.len() == DEEPEST {
                return Err(Errno::XDEV);
            }
            levels.push(below);
        }
    }
    Ok(target)
}

/// A directory on the way.
struct CopyLevel {
    source: OwnedFd,
    target: OwnedFd,
    /// What the source was before.
    stat: Stat,
    entries: Dir,
    /// Below the copy; ends with a slash unless it is empty.
    path: Vec<u8>,
}

impl CopyLevel {
    fn new(source: OwnedFd, target: OwnedFd, stat: Stat, path: Vec<u8>) -> Result<Self, Errno> {
        Ok(Self {
            entries: Dir::read_from(&source)?,
            source,
            target,
            stat,
            path,
        })
    }

    fn next(&mut self) -> Result<Option<CString>, Errno> {
        while let Some(entry) = self.entries.read() {
            let entry = entry?;
            if !is_self(entry.file_name()) {
                return Ok(Some(entry.file_name().into()));
            }
        }
        Ok(None)
    }

    /// Gives the copy what the source has, once nothing more is made in it.
    fn finish(&self) -> Result<(), Errno> {
        attributes::copy(self.source.as_fd(), self.target.as_fd())?;
        let mode = self.stat.st_mode & 0o7777;
        if mode & SET_GROUP == 0 {
            rustix::fs::fchmod(&self.target, Mode::from_raw_mode(mode))?;
        } else if rustix::fs::fstat(&self.target)?.st_mode & 0o7777 != mode {
            return Err(Errno::XDEV);
        }
        attributes::set_times(self.target.as_fd(), &self.stat)
    }
}

/// Files with several names, and one of these in the copy.
struct LinkedFiles {
    root: OwnedFd,
    names: BTreeMap<(u64, u64), CString>,
}

impl LinkedFiles {
    /// Gives the copy of a file that has one already another name.
    fn again(&self, stat: &Stat, target: BorrowedFd<'_>, name: &CStr) -> bool {
        let known = self.names.get(&(stat.st_dev, stat.st_ino));
        known.is_some_and(|known| rustix::fs::linkat(&self.root, known, target, name, AtFlags::empty()).is_ok())
    }

    fn note(&mut self, stat: &Stat, level: &CopyLevel, name: &CStr) {
        if self.names.len() < MAX_LINKED {
            let path = [&level.path, name.to_bytes()].concat();
            if let Ok(path) = CString::new(path) {
                self.names.insert((stat.st_dev, stat.st_ino), path);
            }
        }
    }
}

struct TreeCopy<'a> {
    /// The file system of the whole; what has another one is mounted there.
    device: u64,
    user: u32,
    /// Nobody else's, for the time being.
    name: &'a CStr,
}

impl TreeCopy<'_> {
    /// Copies one entry; answers a directory that is to be filled.
    fn entry(&self, level: &CopyLevel, name: &CStr, linked: &mut LinkedFiles) -> Result<Option<CopyLevel>, Errno> {
        let stat = match rustix::fs::statat(&level.source, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Gone meanwhile.
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return self.directory(level, name);
        }
        let has_others = stat.st_nlink > 1;
        if has_others && linked.again(&stat, level.target.as_fd(), name) {
            return Ok(None);
        }
        match rustix::fs::linkat(&level.source, name, &level.target, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            // Something is mounted there.
            Err(Errno::XDEV) => return Err(Errno::BUSY),
            Err(Errno::PERM | Errno::ACCESS | Errno::OVERFLOW | Errno::MLINK) => {
                contents::copy(level.source.as_fd(), name, &stat, level.target.as_fd())?;
            }
            Err(errno) => return Err(errno),
        }
        if has_others {
            linked.note(&stat, level, name);
        }
        Ok(None)
    }

    fn directory(&self, level: &CopyLevel, name: &CStr) -> Result<Option<CopyLevel>, Errno> {
        let source = match place::open_directory(level.source.as_fd(), name) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&source)?;
        let target = self.make_directory(&source, &stat, level.target.as_fd(), name)?;
        let path = [&level.path, name.to_bytes(), b"/"].concat();
        CopyLevel::new(source, target, stat, path).map(Some)
    }

    /// Makes a directory as `source` is one, but for what [`CopyLevel::finish`] does.
    fn make_directory(
        &self,
        source: &OwnedFd,
        stat: &Stat,
        parent: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<OwnedFd, Errno> {
        if stat.st_dev != self.device {
            return Err(Errno::BUSY);
        }
        self.check_removable(source, stat)?;
        if stat.st_mode & SET_GROUP == 0 {
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(OWNER_ALL))?;
        } else {
            self.make_setgid(source, stat, parent, name)?;
        }
        let target = place::open_directory(parent, name)?;
        let made = rustix::fs::fstat(&target)?;
        if made.st_uid != self.user {
            // Somebody exchanged it.
            return Err(Errno::XDEV);
        }
        give(&target, &made, stat);
        Ok(target)
    }

    /// No mode with this bit passes the filter; a directory has it from the one that it is made in.
    fn make_setgid(&self, source: &OwnedFd, stat: &Stat, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        if stat.st_mode & OWNER_ALL != OWNER_ALL {
            return Err(Errno::XDEV);
        }
        let mode = Mode::from_raw_mode(stat.st_mode & 0o1777);
        rustix::fs::mkdirat(source, self.name, mode)?;
        rename::by_kernel(source.as_fd(), self.name, parent, name, false).inspect_err(|_| {
            // It is empty, and ours.
            let _ = rustix::fs::unlinkat(source, self.name, AtFlags::REMOVEDIR);
        })
    }

    /// Whether the directory can be emptied and removed later on. The user owns it, or may write to it; and then it is
    /// of a user whose files this one may take.
    fn check_removable(&self, source: &OwnedFd, stat: &Stat) -> Result<(), Errno> {
        if stat.st_uid == self.user {
            return Ok(());
        }
        if self.user != 0 || stat.st_mode & STICKY != 0 {
            return Err(Errno::XDEV);
        }
        rustix::fs::accessat(source, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty())
    }
}

/// Gives a new directory the owners of another one, as far as this user may.
fn give(target: &OwnedFd, made: &Stat, stat: &Stat) {
    let uid = (made.st_uid != stat.st_uid).then(|| rustix::fs::Uid::from_raw(stat.st_uid));
    let gid = (made.st_gid != stat.st_gid).then(|| rustix::fs::Gid::from_raw(stat.st_gid));
    if uid.is_some() || gid.is_some() {
        // As every copy does; those of the host's root, who is nobody here, cannot be kept.
        let _ = rustix::fs::fchown(target, uid, gid);
    }
}

/// Whether two entries are the same file.
pub(super) fn is_same(one: &Stat, other: &Stat) -> bool {
    FileIdentity::from(one) == FileIdentity::from(other)
}
