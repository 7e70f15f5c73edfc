//! A copy of a file that cannot be linked: one that the kernel keeps for its owner, or whose owner is nobody here.

use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::{attributes, copy};

/// Bytes at a time.
const PIECE: usize = 1 << 20;

/// Copies what is not a directory to the same name in `target`. The copy is this user's, and so without setuid bits.
pub(super) fn copy(source: BorrowedFd<'_>, name: &CStr, stat: &Stat, target: BorrowedFd<'_>) -> Result<(), Errno> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => regular(source, name, stat, target),
        FileType::Symlink => {
            let link = rustix::fs::readlinkat(source, name, alloc::vec::Vec::new())?;
            rustix::fs::symlinkat(link.as_c_str(), target, name)?;
            attributes::set_times_at(target, name, stat)
        }
        kind @ (FileType::Fifo | FileType::Socket) => {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
            rustix::fs::mknodat(target, name, kind, mode, 0)?;
            attributes::set_times_at(target, name, stat)
        }
        _ => Err(Errno::XDEV),
    }
}

fn regular(source: BorrowedFd<'_>, name: &CStr, stat: &Stat, target: BorrowedFd<'_>) -> Result<(), Errno> {
    // Neither a link nor a pipe that lies there by now is opened, or waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let from = rustix::fs::openat(source, name, flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&from)?;
    if !copy::is_same(&opened, stat) || FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Err(Errno::BUSY);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = rustix::fs::openat(target, name, flags, Mode::from_raw_mode(0o600))?;
    let copied = pieces(&from, &to, u64::try_from(opened.st_size).unwrap_or(0))
        .and_then(|()| attributes::copy(from.as_fd(), to.as_fd()))
        .and_then(|()| rustix::fs::fchmod(&to, Mode::from_raw_mode(opened.st_mode & 0o1777)))
        .and_then(|()| attributes::set_times(to.as_fd(), &opened));
    copied.inspect_err(|_| {
        // So that nothing is left half copied, whatever becomes of the rest.
        let _ = rustix::fs::unlinkat(target, name, AtFlags::empty());
    })
}

/// Copies what is written in a file; holes stay holes.
fn pieces(from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Errno> {
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            // Nothing but a hole follows.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            found => found?,
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(start)) {
            Err(Errno::INVAL | Errno::NXIO) => size,
            found => found?,
        };
        range(from, to, start, end)?;
        at = end;
    }
    rustix::fs::ftruncate(to, size)
}

fn range(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<(), Errno> {
    let (mut read, mut written) = (at, at);
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), length) {
            // Shorter than it was.
            Ok(0) => return Ok(()),
            Ok(count) => at += u64::try_from(count).unwrap_or(0),
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return by_hand(from, to, at, end),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// As `range`, where the file system does not copy by itself.
fn by_hand(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<(), Errno> {
    let mut buffer = alloc::vec![0; 64 * 1024];
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(from, &mut buffer[..length], at))?;
        if read == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < read {
            let place = at + u64::try_from(done).unwrap_or(0);
            done += rustix::io::retry_on_intr(|| rustix::io::pwrite(to, &buffer[done..read], place))?;
        }
        at += u64::try_from(read).unwrap_or(0);
    }
    Ok(())
}
