//! Ends or pauses every process of a group.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::error::CgroupError;
use super::group::{ControlGroup, GroupPart};
use super::hierarchy::{Controller, HierarchyVersion};

/// How long a group may take to die or to come to rest before that is an error.
const TIMEOUT: Duration = Duration::from_secs(5);

impl ControlGroup {
    /// Kills every process in the group, also those that are being forked meanwhile, and waits until it is empty.
    ///
    /// Version 2 has one write for it (`cgroup.kill`, Linux 5.14). Otherwise forking is stopped first, by a pids
    /// limit of zero or by freezing, and then each process is killed until none is left. Zombies do not count.
    ///
    /// # Errors
    /// `StillBusy` when processes remain after five seconds, such as in uninterruptible sleep.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut pause = Duration::from_micros(100);
        self.stop_forking()?;
        loop {
            if self.kill_once()? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.still_busy());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// One round; true when nothing is left.
    fn kill_once(&self) -> Result<bool, CgroupError> {
        for part in self.parts.iter().filter(|part| part.version == HierarchyVersion::V2) {
            match part.directory.write("cgroup.kill", "1") {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        if let (Some(part), None) = (self.part(Controller::Freezer), self.part(Controller::Pids)) {
            match part.freeze_once() {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        let found = self.processes()?;
        self.kill_listed(&found)?;
        // A frozen process of version 1 takes no signal, not even this one, before it is thawed.
        self.thaw()?;
        Ok(found.is_empty())
    }

    /// Kills the processes in `found` that are certainly still ours.
    ///
    /// An id may pass to another process at any time. A descriptor is taken first and the list is read again: if the
    /// id is still in the group and the signal finds the descriptor's process alive, then that one was in the group.
    fn kill_listed(&self, found: &[i32]) -> Result<(), CgroupError> {
        let open = |pid: &i32| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?));
        // In slices, so that a group of thousands does not use up our descriptors.
        for slice in found.chunks(64) {
            let held: Vec<_> = slice.iter().filter_map(open).collect();
            let still = self.processes()?;
            for (_, process) in held.iter().filter(|(pid, _)| still.binary_search(pid).is_ok()) {
                // Gone meanwhile is what was wanted; the next round sees whatever else remains.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        Ok(())
    }

    /// Takes away the possibility to start further processes, where there is a way.
    fn stop_forking(&self) -> Result<(), CgroupError> {
        let Some(part) = self.part(Controller::Pids) else {
            return Ok(());
        };
        match part.directory.write("pids.max", "0") {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    fn still_busy(&self) -> CgroupError {
        CgroupError::StillBusy {
            path: self.paths().next().unwrap_or("/".as_ref()).to_path_buf(),
        }
    }

    /// Stops every process in the group where it is, and returns when all have stopped.
    ///
    /// # Errors
    /// `Unavailable` when the group was made without [`GroupLimits::pause`](super::GroupLimits::pause) in version 1;
    /// `NotFrozen` when not all came to rest within five seconds; they are let run again then.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut pause = Duration::from_micros(50);
        while !self.freeze_once()? {
            if Instant::now() >= deadline {
                self.thaw()?;
                return Err(self.not_frozen());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether [`Self::freeze`] can work.
    pub fn can_freeze(&self) -> bool {
        self.part(Controller::Freezer).is_some()
    }

    /// Asks every process to stop where it is; true when all have. For callers that must attend to the processes while
    /// they come to rest, and ask again until then.
    ///
    /// # Errors
    /// As [`Self::freeze`], but for `NotFrozen`.
    pub fn freeze_once(&self) -> Result<bool, CgroupError> {
        let part = self.part(Controller::Freezer).ok_or(CgroupError::Unavailable {
            controller: Controller::Freezer,
            reason: super::ControllerProblem::NotMounted,
        })?;
        part.freeze_once()
    }

    fn not_frozen(&self) -> CgroupError {
        CgroupError::NotFrozen {
            path: self.paths().next().unwrap_or("/".as_ref()).to_path_buf(),
        }
    }

    /// Gives memory of the group back to the machine, as much as can be had without waiting for long: its cache above
    /// all. Nothing happens where the kernel does not offer it (`memory.reclaim`, Linux 5.19).
    ///
    /// # Errors
    /// `Io` when the kernel refuses otherwise than for having found less.
    pub fn reclaim(&self) -> Result<(), CgroupError> {
        let Some(part) = self
            .part(Controller::Memory)
            .filter(|part| part.version == HierarchyVersion::V2)
        else {
            return Ok(());
        };
        let used = part.directory.read_number("memory.current")?;
        match part.directory.write_number("memory.reclaim", used) {
            Err(error) if !error.is_not_found() && !error.is_again() => Err(error),
            _ => Ok(()),
        }
    }

    /// Lets every process run again; nothing happens when they do already.
    ///
    /// # Errors
    /// `Io` when the kernel refuses.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        let Some(part) = self.part(Controller::Freezer) else {
            return Ok(());
        };
        let result = match part.version {
            HierarchyVersion::V1 => part.directory.write("freezer.state", "THAWED"),
            HierarchyVersion::V2 => part.directory.write("cgroup.freeze", "0"),
        };
        match result {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }
}

impl GroupPart {
    /// Asks for the freeze; true when every process has stopped.
    fn freeze_once(&self) -> Result<bool, CgroupError> {
        match self.version {
            // Written again in every round: a process that forked while it was frozen is caught by the next write
            // (<https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html>).
            HierarchyVersion::V1 => {
                self.directory.write("freezer.state", "FROZEN")?;
                Ok(self.directory.read("freezer.state")?.trim() == "FROZEN")
            }
            HierarchyVersion::V2 => {
                self.directory.write("cgroup.freeze", "1")?;
                Ok(self.directory.read_keyed("cgroup.events", "frozen")? == Some(1))
            }
        }
    }
}
