//! Changes below a directory, as the trees tell of them: everything that changes in them passes there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use offleash_protocol::files::{ChangeKind, WatchedChange};

use super::entry::{self, UserNames};
use super::path::CleanPath;
use crate::served::ServedTrees;
use crate::tree::{FileCaller, TreeChange, TreeChangeKind};

/// A directory that is watched.
#[derive(Debug)]
pub(super) struct TreeWatch {
    /// As it was asked for.
    pub(super) asked: CleanPath,
    /// Where that led, without a link.
    pub(super) root: PathBuf,
    pub(super) is_recursive: bool,
    pub(super) with_entries: bool,
    /// Whether it was told that something is missing, since it was last told all.
    pub(super) has_missed: bool,
}

impl TreeWatch {
    /// What is told of a change in the tree at `target`; nothing of what lies elsewhere.
    pub(super) fn told(
        &self,
        target: &Path,
        change: &TreeChange,
        trees: &mut ServedTrees,
        caller: FileCaller,
        names: &UserNames,
    ) -> Option<WatchedChange> {
        let below = self.below(target, change)?;
        let kind = match change.kind {
            TreeChangeKind::Made => ChangeKind::Create,
            TreeChangeKind::Written => ChangeKind::Write,
            TreeChangeKind::Removed => ChangeKind::Remove,
            TreeChangeKind::MovedAway => ChangeKind::Rename,
            TreeChangeKind::Attributes => ChangeKind::Chmod,
        };
        let may_be_there = !matches!(kind, ChangeKind::Remove | ChangeKind::Rename);
        let entry = (self.with_entries && may_be_there).then(|| {
            let path = if below == b"." {
                self.asked.clone()
            } else {
                self.asked.join(&below)
            };
            entry::at(trees, caller, &path, names).ok()
        });
        Some(WatchedChange {
            name: below,
            kind,
            entry: entry.flatten(),
        })
    }

    /// That something is missing.
    pub(super) fn missed() -> WatchedChange {
        WatchedChange {
            name: b".".to_vec(),
            kind: ChangeKind::Overflow,
            entry: None,
        }
    }

    /// The path of a change below the root, if it is told of.
    fn below(&self, target: &Path, change: &TreeChange) -> Option<Vec<u8>> {
        let mut path = target.to_owned();
        for name in change.path.names() {
            path.push(OsStr::from_bytes(name));
        }
        let below = path.strip_prefix(&self.root).ok()?;
        let depth = below.components().count();
        match depth {
            0 => Some(b".".to_vec()),
            1 => Some(super::path::bytes_of(below)),
            _ => self.is_recursive.then(|| super::path::bytes_of(below)),
        }
    }
}
