//! What a request changes in one step.

use rustix::io::Errno;

use super::path::{CleanPath, LastLink, reach};
use crate::served::ServedTrees;
use crate::tree::FileCaller;
use crate::wire::{FileKind, FileOperation};

/// Makes a directory and those that lead to it.
pub(super) fn make_directory(trees: &mut ServedTrees, caller: FileCaller, path: &CleanPath) -> Result<(), Errno> {
    path.make_parents(trees, caller)?;
    let reached = reach(trees, caller, path.path(), LastLink::Followed)?;
    match reached.facts.map(|found| found.facts.kind) {
        Some(FileKind::Directory) => Err(Errno::EXIST),
        Some(_) => Err(Errno::NOTDIR),
        None => {
            let tree = trees.numbered(reached.tree)?;
            tree.carry_out_for(caller, &reached.inner, FileOperation::MakeDirectory)
                .map(drop)
        }
    }
}

/// Renames, and makes the directories that lead to the destination; `EXDEV` from one tree to another.
pub(super) fn rename(
    trees: &mut ServedTrees,
    caller: FileCaller,
    source: &CleanPath,
    destination: &CleanPath,
) -> Result<(), Errno> {
    let from = reach(trees, caller, source.path(), LastLink::Kept)?;
    if from.facts.is_none() {
        return Err(Errno::NOENT);
    }
    destination.make_parents(trees, caller)?;
    let to = reach(trees, caller, destination.path(), LastLink::Kept)?;
    if trees.has_tree_at_or_below(&from.path) || trees.has_tree_at_or_below(&to.path) {
        return Err(Errno::BUSY);
    }
    if from.tree != to.tree {
        return Err(Errno::XDEV);
    }
    let names: Vec<&[u8]> = to.inner.names().collect();
    let operation = FileOperation::Rename { to: names.join(&b'/') };
    let tree = trees.numbered(from.tree)?;
    tree.carry_out_for(caller, &from.inner, operation).map(drop)
}

/// Whether a directory is there that `caller` may enter.
///
/// # Errors
/// As the kernel numbers them.
pub(crate) fn check_directory(trees: &mut ServedTrees, caller: FileCaller, path: &[u8]) -> Result<(), Errno> {
    let path = CleanPath::parse(path)?;
    let reached = reach(trees, caller, path.path(), LastLink::Followed)?;
    match reached.facts.map(|found| found.facts.kind) {
        Some(FileKind::Directory) => Ok(()),
        Some(_) => Err(Errno::NOTDIR),
        None => Err(Errno::NOENT),
    }
}
