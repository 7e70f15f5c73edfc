//! Open files: their contents.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::attributes::of_node;
use crate::bounds::{MAX_COPY, MAX_WRITE};
use crate::handles::{OpenFile, OpenHandle};
use crate::message::{MessageBody, MessageHeader};
use crate::reply::ReplyBuffer;
use crate::tree::Tree;

/// `FUSE_OPEN_KILL_SUIDGID` and `FUSE_WRITE_KILL_SUIDGID`.
const OPEN_TAKES_PRIVILEGES: u32 = 1;
const WRITE_TAKES_PRIVILEGES: u32 = 1 << 2;
/// `FUSE_WRITE_CACHE`: pages that were changed some time, not a call to write.
const OF_THE_CACHE: u32 = 1;
/// `FUSE_FSYNC_FDATASYNC`.
const DATA_ALONE: u32 = 1;
/// `FOPEN_KEEP_CACHE`, and `FOPEN_NOFLUSH`: nothing is to be told when a descriptor is closed.
const KEEP_CACHE: u32 = 1 << 1;
const NO_FLUSH: u32 = 1 << 5;
/// `FOPEN_CACHE_DIR`.
const CACHE_DIRECTORY: u32 = 1 << 3;

/// Whence of `lseek` that the other side cannot answer itself (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// How a file is to be opened.
///
/// Of the flags those count that change what is done. `O_DIRECT` is the other side's own matter, and so are the
/// rest. `O_APPEND` comes with each write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenRequest {
    flags: OFlags,
    exclusive: bool,
    takes_privileges: bool,
}

impl OpenRequest {
    pub(crate) fn new(flags: u32, open_flags: u32) -> Result<Self, Errno> {
        let asked = OFlags::from_bits_retain(flags);
        let access = asked & (OFlags::WRONLY | OFlags::RDWR);
        if access.contains(OFlags::WRONLY | OFlags::RDWR) {
            return Err(Errno::INVAL);
        }
        let kept = asked & (OFlags::TRUNC | OFlags::SYNC | OFlags::DSYNC);
        Ok(Self {
            flags: access | kept,
            exclusive: asked.contains(OFlags::EXCL),
            takes_privileges: open_flags & OPEN_TAKES_PRIVILEGES != 0,
        })
    }

