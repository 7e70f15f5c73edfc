//! Open directories: their entries.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::bounds::MAX_WRITE;
use crate::handles::{OpenDirectory, OpenHandle};
use crate::message::{MessageBody, MessageHeader};
use crate::mounts;
use crate::position::DirectoryEntry;
use crate::reply::ReplyBuffer;
use crate::tree::Tree;

/// Length of `fuse_entry_out`, and of `fuse_dirent` without the name.
const ENTRY: usize = 128;
const DIRENT: usize = 24;

impl Tree {
    pub(crate) fn opendir(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let _flags = body.u32()?;
        let _open_flags = body.u32()?;
        body.end()?;
        let facts = self.nodes().facts(header.node)?;
        let named = self.directory(header.node)?;
        let descriptor = self.reopen(named.as_fd(), facts.file_type, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let directory = OpenHandle::Directory(Arc::new(OpenDirectory {
            descriptor,
            node: header.node,
            position: Mutex::default(),
        }));
        self.put_handle(header.node, directory, reply)
    }

    pub(crate) fn readdir(
        &self,
        header: &MessageHeader,
        body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.list(header, body, reply, EntryForm::Plain)
    }

    pub(crate) fn readdirplus(
        &self,
        header: &MessageHeader,
        body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.list(header, body, reply, EntryForm::WithAttributes)
    }

    fn list(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
        form: EntryForm,
    ) -> Result<(), Errno> {
        let handle = body.u64()?;
        let offset = body.u64()?;
        let size = body.u32()?;
        let _rest = body.take(20)?;
        body.end()?;
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?.min(MAX_WRITE);
        let directory = self.handles.directory(handle)?;
        if directory.node != header.node {
            return Err(Errno::BADF);
        }
        let own = self.refresh(header.node, directory.descriptor.as_fd())?;
        let device = mounts::device(&own.stat);
        let mut position = directory.position.lock().unwrap_or_else(PoisonError::into_inner);
        position.go_to(directory.descriptor.as_fd(), offset)?;
        loop {
            let entry = match position.peek(directory.descriptor.as_fd()) {
                Ok(Some(entry)) => entry,
                // What was told so far counts; the other side asks again.
                Err(error) if reply.body_len() == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            };
            let length = (form.head() + entry.name.len()).next_multiple_of(8);
            if reply.body_len() + length > size {
                break;
            }
            let shown = self.mounts().number(device, entry.inode);
            match form {
                EntryForm::Plain => {}
                EntryForm::WithAttributes if matches!(&*entry.name, b"." | b"..") => reply.bytes(&[0; ENTRY]),
                EntryForm::WithAttributes => {
                    let found = self.find(directory.descriptor.as_fd(), &entry.name, own.facts.shared);
                    let told = found.and_then(|found| {
                        let node = self.remember(&found, header.node, &entry.name)?;
                        self.put_entry(node, &found, reply);
                        Ok(())
                    });
                    if told.is_err() {
                        // The other side looks it up by itself, if it still is there.
                        reply.bytes(&[0; ENTRY]);
                    }
                }
            }
            put_dirent(entry, shown, reply);
            position.advance();
        }
        Ok(())
    }

    pub(crate) fn fsyncdir(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let handle = body.u64()?;
        let _rest = body.take(8)?;
        body.end()?;
        let directory = self.handles.directory(handle)?;
        if directory.node != header.node {
            return Err(Errno::BADF);
        }
        rustix::fs::fsync(&directory.descriptor)
    }
}

/// How entries are told.
#[derive(Debug, Clone, Copy)]
enum EntryForm {
    Plain,
    WithAttributes,
}

impl EntryForm {
    fn head(self) -> usize {
        match self {
            Self::Plain => DIRENT,
            Self::WithAttributes => ENTRY + DIRENT,
        }
    }
}

/// `fuse_dirent`.
fn put_dirent(entry: &DirectoryEntry, shown: u64, reply: &mut ReplyBuffer) {
    reply.u64(shown);
    reply.u64(entry.next);
    reply.u32(u32::try_from(entry.name.len()).unwrap_or(0));
    reply.u32(entry.file_type);
    reply.bytes(&entry.name);
    let padding = entry.name.len().next_multiple_of(8) - entry.name.len();
    reply.bytes([0; 8].get(..padding).unwrap_or_default());
}
