//! Which limits a group gets, and how each version of the interface is told.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::directory::GroupDirectory;
use super::error::{CgroupError, ControllerProblem};
use super::hierarchy::{Controller, HierarchyVersion};

/// The period over which CPU bandwidth is measured out, in microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// What a group is to limit and to account for; `None` and `false` leave a controller out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupLimits {
    /// CPUs that may be used at once, in thousandths; the kernel takes no less than 10.
    pub cpus_millis: Option<u64>,
    /// Bytes of memory: anonymous, page cache, tmpfs and the kernel's own for the group.
    pub memory_bytes: Option<u64>,
    /// Bytes of swap on top of that.
    pub swap_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Whether CPU time must be accounted by the group. Version 2 always does; version 1 needs one hierarchy more.
    ///
    /// Without it a process that ignores `SIGCHLD` hides the CPU time of its children, because the kernel adds only
    /// the times of children that are waited for.
    pub cpu_accounting: bool,
    /// Whether [`ControlGroup::freeze`](super::ControlGroup::freeze) must work. Version 2 always can; version 1 needs one hierarchy
    /// more.
    pub pause: bool,
    /// Whether the kernel ends one process, and not all, where memory is short. With version 1 it always does.
    pub ends_one: bool,
}

impl GroupLimits {
    /// The controllers that these limits need.
    pub(super) fn controllers(&self) -> impl Iterator<Item = Controller> {
        let wanted = [
            (
                self.memory_bytes.is_some() || self.swap_bytes.is_some(),
                Controller::Memory,
            ),
            (self.pids.is_some(), Controller::Pids),
            (self.cpus_millis.is_some(), Controller::Cpu),
            (self.cpu_accounting, Controller::CpuAccounting),
            (self.pause, Controller::Freezer),
        ];
        wanted
            .into_iter()
            .filter_map(|(needed, controller)| needed.then_some(controller))
    }
}

/// Limit by limit, what holds it: `memory` by `cgroup v1 memory`.
pub(super) type EnforcedLimits = BTreeMap<&'static str, String>;

/// Writes the limits of `controllers` into a new group.
pub(super) fn write(
    group: &GroupDirectory,
    version: HierarchyVersion,
    controllers: &[Controller],
    limits: &GroupLimits,
    enforced: &mut EnforcedLimits,
) -> Result<(), CgroupError> {
    let mut note = |limit: &'static str, means: &str| {
        enforced.insert(limit, format!("{version} {means}"));
    };
    if controllers.contains(&Controller::Memory) {
        match version {
            HierarchyVersion::V1 => memory_v1(group, limits, &mut note)?,
            HierarchyVersion::V2 => memory_v2(group, limits, &mut note)?,
        }
    }
    if let (Some(pids), true) = (limits.pids, controllers.contains(&Controller::Pids)) {
        group.write_number("pids.max", pids)?;
        note("pids", "pids");
    }
    if let (Some(millis), true) = (limits.cpus_millis, controllers.contains(&Controller::Cpu)) {
        write_cpus(group, version, millis)?;
        note("cpus", "cpu");
    }
    Ok(())
}

/// Bounds the CPUs of a group that has the controller, in thousandths of one.
pub(super) fn write_cpus(group: &GroupDirectory, version: HierarchyVersion, millis: u64) -> Result<(), CgroupError> {
    let quota_us = millis.saturating_mul(CPU_PERIOD_US / 1000);
    match version {
        HierarchyVersion::V1 => cpu_v1(group, quota_us),
        HierarchyVersion::V2 => group.write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}")),
    }
}

