//! What can go wrong with the base template and its layers.

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;

/// The base template, or a layer over it, cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// A step failed.
    #[error("{step} `{}` for the base template failed", Text::from(.path))]
    Step {
        /// What was tried, such as `copying`.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Something could not be removed.
    #[error("removing a directory of the base template failed")]
    Removing(#[source] Box<offleash_store::FileError>),
    /// A layer holds files of subordinate ids, and they could not be removed as their superuser.
    #[error("removing the files of subordinate ids in `{}` failed", Text::from(.path))]
    Subordinate {
        /// The layer.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Box<offleash_isolation::error::IsolationError>,
    },
}

impl BaseError {
    pub(super) fn at(step: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Step { step, path, source }
    }
}

impl From<offleash_store::FileError> for BaseError {
    fn from(error: offleash_store::FileError) -> Self {
        Self::Removing(Box::new(error))
    }
}

impl Explained for BaseError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Step { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
                io::ErrorKind::ResourceBusy => ErrorKind::Unavailable,
                _ => ErrorKind::Internal,
            },
            Self::Removing(_) => ErrorKind::Internal,
            Self::Subordinate { source, .. } => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self.kind() {
            ErrorKind::Exhausted => Some("make room on the disk of the state directory".to_owned()),
            ErrorKind::Denied => Some("name a state directory that you may write with `--state DIR`".to_owned()),
            _ => None,
        }
    }
}
