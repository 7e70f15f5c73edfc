//! What programs inside are shown of the limits, where run-times look for how much there is.
//!
//! Pure: numbers in, text out. Where these files lie is `process::tree::shown`, who keeps them up to date
//! `process::showing`.

mod machine;

use offleash_core::limits::Limits;
use offleash_sys::seccomp::MemoryFigures;

pub(crate) use machine::{cpu_list, cpuinfo_of, stat_of};

/// The period of CPU time that is shown, in microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// What version 1 shows for no limit of memory: the largest number of whole pages.
const UNLIMITED_V1: u64 = 9_223_372_036_854_771_712;

/// Which form of control groups the machine has for processes inside, as `/proc/self/cgroup` tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupForm {
    /// A directory for each controller.
    V1,
    /// One directory.
    V2,
}

impl GroupForm {
    /// The one of `/proc/PID/cgroup`: lines of version 2 begin with a zero (cgroups(7)).
    pub(crate) fn of(text: &str) -> Self {
        match text.lines().all(|line| line.starts_with("0::")) {
            true => Self::V2,
            false => Self::V1,
        }
    }
}

/// What the sandbox uses at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UsedAmounts {
    /// Bytes of memory, the cache of files included.
    pub(crate) memory: u64,
    /// The most of them until now.
    pub(crate) peak: u64,
    /// Those that are the cache of files.
    pub(crate) cache: u64,
    /// Processes and threads.
    pub(crate) pids: u64,
    /// CPU time in microseconds.
    pub(crate) cpu_us: u64,
}

/// A file and what it holds.
pub(crate) type ShownFile = (&'static str, String);

/// The limits that a sandbox is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShownLimits {
    memory: Option<u64>,
    swap: Option<u64>,
    pids: Option<u64>,
    cpus_millis: Option<u64>,
    /// The processors that it may use.
    cpus: Vec<usize>,
    /// Bytes of memory of the machine.
    machine: u64,
}

impl ShownLimits {
    /// Those of `limits` on a machine with so many bytes of memory; `None` where nothing is limited that is shown.
    pub(crate) fn of(limits: &Limits, cpus: Vec<usize>, machine: u64) -> Option<Self> {
        let shown = Self {
            memory: limits.memory.map(|memory| memory.0),
            swap: limits.swap.map(|swap| swap.0),
            pids: limits.pids,
            cpus_millis: limits.cpus.map(|cpus| cpus.millis),
            cpus,
            machine,
        };
        (shown.memory.is_some() || shown.pids.is_some() || shown.cpus_millis.is_some()).then_some(shown)
    }

    /// The processors that it may use.
    pub(crate) fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// The figures of memory; `None` without a limit, where those of the machine are true.
    pub(crate) fn figures(&self, used: &UsedAmounts) -> Option<MemoryFigures> {
        let total = self.memory?.min(self.machine);
        let swap = self.swap.unwrap_or(0);
        Some(MemoryFigures {
            total,
            free: total.saturating_sub(used.memory),
            cached: used.cache.min(used.memory),
            swap_total: swap,
            swap_free: swap,
        })
    }

    /// `/proc/meminfo` (proc_meminfo(5)) with these figures.
    pub(crate) fn meminfo(&self, used: &UsedAmounts) -> Option<String> {
        let figures = self.figures(used)?;
        let anonymous = used.memory.saturating_sub(figures.cached);
        let values = [
            ("MemTotal:", figures.total),
            ("MemFree:", figures.free),
            (
                "MemAvailable:",
                figures.free.saturating_add(figures.cached).min(figures.total),
            ),
            ("Buffers:", 0),
            ("Cached:", figures.cached),
            ("SwapCached:", 0),
            ("Active:", anonymous),
            ("Inactive:", figures.cached),
            ("Active(anon):", anonymous),
            ("Inactive(anon):", 0),
            ("Active(file):", 0),
            ("Inactive(file):", figures.cached),
            ("Unevictable:", 0),
            ("Mlocked:", 0),
            ("SwapTotal:", figures.swap_total),
            ("SwapFree:", figures.swap_free),
            ("Dirty:", 0),
            ("Writeback:", 0),
            ("AnonPages:", anonymous),
            ("Mapped:", 0),
            ("Shmem:", 0),
            ("KReclaimable:", 0),
            ("Slab:", 0),
            ("SReclaimable:", 0),
            ("SUnreclaim:", 0),
            ("KernelStack:", 0),
            ("PageTables:", 0),
            ("CommitLimit:", figures.total.saturating_add(figures.swap_total)),
            ("Committed_AS:", used.memory),
        ];
        let line = |(name, bytes): &(&str, u64)| format!("{name:<16}{:>8} kB\n", bytes / 1024);
        Some(values.iter().map(line).collect())
    }

