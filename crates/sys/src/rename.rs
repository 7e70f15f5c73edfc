//! Renaming by the kernel alone, where the filter would offer it to the supervisor.

use core::ffi::CStr;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

use crate::spawn::raw;

/// What marks such a call, behind its last argument, where the kernel does not look.
pub(crate) const MARK: u32 = 0x6f66_666c;

/// `RENAME_NOREPLACE` (`linux/fs.h`).
const NO_REPLACE: usize = 1;

/// Renames as renameat2(2) does, with `RENAME_NOREPLACE` or without; a supervisor is not asked.
///
/// # Errors
/// What renameat2(2) answers (Linux 3.15).
pub fn by_kernel(
    old_directory: BorrowedFd<'_>,
    old: &CStr,
    new_directory: BorrowedFd<'_>,
    new: &CStr,
    replaces: bool,
) -> Result<(), Errno> {
    // `AT_FDCWD` is negative; the kernel looks at the low half alone.
    let number = |directory: BorrowedFd<'_>| directory.as_raw_fd().cast_unsigned() as usize;
    let arguments = [
        number(old_directory),
        old.as_ptr().expose_provenance(),
        number(new_directory),
        new.as_ptr().expose_provenance(),
        if replaces { 0 } else { NO_REPLACE },
        MARK as usize,
    ];
    // SAFETY: both paths end with a zero byte and outlive the call, which reads nothing else of ours.
    raw::checked(unsafe { raw::call(libc::SYS_renameat2, arguments) }).map(drop)
}
