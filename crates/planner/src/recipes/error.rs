//! Why a recipe cannot be carried out on this machine.

use offleash_core::error::{ErrorKind, Explained};

/// Why a recipe cannot be carried out on this machine.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// A package manager is needed that is not there.
    #[error("{step}: the host has no `{program}`")]
    NoProgram {
        /// Which step.
        step: String,
        /// What is missing.
        program: &'static str,
        /// How to mend it.
        hint: &'static str,
    },
}

impl Explained for RecipeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoProgram { .. } => ErrorKind::Unsupported,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoProgram { hint, .. } => Some((*hint).to_owned()),
        }
    }
}
