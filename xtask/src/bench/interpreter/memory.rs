//! The private memory of sandboxes: pages that no other process has, of a supervisor and all that it started.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::text_of;
use crate::bench::api::client::answered;
use crate::error::TaskError;

/// Private memory of each sandbox of the daemon `daemon`, its supervisor included, KiB; where sandboxes lie below that of a
/// zygote, of those alone.
///
/// # Errors
/// When it cannot be read, as an ordinary user cannot of processes in a user namespace.
pub(super) fn of_each(daemon: u32) -> Result<Vec<u64>, TaskError> {
    let all = processes()?;
    // A copy of a zygote is the zygote's child, and in no tree of its supervisor: sandboxes are told apart by their process ids.
    let firsts = all.values().filter(|process| process.is_first);
    let kept: Vec<(u32, &Process)> = firsts
        .filter_map(|first| Some((supervisor(first, daemon, &all)?, first)))
        .collect();
    let deepest = kept.iter().map(|(_, first)| first.depth).max().unwrap_or(0);
    let each: Vec<u64> = kept
        .into_iter()
        .filter(|(_, first)| first.depth == deepest)
        .map(|(supervisor, first)| {
            let inside = all.iter().filter(|(_, process)| process.numbers == first.numbers);
            inside.map(|(pid, _)| *pid).chain([supervisor]).map(private).sum()
        })
        .collect::<Result<_, _>>()?;
    if each.is_empty() {
        return Err(answered("the kernel", format!("process {daemon} has no sandboxes")));
    }
    Ok(each)
}

/// What is known of a process.
#[derive(Debug)]
struct Process {
    parent: u32,
    /// Its namespace of process ids, how many lie around it, and whether it is the first one there.
    numbers: PathBuf,
    depth: usize,
    is_first: bool,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let numbers: Vec<&str> = field("NSpid")?.split_whitespace().collect();
        Some(Self {
            parent: field("PPid")?.trim().parse().ok()?,
            numbers: fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?,
            depth: numbers.len(),
            is_first: numbers.len() > 1 && numbers.last() == Some(&"1"),
        })
    }
}

/// The child of the daemon that is above a process.
fn supervisor(process: &Process, daemon: u32, all: &BTreeMap<u32, Process>) -> Option<u32> {
    let mut above = process.parent;
    loop {
        let parent = all.get(&above)?.parent;
        if parent == daemon {
            return Some(above);
        }
        above = parent;
    }
}

fn processes() -> Result<BTreeMap<u32, Process>, TaskError> {
    let found = fs::read_dir("/proc").map_err(TaskError::file("reading", "/proc"))?;
    let pids = found
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // One that has ended meanwhile is none.
    Ok(pids.filter_map(|pid| Some((pid, Process::read(pid)?))).collect())
}

fn private(process: u32) -> Result<u64, TaskError> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = text_of(Path::new(&path))?;
    Ok(sum_of(&text))
}

fn sum_of(rollup: &str) -> u64 {
    let lines = rollup.lines().filter(|line| line.starts_with("Private_"));
    lines
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_pages_are_those_that_are_clean_and_those_that_are_not() {
        let text =
            "Rss: 10 kB\nPrivate_Clean:   2 kB\nPrivate_Dirty:  3 kB\nShared_Dirty: 4 kB\nPrivate_Hugetlb: 0 kB\n";
        assert_eq!(sum_of(text), 5);
    }
}
