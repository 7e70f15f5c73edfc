//! Why there is no context, or no cell in it.

use offleash_core::error::{ErrorKind, Explained};

use crate::language::Language;
use crate::process::ProcessError;

/// An error of contexts. What happens to a cell that began is told by its events instead.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// No context of the sandbox has this id.
    #[error("the sandbox has no context `{}`", id.escape_debug())]
    NotFound {
        /// The id, cut where it is very long.
        id: String,
    },
    /// There is no driver for that language.
    #[error("there is no language `{}`; there are: {}", name.escape_debug(), Language::names())]
    Language {
        /// The name, cut where it is very long.
        name: String,
    },
    /// The sandbox lacks what the language needs.
    #[error("{language} is not installed in the sandbox; {}", language.recipe())]
    NotInstalled {
        /// The language.
        language: Language,
    },
    /// The request itself is wrong.
    #[error("{reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// There is too much of it.
    #[error("{what}")]
    Exhausted {
        /// What there is too much of, and how much there may be.
        what: String,
    },
    /// The driver did not start.
    #[error("the context did not start: {reason}")]
    NotStarted {
        /// How, with what it wrote.
        reason: String,
    },
    /// The sandbox did not do what is needed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl Explained for ContextError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Language { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NotInstalled { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::NotStarted { .. } => ErrorKind::Unavailable,
            Self::Process(error) => error.kind(),
        }
    }
}

impl Explained for ProcessError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone => ErrorKind::NotFound,
            Self::Paused | Self::Ended => ErrorKind::Conflict,
            Self::NotFound => ErrorKind::Unsupported,
            Self::Directory { .. } => ErrorKind::Invalid,
            Self::Other { kind, .. } => *kind,
        }
    }
}

/// The beginning of what a caller gave, to be shown.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
