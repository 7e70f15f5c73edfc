//! Why a tool has not done what it was asked to.

use std::error::Error;

use offleash_core::error::{ErrorKind, Explained};
use offleash_daemon::DaemonError;
use offleash_daemon::local::LocalError;
use offleash_interpreter::error::ContextError;
use offleash_interpreter::process::ProcessError;
use offleash_supervisor::service::error::SupervisorError;

/// An error of a tool: what a model is told.
#[derive(Debug)]
pub(super) struct ToolError {
    pub(super) message: String,
    pub(super) hint: Option<String>,
    pub(super) what: ToolErrorKind,
}

/// What kind of error it is.
#[derive(Debug)]
pub(super) enum ToolErrorKind {
    /// One that the caller can do something about.
    Usual,
    /// There is no such file or sandbox.
    NotFound,
    /// The sandbox that was open has ended; why, where whoever tells it knows.
    Gone(Option<String>),
    /// One that is ours.
    Internal(Box<dyn Error + Send + Sync>),
}

impl ToolError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            what: ToolErrorKind::Usual,
        }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self {
            what: ToolErrorKind::NotFound,
            ..Self::new(message)
        }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what was tried.
    pub(super) fn while_trying(mut self, tried: impl std::fmt::Display) -> Self {
        self.message = format!("cannot {tried}: {}", self.message);
        self
    }

    /// The sandbox that was open has ended, because of that.
    pub(super) fn gone(why: Option<String>) -> Self {
        Self {
            what: ToolErrorKind::Gone(why),
            ..Self::new("the sandbox is gone")
        }
    }

    fn of<E: Explained + Send + Sync + 'static>(error: E) -> Self {
        let (message, hint) = (error.to_string(), error.hint());
        let what = match error.kind() {
            ErrorKind::Internal => ToolErrorKind::Internal(Box::new(error)),
            ErrorKind::NotFound => ToolErrorKind::NotFound,
            _ => ToolErrorKind::Usual,
        };
        Self { message, hint, what }
    }
}

impl From<SupervisorError> for ToolError {
    fn from(error: SupervisorError) -> Self {
        match error {
            SupervisorError::Gone => Self::gone(None),
            // What went wrong is the sandbox's own, and no secret.
            SupervisorError::NotStarted { .. } => Self::new(error.to_string()),
            error => Self::of(error),
        }
    }
}

impl From<ContextError> for ToolError {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Process(ProcessError::Gone) => SupervisorError::Gone.into(),
            error => Self::of(error),
        }
    }
}

impl From<LocalError> for ToolError {
    fn from(error: LocalError) -> Self {
        Self::of(error)
    }
}

impl From<DaemonError> for ToolError {
    fn from(error: DaemonError) -> Self {
        Self::of(error)
    }
}
