//! Extended attributes: those of users, and no others.
//!
//! `trusted.*` and `security.*` mean something to the kernel that serves, so none of them is read or written.

use std::os::fd::AsFd;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use crate::bounds::{MAX_ATTRIBUTE, MAX_ATTRIBUTE_NAME};
use crate::message::{MessageBody, MessageHeader};
use crate::reply::ReplyBuffer;
use crate::tree::Tree;

/// What names of attributes begin with that are served.
const OF_USERS: &[u8] = b"user.";

impl Tree {
    pub(crate) fn getxattr(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let size = body.u32()?;
        let _padding = body.u32()?;
        let name = attribute_name(&mut body, Errno::NODATA)?;
        body.end()?;
        let path = self.attributed(header.node)?.ok_or(Errno::NODATA)?;
        let mut value = vec![0; MAX_ATTRIBUTE];
        let length = rustix::fs::getxattr(path.as_str(), name, &mut value)?;
        value.truncate(length);
        put_sized(&value, size, reply)
    }

    pub(crate) fn listxattr(
        &self,
        header: &MessageHeader,
        mut body: MessageBody<'_>,
        reply: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let size = body.u32()?;
        let _padding = body.u32()?;
        body.end()?;
        let mut told = Vec::new();
        if let Some(path) = self.attributed(header.node)? {
            let mut names = vec![0_u8; MAX_ATTRIBUTE];
            let length = rustix::fs::listxattr(path.as_str(), &mut names)?;
            names.truncate(length);
            for name in names
                .split_inclusive(|byte| *byte == 0)
                .filter(|name| name.starts_with(OF_USERS))
            {
                told.extend_from_slice(name);
            }
        }
        put_sized(&told, size, reply)
    }

    pub(crate) fn setxattr(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let size = body.u32()?;
        let flags = body.u32()?;
        let name = attribute_name(&mut body, Errno::PERM)?;
        let value = body.take(usize::try_from(size).map_err(|_| Errno::INVAL)?)?;
        body.end()?;
        if value.len() > MAX_ATTRIBUTE {
            return Err(Errno::TOOBIG);
        }
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let path = self.attributed(header.node)?.ok_or(Errno::PERM)?;
        rustix::fs::setxattr(path.as_str(), name, value, flags)?;
        self.after_change(header.node)
    }

    pub(crate) fn removexattr(&self, header: &MessageHeader, mut body: MessageBody<'_>) -> Result<(), Errno> {
        let name = attribute_name(&mut body, Errno::PERM)?;
        body.end()?;
        let path = self.attributed(header.node)?.ok_or(Errno::PERM)?;
        rustix::fs::removexattr(path.as_str(), name)?;
        self.after_change(header.node)
    }

    fn after_change(&self, node: u64) -> Result<(), Errno> {
        let named = self.descriptor(node)?;
        self.refresh(node, named.as_fd()).map(drop)
    }

    /// The path of a node that may have attributes of users: a file or a directory (xattr(7)).
    fn attributed(&self, node: u64) -> Result<Option<AttributePath>, Errno> {
        let file_type = self.nodes().facts(node)?.file_type;
        if !matches!(file_type, FileType::RegularFile | FileType::Directory) {
            return Ok(None);
        }
        let named = self.descriptor(node)?;
        let (_, own) = self.by_path(named.as_fd());
        Ok(Some(AttributePath {
            path: format!("/proc/self/fd/{own}"),
            _named: named,
        }))
    }
}

/// The path of a descriptor, which is open as long as the path is there.
#[derive(Debug)]
struct AttributePath {
    path: String,
    _named: std::sync::Arc<std::os::fd::OwnedFd>,
}

impl AttributePath {
    fn as_str(&self) -> &str {
        &self.path
    }
}

/// The name of an attribute of users; others are refused with `refusal`.
fn attribute_name<'a>(body: &mut MessageBody<'a>, refusal: Errno) -> Result<&'a [u8], Errno> {
    let name = body.string()?;
    match name {
        b"" => Err(Errno::INVAL),
        _ if name.len() > MAX_ATTRIBUTE_NAME => Err(Errno::RANGE),
        _ if name.starts_with(b"system.") => Err(Errno::OPNOTSUPP),
        _ if name.starts_with(b"security.") || name.starts_with(b"trusted.") => Err(refusal),
        _ if name.starts_with(OF_USERS) && name.len() > OF_USERS.len() => Ok(name),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// A value, or its length where nothing else was asked for.
fn put_sized(value: &[u8], size: u32, reply: &mut ReplyBuffer) -> Result<(), Errno> {
    let length = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    if size == 0 {
        reply.u32(length);
        reply.u32(0);
    } else if length > size {
        return Err(Errno::RANGE);
    } else {
        reply.bytes(value);
    }
    Ok(())
}