    /// The files below `/sys/fs/cgroup`.
    pub(crate) fn group(&self, form: GroupForm, used: &UsedAmounts) -> Vec<ShownFile> {
        match form {
            GroupForm::V1 => self.group_v1(used),
            GroupForm::V2 => self.group_v2(used),
        }
    }

    /// <https://docs.kernel.org/admin-guide/cgroup-v2.html>
    fn group_v2(&self, used: &UsedAmounts) -> Vec<ShownFile> {
        let (quota, time) = (self.quota_us(), used.cpu_us);
        let mut files = vec![
            ("cgroup.controllers", "cpuset cpu memory pids\n".to_owned()),
            ("cpu.max", format!("{} {CPU_PERIOD_US}\n", or_max(quota))),
            (
                "cpu.stat",
                format!("usage_usec {time}\nuser_usec {time}\nsystem_usec 0\n"),
            ),
            ("cpuset.cpus.effective", line(cpu_list(&self.cpus))),
            ("pids.max", line(or_max(self.pids))),
            ("pids.current", line(used.pids)),
            ("memory.max", line(or_max(self.memory))),
            ("memory.high", line("max")),
            ("memory.current", line(used.memory)),
            ("memory.peak", line(used.peak)),
            ("memory.stat", stat_v2(used)),
        ];
        if self.memory.is_some() {
            files.push(("memory.swap.max", line(or_max(self.swap))));
            files.push(("memory.swap.current", line(0)));
        }
        files
    }

    /// <https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>, and the limits as version 2 names them, for whoever
    /// looks for these without asking which version there is.
    fn group_v1(&self, used: &UsedAmounts) -> Vec<ShownFile> {
        let quota = self.quota_us().map_or("-1".to_owned(), |quota| quota.to_string());
        vec![
            (
                "memory/memory.limit_in_bytes",
                line(self.memory.unwrap_or(UNLIMITED_V1)),
            ),
            ("memory/memory.soft_limit_in_bytes", line(UNLIMITED_V1)),
            ("memory/memory.usage_in_bytes", line(used.memory)),
            ("memory/memory.max_usage_in_bytes", line(used.peak)),
            ("memory/memory.stat", self.stat_v1(used)),
            ("cpu/cpu.cfs_quota_us", line(quota)),
            ("cpu/cpu.cfs_period_us", line(CPU_PERIOD_US)),
            ("cpu/cpu.shares", line(1024)),
            ("cpuacct/cpuacct.usage", line(used.cpu_us.saturating_mul(1000))),
            ("cpuset/cpuset.cpus", line(cpu_list(&self.cpus))),
            ("cpuset/cpuset.effective_cpus", line(cpu_list(&self.cpus))),
            ("pids/pids.max", line(or_max(self.pids))),
            ("pids/pids.current", line(used.pids)),
            ("memory.max", line(or_max(self.memory))),
            ("memory.current", line(used.memory)),
            ("cpu.max", format!("{} {CPU_PERIOD_US}\n", or_max(self.quota_us()))),
            ("pids.max", line(or_max(self.pids))),
        ]
    }

    fn stat_v1(&self, used: &UsedAmounts) -> String {
        let (cache, anonymous) = (used.cache, used.memory.saturating_sub(used.cache));
        let limit = self.memory.unwrap_or(UNLIMITED_V1);
        format!(
            "cache {cache}\nrss {anonymous}\ninactive_file {cache}\nactive_file 0\nhierarchical_memory_limit {limit}\n\
             total_cache {cache}\ntotal_rss {anonymous}\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
        )
    }

    fn quota_us(&self) -> Option<u64> {
        self.cpus_millis
            .map(|millis| millis.saturating_mul(CPU_PERIOD_US / 1000))
    }
}

fn stat_v2(used: &UsedAmounts) -> String {
    let (file, anonymous) = (used.cache, used.memory.saturating_sub(used.cache));
    format!(
        "anon {anonymous}\nfile {file}\nkernel 0\nslab 0\ninactive_anon 0\nactive_anon {anonymous}\ninactive_file {file}\n\
         active_file 0\n"
    )
}

