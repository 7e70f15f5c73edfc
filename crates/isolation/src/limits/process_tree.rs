//! Sums up what the processes of a sandbox use, without a control group: by walking down from its first process.
//!
//! Every number comes from `/proc` (`proc_pid_stat(5)`, `proc_pid_statm(5)`, `proc_pid_smaps(5)`, `proc_pid_io(5)`).
//! A process that ends or is re-parented while we walk may be missed once; the next look sees it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

/// The clock of `/proc/PID/stat`: `USER_HZ` is 100 on every machine that we run on.
const US_PER_TICK: u64 = 10_000;

/// More processes than any limit allows; bounds the walk.
const MAX_PROCESSES: usize = 100_000;

/// The first process of a sandbox, held so that its id cannot come to mean another one.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// `/proc/PID`, in which every file answers `ESRCH` once the process was waited for; `None` if it was from the start.
    init: Option<OwnedFd>,
    init_pid: u32,
    /// Processes of the sandbox whose parent is none, each held as the first one is.
    others: Vec<(u32, OwnedFd)>,
    page_bytes: u64,
}

/// Sums over the processes that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TreeUsage {
    /// Processes and threads.
    pub(crate) pids: u64,
    /// CPU time in user mode, in microseconds, with that of children that were waited for.
    pub(super) user_us: u64,
    /// CPU time in the kernel, likewise.
    pub(super) system_us: u64,
    /// Resident pages that belong to no file, in bytes; pages that processes share count for each.
    pub(super) anonymous_bytes: u64,
    /// All resident pages, in bytes.
    pub(super) resident_bytes: u64,
}

/// Memory in which shared pages count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ExactMemory {
    /// Anonymous pages, swapped ones included, in bytes.
    pub(super) anonymous_bytes: u64,
    /// Pages of tmpfs and shared memory that are mapped, in bytes.
    pub(super) shared_bytes: u64,
}

impl ProcessTree {
    pub(crate) fn new(init: Pid) -> Self {
        let init_pid = init.as_raw_pid().cast_unsigned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let init = rustix::fs::open(format!("/proc/{init_pid}"), flags, Mode::empty()).ok();
        let page_bytes = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        Self {
            init,
            init_pid,
            others: Vec::new(),
            page_bytes,
        }
    }