    pub(crate) fn flags(&self) -> OFlags {
        self.flags
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

impl Tree {
    pub(crate) fn open(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let flags = body.u32()?;
        let open_flags = body.u32()?;
        body.end()?;
        let asked = OpenRequest::new(flags, open_flags)?;
        let facts = self.nodes().facts(header.node)?;
        let named = self.descriptor(header.node)?;
        let descriptor = self.open_file(named.as_fd(), facts.file_type, &asked)?;
        if asked.flags().intersects(OFlags::WRONLY | OFlags::RDWR) {
            // An overlay copies a file up for that.
            self.refresh(header.node, named.as_fd())?;
        }
        let node = header.node;
        self.put_handle(node, OpenHandle::File(Arc::new(OpenFile { descriptor, node })), reply)
    }

    /// Opens the file that a descriptor names.
    pub(crate) fn open_file(
        &self,
        named: BorrowedFd<'_>,
        file_type: FileType,
        asked: &OpenRequest,
    ) -> Result<OwnedFd, Errno> {
        if asked.takes_privileges && asked.flags.contains(OFlags::TRUNC) {
            self.take_privileges(named, file_type)?;
        }
        self.reopen(named, file_type, asked.flags)
    }

    /// `fuse_open_out`.
    pub(crate) fn put_handle(&self, node: u64, handle: OpenHandle, reply: &mut ReplyBuffer) -> Result<(), Errno> {
        let facts = self.nodes().facts(node)?;
        let mut flags = match &handle {
            OpenHandle::File(_) => NO_FLUSH,
            OpenHandle::Directory(_) => 0,
        };
        if self.cache(facts).contents {
            flags |= KEEP_CACHE;
            if matches!(handle, OpenHandle::Directory(_)) {
                flags |= CACHE_DIRECTORY;
            }
        }
        reply.u64(self.handles.add(handle)?);
        reply.u32(flags);
        reply.u32(0);
        Ok(())
    }

    pub(crate) fn read(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let handle = body.u64()?;
        let offset = body.u64()?;
        let size = body.u32()?;
        let _rest = body.take(20)?;
        body.end()?;
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?.min(MAX_WRITE);
        let file = of_node(self.handles.file(handle)?, header.node)?;
        let mut have = 0;
        let into = reply.room(size);
        while have < size {
            let rest = into.get_mut(have..).unwrap_or_default();
            let at = offset
                .checked_add(u64::try_from(have).unwrap_or(0))
                .ok_or(Errno::INVAL)?;
            match rustix::io::pread(&file.descriptor, rest, at) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(Errno::INTR) => {}
                Err(_) if have > 0 => break,
                Err(error) => return Err(error),
            }
        }
        reply.truncate_body(have);
        Ok(())
    }

    pub(crate) fn write(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let handle = body.u64()?;
        let offset = body.u64()?;
        let size = body.u32()?;
        let write_flags = body.u32()?;
        let _lock_owner = body.u64()?;
        let flags = OFlags::from_bits_retain(body.u32()?);
        let _padding = body.u32()?;
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let bytes = body.take(size)?;
        body.end()?;
        if size > MAX_WRITE {
            return Err(Errno::INVAL);
        }
        let file = of_node(self.handles.file(handle)?, header.node)?;
        if write_flags & WRITE_TAKES_PRIVILEGES != 0 {
            self.take_privileges(file.descriptor.as_fd(), FileType::RegularFile)?;
        }
        // At the end as it is now, whatever the other side believes; pages of its cache have their place.
        let appends = flags.contains(OFlags::APPEND) && write_flags & OF_THE_CACHE == 0;
        let written = if appends {
            append(&file.descriptor, bytes)?
        } else {
            write_at(&file.descriptor, bytes, offset)?
        };
        reply.u32(u32::try_from(written).map_err(|_| Errno::INVAL)?);
        reply.u32(0);
        Ok(())
    }

    pub(crate) fn release(&self, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let handle = body.u64()?;
        let _rest = body.take(16)?;
        body.end()?;
        self.handles.remove(handle);
        Ok(())
    }

    pub(crate) fn fsync(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let handle = body.u64()?;
        let flags = body.u32()?;
        let _padding = body.u32()?;
        body.end()?;
        let file = of_node(self.handles.file(handle)?, header.node)?;
        if flags & DATA_ALONE != 0 {
            rustix::fs::fdatasync(&file.descriptor)
        } else {
            rustix::fs::fsync(&file.descriptor)
        }
    }

    pub(crate) fn fallocate(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let handle = body.u64()?;
        let offset = body.u64()?;
        let length = body.u64()?;
        let mode = body.u32()?;
        let _padding = body.u32()?;
        body.end()?;
        let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        let mode = FallocateFlags::from_bits_retain(mode);
        if !known.contains(mode) {
            return Err(Errno::OPNOTSUPP);
        }
        let file = of_node(self.handles.file(handle)?, header.node)?;
        rustix::fs::fallocate(&file.descriptor, mode, offset, length)
    }

    pub(crate) fn lseek(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let handle = body.u64()?;
        let offset = body.u64()?;
        let whence = body.u32()?;
        let _padding = body.u32()?;
        body.end()?;
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        let file = of_node(self.handles.file(handle)?, header.node)?;
        // Its own position counts for nothing: all else says where.
        reply.u64(rustix::fs::seek(&file.descriptor, to)?);
        Ok(())
    }

    pub(crate) fn copy_file_range(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let from = body.u64()?;
        let mut from_offset = body.u64()?;
        let to_node = body.u64()?;
        let to = body.u64()?;
        let mut to_offset = body.u64()?;
        let length = body.u64()?;
        let flags = body.u64()?;
        body.end()?;
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let from = of_node(self.handles.file(from)?, header.node)?;
        let to = of_node(self.handles.file(to)?, to_node)?;
        let length = usize::try_from(length).unwrap_or(MAX_COPY).min(MAX_COPY);
        let copied = rustix::fs::copy_file_range(
            &from.descriptor,
            Some(&mut from_offset),
            &to.descriptor,
            Some(&mut to_offset),
            length,
        )?;
        reply.u32(u32::try_from(copied).map_err(|_| Errno::INVAL)?);
        reply.u32(0);
        Ok(())
    }
}

fn write_at(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    write_all(bytes, |rest, done| {
        let at = offset
            .checked_add(u64::try_from(done).unwrap_or(0))
            .ok_or(Errno::FBIG)?;
        rustix::io::pwrite(file, rest, at)
    })
}

fn append(file: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    write_all(bytes, |rest, _| {
        rustix::io::pwritev2(file, &[IoSlice::new(rest)], 0, ReadWriteFlags::APPEND)
    })
}

/// Writes until all is written or something is in the way, which is told only if nothing was.
fn write_all(bytes: &[u8], mut write: impl FnMut(&[u8], usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match write(bytes.get(done..).unwrap_or_default(), done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
