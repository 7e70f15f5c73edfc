//! A file-system call that failed: what was tried, on what, and what the kernel said.

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;
use rustix::io::Errno;

/// A file-system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{tried} `{}`", Text::from(.path))]
pub struct FileError {
    /// What was tried, such as `opening`.
    pub tried: &'static str,
    /// On what; relative to the workspace or the run where that is clear.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn new(tried: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self {
            tried,
            path: path.as_ref().to_owned(),
            source: source.into(),
        }
    }

    /// The kernel's error, if it is one.
    pub(crate) fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }
}

impl Explained for FileError {
    fn kind(&self) -> ErrorKind {
        match self.errno() {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE) => ErrorKind::Exhausted,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorKind::Denied,
            Some(Errno::NOENT | Errno::NOTDIR) => ErrorKind::NotFound,
            Some(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => ErrorKind::Unsupported,
            _ => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self.errno() {
            Some(Errno::NOSPC | Errno::DQUOT) => {
                Some("the disk or the quota is full; free some space and try again".into())
            }
            Some(Errno::ROFS) => Some("the file system is mounted read-only".into()),
            _ => None,
        }
    }
}

/// Says what was tried on what when a call fails.
pub(crate) trait FailedCall<T> {
    fn tried(self, tried: &'static str, path: impl AsRef<Path>) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> FailedCall<T> for Result<T, E> {
    fn tried(self, tried: &'static str, path: impl AsRef<Path>) -> Result<T, FileError> {
        self.map_err(|source| FileError::new(tried, path, source))
    }
}