fn memory_v2(
    group: &GroupDirectory,
    limits: &GroupLimits,
    note: &mut impl FnMut(&'static str, &str),
) -> Result<(), CgroupError> {
    if let Some(memory) = limits.memory_bytes {
        group.write_number("memory.max", memory)?;
        if !limits.ends_one {
            // One victim would leave a sandbox half alive; the file exists since Linux 4.19.
            absent_is_fine(group.write("memory.oom.group", "1"))?;
        }
        note("memory", "memory");
    }
    if let Some(swap) = limits.swap_bytes {
        // Absent in kernels without swap; there is nothing to limit then.
        absent_is_fine(group.write_number("memory.swap.max", swap))?;
        note("swap", "memory");
    }
    Ok(())
}

/// <https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>; kernel memory is part of the limit, that of
/// sockets has a limit of its own.
fn memory_v1(
    group: &GroupDirectory,
    limits: &GroupLimits,
    note: &mut impl FnMut(&'static str, &str),
) -> Result<(), CgroupError> {
    let Some(memory) = limits.memory_bytes else {
        return Err(CgroupError::Unavailable {
            controller: Controller::Memory,
            reason: ControllerProblem::SwapWithoutMemory,
        });
    };
    group.write_number("memory.limit_in_bytes", memory)?;
    // Socket buffers, those of UDP included, are in this counter alone ("2.7.1 Current Kernel Memory resources
    // accounted"); absent in kernels without network.
    absent_is_fine(group.write_number("memory.kmem.tcp.limit_in_bytes", memory))?;
    note("memory", "memory");
    let Some(swap) = limits.swap_bytes else { return Ok(()) };
    match group.write_number("memory.memsw.limit_in_bytes", memory.saturating_add(swap)) {
        Ok(()) => note("swap", "memory.memsw"),
        // Swap accounting is off. Reclaim of a group with swappiness 0 does not swap ("5.3 swappiness").
        Err(error) if error.is_not_found() && swap == 0 => {
            group.write("memory.swappiness", "0")?;
            note("swap", "memory.swappiness");
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn cpu_v1(group: &GroupDirectory, quota_us: u64) -> Result<(), CgroupError> {
    group.write_number("cpu.cfs_period_us", CPU_PERIOD_US)?;
    match group.write_number("cpu.cfs_quota_us", quota_us) {
        // Version 1 refuses more than the parent has; the parent's limit, which is lower, holds the group then.
        Err(CgroupError::Io { source, .. })
            if source.raw_os_error() == Some(Errno::INVAL.raw_os_error())
                && group.read_limit("../cpu.cfs_quota_us")?.is_some() =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Reads the limits of a group back as the kernel holds them, rounded to pages and bounded by what it can count.
pub(super) fn read(
    group: &GroupDirectory,
    version: HierarchyVersion,
    controllers: &[Controller],
    into: &mut GroupLimits,
) -> Result<(), CgroupError> {
    for controller in controllers {
        match (controller, version) {
            (Controller::Memory, HierarchyVersion::V1) => {
                into.memory_bytes = group.read_limit("memory.limit_in_bytes")?;
                let both = group.read_number_if_there("memory.memsw.limit_in_bytes")?;
                into.swap_bytes = both
                    .zip(into.memory_bytes)
                    .map(|(both, memory)| both.saturating_sub(memory));
            }
            (Controller::Memory, HierarchyVersion::V2) => {
                into.memory_bytes = group.read_limit("memory.max")?;
                into.swap_bytes = match group.read_limit("memory.swap.max") {
                    Err(error) if error.is_not_found() => None,
                    other => other?,
                };
            }
            (Controller::Pids, _) => into.pids = group.read_limit("pids.max")?,
            (Controller::Cpu, HierarchyVersion::V1) => {
                let quota = group.read_limit("cpu.cfs_quota_us")?;
                into.cpus_millis = cpus_millis(quota, group.read_number("cpu.cfs_period_us")?);
            }
            (Controller::Cpu, HierarchyVersion::V2) => into.cpus_millis = cpu_max(group)?,
            (Controller::CpuAccounting, _) => into.cpu_accounting = true,
            (Controller::Freezer, _) => into.pause = true,
        }
    }
    Ok(())
}

fn cpu_max(group: &GroupDirectory) -> Result<Option<u64>, CgroupError> {
    let text = group.read("cpu.max")?;
    let (quota, period) = text
        .trim()
        .split_once(' ')
        .ok_or_else(|| group.unexpected("cpu.max", &text))?;
    if quota == "max" {
        return Ok(None);
    }
    let quota = quota.parse().map_err(|_| group.unexpected("cpu.max", &text))?;
    let period = period.parse().map_err(|_| group.unexpected("cpu.max", &text))?;
    Ok(cpus_millis(Some(quota), period))
}

fn cpus_millis(quota_us: Option<u64>, period_us: u64) -> Option<u64> {
    quota_us.and_then(|quota| quota.saturating_mul(1000).checked_div(period_us))
}

fn absent_is_fine(result: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
