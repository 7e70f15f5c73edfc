//! What a sandbox's layers lie over, noted beside them, and what was changed in these, shown by a process of its own.
//!
//! The note is in the layer's own directory, of which the sandbox has the parts alone. Files of subordinate ids are read by
//! the superuser of those, as who copies them does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::plan::{Plan, PlanNode};
use offleash_core::text::Text;
use offleash_isolation::process;
use offleash_protocol::Dialogue;
use offleash_store::{
    ChangeKind, DiffForm, FileError, LayerStack, LayeredChange, NodeKind, TreeNode, layered_changes, layered_patch,
};
use serde::{Deserialize, Serialize};

use super::layer::scratch_of;

/// The note.
const STACKS: &str = "stacks.json";
/// What overlayfs shows of a layer.
const UPPER: &str = "upper";

/// How many bytes of a patch are told.
pub const MAX_PATCH: usize = 1024 * 1024;

/// Whose changes are to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesOrder {
    /// The state directory.
    pub state: Text,
    /// The sandbox.
    pub id: RunId,
    /// The one change whose patch is wanted, by its path inside; a list of all if `None`.
    pub path: Option<Text>,
}

impl Dialogue for ChangesOrder {
    const MAX_FRAME: usize = 64 * 1024;
}

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangesAnswer {
    /// It was not noted what the sandbox lies over.
    Unknown,
    /// All changes.
    Listed(ListedChanges),
    /// The patch; none where nothing was changed.
    Patch(Option<ShownPatch>),
    /// Something failed.
    Failed {
        /// What was tried, and why it failed; it may name paths of the machine.
        reason: String,
    },
}

impl Dialogue for ChangesAnswer {
    // As many paths as are told, each as long as one can be.
    const MAX_FRAME: usize = 64 * 1024 * 1024;
}

/// Changes of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedChanges {
    /// By path.
    pub changes: Vec<ListedChange>,
    /// Whether there are more.
    pub has_more: bool,
    /// How many files and directories could not be looked at.
    pub unreadable: u64,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedChange {
    /// Where it is inside.
    pub path: Text,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Whether all that was in a directory is gone.
    pub is_replaced: bool,
    /// What is there now, or was.
    pub entry: NodeKind,
    /// Bytes before, of a file.
    pub size_before: Option<u64>,
    /// Bytes now, of a file.
    pub size_after: Option<u64>,
}

/// A change as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownPatch {
    /// What it holds.
    pub form: DiffForm,
    /// A patch in git's form, [`MAX_PATCH`] bytes at most.
    pub text: Text,
    /// Whether it is cut.
    pub is_cut: bool,
    /// Lines that were added.
    pub added_lines: u64,
    /// Lines that were removed.
    pub removed_lines: u64,
}

/// Has `answered` told what was changed in a sandbox.
///
/// It is looked at in another process, which is the superuser of the caller's ids, unless the caller is root. The calling
/// process must have one thread.
///
/// # Errors
/// What `answered` answers.
pub fn show_changes(order: &ChangesOrder, answered: impl Fn(&ChangesAnswer) -> io::Result<()>) -> io::Result<()> {
    let work = || answered(&shown(order));
    if offleash_sys::process::is_root() {
        return work();
    }
    process::as_superuser_of_own(work).or_else(|error| {
        answered(&ChangesAnswer::Failed {
            reason: offleash_core::error::with_causes(&error),
        })
    })
}

fn shown(order: &ChangesOrder) -> ChangesAnswer {
    let failed = |error: &(dyn std::error::Error + 'static)| ChangesAnswer::Failed {
        reason: offleash_core::error::with_causes(error),
    };
    let stacks = match read_stacks(order.state.as_path(), &order.id) {
        Ok(Some(stacks)) => stacks,
        Ok(None) => return ChangesAnswer::Unknown,
        Err(error) => return failed(&error),
    };
    let answer = match &order.path {
        None => listed(&stacks).map(ChangesAnswer::Listed),
        Some(path) => patch(&stacks, path.as_path()).map(ChangesAnswer::Patch),
    };
    answer.unwrap_or_else(|error| failed(&error))
}

fn listed(stacks: &[LayerStack]) -> Result<ListedChanges, FileError> {
    let found = layered_changes(stacks)?;
    Ok(ListedChanges {
        changes: found.changes.iter().map(ListedChange::of).collect(),
        has_more: found.has_more,
        unreadable: u64::try_from(found.unreadable).unwrap_or(u64::MAX),
    })
}

fn patch(stacks: &[LayerStack], path: &Path) -> Result<Option<ShownPatch>, FileError> {
    let count = |lines: usize| u64::try_from(lines).unwrap_or(u64::MAX);
    let found = layered_patch(stacks, path)?;
    Ok(found.map(|mut patch| {
        let is_cut = patch.bytes.len() > MAX_PATCH;
        patch.bytes.truncate(MAX_PATCH);
        ShownPatch {
            form: patch.form,
            text: Text(patch.bytes),
            is_cut,
            added_lines: count(patch.added_lines),
            removed_lines: count(patch.removed_lines),
        }
    }))
}

impl ListedChange {
    fn of(change: &LayeredChange) -> Self {
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        let size = |node: Option<&TreeNode>| Some(node.filter(|node| node.kind == NodeKind::File)?.size);
        Self {
            path: Text::from(&change.path),
            kind: change.kind,
            is_replaced: change.is_replaced,
            entry: after.or(before).map_or(NodeKind::File, |node| node.kind),
            size_before: size(before),
            size_after: size(after),
        }
    }
}

/// Notes what the layers of `plan` lie over. Nothing happens for a sandbox without a layer of its own.
///
/// # Errors
/// When the state directory cannot be written.
pub fn note_stacks(state: &Path, plan: &Plan) -> io::Result<()> {
    let stacks = stacks_of(plan);
    if stacks.is_empty() {
        return Ok(());
    }
    let text = serde_json::to_vec(&stacks)?;
    match fs::write(scratch_of(state, &plan.id).join(STACKS), text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

fn read_stacks(state: &Path, id: &RunId) -> io::Result<Option<Vec<LayerStack>>> {
    match fs::read(scratch_of(state, id).join(STACKS)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn stacks_of(plan: &Plan) -> Vec<LayerStack> {
    let stack = |target: &Path, node: &PlanNode| {
        let PlanNode::Base {
            lower,
            stack,
            template,
            snapshot,
            layer,
            ..
        } = node
        else {
            return None;
        };
        let built = [snapshot, template]
            .into_iter()
            .flatten()
            .map(|built| built.join(UPPER));
        let below: Vec<PathBuf> = match stack.as_slice() {
            [] => vec![lower.clone()],
            stack => stack.iter().map(|layer| lower.join(layer)).collect(),
        };
        Some(LayerStack {
            target: Text::from(Path::new("/").join(target)),
            upper: Text::from(layer.join(UPPER)),
            lowers: built.chain(below).map(Text::from).collect(),
        })
    };
    let entries = plan.entries.iter();
    entries.filter_map(|entry| stack(&entry.target, &entry.node)).collect()
}
