//! Why something of a sandbox or of a run cannot be looked at from outside.

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;

/// Why something cannot be looked at, or changed where it was looked at.
#[derive(Debug, thiserror::Error)]
pub enum InspectionError {
    /// There is no such process, or another one by now.
    #[error("sandbox `{id}` has no such process {pid} any more")]
    NoSuchProcess {
        /// The sandbox.
        id: String,
        /// Its number inside.
        pid: u32,
    },
    /// Nothing was changed there.
    #[error("there is no change at `{path}`")]
    NoSuchChange {
        /// Where.
        path: Text,
    },
    /// Changes of a run cannot be shown, applied or dropped. What it says names paths of the machine, and is for its owner.
    #[error("{message}")]
    Run {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

impl Explained for InspectionError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchProcess { .. } | Self::NoSuchChange { .. } => ErrorKind::NotFound,
            Self::Run { kind, .. } => *kind,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Run { hint, .. } => hint.clone(),
            Self::NoSuchProcess { .. } | Self::NoSuchChange { .. } => None,
        }
    }
}
