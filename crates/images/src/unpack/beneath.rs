//! A directory below which names are resolved, and no link is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::entry_path::EntryPath;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// How a directory is marked that hides what is below it (overlayfs, `userxattr`).
pub(crate) const OPAQUE: &str = "user.overlay.opaque";

/// The root of a layer.
#[derive(Debug)]
pub(crate) struct Beneath {
    root: OwnedFd,
}

impl Beneath {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root }
    }

    /// The directory `path`, as a place to start from.
    pub(crate) fn directory(&self, path: &EntryPath) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The directory `path`, to be read and to be given attributes.
    pub(crate) fn readable(&self, path: &EntryPath) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn open(&self, path: &EntryPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_root() { b"." } else { path.bytes() };
        loop {
            match rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), BENEATH) {
                // A rename elsewhere disturbed the walk (openat2(2), EAGAIN).
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

/// What `name` in a directory is; `None` if there is no such name.
pub(crate) fn stat_at(directory: impl AsFd, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Whether it is what hides a name of a lower layer.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(crate) fn is_opaque(directory: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 4];
    matches!(rustix::fs::fgetxattr(directory, OPAQUE, &mut value), Ok(1)) && value[0] == b'y'
}

/// Hides what lower layers have in the directory `name`.
pub(crate) fn make_opaque(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    rustix::fs::fsetxattr(&directory, OPAQUE, b"y", rustix::fs::XattrFlags::empty())
}
