//! What can go wrong when a sandbox is made or used.

use std::io;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::level::Level;
use rustix::io::Errno;

/// An error of the isolation room.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// A step of making the sandbox failed.
    #[error("cannot start a sandbox at level `{level}`: {step}{}", on(.subject))]
    Step {
        /// The level.
        level: Level,
        /// What was tried.
        step: String,
        /// On what; empty when there is nothing to name.
        subject: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Something that was asked for cannot be enforced here, and degrading was not allowed.
    #[error("cannot enforce {what} at level `{level}`: {reason}")]
    NotEnforceable {
        /// The level.
        level: Level,
        /// What was asked for.
        what: String,
        /// Why not.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// This level does not have this operation.
    #[error("level `{level}` cannot {operation}")]
    Unsupported {
        /// The level.
        level: Level,
        /// The operation.
        operation: &'static str,
    },
    /// The guest said something that is not the protocol, or is gone.
    #[error("lost the guest of the sandbox: {reason}")]
    Guest {
        /// What happened.
        reason: String,
    },
    /// A call on the running sandbox failed.
    #[error("cannot {action}")]
    Running {
        /// What was tried.
        action: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// What the command wrote cannot be passed on: there is no room for it.
    #[error("cannot write the command's output")]
    OutputFull {
        /// Which stream, and what the kernel answered.
        source: io::Error,
    },
}

impl IsolationError {
    /// The same error at another level: one that stands on the level at which it came up.
    pub(crate) fn at(self, level: Level) -> Self {
        match self {
            Self::Step {
                step, subject, source, ..
            } => Self::Step {
                level,
                step,
                subject,
                source,
            },
            Self::NotEnforceable { what, reason, hint, .. } => Self::NotEnforceable {
                level,
                what,
                reason,
                hint,
            },
            other => other,
        }
    }

    /// Whether this machine does not let this user make namespaces, without which a weaker level is left.
    pub fn forbids_namespaces(&self) -> bool {
        matches!(self, Self::Step { level: Level::Process, step, source, .. } if is_about_namespaces(step, source))
    }
}

/// `EPERM` and `EACCES`: a switch or a security module; `ENOSPC` and `EUSERS`: none are left; `EINVAL` and `ENOSYS`: the
/// kernel is built without.
fn is_about_namespaces(step: &str, source: &io::Error) -> bool {
    let answers = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::NOSPC,
        Errno::USERS,
        Errno::INVAL,
        Errno::NOSYS,
    ];
    let is_answer = |errno: Errno| source.raw_os_error() == Some(errno.raw_os_error());
    step.contains("namespaces") && answers.into_iter().any(is_answer)
}

fn on(subject: &str) -> String {
    if subject.is_empty() {
        String::new()
    } else {
        format!(" `{}`", subject.escape_debug())
    }
}

impl Explained for IsolationError {
    fn kind(&self) -> ErrorKind {
        match self {
            // `ENOSPC` is no full disk here, and `EPERM` is nobody's rule about whoever asked.
            Self::Step { step, source, .. } if is_about_namespaces(step, source) => ErrorKind::Unsupported,
            Self::Step { source, .. } | Self::Running { source, .. } | Self::OutputFull { source } => kind_of(source),
            Self::NotEnforceable { .. } | Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Guest { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Step { step, source, .. } => hint_for_step(step, source),
            Self::Unsupported { level, .. } if *level != Level::Process => {
                Some("level `process` can: `docs/levels.md` says what each level does".to_owned())
            }
            Self::NotEnforceable { hint, .. } => Some(hint.clone()),
            Self::OutputFull { .. } => {
                Some("free some space on the disk that the output goes to, or send it elsewhere".to_owned())
            }
            _ => None,
        }
    }
}

fn kind_of(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => ErrorKind::Exhausted,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Internal,
    }
}

fn hint_for_step(step: &str, source: &io::Error) -> Option<String> {
    if is_about_namespaces(step, source) {
        return Some(
            "user namespaces are forbidden or used up here; `offleash doctor` names the switch. Without them there is \
             `--level process-landlock` for a run, which is weaker and which `--degrade allow` takes when nothing stronger is \
             there, and `--level simulated` for a sandbox of a server"
                .to_owned(),
        );
    }
    match source.kind() {
        io::ErrorKind::StorageFull => {
            Some("free some space, or name another state directory with `--state`".to_owned())
        }
        _ => Some("`offleash doctor` says what this machine offers and how to mend what is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_that_may_not_be_made_call_for_a_weaker_level() {
        let step = |level, step: &str, errno: Errno| IsolationError::Step {
            level,
            step: step.to_owned(),
            subject: String::new(),
            source: errno.into(),
        };
        for (error, expected) in [
            (step(Level::Process, "making namespaces", Errno::PERM), true),
            (step(Level::Process, "making network namespaces", Errno::ACCESS), true),
            (step(Level::Process, "making namespaces", Errno::NOSPC), true),
            (step(Level::Process, "making namespaces", Errno::NOMEM), false),
            (step(Level::Process, "opening", Errno::ACCESS), false),
            (step(Level::ProcessLandlock, "making namespaces", Errno::PERM), false),
        ] {
            assert_eq!(error.forbids_namespaces(), expected, "{error:?}");
            assert_eq!(
                error.hint().unwrap().contains("process-landlock"),
                step_is_told(&error),
                "{error:?}"
            );
        }
    }

    #[test]
    fn namespaces_that_there_are_none_of_are_no_full_disk() {
        let step = |step: &str, errno: Errno| IsolationError::Step {
            level: Level::Process,
            step: step.to_owned(),
            subject: String::new(),
            source: errno.into(),
        };
        for (error, kind) in [
            (step("making namespaces", Errno::NOSPC), ErrorKind::Unsupported),
            (step("making namespaces", Errno::PERM), ErrorKind::Unsupported),
            (step("making namespaces", Errno::NOMEM), ErrorKind::Exhausted),
            (step("writing", Errno::NOSPC), ErrorKind::Exhausted),
            (step("opening", Errno::ACCESS), ErrorKind::Denied),
        ] {
            assert_eq!(error.kind(), kind, "{error:?}");
        }
    }

    fn step_is_told(error: &IsolationError) -> bool {
        matches!(error, IsolationError::Step { step, source, .. } if is_about_namespaces(step, source))
    }
}
