//! An overlay without mounts: the workspace is copied into the run's layer, and what the code left there is turned
//! into what an overlay would have left: changed and new entries, and whiteouts for those that are gone.
//!
//! `copy` remembers of each entry what the copy was like; an entry that is still like that when everything inside has
//! ended was not touched, and [`difference`] removes it. So the host may change meanwhile without that being taken for
//! the sandbox's doing. Bytes and names are the code's: every step is one name below a directory that is held open, and
//! no link is followed.

mod contents;
mod copy;
mod difference;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};

pub(super) use copy::{CopyError, CopyRoom, copy};
pub(super) use difference::reduce;

/// Directories in directories, down to which a workspace is copied; each takes two descriptors while it is.
const MAX_LEVELS: usize = 200;

/// What was copied, by directory: the names in it, and what each copy was like.
#[derive(Debug, Default)]
pub(super) struct CopyManifest {
    directories: HashMap<PathBuf, HashMap<OsString, CopiedNode>>,
}

/// A copy as it was before anything ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CopiedNode {
    inode: u64,
    /// Change time; no program can set it.
    changed: (i64, u64),
    mode: u32,
}

impl CopiedNode {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            mode: stat.st_mode,
        }
    }
}

/// The names in a directory, without `.` and `..`.
fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn stat_at(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// A directory that can be listed, searched and written, and the permissions to give back to it.
#[derive(Debug)]
struct OpenedDirectory {
    fd: OwnedFd,
    restore: Option<Mode>,
}

impl AsFd for OpenedDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OpenedDirectory {
    fn drop(&mut self) {
        if let Some(mode) = self.restore {
            // It was ours a moment ago; if it is gone, there is nothing to give back to.
            let _restored = rustix::fs::fchmod(&self.fd, mode);
        }
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory of ours, whatever permissions the code left on it.
fn open_ours(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OpenedDirectory> {
    let place = rustix::fs::openat(parent, name, OFlags::PATH | DIRECTORY, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&place)?.st_mode & 0o7777);
    let restore = (!mode.contains(Mode::RWXU)).then_some(mode);
    if restore.is_some() {
        // A descriptor that is only a place cannot be changed itself (open(2), "O_PATH").
        rustix::fs::chmod(magic_link(&place), mode | Mode::RWXU)?;
    }
    let fd = rustix::fs::openat(&place, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())?;
    Ok(OpenedDirectory { fd, restore })
}

fn magic_link(descriptor: &OwnedFd) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | DIRECTORY, Mode::empty())?)
}
