//! What a file has besides its contents.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const MAX_SIZE: usize = 65_536;

/// Room for the names that most files have.
const SHORT: usize = 256;

/// Lists of who may do what (acl(5)), which a directory has from the one above unless it has one of its own.
const ACCESS_LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];

/// Gives `target` the extended attributes of `source` that a user can set, and none that it has from the directory above.
pub(super) fn copy(source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let names = names(source)?;
    for list in ACCESS_LISTS {
        if !names.iter().any(|name| name.as_c_str() == list) {
            match rustix::fs::fremovexattr(target, list) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    let mut value = Vec::new();
    for name in names {
        let is_list = ACCESS_LISTS.contains(&name.as_c_str());
        if !is_list && !name.to_bytes().starts_with(b"user.") {
            continue;
        }
        value.resize(MAX_SIZE, 0);
        match rustix::fs::fgetxattr(source, &name, &mut value[..]) {
            Ok(length) => rustix::fs::fsetxattr(target, &name, &value[..length], XattrFlags::empty())?,
            // Gone meanwhile, or not for this user to read.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn names(file: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut listed = alloc::vec![0; SHORT];
    let listing = match rustix::fs::flistxattr(file, &mut listed[..]) {
        Err(Errno::RANGE) => {
            listed.resize(MAX_SIZE, 0);
            rustix::fs::flistxattr(file, &mut listed[..])
        }
        answered => answered,
    };
    match listing {
        Ok(length) => listed.truncate(length),
        Err(Errno::OPNOTSUPP) => listed.clear(),
        Err(errno) => return Err(errno),
    }
    let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

/// Gives a file the times of access and modification of another one.
pub(super) fn set_times(target: BorrowedFd<'_>, stat: &Stat) -> Result<(), Errno> {
    rustix::fs::futimens(target, &times(stat))
}

/// As [`set_times`], for what cannot be opened; a link is not followed.
pub(super) fn set_times_at(directory: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<(), Errno> {
    rustix::fs::utimensat(directory, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}
