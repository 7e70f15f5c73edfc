//! Why changes are not applied.

use std::fmt;
use std::path::PathBuf;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;
use offleash_core::text::Text;

use crate::RunError;
use crate::failure::FileError;

/// Why changes were not applied; nothing was, except after `RollbackFailed`.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The run is in the wrong state, or its changes cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A path selects no change.
    #[error("run `{id}` has no change at `{}`", Text::from(.path))]
    NoSuchChange {
        /// The run.
        id: RunId,
        /// The path.
        path: PathBuf,
    },
    /// The host changed since the run started.
    #[error("cannot apply run `{id}`: {}", list(.conflicts))]
    Conflicts {
        /// The run.
        id: RunId,
        /// Every one of them.
        conflicts: Vec<ConflictAt>,
    },
    /// A call failed; what was done was undone.
    #[error("cannot apply run `{id}`; nothing was changed")]
    Failed {
        /// The run.
        id: RunId,
        /// The call.
        source: FileError,
    },
    /// An apply could not be undone.
    #[error("an apply of run `{id}` could not be undone; originals are in `.offleash-{id}` in the workspace")]
    RollbackFailed {
        /// The run.
        id: RunId,
        /// The call that failed.
        source: FileError,
    },
    /// Only in tests of crashes.
    #[doc(hidden)]
    #[error("stopped")]
    Stopped,
}

/// A host entry that is not what the run saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictAt {
    /// The layer.
    pub layer: usize,
    /// The path, as [`LayerChange::shown_path`](crate::LayerChange::shown_path) has it.
    pub path: PathBuf,
    /// What happened.
    pub reason: ConflictReason,
}

/// What happened to a host entry meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictReason {
    /// It was changed, or put there, since the run started.
    Changed,
    /// Something was put where the run adds an entry.
    Appeared,
    /// It is gone.
    Gone,
    /// A directory that the run removed holds something that it did not.
    NotEmpty,
    /// A symbolic link or a mount is on the way to it.
    Unreachable,
}

impl fmt::Display for ConflictAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.reason {
            ConflictReason::Changed => "changed on the host since the run started",
            ConflictReason::Appeared => "appeared on the host since the run started",
            ConflictReason::Gone => "was removed from the host since the run started",
            ConflictReason::NotEmpty => "holds entries that the run did not see",
            ConflictReason::Unreachable => "lies behind a symbolic link or a mount on the host",
        };
        write!(f, "`{}` {what}", Text::from(&self.path))
    }
}

fn list(conflicts: &[ConflictAt]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = conflicts.iter().take(SHOWN).map(ToString::to_string).collect();
    if conflicts.len() > SHOWN {
        text.push(format!("{} more", conflicts.len() - SHOWN));
    }
    text.join(", ")
}

impl Explained for ApplyError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Run(source) => source.kind(),
            Self::NoSuchChange { .. } => ErrorKind::NotFound,
            Self::Conflicts { .. } => ErrorKind::Conflict,
            Self::Failed { source, .. } => source.kind(),
            Self::RollbackFailed { .. } | Self::Stopped => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Run(source) => source.hint(),
            Self::NoSuchChange { id, .. } => Some(format!("`offleash diff {id}` shows its changes")),
            Self::Conflicts { id, .. } => Some(format!(
                "compare with `offleash diff {id}`, then apply the other paths by name or run the command again"
            )),
            Self::Failed { source, .. } => source.hint(),
            Self::RollbackFailed { .. } => Some("mend the cause; the next start of offleash tries again".into()),
            Self::Stopped => None,
        }
    }
}
