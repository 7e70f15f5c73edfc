//! What is at a path, as the host is told.

use alloc::vec::Vec;

use offleash_protocol::files::{FileEntry, LinkTarget};
use offleash_sys::spawn;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::failure::{FileFailure, failed};
use super::metadata::{AttributeTarget, MetadataPairs};
use super::names::AccountNames;
use super::path::{GuestPath, joined};

/// What is at a path, the last link not followed.
pub(super) fn at(path: &GuestPath, names: &mut AccountNames) -> Result<FileEntry, FileFailure> {
    let status = rustix::fs::statat(CWD, path.bytes(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed("stat"))?;
    let mut entry = of_status(&status, path.bytes().to_vec(), names);
    complete(&mut entry, CWD, path.bytes(), path.bytes());
    Ok(entry)
}

/// What has this name in a directory that is open; `path` is the whole path.
pub(super) fn below(
    directory: BorrowedFd<'_>,
    name: &[u8],
    path: Vec<u8>,
    names: &mut AccountNames,
) -> Result<FileEntry, Errno> {
    let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut entry = of_status(&status, path, names);
    // By way of the descriptor, whatever was moved meanwhile and however long the path is.
    let by_descriptor = joined(&of_descriptor(directory), name);
    complete(&mut entry, directory, name, &by_descriptor);
    Ok(entry)
}

/// What an open file is.
pub(super) fn of_file(status: &Stat, path: &GuestPath, metadata: MetadataPairs) -> FileEntry {
    let mut entry = of_status(status, path.bytes().to_vec(), &mut AccountNames::default());
    entry.metadata = metadata;
    entry
}

/// About how many bytes it takes on the way to the host.
pub(super) fn size(entry: &FileEntry) -> usize {
    let metadata = entry.metadata.iter().map(|(name, value)| name.len() + value.len());
    let target = entry.target.as_ref().map_or(0, |target| target.path.len());
    entry.path.len() + target + metadata.sum::<usize>()
}

/// The type that `st_mode` says.
pub(super) fn type_of(mode: u32) -> FileType {
    FileType::from_raw_mode(mode)
}

fn of_status(status: &Stat, path: Vec<u8>, names: &mut AccountNames) -> FileEntry {
    FileEntry {
        path,
        mode: status.st_mode,
        size: u64::try_from(status.st_size).unwrap_or(0),
        uid: status.st_uid,
        gid: status.st_gid,
        owner: names.user(status.st_uid),
        group: names.group(status.st_gid),
        modified_s: status.st_mtime,
        modified_ns: u32::try_from(status.st_mtime_nsec).unwrap_or(0),
        target: None,
        metadata: MetadataPairs::new(),
    }
}

/// Adds where a link leads, or what a file is annotated with; links have no annotations.
fn complete(entry: &mut FileEntry, directory: BorrowedFd<'_>, name: &[u8], attributed: &[u8]) {
    match type_of(entry.mode) {
        FileType::Symlink => entry.target = target(directory, name),
        FileType::RegularFile | FileType::Directory => entry.metadata = AttributeTarget::Path(attributed).metadata(),
        _ => {}
    }
}

/// Where a link leads in the end; what it says if nothing is there. `None` if it is no link any more.
fn target(directory: BorrowedFd<'_>, name: &[u8]) -> Option<LinkTarget> {
    let text = || rustix::fs::readlinkat(directory, name, Vec::new()).map(alloc::ffi::CString::into_bytes);
    // Nothing is opened by that, so that neither a FIFO nor a device notices.
    let reached = rustix::fs::openat(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Ok(reached) = reached else {
        return text().ok().map(|path| LinkTarget { path, mode: None });
    };
    let mode = rustix::fs::fstat(&reached).ok().map(|status| status.st_mode);
    let path = rustix::fs::readlinkat(CWD, of_descriptor(reached.as_fd()), Vec::new());
    let path = path.map(alloc::ffi::CString::into_bytes);
    match path {
        Ok(path) if path.starts_with(b"/") => Some(LinkTarget { path, mode }),
        // A pipe and the like, or too long a path.
        _ => text().ok().map(|path| LinkTarget { path, mode }),
    }
}

/// The path under which a descriptor of ours can be found.
pub(super) fn of_descriptor(descriptor: BorrowedFd<'_>) -> Vec<u8> {
    let mut path = Vec::from(&b"/proc/self/fd/"[..]);
    spawn::append_decimal(&mut path, descriptor.as_raw_fd().unsigned_abs());
    path
}
