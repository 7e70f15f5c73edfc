//! What the host had, when a run ended, at the paths that the run changed: so that its removal is noticed later.
//!
//! During the run overlayfs notes on a copied entry that it is a copy. A file that was renamed in the sandbox has that
//! note, too; it is told from one that the host removed by the directory, which then has not changed since the start.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::change::{ChangeKind, LayerChange, LayerTrees};
use crate::failure::FileError;
use crate::node::{NodeTime, TreeNode};
use crate::places::{self, LayerPaths};

pub(crate) const SEEN: &str = "seen";

/// Notes it. `latest_untouched` is the latest change time of an untouched entry.
pub(crate) fn note(
    directory: &OwnedFd,
    trees: &[LayerTrees],
    changes: &[LayerChange],
    latest_untouched: NodeTime,
) -> Result<(), FileError> {
    let was_there = |change: &&LayerChange| {
        change.kind != ChangeKind::Added || is_gone(&trees[change.layer], change, latest_untouched)
    };
    let seen: LayerPaths = changes
        .iter()
        .filter(was_there)
        .map(|change| (change.layer, change.path.clone()))
        .collect();
    places::replace(directory, SEEN, &seen)
}

pub(crate) fn read(directory: &OwnedFd) -> Result<LayerPaths, FileError> {
    places::read(directory, SEEN)
}

/// Whether an entry that the host does not have was there when the run started.
fn is_gone(trees: &LayerTrees, change: &LayerChange, latest_untouched: NodeTime) -> bool {
    if !change.copied_up {
        return false;
    }
    // Directories of the host cannot be renamed in a sandbox, only copied.
    if change.after.as_ref().is_some_and(TreeNode::is_directory) {
        return true;
    }
    let parent = trees.host.node(change.path.parent().unwrap_or(Path::new("")));
    matches!(parent, Ok(Some(parent)) if parent.identity.ctime > latest_untouched)
}
