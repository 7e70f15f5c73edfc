//! Conflicts with what the host did meanwhile, and the operations that carry the changes out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use offleash_core::text::Text;
use rustix::io::Errno;

use super::nearest::NearestDirectories;
use super::restored::RestoredSlots;
use super::{ConflictAt, ConflictReason, OperationFailure};
use crate::change::{ChangeKind, LayerChange, LayerTrees};
use crate::failure::{FailedCall, FileError};
use crate::modes::{DirectoryModes, is_mode_of_directory};
use crate::node::{NodeIdentity, NodeKind, NodeTime, TreeNode};
use crate::places::LayerPaths;

/// What an owner needs to change what is in a directory.
const OWNER_WRITES: u32 = 0o300;
/// The mode of a new directory until everything is in it.
pub(crate) const NEW_DIRECTORY: u32 = 0o700;

/// Operations in the order in which they are carried out; undone in reverse.
#[derive(Debug, Default)]
pub(crate) struct ApplyPlan {
    pub(crate) operations: Vec<ApplyOperation>,
    /// For each slot of a [`ApplyAction::Put`]: which change its contents come from.
    pub(crate) sources: BTreeMap<u64, usize>,
}

/// One operation on one host entry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ApplyOperation {
    pub(crate) layer: usize,
    pub(crate) path: Text,
    pub(crate) action: ApplyAction,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApplyAction {
    /// Changes the permissions of what is there.
    Mode { from: u32, to: u32, original: NodeIdentity },
    /// Gives a directory that was made, and lay in `slot`, its permissions and time.
    Finish { slot: u64, to: u32, modified: NodeTime },
    /// Moves the original into the staging directory.
    Take {
        slot: u64,
        original: NodeIdentity,
        directory: bool,
    },
    /// Moves what was staged into place, in exchange for the original if there is one.
    Put { slot: u64, replaces: Option<NodeIdentity> },
}

/// What is known about the host as the run saw it.
#[derive(Debug)]
pub(crate) struct KnownNodes {
    /// The latest change time of an untouched entry.
    pub(crate) latest_untouched: NodeTime,
    /// What was there when the run ended.
    pub(crate) seen: LayerPaths,
    /// Which directories have another mode because of the run.
    pub(crate) modes: DirectoryModes,
    /// What an apply that was rolled back touched.
    pub(crate) restored: RestoredSlots,
}

impl KnownNodes {
    /// Whether nobody but us touched an entry since the run started.
    fn is_untouched(&self, change: &LayerChange, before: &TreeNode) -> bool {
        before.identity.ctime <= self.latest_untouched
            || self.restored.get(&(change.layer, change.path.clone())) == Some(&before.identity)
    }
}

/// Finds all conflicts or makes the plan.
pub(crate) fn plan(
    trees: &[LayerTrees],
    changes: &[LayerChange],
    known: &KnownNodes,
) -> Result<ApplyPlan, OperationFailure> {
    let mut conflicts = Vec::new();
    for change in changes {
        let found = match &change.before {
            Some(before) if before.is_directory() => {
                conflict_of_directory(&trees[change.layer], change, before, known)?
            }
            Some(before) => conflict_of_old(change, before, known),
            None if known.seen.contains(&(change.layer, change.path.clone())) => Some(ConflictReason::Gone),
            None => conflict_of_new(&trees[change.layer], change, changes)?,
        };
        if let Some(reason) = found {
            conflicts.push(ConflictAt {
                layer: change.layer,
                path: change.path.clone(),
                reason,
            });
        }
    }
    if !conflicts.is_empty() {
        return Err(OperationFailure::Conflicts(conflicts));
    }
    let mut planner = ApplyPlanner {
        trees,
        changes,
        plan: ApplyPlan::default(),
        last: BTreeMap::new(),
        nearest: trees.iter().map(|_| NearestDirectories::default()).collect(),
        slots: 0,
    };
    planner.unlock()?;
    planner.takes();
    planner.puts()?;
    planner.modes();
    Ok(planner.plan)
}

fn conflict_of_old(change: &LayerChange, before: &TreeNode, known: &KnownNodes) -> Option<ConflictReason> {
    (!known.is_untouched(change, before)).then_some(ConflictReason::Changed)
}

/// One that gets another mode must have the one that the run saw, and one that is to be removed must be one that was there when
/// the run started.
///
/// Its change time alone says that something in it changed, and that is looked at entry by entry. If its time of
/// modification is older, then nothing in it did, so that it was moved here; what is in it may be older than the run.
fn conflict_of_directory(
    trees: &LayerTrees,
    change: &LayerChange,
    before: &TreeNode,
    known: &KnownNodes,
) -> Result<Option<ConflictReason>, FileError> {
    if is_mode_of_directory(change) && !known.modes.is_the_runs(change, before) && !known.is_untouched(change, before) {
        return Ok(Some(ConflictReason::Changed));
    }
    let is_removed = matches!(change.kind, ChangeKind::Deleted | ChangeKind::TypeChanged);
    if !is_removed || known.is_untouched(change, before) {
        return Ok(None);
    }
    if before.identity.mtime <= known.latest_untouched {
        return Ok(Some(ConflictReason::Changed));
    }
    let born = trees.host.born(&change.path).tried("examining", &change.path)?;
    let was_there = born.is_some_and(|born| born <= known.latest_untouched);
    Ok((!was_there).then_some(ConflictReason::Changed))
}

