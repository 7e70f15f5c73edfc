//! What can go wrong with control groups, and why a controller cannot be used.

use std::io;
use std::path::PathBuf;

use super::hierarchy::Controller;

/// A control group that could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A limit was asked for whose controller cannot be used here.
    #[error("the {controller} controller cannot be used")]
    Unavailable {
        /// Which controller.
        controller: Controller,
        /// Why not.
        #[source]
        reason: ControllerProblem,
    },
    /// The name is not one that a group of ours may have.
    #[error("`{}` is not a name for a control group: expected `offleash-` and letters, digits, `-` or `_`", .name.escape_debug())]
    Name {
        /// The name.
        name: String,
    },
    /// A call failed.
    #[error("{action} `{}`", .path.display())]
    Io {
        /// What was tried, such as `writing`.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file of the kernel says something that we do not understand.
    #[error("`{}` holds unexpected text: `{}`", .path.display(), .text.escape_debug())]
    Text {
        /// The file.
        path: PathBuf,
        /// Its beginning.
        text: String,
    },
    /// Processes are still in the group after they were killed.
    #[error("processes remain in `{}`", .path.display())]
    StillBusy {
        /// The group.
        path: PathBuf,
    },
    /// The group did not come to rest in time.
    #[error("`{}` was not frozen in time", .path.display())]
    NotFrozen {
        /// The group.
        path: PathBuf,
    },
    /// A recorded path is not a control group that we made.
    #[error("`{}` is not a control group of ours: {why}", .path.display())]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Making a group failed, and removing what had been made failed too.
    #[error("{first}; and cleaning up failed: {second}")]
    CleanUp {
        /// Why it could not be made.
        #[source]
        first: Box<CgroupError>,
        /// Why the rest could not be removed.
        second: Box<CgroupError>,
    },
}

impl CgroupError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            action,
            path: path.into(),
            source: source.into(),
        }
    }

    /// Whether the kernel said that the thing is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the kernel did less than it was asked to.
    pub(super) fn is_again(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether a process or a group is gone: `ESRCH`, `ENOENT` and `ENODEV` (a file of a group that was removed).
    pub(super) fn is_gone(&self) -> bool {
        let gone = [
            rustix::io::Errno::SRCH,
            rustix::io::Errno::NOENT,
            rustix::io::Errno::NODEV,
        ];
        matches!(self, Self::Io { source, .. }
            if gone.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error())))
    }
}

/// Why a controller cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerProblem {
    /// No mounted hierarchy has it.
    #[error("it is not part of any mounted control group hierarchy")]
    NotMounted,
    /// Our own group lies outside of what is mounted here.
    #[error("our own group `{}` is not visible in the hierarchy that is mounted here", .path.display())]
    OutsideView {
        /// Our group as `/proc/self/cgroup` has it.
        path: PathBuf,
    },
    /// The hierarchy is mounted read-only, as in most containers.
    #[error("`{}` is mounted read-only", .path.display())]
    ReadOnly {
        /// Our own group.
        path: PathBuf,
    },
    /// The group belongs to somebody else.
    #[error("`{}` is not ours to change", .path.display())]
    NotPermitted {
        /// Our own group.
        path: PathBuf,
    },
    /// Version 2: the parent did not hand the controller down.
    #[error("it is not handed down to `{}`", .path.display())]
    NotDelegated {
        /// The group whose children would need it.
        path: PathBuf,
    },
    /// Version 2: other processes are in our group, so it cannot hand controllers down.
    #[error("{count} other processes are in `{}`, so it cannot hand controllers to groups below it", .path.display())]
    OtherProcesses {
        /// Our own group.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// Version 2: our group is a systemd unit that was not started with `Delegate=yes`.
    #[error("`{}` is a systemd unit without `Delegate=yes`", .path.display())]
    UnitNotDelegated {
        /// Our own group.
        path: PathBuf,
    },
    /// Version 1 counts swap together with memory, so a swap limit needs a memory limit.
    #[error("control groups of version 1 limit swap only together with memory, and memory has no limit")]
    SwapWithoutMemory,
}
