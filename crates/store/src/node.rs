//! What is at a path: its type, permissions, size and times.

use std::path::PathBuf;

use rustix::fs::{FileType, Stat};

/// The type of a file-system entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
}

/// An entry of the host or of a run, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// Its type.
    pub kind: NodeKind,
    /// Permission bits, with set-user-id, set-group-id and sticky: the low twelve bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Where a symbolic link points.
    pub target: Option<PathBuf>,
    pub(crate) identity: NodeIdentity,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What tells one state of one entry from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct NodeIdentity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: NodeTime,
    pub(crate) ctime: NodeTime,
}

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) struct NodeTime {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl NodeIdentity {
    /// Whether both are the same inode with the same contents; renaming an entry changes its `ctime` only.
    pub(crate) fn same_but_renamed(&self, other: &NodeIdentity) -> bool {
        (self.dev, self.ino, self.size, self.mtime) == (other.dev, other.ino, other.size, other.mtime)
    }
}

impl TreeNode {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            kind: kind_of(stat),
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            target: None,
            identity: identity_of(stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == NodeKind::Directory
    }
}

pub(crate) fn kind_of(stat: &Stat) -> NodeKind {
    kind_of_type(FileType::from_raw_mode(stat.st_mode))
}

pub(crate) fn kind_of_type(file_type: FileType) -> NodeKind {
    match file_type {
        FileType::RegularFile => NodeKind::File,
        FileType::Directory => NodeKind::Directory,
        FileType::Symlink => NodeKind::Symlink,
        FileType::Fifo => NodeKind::Fifo,
        FileType::Socket => NodeKind::Socket,
        _ => NodeKind::Device,
    }
}

pub(crate) fn identity_of(stat: &Stat) -> NodeIdentity {
    NodeIdentity {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn time(seconds: i64, nanoseconds: u64) -> NodeTime {
    NodeTime {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}
