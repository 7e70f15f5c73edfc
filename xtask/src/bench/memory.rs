//! What one idle sandbox holds in memory: of its processes and of the kernel.
//!
//! Some sandboxes are left waiting at the same time. Of the processes the proportional set size counts (a page that N
//! share counts 1/N for each); of the kernel, what grew while they were started. The estimate leaves out reclaimable
//! slabs (cached names and inodes), which any other work on the machine moves more than a sandbox does.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::contender::{Arena, Contender, Workload};
use super::processes::ProcessTable;
use crate::error::TaskError;

/// How many wait at the same time.
const COUNT: u32 = 16;
/// How often that is repeated; the median counts.
const ROUNDS: usize = 3;
/// How long all may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the machine is left alone before each look.
const SETTLE: Duration = Duration::from_millis(700);

/// The lines of `/proc/meminfo` that a process makes grow in the kernel (proc_meminfo(5)).
const KERNEL_MEMORY: [&str; 5] = [
    "SUnreclaim:",
    "KernelStack:",
    "PageTables:",
    "SecPageTables:",
    "Percpu:",
];

/// The memory of one idle run of one contender, the sleeping command included.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Memory {
    /// Who.
    pub(super) contender: &'static str,
    /// Proportional set size of all its processes, KiB.
    pub(super) processes_kib: u64,
    /// Its share of the kernel and of files in memory, KiB.
    pub(super) kernel_kib: u64,
    /// Its processes.
    pub(super) processes: u64,
    /// Whether a process let nobody see its proportional size, so that its resident size was taken instead.
    pub(super) upper_bound: bool,
}

/// Measures every contender that this process can start and end.
///
/// # Errors
/// When a run fails or does not get to its command in time.
pub(super) fn measure(arena: &Arena, contenders: &[Contender]) -> Result<Vec<Memory>, TaskError> {
    eprintln!("── memory of idle sandboxes");
    let mut results = Vec::new();
    for contender in contenders.iter().filter(|contender| contender.is_one_process_tree()) {
        let rounds: Result<Vec<_>, _> = (0..ROUNDS).map(|_| round(arena, contender)).collect();
        let mut rounds = rounds?;
        rounds.sort_by_key(|memory| memory.processes_kib + memory.kernel_kib);
        results.extend(rounds.into_iter().nth(ROUNDS / 2));
    }
    Ok(results)
}

/// Processes that are killed when this is dropped, whatever happened meanwhile.
struct Waiting(Vec<Child>);

impl Drop for Waiting {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Killing and waiting fail only for a process that has ended already.
            child.kill().unwrap_or_default();
            child.wait().map(drop).unwrap_or_default();
        }
    }
}

fn round(arena: &Arena, contender: &Contender) -> Result<Memory, TaskError> {
    std::thread::sleep(SETTLE);
    let before = KernelMemory::now()?;
    let mut waiting = Waiting(Vec::new());
    for run in 0..COUNT {
        let mut command = contender.command_line(arena, Workload::Idle, u64::from(run)).command();
        waiting
            .0
            .push(command.spawn().map_err(TaskError::start(contender.name))?);
    }
    let trees = wait_for_commands(contender.name, &waiting.0)?;
    std::thread::sleep(SETTLE);
    let after = KernelMemory::now()?;

    let pids = || trees.iter().flatten();
    let sizes: Vec<_> = pids().map(|pid| ProcessMemory::of(*pid)).collect::<Result<_, _>>()?;
    let sum = |part: fn(&ProcessMemory) -> u64| sizes.iter().map(part).sum::<u64>();
    let unmapped_files = after
        .shared
        .saturating_sub(before.shared)
        .saturating_sub(sum(|size| size.shared_kib));
    let kernel = after.kernel.saturating_sub(before.kernel) + unmapped_files;
    let each = |total: u64| total / u64::from(COUNT);
    Ok(Memory {
        contender: contender.name,
        processes_kib: each(sum(|size| size.size_kib)),
        kernel_kib: each(kernel),
        processes: each(u64::try_from(sizes.len()).unwrap_or(u64::MAX)),
        upper_bound: sizes.iter().any(|size| size.upper_bound),
    })
}

/// Waits until each tree has got to the sleeping command; the processes of each tree.
fn wait_for_commands(contender: &'static str, children: &[Child]) -> Result<Vec<Vec<u32>>, TaskError> {
    let start = Instant::now();
    loop {
        let table = ProcessTable::now()?;
        let trees: Vec<_> = children.iter().map(|child| table.tree(child.id())).collect();
        if trees
            .iter()
            .all(|tree| tree.iter().any(|pid| table.name(*pid) == Workload::Idle.name()))
        {
            return Ok(trees);
        }
        if start.elapsed() > START_TIMEOUT {
            return Err(TaskError::Answer {
                from: contender,
                why: "the idle command was not reached".to_owned(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Debug)]
struct ProcessMemory {
    size_kib: u64,
    /// Of it, files in memory.
    shared_kib: u64,
    upper_bound: bool,
}

impl ProcessMemory {
    fn of(pid: u32) -> Result<Self, TaskError> {
        let path = format!("/proc/{pid}/smaps_rollup");
        if let Ok(text) = fs::read_to_string(&path) {
            let (size_kib, shared_kib) = (field(&text, "Pss:"), field(&text, "Pss_Shmem:"));
            return Ok(Self {
                size_kib,
                shared_kib,
                upper_bound: false,
            });
        }
        // A process that is not dumpable hides its mappings from everyone but root.
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).map_err(TaskError::file("reading", path))?;
        Ok(Self {
            size_kib: field(&text, "VmRSS:"),
            shared_kib: field(&text, "RssShmem:"),
            upper_bound: true,
        })
    }
}

#[derive(Debug)]
struct KernelMemory {
    kernel: u64,
    shared: u64,
}

impl KernelMemory {
    fn now() -> Result<Self, TaskError> {
        let text = fs::read_to_string("/proc/meminfo").map_err(TaskError::file("reading", "/proc/meminfo"))?;
        let kernel = KERNEL_MEMORY.iter().map(|name| field(&text, name)).sum();
        Ok(Self {
            kernel,
            shared: field(&text, "Shmem:"),
        })
    }
}

/// The number behind `name` at the start of a line; a line that a kernel does not have counts nothing.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_size_and_the_kernel_too() {
        assert!(ProcessMemory::of(std::process::id()).unwrap().size_kib > 0);
        assert!(KernelMemory::now().unwrap().kernel > 0);
    }

    #[test]
    fn fields_are_whole_names_at_the_start_of_a_line() {
        let text = "Rss: 9 kB\nPss: 5 kB\nPss_Shmem: 2 kB\n";
        assert_eq!(
            (field(text, "Pss:"), field(text, "Pss_Shmem:"), field(text, "None:")),
            (5, 2, 0)
        );
    }
}
