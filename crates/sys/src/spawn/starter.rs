//! A process that starts one program after another, and what it has found out about itself once for all of them.

use super::children;
use super::user::{BoundingBits, bounding_set};
use super::{SpawnCommand, SpawnError, SpawnedChild, raw, spawn_by};

/// A process in which every signal has its default action and that knows its bounding set, so that none of its children
/// has to reset the one, or to ask for the other.
#[derive(Debug, Clone, Copy)]
pub struct ChildStarter {
    /// As it was then: it can only shrink (capabilities(7)).
    pub(super) bounding: BoundingBits,
}

impl ChildStarter {
    /// Makes one of this process, which has one thread and sets no action of a signal from now on.
    pub fn of_this_process() -> Self {
        // What is ignored stays ignored across execve, and handlers are none of this process's own.
        let before = children::block_all_signals();
        reset_signal_actions();
        children::restore_signals(before);
        Self {
            bounding: bounding_set(),
        }
    }

    /// As [`super::spawn`].
    ///
    /// # Errors
    /// As [`super::spawn`].
    pub fn spawn(self, request: &SpawnCommand<'_>) -> Result<SpawnedChild, SpawnError> {
        spawn_by(Some(self), None, request)
    }
}

/// Gives every signal its default action. They are blocked meanwhile: in the child of a `vfork` a handler of the parent
/// must not run, and with `SIG_IGN` a command would inherit that SIGPIPE is ignored.
pub(super) fn reset_signal_actions() {
    // The kernel's `struct sigaction`, which differs between architectures in order but is all zeroes for `SIG_DFL`.
    let default = [0_usize; 4];
    for signal in 1..=64 {
        // SAFETY: the address is of a structure at least as long as the kernel's, of which it reads no more, and nothing
        // is written; SIGKILL and SIGSTOP are refused, which is no harm.
        unsafe {
            raw::call(
                libc::SYS_rt_sigaction,
                [signal, default.as_ptr().addr(), 0, size_of::<u64>(), 0, 0],
            )
        };
    }
}
