//! What was written into a layer above any number of others, as that of a sandbox which is served: it is shown, and never
//! applied, since nobody's directory lies below it.
//!
//! The sandbox may run meanwhile. Modes are left as they are; what its owner keeps from us is counted and left out.

use std::path::{Path, PathBuf};

use offleash_core::text::Text;
use rustix::io::Errno;

use crate::change::{ChangeError, ChangeKind, LayerChange, LayerTrees, take_out};
use crate::content::same_contents;
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeKind, TreeNode};
use crate::overlay::{self, OverlayMarks};
use crate::tree::{TreeRoot, names_in, stat_at};
use crate::unified::{ChangePatch, MAX_TEXT_BYTES, unified};

/// How many changes of a sandbox are told of.
pub const MAX_LAYER_CHANGES: usize = 5000;
/// How many entries of its layers are looked at.
const MAX_LOOKED_AT: usize = 200_000;

/// One layer of a sandbox, as whoever made it notes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LayerStack {
    /// Where it is inside, an absolute path.
    pub target: Text,
    /// What holds all that was written.
    pub upper: Text,
    /// What lies below, the topmost first.
    pub lowers: Vec<Text>,
}

/// What was written into the layers of a sandbox.
#[derive(Debug, Default)]
pub struct LayeredChanges {
    /// By path; [`LayeredChange::path`] is the one inside.
    pub changes: Vec<LayeredChange>,
    /// Whether there are more.
    pub has_more: bool,
    /// How many directories and files could not be looked at.
    pub unreadable: usize,
}

/// One changed entry of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayeredChange {
    /// Where it is inside.
    pub path: PathBuf,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Whether all that was in a directory is gone, with what is in it now new.
    pub is_replaced: bool,
    /// What was there before.
    pub before: Option<TreeNode>,
    /// What is there now.
    pub after: Option<TreeNode>,
}

/// What is at a path below a layer.
struct LowerNode {
    layer: usize,
    node: TreeNode,
}

/// A layer that is open.
struct OpenStack {
    target: PathBuf,
    upper: TreeRoot,
    lowers: Vec<TreeRoot>,
}

