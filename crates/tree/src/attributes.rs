//! Size, mode, owner and times: told and changed. And how full a file system is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, StatVfs, Statx, StatxTimestamp, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::handles::OpenFile;
use crate::message::{MessageBody, MessageHeader};
use crate::mounts;
use crate::nodes::NodeFacts;
use crate::reply::ReplyBuffer;
use crate::tree::{FoundFile, Tree};

/// `FUSE_GETATTR_FH`: the handle counts.
const BY_HANDLE: u32 = 1;

/// Bits of `fuse_setattr_in.valid`.
const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const HANDLE: u32 = 1 << 6;
const ATIME_NOW: u32 = 1 << 7;
const MTIME_NOW: u32 = 1 << 8;
const LOCK_OWNER: u32 = 1 << 9;
const CTIME: u32 = 1 << 10;
const KILL_SUIDGID: u32 = 1 << 11;
const KNOWN: u32 = (KILL_SUIDGID << 1) - 1;

/// Nanoseconds that stand for now and for what is there (utimensat(2)).
const NOW: i64 = 0x3fff_ffff;
const OMIT: i64 = 0x3fff_fffe;

/// Bits of a mode that `chmod` changes.
pub(crate) const MODE_BITS: u32 = 0o7777;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o0010;

impl Tree {
    pub(crate) fn getattr(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let flags = body.u32()?;
        let _dummy = body.u32()?;
        let handle = body.u64()?;
        body.end()?;
        let found = self.look_at(header.node, (flags & BY_HANDLE != 0).then_some(handle))?;
        self.put_attributes(&found, reply);
        Ok(())
    }

    pub(crate) fn statx(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let flags = body.u32()?;
        let _reserved = body.u32()?;
        let handle = body.u64()?;
        let _sx_flags = body.u32()?;
        let _sx_mask = body.u32()?;
        body.end()?;
        let found = self.look_at(header.node, (flags & BY_HANDLE != 0).then_some(handle))?;
        let remembered = self.cache(found.facts).attributes;
        reply.u64(remembered.as_secs());
        reply.u32(remembered.subsec_nanos());
        reply.u32(0);
        reply.bytes(&[0; 16]);
        self.put_statx(&found.stat, reply);
        Ok(())
    }

    fn look_at(&self, node: u64, handle: Option<u64>) -> Result<FoundFile, Errno> {
        // Nobody is answered about a handle of another node; a handle that is a directory's is as good as none.
        let file = handle
            .and_then(|handle| self.handles.file(handle).ok())
            .filter(|file| file.node == node);
        match file {
            Some(file) => self.refresh(node, file.descriptor.as_fd()),
            None => {
                let named = self.descriptor(node)?;
                self.refresh(node, named.as_fd())
            }
        }
    }

