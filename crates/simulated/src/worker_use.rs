//! What a worker uses while it runs, as the kernel tells everybody.

use std::fs;

use rustix::process::Pid;

/// What a worker uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WorkerUse {
    /// Memory that it shares with nobody, in bytes.
    pub(crate) memory_bytes: u64,
    /// CPU time so far, in microseconds.
    pub(crate) cpu_us: u64,
}

/// What is used by a worker that is not reaped; nothing of one that has ended.
pub(crate) fn worker_use(pid: Pid) -> WorkerUse {
    let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_pid())).unwrap_or_default();
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    WorkerUse {
        memory_bytes: own_pages(&read("statm")).unwrap_or(0).saturating_mul(page),
        cpu_us: cpu_ticks(&read("stat")).unwrap_or(0).saturating_mul(1_000_000 / ticks),
    }
}

/// Resident pages without those of files (proc_pid_statm(5)).
fn own_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}

/// Time in user and kernel mode, in ticks (proc_pid_stat(5)): the fields behind the name, which may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(user.saturating_add(system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read_whatever_a_process_is_called() {
        assert_eq!(own_pages("100 60 20 5 0 30 0\n"), Some(40));
        assert_eq!(own_pages(""), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 12 3 0 0 20 0 2 0 99 0 0";
        assert_eq!(cpu_ticks(stat), Some(15));
        assert_eq!(cpu_ticks("7 (a"), None);
    }
}
