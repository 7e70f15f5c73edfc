//! Why a run cannot be made, found or worked on.

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;
use offleash_core::path_rules::PathPatternError;
use offleash_core::text::Text;

use crate::change::ChangeError;
use crate::failure::FileError;

/// Why a run cannot be made, found or worked on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such run.
    #[error("there is no run `{id}`")]
    NotFound {
        /// The run.
        id: RunId,
    },
    /// There is one already.
    #[error("there is a run `{id}` already")]
    Exists {
        /// The run.
        id: RunId,
    },
    /// It is going on, or another `apply` or `discard` of it is.
    #[error("run `{id}` is still going on, or being applied or discarded")]
    Busy {
        /// The run.
        id: RunId,
    },
    /// It was applied before.
    #[error("run `{id}` was applied already")]
    AlreadyApplied {
        /// The run.
        id: RunId,
    },
    /// It was discarded before.
    #[error("run `{id}` was discarded")]
    Discarded {
        /// The run.
        id: RunId,
    },
    /// Its record cannot be understood.
    #[error("the record of run `{id}` is damaged: {why}")]
    Damaged {
        /// The run.
        id: RunId,
        /// What is wrong.
        why: String,
    },
    /// A protect pattern is none.
    #[error("`{pattern}` is not a pattern for protected paths")]
    Pattern {
        /// The pattern.
        pattern: Text,
        /// What is wrong.
        source: PathPatternError,
    },
    /// A host directory cannot be used.
    #[error("cannot use the workspace of run `{id}`")]
    Workspace {
        /// The run.
        id: RunId,
        /// The call that failed.
        source: FileError,
    },
    /// Another directory is where the workspace was.
    #[error("`{root}` is not the directory any more that run `{id}` worked in")]
    WorkspaceReplaced {
        /// The run.
        id: RunId,
        /// The host directory.
        root: Text,
    },
    /// The changes cannot be read.
    #[error("cannot read the changes of run `{id}`")]
    Changes {
        /// The run.
        id: RunId,
        /// Why.
        source: Box<ChangeError>,
    },
    /// A file of the run cannot be used.
    #[error("cannot keep run `{id}` in the state directory")]
    File {
        /// The run.
        id: RunId,
        /// The call that failed.
        source: FileError,
    },
}

impl Explained for RunError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::Discarded { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::Busy { .. } | Self::AlreadyApplied { .. } | Self::WorkspaceReplaced { .. } => {
                ErrorKind::Conflict
            }
            Self::Damaged { .. } => ErrorKind::Internal,
            Self::Pattern { .. } => ErrorKind::Invalid,
            Self::Workspace { source, .. } | Self::File { source, .. } => source.kind(),
            Self::Changes { source, .. } => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { .. } => {
                Some("`offleash runs` lists the runs that are kept; one that changed nothing is not".into())
            }
            Self::Busy { .. } => Some("wait until it has ended".into()),
            Self::Damaged { id, .. } => Some(format!(
                "its workspace is untouched; `offleash discard {id}` removes what is left"
            )),
            Self::WorkspaceReplaced { .. } => Some("move the original directory back".into()),
            Self::Workspace { source, .. } => source.hint(),
            Self::File { source, .. } => source
                .hint()
                .or_else(|| Some("name another state directory with `--state DIR` or `OFFLEASH_STATE`".into())),
            Self::Changes { id, source } => source.hint().or_else(|| {
                Some(format!(
                    "what it wrote lies in `runs/{id}` of the state directory; `offleash discard {id}` drops it"
                ))
            }),
            _ => None,
        }
    }
}
