//! What a group has used and which of its limits were hit.

use super::directory::{GroupDirectory, keyed};
use super::error::CgroupError;
use super::group::ControlGroup;
use super::hierarchy::{Controller, HierarchyVersion};

/// What the processes of a group have used so far, those that ended included; `None` where nothing accounts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupUsage {
    /// CPU time in user mode, in microseconds.
    pub cpu_user_us: Option<u64>,
    /// CPU time in the kernel, in microseconds.
    pub cpu_system_us: Option<u64>,
    /// The most bytes of memory at any time, swap not included; those in use now, where the kernel does not keep the
    /// most (version 2 before Linux 5.19).
    pub memory_peak: Option<u64>,
    /// The most processes and threads at any time; those that there are now before Linux 6.1.
    pub pids_peak: Option<u64>,
    /// Bytes read from storage; only where version 2 hands down the `io` controller.
    pub read_bytes: Option<u64>,
    /// Bytes written to storage; only where version 2 hands down the `io` controller.
    pub written_bytes: Option<u64>,
}

/// How often limits of a group were hit; `None` where nothing counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupEvents {
    /// Processes that the kernel killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Times a process or thread was refused.
    pub pids_max_hits: Option<u64>,
}

/// What the processes of a group use at this moment; `None` where nothing accounts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupNow {
    /// Bytes of memory, swap not included.
    pub memory_bytes: Option<u64>,
    /// Those of them that are the cache of files.
    pub cache_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl ControlGroup {
    /// What is used now; three small files are read.
    ///
    /// # Errors
    /// As [`Self::usage`].
    pub fn now(&self) -> Result<GroupNow, CgroupError> {
        let mut now = GroupNow::default();
        if let Some(part) = self.part(Controller::Memory) {
            let (used, cache) = match part.version {
                HierarchyVersion::V1 => ("memory.usage_in_bytes", "total_cache"),
                HierarchyVersion::V2 => ("memory.current", "file"),
            };
            now.memory_bytes = Some(part.directory.read_number(used)?);
            now.cache_bytes = part.directory.read_keyed("memory.stat", cache)?;
        }
        if let Some(part) = self.part(Controller::Pids) {
            now.pids = Some(part.directory.read_number("pids.current")?);
        }
        Ok(now)
    }

    /// Bytes of memory that are in use now, swap not included; `None` where they are not counted.
    pub fn memory_bytes(&self) -> Option<u64> {
        let part = self.part(Controller::Memory)?;
        let file = match part.version {
            HierarchyVersion::V1 => "memory.usage_in_bytes",
            HierarchyVersion::V2 => "memory.current",
        };
        part.directory.read_number(file).ok()
    }

    /// Processes and threads that there are now; `None` where they are not counted.
    pub fn pids(&self) -> Option<u64> {
        self.part(Controller::Pids)?.directory.read_number("pids.current").ok()
    }

    /// What was used so far; about four small files are read.
    ///
    /// # Errors
    /// `Io` when a file cannot be read, `Text` when it is not understood.
    pub fn usage(&self) -> Result<GroupUsage, CgroupError> {
        let mut usage = GroupUsage::default();
        if let Some(part) = self.part(Controller::CpuAccounting) {
            let (user, system) = match part.version {
                HierarchyVersion::V1 => cpu_v1(&part.directory)?,
                HierarchyVersion::V2 => cpu_v2(&part.directory)?,
            };
            usage.cpu_user_us = Some(user);
            usage.cpu_system_us = Some(system);
        }
        usage.memory_peak = self.memory_peak()?;
        if let Some(part) = self.part(Controller::Pids) {
            usage.pids_peak = Some(peak_or_now(&part.directory, "pids.peak", "pids.current")?);
        }
        if let Some(part) = self.parts.iter().find(|part| part.version == HierarchyVersion::V2)
            && part.directory.has("io.stat")
        {
            let (read, written) = io_bytes(&part.directory.read("io.stat")?);
            usage.read_bytes = Some(read);
            usage.written_bytes = Some(written);
        }
        Ok(usage)
    }

    /// Bytes of memory that were in use at most, or are now where no kernel remembers; `None` where they are not counted.
    ///
    /// # Errors
    /// As [`Self::usage`].
    pub fn memory_peak(&self) -> Result<Option<u64>, CgroupError> {
        let Some(part) = self.part(Controller::Memory) else {
            return Ok(None);
        };
        let (peak, now) = match part.version {
            HierarchyVersion::V1 => ("memory.max_usage_in_bytes", "memory.usage_in_bytes"),
            HierarchyVersion::V2 => ("memory.peak", "memory.current"),
        };
        peak_or_now(&part.directory, peak, now).map(Some)
    }

    /// CPU time used so far, user and kernel together, in microseconds: one small file. `None` without accounting.
    ///
    /// # Errors
    /// As [`Self::usage`].
    pub fn cpu_us(&self) -> Result<Option<u64>, CgroupError> {
        let Some(part) = self.part(Controller::CpuAccounting) else {
            return Ok(None);
        };
        match part.version {
            HierarchyVersion::V1 => Ok(Some(part.directory.read_number("cpuacct.usage")? / 1000)),
            HierarchyVersion::V2 => part.directory.read_keyed("cpu.stat", "usage_usec"),
        }
    }

    /// Which limits were hit so far: one small file for each controller.
    ///
    /// # Errors
    /// As [`Self::usage`].
    pub fn events(&self) -> Result<GroupEvents, CgroupError> {
        let mut events = GroupEvents::default();
        if let Some(part) = self.part(Controller::Memory) {
            let file = match part.version {
                HierarchyVersion::V1 => "memory.oom_control",
                HierarchyVersion::V2 => "memory.events",
            };
            events.oom_kills = part.directory.read_keyed(file, "oom_kill")?;
        }
        if let Some(part) = self.part(Controller::Pids) {
            events.pids_max_hits = part.directory.read_keyed("pids.events", "max")?;
        }
        Ok(events)
    }
}

