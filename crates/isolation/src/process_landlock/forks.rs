//! Counts processes where no control group does: the filter asks before each new one.
//!
//! The kernel's own limit counts all processes of a user and does not bind root, so without this a fork bomb would fill
//! the machine before a watcher sees it.

use rustix::process::Pid;

use crate::limits::ProcessTree;

/// The processes and threads of one sandbox.
#[derive(Debug)]
pub(super) struct KnownForks {
    tree: ProcessTree,
    most: u64,
    /// At least as many as there are: those of the last count and all that were admitted since.
    at_most: u64,
}

impl KnownForks {
    /// Allows `most` processes and threads to the sandbox of this guest, itself included.
    pub(super) fn new(guest: Pid, most: u64) -> Self {
        Self {
            tree: ProcessTree::new(guest),
            most,
            at_most: 1,
        }
    }

    /// Whether there may be one more. Counts anew only when the limit may have been reached, so a build that starts
    /// thousands of programs one after the other is counted a few times.
    pub(super) fn admit(&mut self) -> bool {
        if self.at_most >= self.most {
            self.at_most = self.tree.usage(&self.tree.processes()).pids;
        }
        let is_admitted = self.at_most < self.most;
        if is_admitted {
            self.at_most += 1;
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_admitted_as_there_is_room_for() {
        // This process, whose threads are the harness's, stands for a guest that starts nothing.
        let own = rustix::process::getpid();
        let tree = ProcessTree::new(own);
        let now = tree.usage(&tree.processes()).pids;
        let mut forks = KnownForks::new(own, now + 40);
        let admitted = (0..now + 400).filter(|_| forks.admit()).count();
        // What was admitted and never came is forgotten at each count.
        assert!(admitted >= 40, "{admitted}");
        let mut full = KnownForks::new(own, 1);
        assert!(!full.admit());
    }
}
