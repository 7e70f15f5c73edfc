//! What the host and a file worker say to each other.
//!
//! A worker is a process of the guest's that acts as one user and serves one socket ([`crate::ToGuest::Files`]) until
//! that closes. One request is served at a time, in order. Each has one answer ([`FileReply::Done`],
//! [`FileReply::Entry`] or [`FileReply::Failed`]) but for those that say otherwise. Paths are absolute and resolved
//! inside, by the worker, which takes `.` and `..` out of them first, by the words alone; the host only carries them.
//! A worker that cannot be started says so ([`FileReply::Failed`]) before its socket closes.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::frame::HEADER;
use crate::message::Dialogue;

/// Largest piece of a file in one [`FileRequest::Data`] or [`FileReply::Data`], in bytes.
pub const DATA_CHUNK: usize = 256 * 1024;

/// Most entries in one [`FileReply::Entries`], and most changes in one [`FileReply::Changed`].
pub const ENTRIES_CHUNK: usize = 256;

/// Most names and values with which one file can be annotated.
pub const MAX_METADATA: usize = 1024;

/// What the host asks of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// What is at a path, the last link not followed; answered with [`FileReply::Entry`].
    Stat {
        /// Where.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
    },
    /// What is in a directory and, down to `depth`, in those below; links are not followed. Answered with
    /// [`FileReply::Entries`], depth first and by name, and [`FileReply::Done`].
    List {
        /// The directory.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
        /// 1 for the directory alone; 0 means the same.
        depth: u32,
    },
    /// Makes a directory and those that lead to it; `EEXIST` if it is there, `ENOTDIR` if something else is. Answered
    /// with [`FileReply::Entry`].
    MakeDirectory {
        /// The directory.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
    },
    /// Renames, and makes the directories that lead to the destination. Answered with [`FileReply::Entry`] of the new path.
    Rename {
        /// From where.
        #[serde(with = "crate::bytes")]
        source: Vec<u8>,
        /// To where.
        #[serde(with = "crate::bytes")]
        destination: Vec<u8>,
    },
    /// Removes a file, or a directory with everything in it; what is not there is no error.
    Remove {
        /// What.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
    },
    /// The contents of a regular file, links followed: [`FileReply::Entry`] of the file that was opened, then [`FileReply::Data`] until
    /// [`FileReply::Done`].
    Read {
        /// The file; `EISDIR` for a directory.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
        /// From this byte on.
        offset: u64,
        /// So many bytes, to the end when absent.
        length: Option<u64>,
    },
    /// Makes or overwrites a regular file in place and makes the directories that lead to it; [`FileRequest::Data`]
    /// follows, then [`FileRequest::Finish`]. Answered once, after `Finish` with [`FileReply::Entry`], or at any time with
    /// [`FileReply::Failed`], after which data up to the next `Finish` is dropped.
    Write {
        /// The file.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
        /// Names and values that replace what the file is annotated with (extended attributes `user.e2b.NAME`); without
        /// any, a new file has none and nothing is asked of the file system.
        #[serde(with = "crate::bytes::metadata")]
        metadata: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// A piece of the file that is being written.
    Data {
        /// At most [`DATA_CHUNK`] bytes.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// The file that is being written is complete.
    Finish,
    /// Tells of changes below a directory until the socket closes: [`FileReply::Done`] once it watches, then
    /// [`FileReply::Changed`]. No other request follows on this socket.
    Watch {
        /// The directory; `ENOTDIR` for anything else.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
        /// Whether directories below, also those made later, are watched too.
        recursive: bool,
        /// Whether each change comes with what is there now.
        entries: bool,
    },
}

impl Dialogue for FileRequest {
    const MAX_FRAME: usize = 512 * 1024;
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReply {
    /// What is there.
    Entry(FileEntry),
    /// Some of what is in a directory, at most [`ENTRIES_CHUNK`].
    Entries(#[serde(with = "crate::bytes::chunk")] Vec<FileEntry>),
    /// A piece of a file.
    Data {
        /// At most [`DATA_CHUNK`] bytes.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// It is done.
    Done,
    /// Changes below the directory that is watched, in order.
    Changed(#[serde(with = "crate::bytes::chunk")] Vec<WatchedChange>),
    /// It could not be done.
    Failed {
        /// What was tried, such as `open`.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
}

impl Dialogue for FileReply {
    const MAX_FRAME: usize = 4 * 1024 * 1024;
}

/// Bytes that [`frame_data`] needs before a piece of a file: a frame's header, one for the kind of reply, and a length of
/// at most [`DATA_CHUNK`], seven bits a byte.
pub const DATA_PREFIX: usize = HEADER + 4;

/// The number of [`FileReply::Data`] among the replies.
const DATA: u8 = 2;

/// The number of [`FileRequest::Data`] among the requests.
const DATA_REQUEST: u8 = 7;

/// The length of the piece of a file whose frame begins so, if that is what it is: a [`FileRequest::Data`] that is laid
/// down as [`crate::encode`] does, whose bytes begin right behind the first [`DATA_PREFIX`] of the frame.
///
/// Smaller pieces, whose prefix is shorter, are left to the [`crate::MessageDecoder`].
pub fn framed_data(prefix: [u8; DATA_PREFIX]) -> Option<usize> {
    let [a, b, c, d, kind, low, middle, high] = prefix;
    let body = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
    let is_three_bytes_long = low & middle & 0x80 != 0 && (1..0x80).contains(&high);
    let length = usize::from(low & 0x7f) | usize::from(middle & 0x7f) << 7 | usize::from(high) << 14;
    let is_data = kind == DATA_REQUEST && is_three_bytes_long && length <= DATA_CHUNK;
    (is_data && body == length + DATA_PREFIX - HEADER).then_some(length)
}

/// Makes a piece of a file a frame where it lies, as [`crate::encode`] would of a copy of it as [`FileReply::Data`].
///
/// The piece is the `length` bytes (at most [`DATA_CHUNK`]) behind the first [`DATA_PREFIX`] of `buffer`; the frame is
/// what is answered.
///
/// # Panics
/// If the buffer is shorter than that.
pub fn frame_data(buffer: &mut [u8], length: usize) -> &[u8] {
    let (mut start, mut rest, mut last) = (DATA_PREFIX, length, true);
    let mut digits = [0; 3];
    let count = if length < 1 << 7 {
        1
    } else if length < 1 << 14 {
        2
    } else {
        3
    };
    for digit in &mut digits[..count] {
        *digit = u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80;
        rest >>= 7;
    }
    for digit in digits[..count].iter().rev() {
        start -= 1;
        buffer[start] = if last { digit & 0x7f } else { *digit };
        last = false;
    }
    start -= 1;
    buffer[start] = DATA;
    let body = u32::try_from(DATA_PREFIX - start + length).unwrap_or(0);
    start -= HEADER;
    buffer[start..][..HEADER].copy_from_slice(&body.to_le_bytes());
    &buffer[start..DATA_PREFIX + length]
}

/// What is at a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The whole path.
    #[serde(with = "crate::bytes")]
    pub path: Vec<u8>,
    /// Type and permissions as `st_mode` has them (inode(7)), of a link itself.
    pub mode: u32,
    /// Size in bytes, of a link itself.
    pub size: u64,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The owner's name, or its number, as the sandbox's `/etc/passwd` has it.
    #[serde(with = "crate::bytes")]
    pub owner: Vec<u8>,
    /// The group's name or number.
    #[serde(with = "crate::bytes")]
    pub group: Vec<u8>,
    /// When the contents changed last, in seconds since 1970.
    pub modified_s: i64,
    /// And the nanoseconds of it.
    pub modified_ns: u32,
    /// For a link: where it leads in the end, as an absolute path, or what it says if that does not exist.
    pub target: Option<LinkTarget>,
    /// What the file is annotated with: `user.e2b.NAME`, without the prefix.
    #[serde(with = "crate::bytes::metadata")]
    pub metadata: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where a symbolic link leads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTarget {
    /// The path.
    #[serde(with = "crate::bytes")]
    pub path: Vec<u8>,
    /// `st_mode` of what is there; `None` if nothing is.
    pub mode: Option<u32>,
}

/// A change below a directory that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedChange {
    /// The path relative to the directory.
    #[serde(with = "crate::bytes")]
    pub name: Vec<u8>,
    /// What happened.
    pub kind: ChangeKind,
    /// What is there now, if asked for and there is something.
    pub entry: Option<FileEntry>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It was made, or moved here.
    Create,
    /// Its contents changed.
    Write,
    /// It was removed.
    Remove,
    /// It was moved away.
    Rename,
    /// Its permissions, owner or attributes changed.
    Chmod,
    /// More happened than could be told, so that some of it is missing.
    Overflow,
}
