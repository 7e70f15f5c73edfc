//! The contents of files: sent, and written in place.

use offleash_protocol::files::{DATA_CHUNK, FileReply, FileRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::channel::{HostChannel, IncomingWrite};
use super::entry;
use super::failure::{FileFailure, RequestStop, failed};
use super::metadata::{self, MetadataPairs};
use super::path::GuestPath;

/// Opening does not wait, whatever is there, and makes no terminal ours.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Sends the file from `offset` on: what it is, and its bytes until `length` or its end.
pub(super) fn read(
    channel: &mut HostChannel,
    path: &GuestPath,
    offset: u64,
    length: Option<u64>,
) -> Result<(), RequestStop> {
    let file = rustix::fs::open(path.bytes(), OFlags::RDONLY | FLAGS, Mode::empty()).map_err(failed("open"))?;
    let status = regular(&file)?;
    let metadata = metadata::AttributeTarget::File(file.as_fd()).metadata();
    channel.send(&FileReply::Entry(entry::of_file(&status, path, metadata)))?;
    let (mut offset, mut left) = (offset, length.unwrap_or(u64::MAX));
    while left > 0 {
        let limit = usize::try_from(left).unwrap_or(usize::MAX).min(DATA_CHUNK);
        let count = channel.send_data(limit, |place| {
            rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *place, offset))
        })?;
        if count == 0 {
            break;
        }
        let count = u64::try_from(count).unwrap_or(left);
        (offset, left) = (offset.saturating_add(count), left.saturating_sub(count));
    }
    channel.send(&FileReply::Done)
}

/// The status of a file, if it is a regular one.
fn regular(file: &OwnedFd) -> Result<Stat, FileFailure> {
    let status = rustix::fs::fstat(file).map_err(failed("stat"))?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(status),
        FileType::Directory => Err(failed("open")(Errno::ISDIR)),
        _ => Err(failed("open")(Errno::INVAL)),
    }
}

/// Makes or overwrites a file with the data that follows. After a failure the rest of it is dropped.
pub(super) fn write(channel: &mut HostChannel, path: &GuestPath, metadata: &MetadataPairs) -> Result<(), RequestStop> {
    let mut written = open(path, metadata);
    if let Err(failure) = written {
        channel.send(&failure.into())?;
    }
    loop {
        let add = |bytes: &[u8]| written.as_ref().map_or(Ok(()), |file| append(file, bytes));
        let added = match channel.incoming()? {
            IncomingWrite::Piece(piece) => add(piece),
            IncomingWrite::Request(FileRequest::Data { bytes }) => add(&bytes),
            IncomingWrite::Request(FileRequest::Finish) => break,
            // Not the protocol.
            IncomingWrite::Request(_) => return Err(RequestStop::Gone),
        };
        if let Err(failure) = added {
            channel.send(&failure.into())?;
            written = Err(failure);
        }
    }
    // Otherwise it was answered already.
    if let Ok(file) = written {
        let status = rustix::fs::fstat(&file).map_err(failed("stat"))?;
        channel.send(&FileReply::Entry(entry::of_file(&status, path, metadata.clone())))?;
    }
    Ok(())
}

/// Drops the data of a file that cannot be written.
pub(super) fn drop_data(channel: &mut HostChannel) -> Result<(), RequestStop> {
    loop {
        match channel.next()?.ok_or(RequestStop::Gone)? {
            FileRequest::Data { .. } => {}
            FileRequest::Finish => return Ok(()),
            _ => return Err(RequestStop::Gone),
        }
    }
}

/// Opens a file for its new contents.
///
/// Those who watch see one event of each kind: a new file is made, given to its owner and written, and nothing is
/// renamed.
fn open(path: &GuestPath, metadata: &MetadataPairs) -> Result<OwnedFd, FileFailure> {
    metadata::check(metadata)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | FLAGS;
    let mode = Mode::from_raw_mode(0o666);
    let make = || rustix::fs::open(path.bytes(), flags | OFlags::EXCL, mode);
    let made = match make() {
        Err(Errno::NOENT) => {
            path.make_parents()?;
            make()
        }
        made => made,
    };
    match made {
        Ok(file) => {
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            // It is theirs already, unless the directory says otherwise for the group, which is well.
            let _ = rustix::fs::fchown(&file, Some(user), Some(group));
            metadata::set(file.as_fd(), metadata)?;
            Ok(file)
        }
        Err(Errno::EXIST) => {
            let file = rustix::fs::open(path.bytes(), flags | OFlags::TRUNC, mode).map_err(failed("open"))?;
            regular(&file)?;
            metadata::replace(file.as_fd(), metadata)?;
            Ok(file)
        }
        Err(errno) => Err(failed("open")(errno)),
    }
}

fn append(file: &OwnedFd, bytes: &[u8]) -> Result<(), FileFailure> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(file, rest) {
            Ok(0) => return Err(failed("write")(Errno::IO)),
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("write")(errno)),
        }
    }
    Ok(())
}