    /// Walks down from this process, too, for as long as it is there.
    pub(crate) fn add(&mut self, pid: Pid) {
        self.others.retain(|(_, held)| is_there(held));
        let pid = pid.as_raw_pid().cast_unsigned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty());
        self.others.extend(held.map(|held| (pid, held)));
    }

    /// Where walks begin.
    fn roots(&self) -> Vec<u32> {
        let others = self.others.iter().filter(|(_, held)| is_there(held));
        let others = others.map(|(pid, _)| *pid);
        std::iter::once(self.init_pid).chain(others).collect()
    }

    /// The ids of all processes of the sandbox, the first one included; empty once that was waited for.
    pub(crate) fn processes(&self) -> Vec<u32> {
        if self.read_init("stat").is_err() {
            return Vec::new();
        }
        let mut found = self.roots();
        let mut seen: HashSet<u32> = found.iter().copied().collect();
        let mut next = 0;
        while let Some(&pid) = found.get(next) {
            next += 1;
            let Ok(children) = children(pid) else {
                return self.processes_by_parent();
            };
            found.extend(children.into_iter().filter(|child| seen.insert(*child)));
            if found.len() > MAX_PROCESSES {
                break;
            }
        }
        found
    }

    /// The first process's own children.
    pub(crate) fn children(&self) -> Vec<u32> {
        children(self.init_pid).unwrap_or_else(|_| {
            let is_child = |pid: &u32| self.stat(*pid).is_some_and(|stat| stat.parent == self.init_pid);
            self.processes_by_parent().into_iter().filter(is_child).collect()
        })
    }

    /// [`Self::processes`] in a kernel without `CONFIG_PROC_CHILDREN`: looks at every process of the machine.
    fn processes_by_parent(&self) -> Vec<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Some(stat) = self.stat(pid) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let mut found = self.roots();
        let mut next = 0;
        while let Some(&pid) = found.get(next) {
            next += 1;
            // Removed, so that no order in which the files were read can make a circle.
            found.extend(children.remove(&pid).unwrap_or_default());
        }
        found
    }

    /// What `processes` use: two small files each.
    pub(crate) fn usage(&self, processes: &[u32]) -> TreeUsage {
        let mut sum = TreeUsage::default();
        for pid in processes {
            let Some(stat) = self.stat(*pid) else { continue };
            sum.pids = sum.pids.saturating_add(stat.threads);
            sum.user_us = sum.user_us.saturating_add(stat.user_ticks.saturating_mul(US_PER_TICK));
            sum.system_us = sum
                .system_us
                .saturating_add(stat.system_ticks.saturating_mul(US_PER_TICK));
            let (resident, of_files) = self.read(*pid, "statm").map_or((0, 0), |text| parse_statm(&text));
            let bytes = |pages: u64| pages.saturating_mul(self.page_bytes);
            sum.resident_bytes = sum.resident_bytes.saturating_add(bytes(resident));
            sum.anonymous_bytes = sum
                .anonymous_bytes
                .saturating_add(bytes(resident.saturating_sub(of_files)));
        }
        sum
    }

    /// CPU time in user mode and in the kernel, in microseconds.
    pub(super) fn cpu_us(&self, processes: &[u32]) -> (u64, u64) {
        let stats = processes.iter().filter_map(|pid| self.stat(*pid));
        let (user, system) = stats.fold((0_u64, 0_u64), |(user, system), stat| {
            (
                user.saturating_add(stat.user_ticks),
                system.saturating_add(stat.system_ticks),
            )
        });
        (user.saturating_mul(US_PER_TICK), system.saturating_mul(US_PER_TICK))
    }

    /// Memory with shared pages counted once; slow, since the kernel walks all page tables.
    ///
    /// `None` when a process does not let us look, which takes the rights of `ptrace(2)`.
    pub(super) fn exact_memory(&self, processes: &[u32]) -> Option<ExactMemory> {
        let mut sum = ExactMemory::default();
        for pid in processes {
            let text = match self.read(*pid, "smaps_rollup") {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
                // Ended meanwhile, or a zombie, which has no memory.
                Err(_) => continue,
            };
            let field = |name| kib_field(&text, name).unwrap_or(0);
            sum.anonymous_bytes = sum
                .anonymous_bytes
                .saturating_add(field("Pss_Anon:") + field("SwapPss:"));
            sum.shared_bytes = sum.shared_bytes.saturating_add(field("Pss_Shmem:"));
        }
        Some(sum)
    }

    /// Bytes read from and written to storage, with those of children that were waited for; 0 where we may not look.
    pub(super) fn storage_bytes(&self, processes: &[u32]) -> (u64, u64) {
        let texts = processes.iter().filter_map(|pid| self.read(*pid, "io").ok());
        texts.fold((0_u64, 0_u64), |(read, written), text| {
            let field = |name| number_field(&text, name).unwrap_or(0);
            (
                read.saturating_add(field("read_bytes:")),
                written.saturating_add(field("write_bytes:")),
            )
        })
    }

    fn stat(&self, pid: u32) -> Option<ProcessStat> {
        ProcessStat::parse(&self.read(pid, "stat").ok()?)
    }

    fn read(&self, pid: u32, file: &str) -> io::Result<String> {
        if pid == self.init_pid {
            return self.read_init(file);
        }
        // A name may hold any bytes, so the text is not always UTF-8.
        Ok(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}"))?).into_owned())
    }

    fn read_init(&self, file: &str) -> io::Result<String> {
        let init = self.init.as_ref().ok_or(rustix::io::Errno::SRCH)?;
        let fd = rustix::fs::openat(init, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::with_capacity(1024);
        io::Read::read_to_end(&mut fs::File::from(fd), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether the process of this directory of `/proc` was not waited for yet.
fn is_there(held: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let stat = rustix::fs::openat(held, "stat", flags, Mode::empty());
    stat.is_ok_and(|stat| rustix::io::read(stat, &mut [0_u8; 16]).is_ok())
}

/// The children of all threads of `pid`; empty when it is gone.
///
/// # Errors
/// When the kernel has no such list.
fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Ok(found);
    };
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(text) => found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && thread.path().exists() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// The fields of `/proc/PID/stat` that are of use.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    parent: u32,
    user_ticks: u64,
    system_ticks: u64,
    threads: u64,
}

impl ProcessStat {
    /// The name, second field, is the program's choice and may hold spaces and parentheses: the last one ends it.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Numbered as in proc_pid_stat(5), where the state, first here, is number 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            user_ticks: number(14)?.saturating_add(number(16)?),
            system_ticks: number(15)?.saturating_add(number(17)?),
            threads: number(20)?,
        })
    }
}

/// Resident pages, and those among them that belong to files or shared memory.
fn parse_statm(text: &str) -> (u64, u64) {
    let mut fields = text.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
    (fields.next().unwrap_or(0), fields.next().unwrap_or(0))
}

fn number_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    number_field(text, name)?.checked_mul(1024)
}

#[cfg(test)]
#[path = "process_tree_tests.rs"]
mod tests;
