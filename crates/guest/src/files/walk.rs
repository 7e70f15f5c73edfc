//! Going down into directories and up again by descriptors, following no link, with one of them open at a time.

use alloc::vec::Vec;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// A place in a tree. However deep it is, it takes one descriptor and a few bytes for each level.
pub(super) struct TreeCursor {
    current: OwnedFd,
    /// What each directory on the way here was.
    above: Vec<FileIdentity>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl TreeCursor {
    /// Starts in a directory.
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self {
            current: directory,
            above: Vec::new(),
        }
    }

    /// The directory that this is.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// Goes into a directory.
    pub(super) fn down(&mut self, name: &[u8]) -> Result<(), Errno> {
        let below = open(&self.current, name)?;
        self.above.push(identity(&self.current)?);
        self.current = below;
        Ok(())
    }

    /// Goes back to the directory above; `ESTALE` if it is another one, because somebody moved this one.
    pub(super) fn up(&mut self) -> Result<(), Errno> {
        let expected = self.above.pop().ok_or(Errno::INVAL)?;
        let above = open(&self.current, b"..")?;
        if identity(&above)? != expected {
            return Err(Errno::STALE);
        }
        self.current = above;
        Ok(())
    }
}

fn open(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn identity(directory: &OwnedFd) -> Result<FileIdentity, Errno> {
    let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(directory)?;
    Ok(FileIdentity {
        device: st_dev,
        inode: st_ino,
    })
}
