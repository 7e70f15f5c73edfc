//! Why a session of a browser, or a desktop, is not made, found or ended.

use offleash_browser::ContextError;
use offleash_core::error::{ErrorKind, Explained};

/// Why a session of a browser, or a desktop, is not made, found or ended. What `Display` says is meant for the caller.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no such session, or it is somebody else's.
    #[error("session `{}` not found", .id.escape_debug())]
    UnknownSession {
        /// What was asked for.
        id: String,
    },
    /// The caller has no such context.
    #[error("browser context `{}` not found", .name.escape_debug())]
    UnknownContext {
        /// What was asked for.
        name: String,
    },
    /// The caller has a context of this name.
    #[error("there is a browser context `{}` already", .name.escape_debug())]
    ContextExists {
        /// The name.
        name: String,
    },
    /// Another session writes to the context.
    #[error("browser context `{name}` is written to by {}", writer(.session.as_deref()))]
    ContextInUse {
        /// The context.
        name: String,
        /// The session; `None` for one that is being made.
        session: Option<String>,
    },
    /// A context cannot be read or written.
    #[error("{0}")]
    Context(#[source] ContextError),
    /// There is no browser in sandboxes of the template.
    #[error("there is no browser in template `{}`", .template.escape_debug())]
    NoBrowser {
        /// The template.
        template: String,
    },
    /// The browser does not do what it is asked.
    #[error("the session's browser failed: {why}")]
    Failed {
        /// Why, as far as it says so.
        why: String,
    },
    /// There is no such desktop, or it is somebody else's.
    #[error("desktop `{}` not found", .id.escape_debug())]
    UnknownDesktop {
        /// What was asked for.
        id: String,
    },
    /// There is no desktop in sandboxes of the template.
    #[error("there is no desktop in template `{}`: {why}", .template.escape_debug())]
    NoDesktop {
        /// The template.
        template: String,
        /// What is missing.
        why: String,
    },
    /// The desktop does not start.
    #[error("the desktop failed: {why}")]
    DesktopFailed {
        /// Why, as far as its programs say so.
        why: String,
    },
}

impl Explained for SessionError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownSession { .. } | Self::UnknownContext { .. } | Self::UnknownDesktop { .. } => {
                ErrorKind::NotFound
            }
            Self::ContextExists { .. } | Self::ContextInUse { .. } => ErrorKind::Conflict,
            Self::Context(ContextError::TooLarge) => ErrorKind::Exhausted,
            Self::Context(_) => ErrorKind::Internal,
            Self::NoBrowser { .. } | Self::NoDesktop { .. } => ErrorKind::Unsupported,
            Self::Failed { .. } | Self::DesktopFailed { .. } => ErrorKind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoBrowser { .. } => {
                "`offleash template build --name browser --recipe browser` on the server's machine builds one with a browser"
            }
            Self::NoDesktop { .. } => {
                "`offleash template build --name desktop --recipe desktop` on the server's machine builds one with a desktop"
            }
            Self::ContextInUse { .. } => "release that session first, or use the context without saving to it",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// Who writes to a context.
fn writer(session: Option<&str>) -> String {
    session.map_or_else(
        || "a session that is being made".to_owned(),
        |session| format!("session `{session}`"),
    )
}
