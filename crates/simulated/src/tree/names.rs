//! The marks in a layer, as overlayfs makes them when it is mounted with `userxattr`: what is removed, and directories that
//! hide what is below them (<https://docs.kernel.org/filesystems/overlayfs.html>).

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

const OPAQUE: &str = "user.overlay.opaque";
const WHITEOUT: &str = "user.overlay.whiteout";

/// Whether the entry of this name says that there is none.
pub(super) fn is_whiteout(directory: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<bool, Errno> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => Ok(stat.st_rdev == 0),
        FileType::RegularFile if stat.st_size == 0 => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::openat(directory, name, flags, Mode::empty()) {
                Ok(file) => has_mark(&file, WHITEOUT, false),
                // Made by the worker without a right to read it; a mark is always readable.
                Err(Errno::ACCESS) => Ok(false),
                Err(error) => Err(error),
            }
        }
        _ => Ok(false),
    }
}

/// Whether a directory of the layer hides what the host has in its place.
pub(super) fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    has_mark(directory, OPAQUE, true)
}

fn has_mark(file: &OwnedFd, name: &str, must_say_yes: bool) -> Result<bool, Errno> {
    let mut value = [0_u8; 8];
    match rustix::fs::fgetxattr(file, name, &mut value) {
        Ok(length) => Ok(!must_say_yes || value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE | Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Has a directory hide what the host has in its place.
pub(super) fn make_opaque(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

/// Marks `name` as removed: with a device 0/0, which any user may make (Linux 5.8), or with an attribute.
pub(super) fn make_whiteout(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => {}
        other => return other,
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR)?;
    rustix::fs::fsetxattr(&file, WHITEOUT, b"y", XattrFlags::empty())
}

/// Removes the mark of this name, if there is one; answers whether there was.
pub(super) fn remove_whiteout(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    match super::stat_at(directory, name) {
        Ok(stat) if is_whiteout(directory, name, &stat)? => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            Ok(true)
        }
        Ok(_) | Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