fn peak_or_now(group: &GroupDirectory, peak: &str, now: &str) -> Result<u64, CgroupError> {
    match group.read_number_if_there(peak)? {
        Some(peak) => Ok(peak),
        None => group.read_number(now),
    }
}

/// User and system time. The sum is exact; `cpuacct.stat` divides it, in ticks of 10 ms.
fn cpu_v1(group: &GroupDirectory) -> Result<(u64, u64), CgroupError> {
    let total = group.read_number("cpuacct.usage")? / 1000;
    let text = group.read("cpuacct.stat")?;
    let ticks = |key| {
        keyed(&text, key)
            .and_then(Result::ok)
            .ok_or_else(|| group.unexpected("cpuacct.stat", &text))
    };
    let (user, system) = (u128::from(ticks("user")?), u128::from(ticks("system")?));
    // Too short for a tick: user mode is the better guess for a program that did start.
    let system_us = (u128::from(total) * system).checked_div(user + system).unwrap_or(0);
    let system_us = u64::try_from(system_us).unwrap_or(total);
    Ok((total.saturating_sub(system_us), system_us))
}

fn cpu_v2(group: &GroupDirectory) -> Result<(u64, u64), CgroupError> {
    let text = group.read("cpu.stat")?;
    let time = |key| {
        keyed(&text, key)
            .and_then(Result::ok)
            .ok_or_else(|| group.unexpected("cpu.stat", &text))
    };
    Ok((time("user_usec")?, time("system_usec")?))
}

/// The sums of `rbytes` and `wbytes` over the devices in `io.stat`.
fn io_bytes(text: &str) -> (u64, u64) {
    let sum = |key: &str| {
        let values = text
            .split_whitespace()
            .filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
        values.fold(0, u64::saturating_add)
    };
    (sum("rbytes="), sum("wbytes="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_bytes_are_summed_over_devices() {
        let text = "8:0 rbytes=100 wbytes=7 rios=1 wios=1 dbytes=9 dios=0\n254:0 rbytes=11 wbytes=0\n";
        assert_eq!(io_bytes(text), (111, 7));
        assert_eq!(io_bytes(""), (0, 0));
    }
}
