//! Messages of the other side: their header, and reading what follows it.
//!
//! Numbers and layouts are those of `linux/fuse.h`. Everything is read by length and copied; nothing is believed.

use rustix::io::Errno;

use crate::bounds::MAX_NAME;

/// Length of a message's header.
pub(crate) const HEADER: usize = 40;

/// What a message asks for. Those that are not here are answered with `ENOSYS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Symlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Rename,
    Link,
    Open,
    Read,
    Write,
    Statfs,
    Release,
    Fsync,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Init,
    Opendir,
    Readdir,
    Releasedir,
    Fsyncdir,
    Create,
    Interrupt,
    Destroy,
    BatchForget,
    Fallocate,
    Readdirplus,
    Rename2,
    Lseek,
    CopyFileRange,
    Tmpfile,
    Statx,
}

/// Number of `FUSE_INIT`.
pub(crate) const INIT: u32 = 26;

impl Operation {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Lookup,
            2 => Self::Forget,
            3 => Self::Getattr,
            4 => Self::Setattr,
            5 => Self::Readlink,
            6 => Self::Symlink,
            8 => Self::Mknod,
            9 => Self::Mkdir,
            10 => Self::Unlink,
            11 => Self::Rmdir,
            12 => Self::Rename,
            13 => Self::Link,
            14 => Self::Open,
            15 => Self::Read,
            16 => Self::Write,
            17 => Self::Statfs,
            18 => Self::Release,
            20 => Self::Fsync,
            21 => Self::Setxattr,
            22 => Self::Getxattr,
            23 => Self::Listxattr,
            24 => Self::Removexattr,
            INIT => Self::Init,
            27 => Self::Opendir,
            28 => Self::Readdir,
            29 => Self::Releasedir,
            30 => Self::Fsyncdir,
            35 => Self::Create,
            36 => Self::Interrupt,
            38 => Self::Destroy,
            42 => Self::BatchForget,
            43 => Self::Fallocate,
            44 => Self::Readdirplus,
            45 => Self::Rename2,
            46 => Self::Lseek,
            47 => Self::CopyFileRange,
            51 => Self::Tmpfile,
            52 => Self::Statx,
            _ => return None,
        })
    }
}

/// Header of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageHeader {
    /// What is asked for.
    pub(crate) operation: u32,
    /// By what the answer is known.
    pub(crate) unique: u64,
    /// The file or directory that it is about.
    pub(crate) node: u64,
    /// Who asks, as the other side tells.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Takes a message apart; whoever framed it saw to it that it has a header.
pub(crate) fn split(message: &[u8]) -> Result<(MessageHeader, MessageBody<'_>), Errno> {
    let mut body = MessageBody { rest: message };
    let _length = body.u32()?;
    let operation = body.u32()?;
    let unique = body.u64()?;
    let node = body.u64()?;
    let uid = body.u32()?;
    let gid = body.u32()?;
    let _pid = body.u32()?;
    let _extensions = body.u32()?;
    let header = MessageHeader {
        operation,
        unique,
        node,
        uid,
        gid,
    };
    Ok((header, body))
}

/// What follows a header and has not been read yet. Each reading answers `EINVAL` where less is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageBody<'a> {
    rest: &'a [u8],
}

impl<'a> MessageBody<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Errno::INVAL)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_ne_bytes)
    }

    /// A string that ends with a zero byte, without it.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default();
        Ok(string)
    }

    /// The name of an entry of a directory: one step down, and nothing else.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.string()?;
        match name {
            b"" | b"." | b".." => Err(Errno::INVAL),
            _ if name.contains(&b'/') => Err(Errno::INVAL),
            _ if name.len() > MAX_NAME => Err(Errno::NAMETOOLONG),
            _ => Ok(name),
        }
    }

    /// Whether something is left that may be.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), Errno> {
        if self.has_rest() { Err(Errno::INVAL) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut body = MessageBody { rest: bytes };
        let name = body.name()?.to_vec();
        body.end()?;
        Ok(name)
    }

    #[test]
    fn names_are_one_step_down() {
        assert_eq!(name(b"a\0"), Ok(b"a".to_vec()));
        assert_eq!(name(b"..a\xff\n\0"), Ok(b"..a\xff\n".to_vec()));
        for bad in [
            &b"\0"[..],
            b".\0",
            b"..\0",
            b"/\0",
            b"a/b\0",
            b"../a\0",
            b"a",
            b"",
            b"a\0b\0",
        ] {
            assert_eq!(name(bad), Err(Errno::INVAL), "{bad:?}");
        }
        let mut long = vec![b'a'; MAX_NAME];
        long.push(0);
        assert!(name(&long).is_ok());
        long.insert(0, b'a');
        assert_eq!(name(&long), Err(Errno::NAMETOOLONG));
    }

    #[test]
    fn no_message_is_read_beyond_its_end() {
        let mut body = MessageBody { rest: &[1, 0, 0, 0, 2] };
        assert_eq!(body.u32(), Ok(1));
        assert_eq!(body.u32(), Err(Errno::INVAL));
        assert_eq!(body.take(2), Err(Errno::INVAL));
        assert_eq!(body.take(1), Ok(&[2][..]));
        assert!(body.end().is_ok());
    }
}
