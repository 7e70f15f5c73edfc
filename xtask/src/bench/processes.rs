//! The processes of this machine, as `/proc` shows them: which came from which.

use std::collections::HashMap;
use std::fs;

use crate::error::TaskError;

/// The machine's processes: parent and name of each.
#[derive(Debug, Default)]
pub(super) struct ProcessTable(HashMap<u32, (u32, String)>);

impl ProcessTable {
    /// As it is now.
    ///
    /// # Errors
    /// `File` when there is no `/proc`.
    pub(super) fn now() -> Result<Self, TaskError> {
        let mut table = Self::default();
        let entries = fs::read_dir("/proc").map_err(TaskError::file("listing", "/proc"))?;
        for pid in entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        {
            // A process that ended meanwhile has no file any more.
            if let Some(entry) = fs::read_to_string(format!("/proc/{pid}/stat"))
                .ok()
                .and_then(|stat| parse_stat(&stat))
            {
                table.0.insert(pid, entry);
            }
        }
        Ok(table)
    }

    /// The name of `pid`, empty if it does not exist.
    pub(super) fn name(&self, pid: u32) -> &str {
        self.0.get(&pid).map_or("", |(_, name)| name)
    }

    /// The children of `parent`.
    pub(super) fn children(&self, parent: u32) -> impl Iterator<Item = u32> {
        self.0
            .iter()
            .filter(move |(_, (of, _))| *of == parent)
            .map(|(pid, _)| *pid)
    }

    /// `root` and everything below it.
    pub(super) fn tree(&self, root: u32) -> Vec<u32> {
        let mut tree = vec![root];
        let mut next = 0;
        while let Some(&parent) = tree.get(next) {
            tree.extend(self.children(parent));
            next += 1;
        }
        tree
    }
}

/// Parent and name out of `/proc/PID/stat`; the name is in parentheses and may itself hold some (proc_pid_stat(5)).
fn parse_stat(stat: &str) -> Option<(u32, String)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let parent = after.split_whitespace().nth(1)?.parse().ok()?;
    Some((parent, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_and_name_are_read_past_parentheses_in_the_name() {
        assert_eq!(parse_stat("12 (a) b(c) S 7 12 12"), Some((7, "a) b(c".to_owned())));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn a_tree_holds_all_generations_and_nobody_else() {
        let processes = [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)];
        let table = ProcessTable(processes.map(|(pid, parent)| (pid, (parent, String::new()))).into());
        let mut tree = table.tree(10);
        tree.sort_unstable();
        assert_eq!(tree, [10, 11, 12]);
    }
}
