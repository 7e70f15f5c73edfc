//! Why a Dockerfile cannot be built.

use offleash_core::build::patterns::PathPatternError;
use offleash_core::error::{ErrorKind, Explained};
use offleash_core::template::TemplateNameError;

/// Why a Dockerfile cannot be built, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}the Dockerfile", place(*.line))]
pub struct DockerfileError {
    /// The line, from 1; 0 where it is about the file as a whole.
    pub line: usize,
    /// Why.
    #[source]
    pub fault: DockerfileFault,
}

fn place(line: usize) -> String {
    match line {
        0 => String::new(),
        line => format!("line {line} of "),
    }
}

/// What is wrong with an instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DockerfileFault {
    /// A word that is no instruction.
    #[error("`{}` is no instruction", .0.escape_debug())]
    UnknownInstruction(String),
    /// An instruction that is known and not done here.
    #[error("{what} is not supported")]
    Unsupported {
        /// What.
        what: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// Something is missing, or is not written as it has to be.
    #[error("{0}")]
    Malformed(String),
    /// A pattern of `.dockerignore`.
    #[error(transparent)]
    Pattern(#[from] PathPatternError),
    /// A base that is no template.
    #[error(transparent)]
    Template(#[from] TemplateNameError),
    /// No stage of this name or number lies before.
    #[error("there is no stage `{}`", .0.escape_debug())]
    UnknownStage(String),
}

impl DockerfileFault {
    pub(super) fn at(self, line: usize) -> DockerfileError {
        DockerfileError { line, fault: self }
    }

    pub(super) fn malformed(text: impl Into<String>) -> Self {
        Self::Malformed(text.into())
    }
}

impl Explained for DockerfileError {
    fn kind(&self) -> ErrorKind {
        match &self.fault {
            DockerfileFault::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match &self.fault {
            DockerfileFault::Unsupported { hint, .. } => (*hint).to_owned(),
            DockerfileFault::Malformed(_) if self.line == 0 => {
                "begin it with `FROM IMAGE`, such as `FROM python:3.12-slim`".to_owned()
            }
            DockerfileFault::UnknownStage(_) => "stages are named by `FROM … AS NAME`".to_owned(),
            DockerfileFault::Template(error) => return error.hint(),
            _ => "docs/templates.md says what of a Dockerfile is understood".to_owned(),
        })
    }
}
