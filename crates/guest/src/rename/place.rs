//! A name in a directory, and what is there.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

/// `OVERLAYFS_SUPER_MAGIC` (`linux/magic.h`).
const OVERLAY: u64 = 0x794c_7630;

/// A name in a directory.
pub(super) struct DirectoryEntry {
    pub(super) parent: OwnedFd,
    pub(super) name: CString,
}

/// Which file something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(file: impl AsFd) -> Result<Self, Errno> {
        rustix::fs::fstat(file).map(|stat| (&stat).into())
    }
}

impl From<&Stat> for FileIdentity {
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

impl DirectoryEntry {
    /// Resolves all of a path but its last name, which is not followed.
    pub(super) fn resolve(from: BorrowedFd<'_>, path: &[u8]) -> Result<Self, Errno> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = path.get(..end).unwrap_or_default();
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, name) = path.split_at(start);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::BUSY);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = if above.is_empty() { b"." } else { above };
        Ok(Self {
            parent: rustix::fs::openat(from, above, flags, Mode::empty())?,
            name: CString::new(name).map_err(|_| Errno::INVAL)?,
        })
    }

    /// Which file a name in the directory is.
    pub(super) fn identity(&self, name: &CStr) -> Result<FileIdentity, Errno> {
        let stat = rustix::fs::statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((&stat).into())
    }

    /// Opens the directory that has the name.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        open_directory(self.parent.as_fd(), &self.name)
    }

    pub(super) fn is_on_overlay(&self) -> Result<bool, Errno> {
        let found = rustix::fs::fstatfs(&self.parent)?;
        Ok(u64::try_from(found.f_type).is_ok_and(|kind| kind == OVERLAY))
    }

    /// The number of the mount, and that of its file system for kernels that do not tell the former (before Linux 5.8).
    pub(super) fn mount(&self) -> Result<(u64, u32, u32), Errno> {
        const MOUNT: StatxFlags = StatxFlags::MNT_ID;
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(&self.parent, c"", flags, MOUNT)?;
        let number = if found.stx_mask & MOUNT.bits() == 0 {
            0
        } else {
            found.stx_mnt_id
        };
        Ok((number, found.stx_dev_major, found.stx_dev_minor))
    }

    /// Finds out early what the kernel says at last of a directory that has entries.
    pub(super) fn check_vacant(&self) -> Result<(), Errno> {
        let Ok(directory) = self.open() else {
            return Ok(());
        };
        let Ok(mut entries) = Dir::new(directory) else {
            return Ok(());
        };
        while let Some(Ok(entry)) = entries.read() {
            if !is_self(entry.file_name()) {
                return Err(Errno::NOTEMPTY);
            }
        }
        Ok(())
    }
}

/// Opens a directory by its name in another one; a link is not followed.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Another descriptor of the same.
pub(super) fn again(descriptor: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 0)
}

/// Whether an entry is the directory itself, or the one above.
pub(super) fn is_self(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// The way from the directory of one place to another place, by names and `..` alone.
pub(super) fn way(from: &DirectoryEntry, to: &DirectoryEntry) -> Result<CString, Errno> {
    let (here, there) = (path_of(&from.parent)?, path_of(&to.parent)?);
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let parts = path.split(|byte| *byte == b'/');
        parts.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let (here, there) = (names(here.to_bytes()), names(there.to_bytes()));
    let common = here.iter().zip(&there).take_while(|(one, other)| one == other).count();
    let mut way = Vec::new();
    for _ in common..here.len() {
        way.extend_from_slice(b"../");
    }
    for name in there.iter().skip(common) {
        way.extend_from_slice(name);
        way.push(b'/');
    }
    way.extend_from_slice(to.name.to_bytes());
    CString::new(way).map_err(|_| Errno::INVAL)
}

/// Where a directory is now, as the kernel says.
fn path_of(directory: &OwnedFd) -> Result<CString, Errno> {
    rustix::process::fchdir(directory)?;
    let path = rustix::process::getcwd(Vec::new())?;
    match path.to_bytes().first() {
        Some(b'/') => Ok(path),
        // Not below our root.
        _ => Err(Errno::XDEV),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> DirectoryEntry {
        DirectoryEntry::resolve(rustix::fs::CWD, path.as_bytes()).unwrap()
    }

    #[test]
    fn the_last_name_is_split_off_and_never_followed() {
        let place = place("/proc/self//fd///");
        assert_eq!(place.name.as_c_str(), c"fd");
        for path in ["", "/", "//", ".", "/proc/..", "proc/./."] {
            let error = DirectoryEntry::resolve(rustix::fs::CWD, path.as_bytes()).err();
            assert_eq!(error, Some(Errno::BUSY), "{path}");
        }
    }
}
