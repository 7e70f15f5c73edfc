//! Why a request could not be carried out, or nothing more can.

use alloc::string::String;

use offleash_protocol::files::FileReply;
use rustix::io::Errno;

/// What was tried, and what the kernel said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) step: &'static str,
    pub(super) errno: Errno,
}

/// Makes an error of the kernel's the failure of a step.
pub(super) fn failed(step: &'static str) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, errno }
}

impl From<Failure> for FileReply {
    fn from(failure: Failure) -> Self {
        FileReply::Failed {
            step: String::from(failure.step),
            errno: failure.errno.raw_os_error(),
        }
    }
}

/// The host is gone, or does not speak the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

/// Why work on a request stops.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    /// The request failed; the next one may not.
    Failed(Failure),
    /// Nobody is there to be served.
    Gone,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Stop::Gone
    }
}
