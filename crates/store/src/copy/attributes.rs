//! What an entry has beside its contents.

use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::tree::magic_link;

/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const MAX_LENGTH: usize = 65_536;

/// Attributes that are part of what a sandbox wrote, or of what overlayfs noted. Others, such as labels, the kernel gives.
const COPIED: [&[u8]; 4] = [
    b"user.",
    b"trusted.overlay.",
    b"system.posix_acl_",
    b"security.capability",
];

/// An entry of a directory, which may be `.` itself.
pub(super) type AttributeTarget<'a> = (&'a OwnedFd, &'a CStr);

/// From whose ids to whose owners are moved: those of a range that begins with the first become those of one that begins
/// with the second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerShift {
    /// The first uid and gid of both; none are moved if absent.
    pub ids: Option<((u32, u32), (u32, u32))>,
}

/// How many ids a sandbox has at most.
const RANGE: u32 = 65_536;

impl OwnerShift {
    fn owner(self, (uid, gid): (u32, u32)) -> (u32, u32) {
        let Some((from, to)) = self.ids else {
            return (uid, gid);
        };
        (moved(uid, from.0, to.0), moved(gid, from.1, to.1))
    }
}

fn moved(id: u32, from: u32, to: u32) -> u32 {
    match id.checked_sub(from) {
        Some(inside) if inside < RANGE => to.saturating_add(inside),
        _ => id,
    }
}

/// Removes attributes of `to` that `from` has not; overlayfs's own stay.
pub(super) fn prune_attributes(from: AttributeTarget<'_>, to: AttributeTarget<'_>) -> Result<(), Errno> {
    let (from, to) = (path(from), path(to));
    let kept = names(&from)?;
    let is_kept = |name: &[u8]| kept.split(|byte| *byte == 0).any(|kept| kept == name);
    for name in names(&to)?.split(|byte| *byte == 0).filter(|name| is_copied(name)) {
        let is_overlays = name.starts_with(b"user.overlay.") || name.starts_with(b"trusted.overlay.");
        if !is_overlays && !is_kept(name) {
            rustix::fs::lremovexattr(&to, name)?;
        }
    }
    Ok(())
}

/// A capability of a file in the form that names the superuser whom it is of (`VFS_CAP_REVISION_3`): its length, and where the
/// id is.
const NAMED_CAPABILITY: (usize, std::ops::Range<usize>) = (24, 20..24);

/// Copies the extended attributes.
pub(super) fn copy_attributes(
    from: AttributeTarget<'_>,
    to: AttributeTarget<'_>,
    shift: OwnerShift,
) -> Result<(), Errno> {
    let (from, to) = (path(from), path(to));
    for name in names(&from)?.split(|byte| *byte == 0).filter(|name| is_copied(name)) {
        let mut value = match value(&from, name) {
            // Gone, or not for us: overlayfs's own we could read.
            Err(Errno::NODATA) => continue,
            value => value?,
        };
        if let (b"security.capability", true, Some((from, to))) = (name, value.len() == NAMED_CAPABILITY.0, shift.ids)
            && let Some(place) = value.get_mut(NAMED_CAPABILITY.1)
            && place == from.0.to_le_bytes()
        {
            place.copy_from_slice(&to.0.to_le_bytes());
        }
        match rustix::fs::lsetxattr(&to, name, &value, XattrFlags::empty()) {
            // Without power over the ids in it, which mean nothing on a mount without set-user-id either.
            Err(Errno::PERM) if name == b"security.capability" => {}
            set => set?,
        }
    }
    Ok(())
}

/// Copies owner, mode and times, in this order: each would change what was before the other way round.
pub(super) fn copy_owner_and_times(stat: &Stat, parent: &OwnedFd, name: &CStr, shift: OwnerShift) -> Result<(), Errno> {
    let made = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let owner = shift.owner((stat.st_uid, stat.st_gid));
    if (made.st_uid, made.st_gid) != owner {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // The entry is ours and no link, so nothing is followed.
        rustix::fs::chmodat(
            parent,
            name,
            Mode::from_raw_mode(stat.st_mode & 0o7777),
            AtFlags::empty(),
        )?;
    }
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn time(seconds: i64, nanoseconds: impl TryInto<i64>) -> Timespec {
    Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or(0),
    }
}

/// By way of the directory's descriptor: attributes of links and special files can be had by path alone, and the last part
/// of this one is not followed.
fn path((directory, name): AttributeTarget<'_>) -> PathBuf {
    magic_link(directory).join(OsStr::from_bytes(name.to_bytes()))
}

fn is_copied(name: &[u8]) -> bool {
    COPIED.iter().any(|prefix| name.starts_with(prefix))
}

fn names(path: &PathBuf) -> Result<Vec<u8>, Errno> {
    whole(|buffer| rustix::fs::llistxattr(path, buffer)).or_else(|error| match error {
        Errno::OPNOTSUPP => Ok(Vec::new()),
        error => Err(error),
    })
}

fn value(path: &PathBuf, name: &[u8]) -> Result<Vec<u8>, Errno> {
    whole(|buffer| rustix::fs::lgetxattr(path, name, buffer))
}

fn whole(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    for length in [256, MAX_LENGTH] {
        let mut buffer = vec![0_u8; length];
        match read(&mut buffer) {
            Ok(filled) => {
                buffer.truncate(filled);
                return Ok(buffer);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}
