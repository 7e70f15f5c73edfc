//! Names: looked up, made, moved and removed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::attributes::{MODE_BITS, put_no_entry};
use crate::bounds::MAX_TARGET;
use crate::files::OpenRequest;
use crate::handles::{OpenFile, OpenHandle};
use crate::message::{MessageBody, MessageHeader};
use crate::nodes::FoundNode;
use crate::owner::FileMaker;
use crate::reply::ReplyBuffer;
use crate::tree::{FoundFile, Tree, is_root};

/// Bits of a file's mode (stat(2)).
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o0010;

impl Tree {
    pub(crate) fn lookup(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let name = body.name()?;
        body.end()?;
        let directory = self.directory(header.node)?;
        let facts = self.nodes().facts(header.node)?;
        match self.find(directory.as_fd(), name, facts.shared) {
            Ok(found) => {
                let node = self.remember(&found, header.node, name)?;
                self.put_entry(node, &found, reply);
                Ok(())
            }
            Err(Errno::NOENT) if !self.cache(facts).negative.is_zero() => {
                put_no_entry(self.cache(facts).negative, reply);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn readlink(
        &self,
        header: &MessageHeader,
        body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        body.end()?;
        if self.nodes().facts(header.node)?.file_type != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let named = self.descriptor(header.node)?;
        reply.bytes(rustix::fs::readlinkat(&named, c"", Vec::new())?.as_bytes());
        Ok(())
    }

    pub(crate) fn mkdir(
        &self,
        maker: &mut FileMaker,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let mode = body.u32()?;
        let _umask = body.u32()?;
        let name = body.name()?;
        body.end()?;
        let directory = self.directory(header.node)?;
        maker.make_for(header.uid, header.gid)?;
        rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(mode & MODE_BITS))?;
        self.tell_made(header.node, directory.as_fd(), name, reply)
    }

    pub(crate) fn mknod(
        &self,
        maker: &mut FileMaker,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let mode = body.u32()?;
        let _device = body.u32()?;
        let _umask = body.u32()?;
        let _padding = body.u32()?;
        let name = body.name()?;
        body.end()?;
        let file_type = FileType::from_raw_mode(mode);
        match file_type {
            FileType::RegularFile | FileType::Fifo | FileType::Socket => {}
            FileType::CharacterDevice | FileType::BlockDevice => return Err(Errno::PERM),
            _ => return Err(Errno::INVAL),
        }
        let directory = self.directory(header.node)?;
        maker.make_for(header.uid, header.gid)?;
        let mode = self.mode_of_new(directory.as_fd(), mode & MODE_BITS, header.gid)?;
        rustix::fs::mknodat(&directory, name, file_type, mode, 0)?;
        self.tell_made(header.node, directory.as_fd(), name, reply)
    }

    pub(crate) fn symlink(
        &self,
        maker: &mut FileMaker,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let name = body.name()?;
        let target = body.string()?;
        body.end()?;
        match target.len() {
            0 => return Err(Errno::NOENT),
            length if length > MAX_TARGET => return Err(Errno::NAMETOOLONG),
            _ => {}
        }
        let directory = self.directory(header.node)?;
        maker.make_for(header.uid, header.gid)?;
        rustix::fs::symlinkat(target, &directory, name)?;
        self.tell_made(header.node, directory.as_fd(), name, reply)
    }

    pub(crate) fn link(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let node = body.u64()?;
        let name = body.name()?;
        body.end()?;
        if self.nodes().facts(node)?.file_type == FileType::Directory {
            return Err(Errno::PERM);
        }
        let directory = self.directory(header.node)?;
        let named = self.descriptor(node)?;
        let (own, path) = self.by_path(named.as_fd());
        rustix::fs::linkat(own, path, &directory, name, AtFlags::SYMLINK_FOLLOW)?;
        self.refresh(header.node, directory.as_fd())?;
        let found = self.refresh(node, named.as_fd())?;
        // By its new name, in case that its first is the one that goes.
        let counted = self.remember(&found, header.node, name)?;
        self.put_entry(counted, &found, reply);
        Ok(())
    }

    pub(crate) fn unlink(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        let name = body.name()?;
        body.end()?;
        let directory = self.directory(header.node)?;
        let before = self.before_loss(header.node, directory.as_fd(), name);
        rustix::fs::unlinkat(&directory, name, flags)?;
        self.refresh(header.node, directory.as_fd())?;
        self.lose(before, header.node, name);
        Ok(())
    }

    pub(crate) fn rename(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let to = body.u64()?;
        self.rename_with(header, body, to, RenameFlags::empty())
    }

    pub(crate) fn rename_flagged(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let to = body.u64()?;
        let flags = body.u32()?;
        let _padding = body.u32()?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        self.rename_with(header, body, to, flags)
    }

    fn rename_with(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        to: u64,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let from_name = body.name()?;
        let to_name = body.name()?;
        body.end()?;
        let from_directory = self.directory(header.node)?;
        let to_directory = self.directory(to)?;
        let moved = self.before_loss(header.node, from_directory.as_fd(), from_name);
        let replaced = if flags.contains(RenameFlags::NOREPLACE) {
            None
        } else {
            self.before_loss(to, to_directory.as_fd(), to_name)
        };
        rustix::fs::renameat_with(&from_directory, from_name, &to_directory, to_name, flags)?;
        self.refresh(header.node, from_directory.as_fd())?;
        self.refresh(to, to_directory.as_fd())?;
        // Two names of one file: the kernel leaves both.
        let is_one = matches!((&moved, &replaced), (Some(one), Some(other)) if one.node == other.node);
        if is_one {
            return Ok(());
        }
        match replaced {
            Some(replaced) if flags.contains(RenameFlags::EXCHANGE) => {
                self.nodes().move_to(replaced.node, header.node, from_name);
                self.refresh(replaced.node, replaced.named.as_fd())?;
            }
            replaced => self.lose(replaced, to, to_name),
        }
        if let Some(moved) = moved {
            self.nodes().move_to(moved.node, to, to_name);
            self.refresh(moved.node, moved.named.as_fd())?;
        }
        Ok(())
    }

    pub(crate) fn create(
        &self,
        maker: &mut FileMaker,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let flags = body.u32()?;
        let mode = body.u32()?;
        let _umask = body.u32()?;
        let open_flags = body.u32()?;
        let name = body.name()?;
        body.end()?;
        let asked = OpenRequest::new(flags, open_flags)?;
        let directory = self.directory(header.node)?;
        let shared = self.nodes().facts(header.node)?.shared;
        maker.make_for(header.uid, header.gid)?;
        let mode = self.mode_of_new(directory.as_fd(), mode & MODE_BITS, header.gid)?;
        let made = self.with_room(|| {
            let flags = asked.flags() | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&directory, name, flags, mode)
        });
        let (descriptor, found) = match made {
            Ok(descriptor) => {
                self.refresh(header.node, directory.as_fd())?;
                let found = self.examine(descriptor.as_fd(), shared)?;
                (descriptor, found)
            }
            // Somebody else was faster, or it was there and the other side did not know.
            Err(Errno::EXIST) if !asked.is_exclusive() => {
                let named = self.open_name(directory.as_fd(), name)?;
                let found = self.examine(named.as_fd(), shared)?;
                let descriptor = self.open_file(named.as_fd(), found.facts.file_type, &asked)?;
                (descriptor, self.examine(named.as_fd(), shared)?)
            }
            Err(error) => return Err(error),
        };
        let node = self.remember(&found, header.node, name)?;
        self.tell_opened(node, &found, descriptor, reply)
    }

    pub(crate) fn tmpfile(
        &self,
        maker: &mut FileMaker,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let flags = body.u32()?;
        let mode = body.u32()?;
        let _umask = body.u32()?;
        let open_flags = body.u32()?;
        // A name that says nothing.
        let _name = body.string()?;
        body.end()?;
        let asked = OpenRequest::new(flags, open_flags)?;
        let directory = self.directory(header.node)?;
        let shared = self.nodes().facts(header.node)?.shared;
        maker.make_for(header.uid, header.gid)?;
        let mode = self.mode_of_new(directory.as_fd(), mode & MODE_BITS, header.gid)?;
        let descriptor = self.with_room(|| {
            let mut flags = (asked.flags() - OFlags::TRUNC) | OFlags::TMPFILE | OFlags::CLOEXEC;
            if asked.is_exclusive() {
                flags |= OFlags::EXCL;
            }
            rustix::fs::openat(&directory, c".", flags, mode)
        })?;
        let found = self.examine(descriptor.as_fd(), shared)?;
        let node = self.nodes().remember(FoundNode {
            facts: found.facts,
            place: None,
        })?;
        let named = Arc::new(self.with_room(|| rustix::io::fcntl_dupfd_cloexec(&descriptor, 3))?);
        let closed = self.nodes().lose_name(node, &named);
        drop(closed);
        self.tell_opened(node, &found, descriptor, reply)
    }

    /// Tells of a file that is open from here on; if it cannot be, the other side was not told of the file.
    fn tell_opened(
        &self,
        node: u64,
        found: &FoundFile,
        descriptor: OwnedFd,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.put_entry(node, found, reply);
        let file = OpenHandle::File(Arc::new(OpenFile { descriptor, node }));
        self.put_handle(node, file, reply).inspect_err(|_| {
            let closed = self.nodes().forget(node, 1);
            drop(closed);
        })
    }

    /// Tells of what was just made.
    fn tell_made(
        &self,
        parent: u64,
        directory: BorrowedFd<'_>,
        name: &[u8],
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let shared = self.refresh(parent, directory)?.facts.shared;
        let found = self.find(directory, name, shared)?;
        let node = self.remember(&found, parent, name)?;
        self.put_entry(node, &found, reply);
        Ok(())
    }

    /// The mode of a new file: who is not of its group makes no program that runs as that group.
    ///
    /// The kernel sees to it for those without `CAP_FSETID`, which whoever serves has.
    fn mode_of_new(&self, directory: BorrowedFd<'_>, mode: u32, gid: u32) -> Result<Mode, Errno> {
        if mode & SET_GID != 0 && mode & GROUP_EXECUTES != 0 {
            let stat = self.examine(directory, false)?.stat;
            if u32::from(stat.stx_mode) & SET_GID != 0 && stat.stx_gid != gid {
                return Ok(Mode::from_raw_mode(mode & !SET_GID));
            }
        }
        Ok(Mode::from_raw_mode(mode))
    }

    /// What is known of a file that is about to lose a name.
    fn before_loss(&self, parent: u64, directory: BorrowedFd<'_>, name: &[u8]) -> Option<NamedNode> {
        let shared = self.nodes().facts(parent).ok()?.shared;
        let named = Arc::new(self.open_name(directory, name).ok()?);
        let found = self.examine(named.as_fd(), shared).ok()?;
        let node = self.nodes().of(&found.facts.key).filter(|node| !is_root(*node))?;
        Some(NamedNode { node, named })
    }

    /// A file lost a name; if it was the one by which it is found, its descriptor is kept.
    fn lose(&self, lost: Option<NamedNode>, parent: u64, name: &[u8]) {
        if let Some(lost) = lost {
            let mut nodes = self.nodes();
            if nodes.is_at(lost.node, parent, name) {
                let closed = nodes.lose_name(lost.node, &lost.named);
                drop(nodes);
                drop(closed);
            }
        }
    }
}

/// A node, and a descriptor that names it.
#[derive(Debug)]
struct NamedNode {
    node: u64,
    named: Arc<OwnedFd>,
}
