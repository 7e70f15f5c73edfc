//! Why the registry cannot be used.

use std::sync::Arc;

use offleash_core::error::{ErrorKind, Explained};
use rusqlite::ErrorCode;

/// Why the registry cannot be used, or a change of it was not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistryError {
    /// It is no database, not one of ours, or its contents are broken.
    #[error("the registry is damaged: {why}")]
    Damaged {
        /// What is wrong.
        why: String,
    },
    /// Another version made it.
    #[error("the registry has schema {found}; this version knows schema {known}")]
    OtherSchema {
        /// Its schema.
        found: i64,
        /// The one that we know.
        known: i64,
    },
    /// There is no space for the change.
    #[error("the disk of the registry is full")]
    Full,
    /// It cannot be written.
    #[error("the registry cannot be written")]
    ReadOnly,
    /// Another process keeps it locked.
    #[error("the registry is locked by another process")]
    Busy,
    /// What is to be changed is not there any more, or not as it was.
    #[error("{what} `{id}` is not in the registry as it was")]
    Stale {
        /// `sandbox` or `key`.
        what: &'static str,
        /// Which one.
        id: String,
    },
    /// Something of that name is there already.
    #[error("{what} is in the registry already")]
    Exists {
        /// What it is.
        what: &'static str,
    },
    /// It was closed.
    #[error("the registry is closed")]
    Closed,
    /// A call failed otherwise.
    #[error("{tried}")]
    Failed {
        /// What was tried.
        tried: &'static str,
        /// Why it failed.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl RegistryError {
    /// Takes apart what SQLite says.
    pub(super) fn of(tried: &'static str, error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged { why: error.to_string() },
            _ => Self::Failed {
                tried,
                source: Arc::new(error),
            },
        }
    }

    /// A row that does not hold what we write.
    pub(super) fn damaged(why: impl Into<String>) -> Self {
        Self::Damaged { why: why.into() }
    }
}

impl Explained for RegistryError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Damaged { .. } | Self::Failed { .. } => ErrorKind::Internal,
            Self::OtherSchema { .. } => ErrorKind::Unsupported,
            Self::Full => ErrorKind::Exhausted,
            Self::ReadOnly => ErrorKind::Denied,
            Self::Busy | Self::Closed => ErrorKind::Unavailable,
            Self::Stale { .. } | Self::Exists { .. } => ErrorKind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged { .. } => Some(
                "it was left as it is; move `registry.sqlite3*` out of the state directory to begin with an empty one"
                    .into(),
            ),
            Self::OtherSchema { .. } => {
                Some("use the version that made it, or name another directory with `--state DIR`".into())
            }
            Self::Full => Some("free some space on the disk of the state directory".into()),
            Self::ReadOnly => Some("make the state directory writable, or name another with `--state DIR`".into()),
            _ => None,
        }
    }
}