fn conflict_of_new(
    trees: &LayerTrees,
    change: &LayerChange,
    changes: &[LayerChange],
) -> Result<Option<ConflictReason>, FileError> {
    let parent = change.path.parent().unwrap_or(Path::new(""));
    // Changes are sorted, so that the parent's is found quickly. What is made now is looked at when it is made.
    let position = changes.binary_search_by(|other| (other.layer, other.path.as_path()).cmp(&(change.layer, parent)));
    if position.is_ok_and(|index| changes[index].kind != ChangeKind::ModeChanged) {
        return Ok(None);
    }
    match trees.host.node(&change.path) {
        Ok(Some(_)) => Ok(Some(ConflictReason::Appeared)),
        Ok(None) => {
            let is_there = matches!(trees.host.node(parent), Ok(Some(node)) if node.is_directory());
            Ok((!is_there).then_some(ConflictReason::Gone))
        }
        Err(Errno::LOOP | Errno::XDEV) => Ok(Some(ConflictReason::Unreachable)),
        Err(error) => Err(FileError::new("examining", &change.path, error)),
    }
}

struct ApplyPlanner<'a> {
    trees: &'a [LayerTrees],
    changes: &'a [LayerChange],
    plan: ApplyPlan,
    /// Modes to be set at the end.
    last: BTreeMap<(usize, PathBuf), ApplyAction>,
    /// For each layer.
    nearest: Vec<NearestDirectories>,
    slots: u64,
}

impl ApplyPlanner<'_> {
    /// Directories of ours that forbid even us to change what is in them are opened up, and closed again at the end.
    fn unlock(&mut self) -> Result<(), FileError> {
        let euid = rustix::process::geteuid().as_raw();
        let mut directories = BTreeSet::new();
        for change in self.changes {
            directories.insert((change.layer, PathBuf::new()));
            directories.insert((change.layer, change.path.parent().unwrap_or(Path::new("")).to_owned()));
            let removed = change.kind == ChangeKind::Deleted || change.kind == ChangeKind::TypeChanged;
            if removed && change.before.as_ref().is_some_and(TreeNode::is_directory) {
                directories.insert((change.layer, change.path.clone()));
            }
        }
        for (layer, path) in directories {
            let found = match self.trees[layer].host.node(&path) {
                Err(Errno::LOOP | Errno::XDEV | Errno::ACCESS) => None,
                other => other.map_err(|error| FileError::new("examining", &path, error))?,
            };
            let Some(node) = found.filter(|node| node.is_directory() && node.uid == euid && euid != 0) else {
                continue;
            };
            if node.mode & OWNER_WRITES != OWNER_WRITES {
                let open = node.mode | NEW_DIRECTORY;
                let (from, original) = (node.mode, node.identity);
                self.push(
                    layer,
                    &path,
                    ApplyAction::Mode {
                        from,
                        to: open,
                        original,
                    },
                );
                self.last.insert(
                    (layer, path),
                    ApplyAction::Mode {
                        from: open,
                        to: from,
                        original,
                    },
                );
            }
        }
        Ok(())
    }

    /// Children first.
    fn takes(&mut self) {
        for change in self.changes.iter().rev() {
            let Some(before) = &change.before else { continue };
            if matches!(change.kind, ChangeKind::Deleted | ChangeKind::TypeChanged) {
                let slot = self.slot();
                self.last.remove(&(change.layer, change.path.clone()));
                let (original, directory) = (before.identity, before.is_directory());
                self.push(
                    change.layer,
                    &change.path,
                    ApplyAction::Take {
                        slot,
                        original,
                        directory,
                    },
                );
            }
        }
    }

    /// Parents first.
    fn puts(&mut self) -> Result<(), FileError> {
        for (index, change) in self.changes.iter().enumerate() {
            let Some(after) = &change.after else { continue };
            let replaces = match (change.kind, &change.before) {
                (ChangeKind::Modified | ChangeKind::SymlinkChanged, Some(before)) => Some(before.identity),
                (ChangeKind::Added | ChangeKind::TypeChanged, _) => None,
                _ => continue,
            };
            let slot = self.slot();
            self.plan.sources.insert(slot, index);
            self.push(change.layer, &change.path, ApplyAction::Put { slot, replaces });
            if after.kind == NodeKind::Directory {
                let host = &self.trees[change.layer].host;
                let inherited = self.nearest[change.layer].of(host, &change.path)?.mode & 0o2000;
                let (to, modified) = (inherited | (after.mode & 0o777), after.identity.mtime);
                let end = ApplyAction::Finish { slot, to, modified };
                self.last.insert((change.layer, change.path.clone()), end);
            }
        }
        Ok(())
    }

    /// Children first, because a parent may become closed.
    fn modes(&mut self) {
        for change in self
            .changes
            .iter()
            .filter(|change| change.kind == ChangeKind::ModeChanged)
        {
            let (Some(before), Some(after)) = (&change.before, &change.after) else {
                continue;
            };
            let path = if change.path == Path::new(".") {
                PathBuf::new()
            } else {
                change.path.clone()
            };
            let special = if before.is_directory() { before.mode & 0o7000 } else { 0 };
            let to = special | (after.mode & 0o777);
            let from = match self.last.remove(&(change.layer, path.clone())) {
                Some(ApplyAction::Mode { from, .. }) => from,
                _ => before.mode,
            };
            let end = ApplyAction::Mode {
                from,
                to,
                original: before.identity,
            };
            self.last.insert((change.layer, path), end);
        }
        for ((layer, path), action) in std::mem::take(&mut self.last).into_iter().rev() {
            self.push(layer, &path, action);
        }
    }

    fn slot(&mut self) -> u64 {
        self.slots += 1;
        self.slots
    }

    fn push(&mut self, layer: usize, path: &Path, action: ApplyAction) {
        self.plan.operations.push(ApplyOperation {
            layer,
            path: Text::from(path),
            action,
        });
    }
}
