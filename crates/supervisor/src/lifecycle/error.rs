//! Why a run could not be carried out, from whichever room.

use std::io;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::level::Level;
use offleash_core::monitor::MonitorAction;
use offleash_core::network::PublishRule;
use offleash_core::network::upstream_proxy::ProxyError;
use offleash_core::plan::UnknownUser;
use offleash_gateway::TrustError;
use offleash_images::ImageError;
use offleash_isolation::error::IsolationError;
use offleash_isolation::microvm::error::VmError;
use offleash_store::{ApplyError, AuditError, FileError, RunError, StateError, VolumeError};
use rustix::io::Errno;

use super::secrets::SecretsError;
use crate::templates::TemplateError;
use crate::tools::ToolsError;
use offleash_planner::PlanError;
use offleash_planner::base::BaseError;

/// An error of the supervisor, or of a room that it uses.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The spec cannot become a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What a root of the sandbox's own consists of cannot be made or removed.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A template cannot be used or built.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A volume cannot be used.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Tools cannot be offered.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// There is no such user inside.
    #[error(transparent)]
    User(#[from] UnknownUser),
    /// The sandbox cannot be made or used.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Something in the state directory cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A run cannot be opened or kept.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Changes cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The audit log cannot be written or read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// There is no such upstream proxy.
    #[error(transparent)]
    UpstreamProxy(#[from] ProxyError),
    /// There is no virtual machine for level `microvm`.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// There is no OCI runtime for level `container`.
    #[error("level `container` takes an OCI runtime, and there is no {}", .wanted.as_deref().map_or_else(|| "runsc, crun or runc in PATH".to_owned(), |name| format!("`{}` that is one", name.escape_debug())))]
    NoRuntime {
        /// The one that was asked for.
        wanted: Option<String>,
    },
    /// The level that was asked for is below the floor.
    #[error("level `{level}` is weaker than `{floor}`, which was asked for at least")]
    BelowFloor {
        /// What there would be.
        level: Level,
        /// What was asked for.
        floor: Level,
    },
    /// Connections cannot be opened, as rules for requests need it.
    #[error("the requests to some hosts have to be seen, and connections cannot be opened")]
    Trust(#[from] TrustError),
    /// The secrets cannot be used as asked.
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    /// A port cannot be listened on that is to be published.
    #[error("cannot publish port {} at {}:{} (`--publish`)", asked.port, asked.address, asked.host_port)]
    Publish {
        /// What was asked for.
        asked: PublishRule,
        /// Why.
        source: io::Error,
    },
    /// A rule of monitoring pauses what nobody could resume.
    #[error("rule `{rule}` of monitoring has the action `{action}`, and nobody could resume this sandbox")]
    NobodyResumes {
        /// The rule.
        rule: String,
        /// What it asks for.
        action: MonitorAction,
    },
    /// The host refused something basic.
    #[error("cannot {action}")]
    Host {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl LifecycleError {
    fn explained(&self) -> Option<&dyn Explained> {
        match self {
            Self::Base(error) => Some(error),
            Self::Image(error) => Some(error),
            Self::Template(error) => Some(error),
            Self::Volume(error) => Some(error),
            Self::Tools(error) => Some(error),
            Self::User(error) => Some(error),
            Self::Plan(error) => Some(error),
            Self::Isolation(error) => Some(error),
            Self::State(error) => Some(error),
            Self::File(error) => Some(error),
            Self::Run(error) => Some(error),
            Self::Apply(error) => Some(error),
            Self::Audit(error) => Some(error),
            Self::UpstreamProxy(error) => Some(error),
            Self::Secrets(error) => Some(error),
            Self::Vm(error) => Some(error),
            Self::NoRuntime { .. }
            | Self::BelowFloor { .. }
            | Self::NobodyResumes { .. }
            | Self::Trust(_)
            | Self::Publish { .. }
            | Self::Host { .. } => None,
        }
    }
}

impl Explained for LifecycleError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoRuntime { .. } | Self::BelowFloor { .. } | Self::NobodyResumes { .. } => ErrorKind::Unsupported,
            Self::Publish { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => ErrorKind::Conflict,
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                io::ErrorKind::AddrNotAvailable => ErrorKind::NotFound,
                _ => ErrorKind::Internal,
            },
            Self::Host { source, .. } if is_shortage(source) => ErrorKind::Exhausted,
            _ => self.explained().map_or(ErrorKind::Internal, Explained::kind),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Run(RunError::AlreadyApplied { .. } | RunError::Discarded { .. })
            | Self::Apply(ApplyError::Run(RunError::AlreadyApplied { .. } | RunError::Discarded { .. })) => {
                Some("`offleash runs` says which runs have changes that wait".to_owned())
            }
            Self::NoRuntime { .. } => Some(
                "install `runsc` (gVisor), or name a `runsc`, `crun` or `runc` with `--runtime`, by its name or its path".to_owned(),
            ),
            Self::Trust(_) => Some(
                "install the package ca-certificates, or name a file with certificate authorities in SSL_CERT_FILE"
                    .to_owned(),
            ),
            Self::BelowFloor { .. } => {
                Some("lower `--min-level` (`min_level` in a policy), or ask for a stronger level; `offleash doctor` says which there are".to_owned())
            }
            Self::NobodyResumes { .. } => {
                Some("sandboxes of a server can be paused (`offleash serve`); a run has `kill`, `throttle` and `alert`".to_owned())
            }
            Self::Publish { source, .. } => {
                let hint = match source.kind() {
                    io::ErrorKind::AddrInUse => {
                        "another program listens there: name another HOSTPORT, or 0 for any that is free"
                    }
                    io::ErrorKind::PermissionDenied => "ports below 1024 are root's: name a higher HOSTPORT",
                    io::ErrorKind::AddrNotAvailable => "name an address that this machine has",
                    _ => return None,
                };
                Some(hint.to_owned())
            }
            _ => self
                .explained()
                .and_then(Explained::hint)
                .or_else(|| self.hint_of_the_workspace()),
        }
    }
}

impl LifecycleError {
    fn hint_of_the_workspace(&self) -> Option<String> {
        match self {
            Self::Run(RunError::Workspace { id, .. })
            | Self::Apply(ApplyError::Run(RunError::Workspace { id, .. })) => Some(format!(
                "put the directory back where it was; `offleash discard {id}` drops the changes instead"
            )),
            _ => None,
        }
    }
}

/// Whether there were not enough descriptors, memory or room on a disk, which is so for others, too, and may be over later.
fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    if errno
        .is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC, Errno::DQUOT].contains(&errno))
    {
        return true;
    }
    // Behind what wraps one, its source is not that one but what is behind it.
    let mut next: Option<&(dyn std::error::Error + 'static)> = error.get_ref().map(|inner| inner as _);
    while let Some(cause) = next {
        if cause.downcast_ref::<io::Error>().is_some_and(is_shortage) {
            return true;
        }
        next = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_known_wherever_it_stands() {
        let host = |source| LifecycleError::Host {
            action: "start the gateway",
            source,
        };
        let short = || io::Error::from(Errno::MFILE);
        for (source, kind) in [
            (short(), ErrorKind::Exhausted),
            (io::Error::other(short()), ErrorKind::Exhausted),
            (io::Error::from(Errno::INVAL), ErrorKind::Internal),
            (io::Error::other("another"), ErrorKind::Internal),
        ] {
            assert_eq!(host(source).kind(), kind);
        }
    }
}
