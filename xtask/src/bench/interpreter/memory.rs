//! The private memory of sandboxes: pages that no other process has, of a keeper and all that it started.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::text_of;
use crate::bench::api::client::answered;
use crate::error::TaskError;

/// Private memory of each sandbox of the daemon `daemon`, its keeper included, KiB.
///
/// # Errors
/// When it cannot be read, as an ordinary user cannot of processes in a user namespace.
pub(super) fn of_each(daemon: u32) -> Result<Vec<u64>, TaskError> {
    let children = children()?;
    let keepers = children.get(&daemon).cloned().unwrap_or_default();
    let each: Vec<u64> = keepers
        .into_iter()
        .map(|keeper| of_tree(keeper, &children))
        .collect::<Result<_, _>>()?;
    if each.is_empty() {
        return Err(answered("the kernel", format!("process {daemon} has no children")));
    }
    Ok(each)
}

fn of_tree(process: u32, children: &BTreeMap<u32, Vec<u32>>) -> Result<u64, TaskError> {
    let mut sum = private(process)?;
    for child in children.get(&process).into_iter().flatten() {
        sum += of_tree(*child, children)?;
    }
    Ok(sum)
}

/// Every process by the one that is its parent.
fn children() -> Result<BTreeMap<u32, Vec<u32>>, TaskError> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let found = fs::read_dir("/proc").map_err(TaskError::file("reading", "/proc"))?;
    let pids = found
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        // One that has ended meanwhile is none.
        if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat"))
            && let Some((_, rest)) = stat.rsplit_once(") ")
            && let Some(parent) = rest.split(' ').nth(1).and_then(|parent| parent.parse().ok())
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    Ok(children)
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