fn or_max(value: Option<u64>) -> String {
    value.map_or("max".to_owned(), |value| value.to_string())
}

fn line(value: impl std::fmt::Display) -> String {
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use offleash_core::units::Bytes;

    use super::super::testing::unlimited;
    use super::*;

    fn shown(memory: Option<u64>, cpus_millis: Option<u64>, pids: Option<u64>) -> Option<ShownLimits> {
        let limits = Limits {
            memory: memory.map(Bytes::mib),
            swap: memory.map(|_| Bytes(0)),
            cpus: cpus_millis.map(|millis| offleash_core::units::CpuCount { millis }),
            pids,
            ..unlimited()
        };
        ShownLimits::of(&limits, vec![0, 1, 3], 8 << 30)
    }

    fn value<'a>(files: &'a [ShownFile], name: &str) -> &'a str {
        let found = files.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, text)| text.trim_end())
    }

    #[test]
    fn without_a_limit_nothing_is_shown_and_without_one_of_memory_no_memory() {
        assert_eq!(shown(None, None, None), None);
        let processes = shown(None, None, Some(5)).unwrap();
        assert_eq!(processes.figures(&UsedAmounts::default()), None);
        assert_eq!(processes.meminfo(&UsedAmounts::default()), None);
        let files = processes.group(GroupForm::V2, &UsedAmounts::default());
        assert_eq!((value(&files, "memory.max"), value(&files, "pids.max")), ("max", "5"));
        assert_eq!(value(&files, "cpu.max"), "max 100000");
    }

    #[test]
    fn limits_are_shown_in_the_words_of_each_version() {
        let used = UsedAmounts {
            memory: 30 << 20,
            peak: 40 << 20,
            cache: 10 << 20,
            pids: 3,
            cpu_us: 7,
        };
        let all = shown(Some(512), Some(1500), Some(20)).unwrap();
        let two = all.group(GroupForm::V2, &used);
        for (name, expected) in [
            ("memory.max", "536870912"),
            ("memory.current", "31457280"),
            ("memory.peak", "41943040"),
            ("memory.swap.max", "0"),
            ("cpu.max", "150000 100000"),
            ("cpuset.cpus.effective", "0-1,3"),
            ("pids.max", "20"),
            ("pids.current", "3"),
        ] {
            assert_eq!(value(&two, name), expected, "{name}");
        }
        assert!(value(&two, "memory.stat").starts_with("anon 20971520\nfile 10485760\n"));
        let one = all.group(GroupForm::V1, &used);
        for (name, expected) in [
            ("memory/memory.limit_in_bytes", "536870912"),
            ("memory/memory.usage_in_bytes", "31457280"),
            ("cpu/cpu.cfs_quota_us", "150000"),
            ("pids/pids.max", "20"),
            ("memory.max", "536870912"),
        ] {
            assert_eq!(value(&one, name), expected, "{name}");
        }
        // By this file programs tell version 2.
        assert_eq!(value(&one, "cgroup.controllers"), "");
    }

    #[test]
    fn memory_is_what_the_limit_leaves_and_never_more_than_the_machine_has() {
        let used = UsedAmounts {
            memory: 300 << 20,
            cache: 100 << 20,
            ..UsedAmounts::default()
        };
        let text = shown(Some(512), None, None).unwrap().meminfo(&used).unwrap();
        for line in [
            "MemTotal:         524288 kB",
            "MemFree:          217088 kB",
            "MemAvailable:     319488 kB",
            "Cached:           102400 kB",
            "SwapTotal:             0 kB",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let more = shown(Some(1 << 20), None, None).unwrap();
        assert_eq!(more.figures(&UsedAmounts::default()).unwrap().total, 8 << 30);
        let over = UsedAmounts {
            memory: 1 << 40,
            ..used
        };
        assert_eq!(more.figures(&over).unwrap().free, 0);
    }

    #[test]
    fn the_form_is_that_of_the_processes_own_groups() {
        assert_eq!(GroupForm::of("0::/\n"), GroupForm::V2);
        assert_eq!(GroupForm::of("4:memory:/\n0::/\n"), GroupForm::V1);
        assert_eq!(GroupForm::of(""), GroupForm::V2);
    }
}
