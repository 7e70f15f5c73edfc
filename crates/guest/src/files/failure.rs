//! Why a request could not be carried out, or nothing more can.

use alloc::string::String;

use offleash_protocol::files::FileReply;
use rustix::io::Errno;

/// What was tried, and what the kernel said.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileFailure {
    pub(super) step: &'static str,
    pub(super) errno: Errno,
}

/// Makes an error of the kernel's the failure of a step.
pub(super) fn failed(step: &'static str) -> impl Fn(Errno) -> FileFailure {
    move |errno| FileFailure { step, errno }
}

impl From<FileFailure> for FileReply {
    fn from(failure: FileFailure) -> Self {
        FileReply::Failed {
            step: String::from(failure.step),
            errno: failure.errno.raw_os_error(),
        }
    }
}

/// The host is gone, or does not speak the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostGone;

/// Why work on a request stops.
#[derive(Debug, Clone, Copy)]
pub(super) enum RequestStop {
    /// The request failed; the next one may not.
    Failed(FileFailure),
    /// Nobody is there to be served.
    Gone,
}

impl From<FileFailure> for RequestStop {
    fn from(failure: FileFailure) -> Self {
        RequestStop::Failed(failure)
    }
}

impl From<HostGone> for RequestStop {
    fn from(_: HostGone) -> Self {
        RequestStop::Gone
    }
}