/// What was written into `stacks`, compared with what lies below.
///
/// # Errors
/// When a layer cannot be opened.
pub fn layered_changes(stacks: &[LayerStack]) -> Result<LayeredChanges, FileError> {
    let mut found = LayeredChanges::default();
    let mut looked_at = 0;
    for stack in stacks {
        let open = OpenStack::open(stack)?;
        let mut walk = LayeredWalk {
            stack: &open,
            found: &mut found,
            looked_at: &mut looked_at,
        };
        walk.all();
    }
    found.changes.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// The change at `path` inside as a patch in git's form; `None` where nothing was changed. The bytes are the sandbox's.
///
/// # Errors
/// When a layer or a file cannot be read.
pub fn layered_patch(stacks: &[LayerStack], path: &Path) -> Result<Option<ChangePatch>, FileError> {
    // The innermost one, where one lies in another.
    let inside = |stack: &&LayerStack| path.starts_with(stack.target.as_path());
    let depth = |stack: &&LayerStack| stack.target.as_path().components().count();
    let Some(stack) = stacks.iter().filter(inside).max_by_key(depth) else {
        return Ok(None);
    };
    let open = OpenStack::open(stack)?;
    let Ok(below) = path.strip_prefix(&open.target) else {
        return Ok(None);
    };
    let below = below.to_owned();
    let looked = open.look(&below).tried("examining", &below)?;
    let Some((change, layer)) = looked else {
        return Ok(None);
    };
    let host = match open.lowers.into_iter().nth(layer.unwrap_or(0)) {
        Some(host) => host,
        None => return Ok(None),
    };
    let trees = LayerTrees {
        root: open.target.clone(),
        upper: open.upper,
        host,
    };
    let change = LayerChange {
        layer: 0,
        path: below.clone(),
        kind: change.kind,
        before: change.before,
        after: change.after,
        protected: None,
        leads_out: false,
        copied_up: false,
    };
    let patch = unified(&trees, &change).map_err(|error| match error {
        ChangeError::File { source, .. } => source,
        ChangeError::Incomplete { path } => FileError::new("comparing", path, Errno::OPNOTSUPP),
    });
    patch.map(Some)
}

impl OpenStack {
    fn open(stack: &LayerStack) -> Result<Self, FileError> {
        let open = |path: &Text| {
            let path = path.as_path();
            // The way there is ours, and may have links where there is more room.
            let resolved = std::fs::canonicalize(path).tried("finding", path)?;
            TreeRoot::host(&resolved).tried("opening", path)
        };
        let lowers: Result<Vec<_>, _> = stack.lowers.iter().map(open).collect();
        Ok(Self {
            target: stack.target.as_path().to_owned(),
            upper: open(&stack.upper)?,
            lowers: lowers?,
        })
    }

    /// What was done to the entry at `path`, and in which layer below the one before was found; `None` where it is as before.
    fn look(&self, path: &Path) -> Result<Option<(LayeredChange, Option<usize>)>, Errno> {
        let after = match self.upper.node(path) {
            Ok(Some(after)) => after,
            // Nothing, or a link is on the way: then it is of another path.
            Ok(None) | Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error),
        };
        let marks = marks(&self.upper, path, &after)?;
        let before = match self.is_new_below(path)? {
            true => None,
            false => self.below(path)?,
        };
        let layer = before.as_ref().map(|before| before.layer);
        let is_gone = is_whiteout(&self.upper, path, &after, marks)?;
        let is_replaced = after.is_directory()
            && before.as_ref().is_some_and(|before| before.node.is_directory())
            && is_opaque(&self.upper, path, marks)?;
        let kind = match &before {
            None if is_gone => return Ok(None),
            None => ChangeKind::Added,
            Some(_) if is_gone => ChangeKind::Deleted,
            Some(before) if before.node.kind != after.kind => ChangeKind::TypeChanged,
            Some(before) => match self.difference(path, before, &after)? {
                Some(kind) => kind,
                None if is_replaced => ChangeKind::Modified,
                None => return Ok(None),
            },
        };
        let change = LayeredChange {
            path: self.target.join(path),
            kind,
            is_replaced,
            before: before.map(|before| before.node),
            after: (!is_gone).then_some(after),
        };
        Ok(Some((change, layer)))
    }

    /// Whether a directory above `path` hides all that lies below it.
    fn is_new_below(&self, path: &Path) -> Result<bool, Errno> {
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if hides(&self.upper, above)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is at `path` below the layer.
    fn below(&self, path: &Path) -> Result<Option<LowerNode>, Errno> {
        for (layer, lower) in self.lowers.iter().enumerate() {
            match lower.node(path) {
                Ok(Some(node)) => {
                    let marks = marks(lower, path, &node)?;
                    let is_gone = is_whiteout(lower, path, &node, marks)?;
                    return Ok((!is_gone).then_some(LowerNode { layer, node }));
                }
                // It is reached through a link or a mount, and so is not there for a layer.
                Ok(None) | Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
            }
            for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                if hides(lower, above)? {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// How two entries of the same type differ.
    fn difference(&self, path: &Path, before: &LowerNode, after: &TreeNode) -> Result<Option<ChangeKind>, Errno> {
        let mode = (before.node.mode != after.mode).then_some(ChangeKind::ModeChanged);
        match after.kind {
            NodeKind::File if before.node.size != after.size => Ok(Some(ChangeKind::Modified)),
            // What is large is not read for this: it was written, or it would not be here.
            NodeKind::File if after.size > MAX_TEXT_BYTES => Ok(Some(ChangeKind::Modified)),
            NodeKind::File => {
                let files = (self.upper.file(path), self.lowers[before.layer].file(path));
                let (Ok(new), Ok(old)) = files else {
                    return Ok(Some(ChangeKind::Modified));
                };
                let same = same_contents(new, old).unwrap_or(false);
                Ok(if same { mode } else { Some(ChangeKind::Modified) })
            }
            NodeKind::Symlink => Ok((before.node.target != after.target).then_some(ChangeKind::SymlinkChanged)),
            _ => Ok(mode),
        }
    }
}

/// Goes through what was written into one layer.
struct LayeredWalk<'a> {
    stack: &'a OpenStack,
    found: &'a mut LayeredChanges,
    looked_at: &'a mut usize,
}

impl LayeredWalk<'_> {
    fn all(&mut self) {
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            let Ok(names) = self.names(&directory) else {
                self.found.unreadable += 1;
                continue;
            };
            for name in names {
                if *self.looked_at >= MAX_LOOKED_AT || self.found.changes.len() >= MAX_LAYER_CHANGES {
                    self.found.has_more = true;
                    return;
                }
                *self.looked_at += 1;
                let path = directory.join(name);
                if self.entry(&path) {
                    waiting.push(path);
                }
            }
        }
    }

    fn names(&self, directory: &Path) -> Result<Vec<PathBuf>, Errno> {
        let upper = self.stack.upper.readable(directory)?;
        let mut names = names_in(&upper)?;
        // What is being renamed at this moment.
        let _gone = take_out(directory, &upper, &mut names)?;
        Ok(names)
    }

    /// Notes what was done to an entry; whether it is a directory to be gone through.
    fn entry(&mut self, path: &Path) -> bool {
        match self.stack.look(path) {
            Ok(Some((change, _))) => self.found.changes.push(change),
            // As before, or gone meanwhile.
            Ok(None) => {}
            Err(_) => self.found.unreadable += 1,
        }
        matches!(self.stack.upper.node(path), Ok(Some(node)) if node.is_directory())
    }
}

fn marks(tree: &TreeRoot, path: &Path, node: &TreeNode) -> Result<OverlayMarks, Errno> {
    if !matches!(node.kind, NodeKind::File | NodeKind::Directory) {
        return Ok(OverlayMarks::default());
    }
    let mut marks = overlay::marks(&tree.place(path)?)?;
    marks.whiteout &= node.kind == NodeKind::File && node.size == 0;
    Ok(marks)
}

fn is_whiteout(tree: &TreeRoot, path: &Path, node: &TreeNode, marks: OverlayMarks) -> Result<bool, Errno> {
    if node.kind != NodeKind::Device {
        return Ok(marks.whiteout);
    }
    let (parent, name) = tree.parent(path)?;
    Ok(stat_at(&parent, name)?.is_some_and(|stat| overlay::is_whiteout_device(&stat)))
}

/// Whether what a layer has at `path` hides all that lies below it in others.
fn hides(tree: &TreeRoot, path: &Path) -> Result<bool, Errno> {
    match tree.node(path) {
        Ok(Some(node)) if node.is_directory() => {
            let marks = marks(tree, path, &node)?;
            is_opaque(tree, path, marks)
        }
        Ok(Some(_)) => Ok(true),
        Ok(None) | Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_opaque(tree: &TreeRoot, path: &Path, marks: OverlayMarks) -> Result<bool, Errno> {
    match tree.readable(path) {
        Ok(directory) => overlay::is_opaque(&directory, marks),
        Err(Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
