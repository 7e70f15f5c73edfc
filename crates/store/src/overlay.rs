//! The marks that overlayfs leaves in an upper directory.
//!
//! A whiteout is a character device 0/0, or an empty file with `overlay.whiteout`; an opaque directory has
//! `overlay.opaque` = `y`; both in the `user.` namespace when mounted with `userxattr`, else in `trusted.`
//! (<https://docs.kernel.org/filesystems/overlayfs.html>). A sandbox cannot set them through the mount, and if it could
//! it would only describe a deletion.

use std::os::fd::OwnedFd;

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::node::{NodeKind, kind_of};
use crate::tree::magic_link;

/// `XATTR_LIST_MAX`.
const MAX_LIST: usize = 65_536;

/// The marks on one entry.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverlayMarks {
    pub(crate) whiteout: bool,
    /// It was copied from the host's entry of the same name, so there was one.
    pub(crate) copied_up: bool,
    /// Its contents, or its name, are elsewhere: made by `metacopy=on` or `redirect_dir=on`, which we never mount with.
    pub(crate) incomplete: bool,
    opaque: bool,
}

/// Whether the device number and type are those of a whiteout.
pub(crate) fn is_whiteout_device(stat: &Stat) -> bool {
    kind_of(stat) == NodeKind::Device && stat.st_rdev == 0
}

/// The marks on what an `O_PATH` descriptor stands for. Symbolic links and special files can have none in `user.`.
pub(crate) fn marks(place: &OwnedFd) -> Result<OverlayMarks, Errno> {
    let mut marks = OverlayMarks::default();
    for name in attribute_names(place)?.split(|byte| *byte == 0) {
        let Some(mark) = name
            .strip_prefix(b"user.overlay.")
            .or_else(|| name.strip_prefix(b"trusted.overlay."))
        else {
            continue;
        };
        match mark {
            b"whiteout" => marks.whiteout = true,
            b"origin" => marks.copied_up = true,
            b"metacopy" | b"redirect" => marks.incomplete = true,
            b"opaque" => marks.opaque = true,
            _ => {}
        }
    }
    Ok(marks)
}

/// Whether a directory, open for reading and with these marks, hides what the host has in it.
pub(crate) fn is_opaque(directory: &OwnedFd, marks: OverlayMarks) -> Result<bool, Errno> {
    Ok(marks.opaque
        && (has_opaque(directory, "user.overlay.opaque")? || has_opaque(directory, "trusted.overlay.opaque")?))
}

fn has_opaque(directory: &OwnedFd, name: &str) -> Result<bool, Errno> {
    let mut value = [0_u8; 8];
    match rustix::fs::fgetxattr(directory, name, &mut value) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE | Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

fn attribute_names(place: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let path = magic_link(place);
    for length in [1024, MAX_LIST] {
        let mut names = vec![0_u8; length];
        match rustix::fs::listxattr(&path, &mut names) {
            Ok(filled) => {
                names.truncate(filled);
                return Ok(names);
            }
            Err(Errno::RANGE) => {}
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}
