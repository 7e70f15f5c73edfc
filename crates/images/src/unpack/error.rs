//! Why a layer was refused.

use std::io;

use offleash_core::error::ErrorKind;

/// A layer that was not unpacked; what was made of it is gone again.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{}{reason}", at(.entry))]
pub struct LayerError {
    /// The entry's name; empty when it is about the whole archive.
    pub entry: String,
    /// What is wrong.
    pub reason: LayerRefusal,
}

fn at(entry: &str) -> String {
    match entry {
        "" => String::new(),
        entry => format!("entry `{}`: ", entry.escape_debug()),
    }
}

/// What is wrong with a layer, or with one entry of it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
pub enum LayerRefusal {
    /// `..` in a name.
    #[error("its name leads out of the image")]
    Escapes,
    /// A part of the path was made a symbolic link by an entry before.
    #[error("its path leads through a symbolic link of the same layer")]
    ThroughLink,
    /// A part of the path was made something else by an entry before.
    #[error("its path leads through something that is no directory")]
    ThroughFile,
    /// Something else would take the place of a directory.
    #[error("it replaces a directory of the same layer that is not empty")]
    ReplacesDirectory,
    /// The target of a hard link has `..` in it.
    #[error("it is a hard link to something outside the image")]
    LinkOutside,
    /// The target of a hard link is not there.
    #[error("it is a hard link to something that is not there")]
    LinkMissing,
    /// The target of a hard link is a directory.
    #[error("it is a hard link to a directory")]
    LinkToDirectory,
    /// A part of its name is longer than 255 bytes, or all of it than 4,095.
    #[error("its name is too long")]
    NameTooLong,
    /// A NUL byte in a name, or a name where none may be.
    #[error("its name is no name of a file")]
    BadName,
    /// A whiteout that names nothing that could be removed.
    #[error("it is a whiteout of something that is no name")]
    BadWhiteout,
    /// A size, or another number that counts, is below zero.
    #[error("its size is negative")]
    NegativeSize,
    /// A number that is none.
    #[error("a number in its header is none")]
    BadNumber,
    /// The header was damaged.
    #[error("the checksum of its header is wrong")]
    BadChecksum,
    /// Extended headers that are not of the form that POSIX gives them, or that are too large.
    #[error("its extended header is malformed")]
    BadExtendedHeader,
    /// A map of a sparse file that is none.
    #[error("its map of a sparse file is malformed")]
    BadSparseMap,
    /// The archive ends within an entry.
    #[error("the archive ends too early")]
    Truncated,
    /// More entries than a layer may have.
    #[error("there are more than {limit} entries")]
    TooManyEntries {
        /// How many there may be.
        limit: u64,
    },
    /// All names together take more memory than they may.
    #[error("the names of its entries take more than {limit} bytes")]
    TooManyNames {
        /// How much there may be.
        limit: u64,
    },
    /// More bytes than a layer, or a file, may have.
    #[error("there are more than {limit} bytes")]
    TooLarge {
        /// How many there may be.
        limit: u64,
    },
    /// It is far larger than what was sent.
    #[error("it unpacks to more than {ratio} times its size")]
    Bomb {
        /// How many times it may be.
        ratio: u64,
    },
    /// It cannot be decompressed.
    #[error("it cannot be decompressed: {said}")]
    Compression {
        /// What the decoder said.
        said: String,
    },
    /// Another digest than that of the configuration.
    #[error("what it unpacks to has another digest than the image says")]
    OtherContents,
    /// A call of the kernel failed.
    #[error("{tried}: {}", io::Error::from_raw_os_error(*.errno))]
    Kernel {
        /// What was tried.
        tried: String,
        /// What the kernel said.
        errno: i32,
    },
}

impl LayerRefusal {
    /// About the entry `name`.
    pub(crate) fn at(self, name: &[u8]) -> LayerError {
        const SHOWN: usize = 200;
        let shown = String::from_utf8_lossy(&name[..name.len().min(SHOWN)]);
        let dots = if name.len() > SHOWN { "…" } else { "" };
        LayerError {
            entry: format!("{shown}{dots}"),
            reason: self,
        }
    }

    /// About the whole archive.
    pub(crate) fn whole(self) -> LayerError {
        self.at(b"")
    }

    pub(crate) fn kernel(tried: &str, error: impl Into<io::Error>) -> Self {
        Self::Kernel {
            tried: tried.to_owned(),
            errno: error
                .into()
                .raw_os_error()
                .unwrap_or(rustix::io::Errno::IO.raw_os_error()),
        }
    }

    /// What reading an archive failed with.
    pub(crate) fn of_reading(error: io::Error) -> Self {
        if let Some(refusal) = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return refusal.clone();
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ if error.raw_os_error().is_some() => Self::kernel("reading", error),
            _ => Self::Compression {
                said: error.to_string(),
            },
        }
    }
}

impl LayerError {
    /// Whether what was read is no header at all.
    pub(crate) fn is_no_header(&self) -> bool {
        matches!(
            self.reason,
            LayerRefusal::BadChecksum | LayerRefusal::BadNumber | LayerRefusal::Truncated
        )
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match &self.reason {
            LayerRefusal::Kernel { errno, .. } => kind_of(*errno),
            LayerRefusal::TooLarge { .. } | LayerRefusal::TooManyEntries { .. } | LayerRefusal::TooManyNames { .. } => {
                ErrorKind::Exhausted
            }
            _ => ErrorKind::Denied,
        }
    }
}

/// The kind of an error of the kernel.
pub(crate) fn kind_of(errno: i32) -> ErrorKind {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::FBIG => ErrorKind::Exhausted,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::NOENT | Errno::NOTDIR => ErrorKind::NotFound,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV => ErrorKind::Unsupported,
        _ => ErrorKind::Internal,
    }
}
