//! The network namespace of a sandbox, made by a thread of the first process while that does the rest.
//!
//! Making one takes the kernel as long as assembling the file system, and neither needs the other. The thread is over
//! before anything of it could matter: the first process enters what was made, gives up its capabilities and execs.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;

use offleash_sys::{namespaces, socket};

use super::child::step;
use super::handshake::StepFailure;

/// It needs a few frames; nothing of it is touched that is not used.
const STACK: usize = 64 * 1024;

/// A network namespace that is being made.
#[derive(Debug)]
pub(super) struct NetworkNamespace(JoinHandle<Result<OwnedFd, StepFailure>>);

impl NetworkNamespace {
    /// Begins to make one, with the loopback interface turned on.
    pub(super) fn begin() -> Result<Self, StepFailure> {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(make);
        thread.map(Self).map_err(step("starting a thread"))
    }

    /// Waits until it is made, and enters it.
    pub(super) fn enter(self) -> Result<(), StepFailure> {
        let made = self.0.join().unwrap_or_else(|_panicked| {
            let source = std::io::Error::other("a thread panicked");
            Err(StepFailure::new("making network namespaces", "", source))
        })?;
        namespaces::enter_network(made.as_fd()).map_err(step("entering the network namespace"))
    }
}

fn make() -> Result<OwnedFd, StepFailure> {
    namespaces::unshare_network().map_err(step("making network namespaces"))?;
    socket::loopback_up().map_err(step("turning the loopback interface on"))?;
    namespaces::network_of_this_thread().map_err(step("naming the network namespace"))
}