    pub(crate) fn setattr(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let change = AttributeChange::read(&mut body)?;
        body.end()?;
        let facts = self.nodes().facts(header.node)?;
        let named = self.descriptor(header.node)?;
        if change.asks(UID) || change.asks(GID) {
            let uid = change
                .asks(UID)
                .then(|| owner(change.uid))
                .transpose()?
                .map(Uid::from_raw);
            let gid = change
                .asks(GID)
                .then(|| owner(change.gid))
                .transpose()?
                .map(Gid::from_raw);
            rustix::fs::chownat(&named, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        // After the owner, whose change takes bits of the mode away.
        if change.asks(MODE) {
            self.chmod(named.as_fd(), facts.file_type, change.mode & MODE_BITS)?;
        }
        if change.asks(SIZE) {
            self.resize(&change, header.node, facts, named.as_fd())?;
        }
        if let Some(times) = change.times() {
            rustix::fs::utimensat(&named, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        let found = self.refresh(header.node, named.as_fd())?;
        self.put_attributes(&found, reply);
        Ok(())
    }

    fn chmod(&self, named: BorrowedFd<'_>, file_type: FileType, mode: u32) -> Result<(), Errno> {
        if file_type == FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let (directory, name) = self.by_path(named);
        rustix::fs::chmodat(directory, name, Mode::from_raw_mode(mode), AtFlags::empty())
    }

    fn resize(
        &self,
        change: &AttributeChange,
        node: u64,
        facts: NodeFacts,
        named: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        if change.size > i64::MAX.unsigned_abs() {
            return Err(Errno::FBIG);
        }
        if change.asks(KILL_SUIDGID) {
            self.take_privileges(named, facts.file_type)?;
        }
        let opened = change
            .asks(HANDLE)
            .then(|| self.handles.file(change.handle).ok())
            .flatten()
            .filter(|file| file.node == node);
        if let Some(file) = opened {
            match rustix::fs::ftruncate(&file.descriptor, change.size) {
                // What was opened to be read only is opened anew.
                Err(Errno::INVAL | Errno::BADF) => {}
                done => return done,
            }
        }
        let file = self.reopen(named, facts.file_type, OFlags::WRONLY)?;
        rustix::fs::ftruncate(&file, change.size)
    }

    /// Takes the bits away that have a program run as its owner or group, because somebody else changes it.
    pub(crate) fn take_privileges(&self, named: BorrowedFd<'_>, file_type: FileType) -> Result<(), Errno> {
        if file_type != FileType::RegularFile {
            return Ok(());
        }
        let mode = u32::from(self.examine(named, false)?.stat.stx_mode) & MODE_BITS;
        let mut without = mode & !SET_UID;
        if mode & GROUP_EXECUTES != 0 {
            without &= !SET_GID;
        }
        if without == mode {
            return Ok(());
        }
        self.chmod(named, file_type, without)
    }

    pub(crate) fn statfs(
        &self,
        header: &MessageHeader,
        body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        body.end()?;
        let named: Arc<OwnedFd> = self.descriptor(header.node)?;
        put_statfs(&rustix::fs::fstatvfs(&named)?, reply);
        Ok(())
    }

    /// `fuse_attr_out`.
    pub(crate) fn put_attributes(&self, found: &FoundFile, reply: &mut ReplyBuffer) {
        let remembered = self.cache(found.facts).attributes;
        reply.u64(remembered.as_secs());
        reply.u32(remembered.subsec_nanos());
        reply.u32(0);
        self.put_attr(&found.stat, reply);
    }

    /// `fuse_entry_out`.
    pub(crate) fn put_entry(&self, node: u64, found: &FoundFile, reply: &mut ReplyBuffer) {
        let remembered = self.cache(found.facts);
        put_entry_head(node, remembered.entry, remembered.attributes, reply);
        self.put_attr(&found.stat, reply);
    }

    /// `fuse_attr`.
    fn put_attr(&self, stat: &Statx, reply: &mut ReplyBuffer) {
        reply.u64(self.mounts().number(mounts::device(stat), stat.stx_ino));
        reply.u64(stat.stx_size);
        reply.u64(stat.stx_blocks);
        for time in [stat.stx_atime, stat.stx_mtime, stat.stx_ctime] {
            reply.i64(time.tv_sec);
        }
        for time in [stat.stx_atime, stat.stx_mtime, stat.stx_ctime] {
            reply.u32(time.tv_nsec);
        }
        reply.u32(u32::from(stat.stx_mode));
        reply.u32(stat.stx_nlink);
        reply.u32(stat.stx_uid);
        reply.u32(stat.stx_gid);
        reply.u32(device_number(stat.stx_rdev_major, stat.stx_rdev_minor));
        reply.u32(stat.stx_blksize);
        reply.u32(0);
    }

    /// `fuse_statx`.
    fn put_statx(&self, stat: &Statx, reply: &mut ReplyBuffer) {
        // What the other side has words for: the basic ones, and when a file was made.
        const KNOWN_MASK: u32 = 0x0fff;
        reply.u32(stat.stx_mask & KNOWN_MASK);
        reply.u32(stat.stx_blksize);
        reply.u64(0);
        reply.u32(stat.stx_nlink);
        reply.u32(stat.stx_uid);
        reply.u32(stat.stx_gid);
        reply.u16(stat.stx_mode);
        reply.u16(0);
        reply.u64(self.mounts().number(mounts::device(stat), stat.stx_ino));
        reply.u64(stat.stx_size);
        reply.u64(stat.stx_blocks);
        reply.u64(0);
        for time in [stat.stx_atime, stat.stx_btime, stat.stx_ctime, stat.stx_mtime] {
            put_time(time, reply);
        }
        reply.u32(stat.stx_rdev_major);
        reply.u32(stat.stx_rdev_minor);
        reply.u32(0);
        reply.u32(0);
        reply.bytes(&[0; 14 * 8]);
    }
}

/// What of `fuse_entry_out` comes before the attributes.
fn put_entry_head(node: u64, entry: Duration, attributes: Duration, reply: &mut ReplyBuffer) {
    reply.u64(node);
    reply.u64(0);
    reply.u64(entry.as_secs());
    reply.u64(attributes.as_secs());
    reply.u32(entry.subsec_nanos());
    reply.u32(attributes.subsec_nanos());
}

/// `fuse_entry_out` of a name that is not there, and how long that may be remembered; all zero where there is nothing to say.
pub(crate) fn put_no_entry(remembered: Duration, reply: &mut ReplyBuffer) {
    put_entry_head(0, remembered, Duration::ZERO, reply);
    reply.bytes(&[0; 88]);
}

fn put_time(time: StatxTimestamp, reply: &mut ReplyBuffer) {
    reply.i64(time.tv_sec);
    reply.u32(time.tv_nsec);
    reply.u32(0);
}

/// `fuse_statfs_out`.
fn put_statfs(stat: &StatVfs, reply: &mut ReplyBuffer) {
    for number in [stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_files, stat.f_ffree] {
        reply.u64(number);
    }
    for number in [stat.f_bsize, stat.f_namemax, stat.f_frsize] {
        reply.u32(u32::try_from(number).unwrap_or(u32::MAX));
    }
    reply.bytes(&[0; 28]);
}

/// The kernel's own form of a device's number.
fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// `-1` is no id, and would leave what is there.
fn owner(id: u32) -> Result<u32, Errno> {
    if id == u32::MAX { Err(Errno::INVAL) } else { Ok(id) }
}

/// `fuse_setattr_in`.
#[derive(Debug)]
struct AttributeChange {
    valid: u32,
    handle: u64,
    size: u64,
    times: [u64; 2],
    nanoseconds: [u32; 2],
    mode: u32,
    uid: u32,
    gid: u32,
}

impl AttributeChange {
    fn read(body: &mut MessageBody<'_>) -> Result<Self, Errno> {
        let valid = body.u32()?;
        let _padding = body.u32()?;
        let handle = body.u64()?;
        let size = body.u64()?;
        let _lock_owner = body.u64()?;
        let times = [body.u64()?, body.u64()?];
        let _ctime = body.u64()?;
        let nanoseconds = [body.u32()?, body.u32()?];
        let _ctime_nanoseconds = body.u32()?;
        let mode = body.u32()?;
        let _unused = body.u32()?;
        let uid = body.u32()?;
        let gid = body.u32()?;
        let _unused = body.u32()?;
        if valid & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            valid,
            handle,
            size,
            times,
            nanoseconds,
            mode,
            uid,
            gid,
        })
    }

    fn asks(&self, what: u32) -> bool {
        self.valid & what != 0
    }

    fn times(&self) -> Option<Timestamps> {
        // The time of the change (CTIME) is the kernel's here, as the owner of a lock is the other side's.
        let _unused = CTIME | LOCK_OWNER;
        self.asks(ATIME | MTIME).then(|| Timestamps {
            last_access: self.time(0, ATIME, ATIME_NOW),
            last_modification: self.time(1, MTIME, MTIME_NOW),
        })
    }

    fn time(&self, which: usize, asked: u32, now: u32) -> Timespec {
        let seconds = self.times.get(which).copied().unwrap_or(0);
        let nanoseconds = self.nanoseconds.get(which).copied().unwrap_or(0);
        match (self.asks(asked), self.asks(now)) {
            (false, _) => Timespec {
                tv_sec: 0,
                tv_nsec: OMIT,
            },
            (true, true) => Timespec {
                tv_sec: 0,
                tv_nsec: NOW,
            },
            (true, false) => Timespec {
                tv_sec: i64::from_ne_bytes(seconds.to_ne_bytes()),
                // Beyond a second are those that mean something else.
                tv_nsec: i64::from(nanoseconds.min(999_999_999)),
            },
        }
    }
}

/// The file of a handle, if it is one of that node.
pub(crate) fn of_node(file: Arc<OpenFile>, node: u64) -> Result<Arc<OpenFile>, Errno> {
    if file.node == node { Ok(file) } else { Err(Errno::BADF) }
}
