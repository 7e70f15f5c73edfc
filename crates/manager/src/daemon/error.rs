//! Why the daemon does not do what it was asked.

use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_store::StateError;
use offleash_store::registry::RegistryError;

use crate::templates::TemplateError;

/// Why the daemon does not do what it was asked.
///
/// What `Display` says is meant for the caller and names nothing of the host; sources may, and are for the log.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is no such sandbox, or it is somebody else's.
    #[error("sandbox `{}` not found", .id.escape_debug())]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// Something else is being done with the sandbox, or it is not in the state for it.
    #[error("sandbox `{id}` {why}")]
    Conflict {
        /// The sandbox.
        id: String,
        /// As in `is already paused`.
        why: &'static str,
    },
    /// What was to be paused only if it is healthy is not: the guest in it does not answer.
    #[error("the guest of sandbox `{id}` does not answer; it runs on")]
    GuestUnresponsive {
        /// The sandbox.
        id: String,
    },
    /// The key has all that it may have.
    #[error("the quota of this key is used up: {used} of {quota} {what}, {asked} more asked for")]
    QuotaExceeded {
        /// `sandboxes`, `CPUs`, `MiB of memory` or `MiB of disk`.
        what: &'static str,
        /// How much it may have.
        quota: u64,
        /// How much it has.
        used: u64,
        /// How much more it asked for.
        asked: u64,
    },
    /// The machine has too little left.
    #[error("the machine is short of {what}; try again later")]
    Overloaded {
        /// `memory`, `processes`, `disk`, `sandboxes` …
        what: &'static str,
        /// After how long it may be worth a try.
        retry_after: Duration,
    },
    /// The request itself is wrong.
    #[error("{field}: {why}")]
    Invalid {
        /// Which field, as the API calls it.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such template.
    #[error("template `{}` not found", .name.escape_debug())]
    UnknownTemplate {
        /// What was asked for.
        name: String,
    },
    /// The template is being built, which is done once for all.
    #[error("template `{name}` is being built ({installs}); try again in a moment")]
    TemplateBuilding {
        /// The template.
        name: String,
        /// What it installs.
        installs: String,
        /// After how long it may be worth a try.
        retry_after: Duration,
    },
    /// The template could not be built.
    #[error("template `{name}` could not be built; the server's log says why")]
    TemplateFailed {
        /// The template.
        name: String,
    },
    /// Sandboxes use the template.
    #[error("template `{name}` is used by sandboxes")]
    TemplateInUse {
        /// The template.
        name: String,
    },
    /// Something of a template failed.
    #[error("the templates cannot be used")]
    Templates(#[from] TemplateError),
    /// This machine or this level cannot do it.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be done.
        why: String,
    },
    /// No key, or none that is valid.
    #[error("the API key is missing or not valid")]
    Unauthorized,
    /// The key may not do that.
    #[error("this key does not have the scope `{scope}`")]
    Forbidden {
        /// What it would need.
        scope: &'static str,
    },
    /// The daemon is ending.
    #[error("the daemon is ending; try again in a moment")]
    Draining,
    /// The process that holds the sandbox failed, or did not answer.
    #[error("the sandbox's keeper failed: {tried}")]
    Keeper {
        /// What was asked of it.
        tried: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The registry failed.
    #[error("the registry failed")]
    Store(#[from] RegistryError),
    /// The state directory cannot be used.
    #[error("the state directory cannot be used")]
    State(#[from] StateError),
    /// Another daemon works on the state directory.
    #[error("another daemon works on this state directory")]
    AlreadyRunning,
    /// The host failed us.
    #[error("cannot {tried}")]
    Host {
        /// What was tried, as in `start a keeper`.
        tried: &'static str,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DaemonError {
    pub(crate) fn not_found(id: &str) -> Self {
        Self::NotFound { id: id.to_owned() }
    }

    pub(crate) fn conflict(id: &str, why: &'static str) -> Self {
        Self::Conflict { id: id.to_owned(), why }
    }

    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }

    pub(crate) fn host(tried: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host {
            tried,
            source: Box::new(source),
        }
    }

    pub(crate) fn keeper(tried: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Keeper {
            tried,
            source: source.into(),
        }
    }
}

impl Explained for DaemonError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::UnknownTemplate { .. } => ErrorKind::NotFound,
            Self::Conflict { .. }
            | Self::GuestUnresponsive { .. }
            | Self::AlreadyRunning
            | Self::TemplateInUse { .. } => ErrorKind::Conflict,
            Self::QuotaExceeded { .. } => ErrorKind::Exhausted,
            Self::Overloaded { .. } | Self::Draining | Self::TemplateBuilding { .. } | Self::TemplateFailed { .. } => {
                ErrorKind::Unavailable
            }
            Self::Templates(source) => source.kind(),
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Unauthorized | Self::Forbidden { .. } => ErrorKind::Denied,
            Self::Keeper { .. } | Self::Host { .. } => ErrorKind::Internal,
            Self::Store(source) => source.kind(),
            Self::State(source) => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyRunning => Some("end it first, or name another directory with `--state DIR`".into()),
            Self::Unauthorized => Some("`offleash key create` makes a key and shows it once".into()),
            Self::Store(source) => source.hint(),
            Self::State(source) => source.hint(),
            _ => None,
        }
    }
}
