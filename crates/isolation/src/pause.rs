//! Stops every process of a sandbox for a while: by its cgroup, or one by one where no group can.
//!
//! Calls that the filter leaves to the supervisor are answered while processes come to rest: one that waits for its
//! answer may not stop before it has it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::IsolationError;
use crate::guest_link::running;
use crate::supervised::ServedBy;

/// How long processes may take to come to rest, on a machine that has a lot to do.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait between two looks, at first and at most.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LAST_LOOK: Duration = Duration::from_millis(5);

/// What a sandbox is held still by.
#[derive(Debug)]
pub(crate) enum PauseMeans {
    /// Its cgroup is frozen.
    Frozen,
    /// These were stopped, in this order; others had stopped by themselves.
    Stopped(Vec<OwnedFd>),
}

/// Stops every process of what is served.
///
/// # Errors
/// `Running` when not all came to rest; they all run again then.
pub(crate) fn pause(served: &mut ServedBy) -> Result<PauseMeans, IsolationError> {
    let can_freeze = served
        .watcher
        .group()
        .is_some_and(offleash_sys::cgroup::ControlGroup::can_freeze);
    if can_freeze {
        freeze(served)?;
        return Ok(PauseMeans::Frozen);
    }
    stop(served).map(PauseMeans::Stopped)
}

fn freeze(served: &mut ServedBy) -> Result<(), IsolationError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut wait = FIRST_LOOK;
    loop {
        let Some(group) = served.watcher.group() else {
            return Ok(());
        };
        let frozen = group.freeze_once();
        let failure = match frozen {
            Ok(true) => return Ok(()),
            Ok(false) if Instant::now() < deadline => None,
            Ok(false) => Some(io::ErrorKind::TimedOut.into()),
            Err(error) => Some(io::Error::other(error)),
        };
        if let Some(failure) = failure {
            let _thawed = group.thaw();
            return Err(running("stop the sandbox's processes")(failure));
        }
        served.link.turn(false)?;
        std::thread::sleep(wait);
        wait = (wait * 2).min(LAST_LOOK);
    }
}

/// Stops one by one, parents before children, until none is left that runs: what was forked meanwhile is found anew.
fn stop(served: &mut ServedBy) -> Result<Vec<OwnedFd>, IsolationError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut wait = FIRST_LOOK;
    let mut stopped = Vec::new();
    let mut known = BTreeSet::new();
    loop {
        let found: Vec<(u32, SeenProcess)> = served
            .watcher
            .processes()
            .into_iter()
            .filter_map(|pid| Some((pid, see(pid)?)))
            .collect();
        let held_up: BTreeSet<u32> = found
            .iter()
            .filter(|(_, seen)| seen.state == ProcessStillness::Stopped)
            .map(|(_, seen)| seen.parent)
            .collect();
        let mut all_rest = true;
        for (pid, seen) in found {
            if seen.state == ProcessStillness::Stopped {
                continue;
            }
            all_rest &= seen.state == ProcessStillness::Uninterruptible && held_up.contains(&pid) && will_stop(pid);
            let held = Pid::from_raw(pid.cast_signed()).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            let Some(Ok(process)) = held else { continue };
            match pidfd_send_signal(&process, Signal::STOP) {
                // One that another has let go on is stopped once more.
                Ok(()) if known.insert(pid) => stopped.push(process),
                Ok(()) => {}
                Err(Errno::SRCH) => {}
                Err(error) => {
                    go_on(&stopped);
                    return Err(running("stop a process of the sandbox")(error.into()));
                }
            }
        }
        if all_rest {
            return Ok(stopped);
        }
        if Instant::now() >= deadline {
            go_on(&stopped);
            return Err(running("stop the sandbox's processes")(io::ErrorKind::TimedOut.into()));
        }
        served.link.turn(false)?;
        std::thread::sleep(wait);
        wait = (wait * 2).min(LAST_LOOK);
    }
}

/// What is to be known of a process that is to stop.
struct SeenProcess {
    state: ProcessStillness,
    parent: u32,
}

/// From the stillest to the least still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProcessStillness {
    Stopped,
    Uninterruptible,
    Other,
}

/// Looks at a process; `None` for one that is gone, or all of whose threads are dead. It is as still as the least still of
/// them: the first may have ended long ago, and others stop later than it.
fn see(pid: u32) -> Option<SeenProcess> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let seen = threads
        .flatten()
        .filter_map(|thread| see_thread(&std::fs::read_to_string(thread.path().join("stat")).ok()?));
    seen.max_by_key(|seen| seen.state)
}

/// What `stat` says of a thread; `None` for one that is dead (proc_pid_stat(5)).
fn see_thread(stat: &str) -> Option<SeenProcess> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = match fields.next()? {
        "Z" | "X" => return None,
        "T" | "t" => ProcessStillness::Stopped,
        "D" => ProcessStillness::Uninterruptible,
        _ => ProcessStillness::Other,
    };
    let parent = fields.next()?.parse().ok()?;
    Some(SeenProcess { state, parent })
}

/// Whether a process stops before it runs another instruction of its own: a stop waits for it (proc_pid_status(5)).
///
/// One that waits for the child of its vfork(2) does not come to rest while that child is stopped, and does nothing
/// either.
fn will_stop(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status
        .lines()
        .find_map(|line| line.strip_prefix("ShdPnd:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & 1 << (Signal::STOP.as_raw() - 1) != 0)
}

/// Children first, so that no parent sees one that has stopped.
fn go_on(stopped: &[OwnedFd]) {
    for process in stopped.iter().rev() {
        // One that is gone needs nothing.
        let _continued = pidfd_send_signal(process, Signal::CONT);
    }
}

impl PauseMeans {
    /// Gives memory back to the machine that nothing uses meanwhile, where it can.
    pub(crate) fn give_memory_back(&self, served: &ServedBy) {
        if let (Self::Frozen, Some(group)) = (self, served.watcher.group()) {
            // The memory is not needed for the pause to be one.
            let _given_back = group.reclaim();
        }
    }

    /// Lets go on what was stopped.
    ///
    /// # Errors
    /// `Running` when the kernel refuses.
    pub(crate) fn end(&self, served: &ServedBy) -> Result<(), IsolationError> {
        match self {
            Self::Frozen => match served.watcher.group() {
                Some(group) => group
                    .thaw()
                    .map_err(|error| running("let the sandbox's processes go on")(io::Error::other(error))),
                None => Ok(()),
            },
            Self::Stopped(stopped) => {
                go_on(stopped);
                Ok(())
            }
        }
    }

    /// Sees to it that what is killed next can die: what is frozen takes no signal. None of it runs again before.
    ///
    /// # Errors
    /// `Running` when the kernel refuses.
    pub(crate) fn end_for_good(&self, served: &ServedBy) -> Result<(), IsolationError> {
        match (self, served.watcher.group()) {
            (Self::Frozen, Some(group)) => group
                .kill()
                .map_err(|error| running("kill the sandbox's cgroup")(io::Error::other(error))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_does_is_told_by_its_state() {
        let thread =
            |state: &str| see_thread(&format!("7 (a) b) {state} 3 7 7 0")).map(|seen| (seen.state, seen.parent));
        assert_eq!(thread("Z"), None);
        let states = ["T", "D", "S"].map(|state| thread(state).unwrap());
        assert!(
            states.is_sorted() && states.iter().all(|(_, parent)| *parent == 3),
            "{states:?}"
        );
    }
}
