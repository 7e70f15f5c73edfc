//! What the kernel of a virtual machine counts of its sandbox: kills for want of memory, and processes that it refused.
//!
//! There the kernel that bounds a sandbox is the machine's own, and the host sees nothing of that. The guest is given the files in
//! which it counts, open for reading. The host takes the figures for the guest's word, as it does exit codes.

use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use offleash_sys::spawn;

/// Descriptors of `memory.events` and `pids.events`, behind the control socket.
pub(crate) const MEMORY_EVENTS: i32 = 4;
pub(crate) const PROCESS_EVENTS: i32 = 5;

/// `CGROUP2_SUPER_MAGIC` (statfs(2)).
const CONTROL_GROUP: u64 = 0x6367_7270;

/// Longest text of such a file: seven lines.
const MAX_EVENTS: usize = 512;

/// The two files, and what they said last.
#[derive(Debug)]
pub(crate) struct LimitCounts {
    memory: OwnedFd,
    processes: OwnedFd,
    last: KernelCounts,
}

/// How often a limit was reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KernelCounts {
    /// Processes that were killed for want of memory.
    pub(crate) memory_kills: u64,
    /// Processes and threads that were refused.
    pub(crate) refused_processes: u64,
}

impl LimitCounts {
    /// Those of this process; `None` where it was given none.
    pub(crate) fn adopt() -> Option<Self> {
        // What is something else stays whose it is.
        let is_count = |path: &CStr| {
            let status = rustix::fs::statfs(path);
            status.is_ok_and(|status| u64::try_from(status.f_type) == Ok(CONTROL_GROUP))
        };
        if !is_count(c"/proc/self/fd/4") || !is_count(c"/proc/self/fd/5") {
            return None;
        }
        Some(Self {
            memory: spawn::adopt_descriptor(MEMORY_EVENTS).ok()?,
            processes: spawn::adopt_descriptor(PROCESS_EVENTS).ok()?,
            last: KernelCounts::default(),
        })
    }

    /// What to wait on for `POLLPRI`, which says that a file has changed since it was read.
    pub(crate) fn wait_on(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.processes.as_fd()]
    }

    /// Reads both files; whether they say more than before.
    pub(crate) fn look(&mut self) -> bool {
        let counts = KernelCounts {
            memory_kills: read_keyed(&self.memory, b"oom_kill").unwrap_or(self.last.memory_kills),
            refused_processes: read_keyed(&self.processes, b"max").unwrap_or(self.last.refused_processes),
        };
        let has_changed = counts != self.last;
        self.last = counts;
        has_changed
    }

    /// What they said last.
    pub(crate) fn last(&self) -> KernelCounts {
        self.last
    }
}

fn read_keyed(file: &OwnedFd, key: &[u8]) -> Result<u64, Errno> {
    let mut text = [0; MAX_EVENTS];
    let count = rustix::io::pread(file, &mut text[..], 0)?;
    Ok(keyed(text.get(..count).unwrap_or_default(), key))
}

/// The number behind `key` and a blank; zero if there is none.
fn keyed(text: &[u8], key: &[u8]) -> u64 {
    let mut lines = text.split(|byte| *byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(b" "));
    number
        .and_then(|number| core::str::from_utf8(number).ok()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_by_its_whole_name() {
        let text = b"low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(keyed(text, b"oom_kill"), 2);
        assert_eq!(keyed(text, b"max"), 7);
        assert_eq!(keyed(text, b"oom_k"), 0);
        assert_eq!(keyed(b"max x\n", b"max"), 0);
    }
}
