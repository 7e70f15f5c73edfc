//! Why a supervisor did not do what it was asked to.

use std::io;

use offleash_core::error::{ErrorKind, Explained};
use offleash_protocol::FrameError;

use super::message::{self, SupervisorFailure};

/// An error of a supervisor, or of the way to it.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The sandbox is gone, and its supervisor with it.
    #[error("the sandbox is gone")]
    Gone,
    /// It is held by a program of another version, whose messages are not ours.
    #[error(
        "the supervisor of the sandbox is of another version of offleash: it speaks version {found} of its messages, not {}",
        message::VERSION
    )]
    OtherVersion {
        /// The version of its messages.
        found: u32,
    },
    /// The sandbox is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// No user has this name.
    #[error("the sandbox has no user `{}`", .0.escape_debug())]
    InvalidUser(String),
    /// No such command runs.
    #[error("no such process runs in the sandbox")]
    NoProcess,
    /// Nobody listens on that port.
    #[error("nothing listens on that port in the sandbox")]
    PortClosed,
    /// The working directory cannot be entered.
    #[error("the working directory cannot be entered: {}", reason(*errno))]
    Directory {
        /// What the kernel said.
        errno: i32,
    },
    /// There is no such command.
    #[error("there is no such command in the sandbox")]
    NotFound,
    /// The command cannot be executed.
    #[error("the command cannot be executed: {}", reason(*errno))]
    NotExecutable {
        /// What the kernel said.
        errno: i32,
    },
    /// The command was not started for another reason.
    #[error("the command was not started: {step}: {}", reason(*errno))]
    NotStarted {
        /// What was tried.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
    /// The command takes no input, or no more.
    #[error("the process takes no input")]
    InputClosed,
    /// The command has no terminal.
    #[error("the process has no terminal")]
    NoTerminal,
    /// The level of the sandbox cannot do it.
    #[error("the sandbox cannot {operation}")]
    Unsupported {
        /// What.
        operation: String,
    },
    /// A person who had to be asked did not allow the command.
    #[error("`{command}` was not started: {why}")]
    NotAllowed {
        /// The command, cut.
        command: String,
        /// Why not, as one sentence without a full stop.
        why: String,
    },
    /// The request itself is wrong.
    #[error("{reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// Too much of this is going on.
    #[error("the sandbox has too many {what}")]
    Exhausted {
        /// Of what.
        what: String,
    },
    /// The operation on a file failed.
    #[error("{step}: {}", reason(*errno))]
    File {
        /// What was tried.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
    /// What is in the sandbox keeps its trust stores from being extended.
    #[error("the trust stores of the sandbox cannot be extended")]
    TrustStores(#[source] Box<SupervisorError>),
    /// The supervisor, or the process inside that serves files, did not answer in time.
    #[error("the sandbox does not answer in time ({operation})")]
    Timeout {
        /// What was asked.
        operation: &'static str,
    },
    /// What came is not what such a request is answered with.
    #[error("what the supervisor of the sandbox says is not understood: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// A call of the supervisor's on the host failed.
    #[error("the supervisor of the sandbox failed: {reason}")]
    Failed {
        /// Which, and how.
        reason: String,
    },
    /// The sandbox could not be made.
    #[error("the sandbox cannot be made: {message}")]
    NotMade {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed; it may name paths of the host.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// A call of ours failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl SupervisorError {
    pub(super) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// What a shell would say of a command that was not started: 127 if there is none, 126 if it cannot be executed.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound => Some(127),
            Self::NotExecutable { .. } => Some(126),
            _ => None,
        }
    }

    /// Something was answered that does not fit the question.
    pub(super) fn unexpected(what: &str) -> Self {
        Self::Protocol {
            reason: format!("{what} was not asked for"),
        }
    }
}

impl From<SupervisorFailure> for SupervisorError {
    fn from(failure: SupervisorFailure) -> Self {
        match failure {
            SupervisorFailure::InvalidUser(name) => Self::InvalidUser(name),
            SupervisorFailure::NoProcess => Self::NoProcess,
            SupervisorFailure::Paused => Self::Paused,
            SupervisorFailure::PortClosed => Self::PortClosed,
            SupervisorFailure::Directory { errno } => Self::Directory { errno },
            SupervisorFailure::NotFound => Self::NotFound,
            SupervisorFailure::NotExecutable { errno } => Self::NotExecutable { errno },
            SupervisorFailure::NotStarted { step, errno } => Self::NotStarted { step, errno },
            SupervisorFailure::InputClosed => Self::InputClosed,
            SupervisorFailure::NoTerminal => Self::NoTerminal,
            SupervisorFailure::Unsupported { operation } => Self::Unsupported { operation },
            SupervisorFailure::Invalid { reason } => Self::Invalid { reason },
            SupervisorFailure::Exhausted { what } => Self::Exhausted { what },
            SupervisorFailure::Failed { reason } => Self::Failed { reason },
            SupervisorFailure::Gone => Self::Gone,
        }
    }
}

impl From<FrameError> for SupervisorError {
    fn from(error: FrameError) -> Self {
        Self::Protocol {
            reason: error.to_string(),
        }
    }
}

impl Explained for SupervisorError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone | Self::NoProcess | Self::NotFound | Self::PortClosed => ErrorKind::NotFound,
            Self::Paused | Self::TrustStores(_) => ErrorKind::Conflict,
            Self::InvalidUser(_)
            | Self::Directory { .. }
            | Self::NotExecutable { .. }
            | Self::InputClosed
            | Self::NoTerminal
            | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NotAllowed { .. } => ErrorKind::Denied,
            Self::Unsupported { .. } | Self::OtherVersion { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::NotMade { kind, .. } => *kind,
            Self::File { errno, .. } => kind_of(*errno),
            Self::NotStarted { .. } | Self::Protocol { .. } | Self::Failed { .. } | Self::Io { .. } => {
                ErrorKind::Internal
            }
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotMade { hint, .. } => hint.clone(),
            Self::Paused => Some("resume it first".to_owned()),
            Self::OtherVersion { .. } => Some("use the version that made it, or end it".to_owned()),
            _ => None,
        }
    }
}

fn kind_of(errno: i32) -> ErrorKind {
    match io::Error::from_raw_os_error(errno).kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => ErrorKind::Conflict,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => ErrorKind::Exhausted,
        _ => ErrorKind::Invalid,
    }
}

/// What an error number that a supervisor answered with means.
pub fn reason(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
