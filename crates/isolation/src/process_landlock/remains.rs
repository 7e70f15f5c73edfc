//! Kills everything in a sandbox that has no pid namespace: its guest, what the guest started, and what outlived it.
//!
//! A program may kill the guest, which runs as the same user; what the guest started then becomes ours, because this
//! process is a subreaper (prctl(2), `PR_SET_CHILD_SUBREAPER`). Whatever is below us, under a system call filter and in
//! our own pid namespace, belongs to a sandbox; nothing can leave the filter.
//!
//! First everything is stopped, until nothing new is found: what is stopped does not fork. Then all of it is killed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_sys::process::{self, ResourceUsage};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::limits::ProcessTree;

/// How long dying may take before that is an error: a process can be in an uninterruptible sleep.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The guests of all sandboxes of this level in this process; what is below another one is not ours to kill.
static GUESTS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn guests() -> MutexGuard<'static, Vec<i32>> {
    GUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processes of one sandbox, as far as they can be known from outside.
#[derive(Debug)]
pub(super) struct RemainingProcesses {
    /// The children that this process had before.
    before: Vec<u32>,
    guest: Option<Pid>,
}

impl RemainingProcesses {
    /// Makes this process the one to which orphans go. To be called before the guest is started.
    ///
    /// # Errors
    /// What prctl(2) answers.
    pub(super) fn prepare() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let before = ProcessTree::new(rustix::process::getpid()).children();
        Ok(Self { before, guest: None })
    }

    /// The sandbox's guest was started.
    pub(super) fn watch(&mut self, guest: Pid) {
        guests().push(guest.as_raw_pid());
        self.guest = Some(guest);
    }

    /// Kills all of it, reaps it, and answers what the guest and those that it waited for have used.
    ///
    /// # Errors
    /// `TimedOut` when something does not die.
    pub(super) fn kill(&mut self) -> io::Result<ResourceUsage> {
        let Some(guest) = self.guest else {
            return Ok(ResourceUsage::default());
        };
        let deadline = Instant::now() + TIMEOUT;
        self.stop(guest, deadline);
        let mut usage = None;
        let mut pause = Duration::from_micros(100);
        loop {
            let found = self.members(guest);
            for &pid in &found {
                signal(pid, Signal::KILL);
                reap(pid, guest);
            }
            // The guest is reaped once nothing is left below it: as long as it is there, its id is nobody else's.
            if found.iter().all(|pid| pid.cast_signed() == guest.as_raw_pid()) && usage.is_none() {
                usage = reap_guest(guest)?;
            } else if found.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        guests().retain(|pid| *pid != guest.as_raw_pid());
        self.guest = None;
        Ok(usage.unwrap_or_default())
    }

    /// Stops everything that is found, until a look finds nothing new.
    fn stop(&self, guest: Pid, deadline: Instant) {
        let mut stopped = HashSet::new();
        loop {
            let new: Vec<u32> = self
                .members(guest)
                .into_iter()
                .filter(|pid| stopped.insert(*pid))
                .collect();
            if new.is_empty() || Instant::now() >= deadline {
                return;
            }
            for pid in new {
                signal(pid, Signal::STOP);
            }
        }
    }

    /// The guest, what is below it, and orphans of this sandbox or of one whose guest is gone.
    fn members(&self, guest: Pid) -> Vec<u32> {
        let below = |pid: u32| {
            Pid::from_raw(pid.cast_signed())
                .map(|pid| ProcessTree::new(pid).processes())
                .unwrap_or_default()
        };
        let own = rustix::process::getpid();
        let mut others: HashSet<u32> = self.before.iter().flat_map(|pid| below(*pid)).collect();
        let other_guests: Vec<i32> = guests()
            .iter()
            .copied()
            .filter(|pid| *pid != guest.as_raw_pid())
            .collect();
        others.extend(other_guests.iter().flat_map(|pid| below(pid.cast_unsigned())));
        others.insert(own.as_raw_pid().cast_unsigned());
        let all = ProcessTree::new(own).processes();
        all.into_iter()
            .filter(|pid| !others.contains(pid) && is_confined(*pid))
            .collect()
    }
}

/// Signals a process if it is confined; the descriptor is taken first, so that what was looked at is what is signalled.
fn signal(pid: u32, signal: Signal) {
    let opened = Pid::from_raw(pid.cast_signed()).ok_or(Errno::SRCH);
    let opened: Result<OwnedFd, Errno> = opened.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
    if let Ok(descriptor) = opened
        && is_confined(pid)
    {
        // It may be gone, which is what is wanted.
        let _sent = rustix::process::pidfd_send_signal(&descriptor, signal);
    }
}

/// Reaps an orphan if it has ended and is our child.
fn reap(pid: u32, guest: Pid) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()).filter(|pid| *pid != guest) {
        let _reaped = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// `None` as long as the guest has not ended.
fn reap_guest(guest: Pid) -> io::Result<Option<ResourceUsage>> {
    let descriptor = match rustix::process::pidfd_open(guest, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::SRCH) => return Ok(Some(ResourceUsage::default())),
        Err(error) => return Err(error.into()),
    };
    if process::has_ended(std::os::fd::AsFd::as_fd(&descriptor))? {
        process::reap(guest).map(Some)
    } else {
        Ok(None)
    }
}

/// Whether a process is under a system call filter, cannot gain privileges, and is in our own pid namespace: nothing
/// can get rid of either, and what has none of them is not from a sandbox of this level.
fn is_confined(pid: u32) -> bool {
    let status = |path: String| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (Ok(of_it), Ok(own)) = (
        status(format!("/proc/{pid}/status")),
        status("/proc/self/status".to_owned()),
    ) else {
        return false;
    };
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let depth = |text: &str| field(text, "NSpid:").map(|ids| ids.split_whitespace().count());
    field(&of_it, "NoNewPrivs:").as_deref() == Some("1")
        && field(&of_it, "Seccomp:").as_deref() == Some("2")
        && depth(&of_it) == depth(&own)
}
