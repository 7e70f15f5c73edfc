//! `FUSE_INIT`: which version is spoken, and what each side does.

use rustix::io::Errno;

use crate::bounds::MAX_WRITE;
use crate::error::TreeError;
use crate::message::{self, INIT, MessageBody};
use crate::reply::ReplyBuffer;

const MAJOR: u32 = 7;
/// The least minor version that has all we rely on, and the one that we speak.
const MIN_MINOR: u32 = 31;
const MINOR: u32 = 37;

/// Bits of `fuse_init_in.flags`.
const ASYNC_READ: u32 = 1;
const ATOMIC_O_TRUNC: u32 = 1 << 3;
const BIG_WRITES: u32 = 1 << 5;
const AUTO_INVAL_DATA: u32 = 1 << 12;
const DO_READDIRPLUS: u32 = 1 << 13;
const READDIRPLUS_AUTO: u32 = 1 << 14;
const ASYNC_DIO: u32 = 1 << 15;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_SYMLINKS: u32 = 1 << 23;
const HANDLE_KILLPRIV_V2: u32 = 1 << 28;

/// What we would have, if the other side does.
///
/// Not here: `WRITEBACK_CACHE`, by which sizes and times were the other side's, for what others change too; locks and
/// ACLs, which the other side does by itself or not at all; `SPLICE_*`, which are for a device.
const WANTED: u32 = ASYNC_READ
    | ATOMIC_O_TRUNC
    | BIG_WRITES
    | AUTO_INVAL_DATA
    | DO_READDIRPLUS
    | READDIRPLUS_AUTO
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | MAX_PAGES
    | CACHE_SYMLINKS
    | HANDLE_KILLPRIV_V2;
/// What of this has to be: without, programs would run as owners of files that others wrote.
const NEEDED: u32 = ATOMIC_O_TRUNC | BIG_WRITES | MAX_PAGES | HANDLE_KILLPRIV_V2;

/// Most requests of the other side in the background, and how many make it wait.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION: u16 = 48;
/// Size of a page of the other side.
const PAGE: usize = 4096;

/// Answers the first message; an answer that is not ready has the other side ask again.
pub(crate) fn greet(message: &[u8], reply: &mut ReplyBuffer) -> Result<Greeting, TreeError> {
    let malformed = TreeError::NotInitialised { operation: 0 };
    let Ok((header, mut body)) = message::split(message) else {
        return Err(malformed);
    };
    if header.operation != INIT {
        return Err(TreeError::NotInitialised {
            operation: header.operation,
        });
    }
    let Ok(asked) = AskedVersion::read(&mut body) else {
        return Err(malformed);
    };
    if asked.major > MAJOR {
        // It asks again with ours (linux/fuse.h).
        put(reply, 0, 0);
        reply.finish(header.unique, Ok(()));
        return Ok(Greeting::Again);
    }
    if asked.major < MAJOR || asked.minor < MIN_MINOR || asked.flags & NEEDED != NEEDED {
        return Err(TreeError::Version {
            major: asked.major,
            minor: asked.minor,
        });
    }
    put(reply, asked.max_readahead, asked.flags & WANTED);
    reply.finish(header.unique, Ok(()));
    Ok(Greeting::Done)
}

/// What came of the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// Both speak the same version.
    Done,
    /// The other side asks again.
    Again,
}

struct AskedVersion {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
}

impl AskedVersion {
    /// Newer versions say more, which concerns nothing of ours.
    fn read(body: &mut MessageBody<'_>) -> Result<Self, Errno> {
        Ok(Self {
            major: body.u32()?,
            minor: body.u32()?,
            max_readahead: body.u32()?,
            flags: body.u32()?,
        })
    }
}

/// `fuse_init_out`.
fn put(reply: &mut ReplyBuffer, max_readahead: u32, flags: u32) {
    let most = u32::try_from(MAX_WRITE).unwrap_or(u32::MAX);
    reply.u32(MAJOR);
    reply.u32(MINOR);
    reply.u32(max_readahead.min(most));
    reply.u32(flags);
    reply.u16(MAX_BACKGROUND);
    reply.u16(CONGESTION);
    reply.u32(most);
    // Times are exact to the nanosecond.
    reply.u32(1);
    reply.u16(u16::try_from(MAX_WRITE / PAGE).unwrap_or(u16::MAX));
    reply.u16(0);
    reply.bytes(&[0; 32]);
}
