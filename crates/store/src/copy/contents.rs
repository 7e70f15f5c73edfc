//! The bytes of a file: shared where the file system can, copied by the kernel otherwise, and holes stay holes.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

/// How much the kernel is asked to copy at once.
const PIECE: usize = 16 * 1024 * 1024;
/// How much is in memory where it cannot.
const BUFFER: usize = 256 * 1024;

/// Copies the `size` bytes of `from` to `to`, which is empty. Holes stay holes.
///
/// # Errors
/// The kernel's.
pub fn copy_contents(from: &OwnedFd, to: &OwnedFd, size: i64) -> Result<(), Errno> {
    let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
    if size == 0 || ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    // Also what follows the last byte that is no hole.
    ftruncate(to, size)?;
    let mut done = 0;
    while done < size {
        let Some((start, end)) = next_data(from, done, size)? else {
            return Ok(());
        };
        copy_range(from, to, start, end)?;
        done = end;
    }
    Ok(())
}

/// The next part that is no hole; `None` if there is none any more.
pub(crate) fn next_data(from: impl AsFd, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let from = from.as_fd();
    let start = match seek(from, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // This file system knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error),
    };
    let end = seek(from, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some((start, end)))
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let piece = usize::try_from(end - read).unwrap_or(PIECE).min(PIECE);
        match copy_file_range(from, Some(&mut read), to, Some(&mut written), piece) {
            // It is shorter than it was.
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return read_and_write(from, to, read, end);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_and_write(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<(), Errno> {
    let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 0).map(File::from);
    let (from, to) = (again(from)?, again(to)?);
    let mut buffer = vec![0; BUFFER];
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
        let read = from.read_at(&mut buffer[..most], at).map_err(failed)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..read], at).map_err(failed)?;
        at += u64::try_from(read).unwrap_or(u64::MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
