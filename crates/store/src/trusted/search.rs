//! Which protected names there are: those of the host, and those that a run made or changed.

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::protected::{folded_names, may_begin};

use super::{LayerPath, TrustSurroundings};
use crate::change::LayerTrees;
use crate::node::NodeKind;
use crate::protection::ProtectionRules;
use crate::tree::entries_in;

/// How many entries of a workspace are looked at, those nearest to its top first.
const MAX_ENTRIES: usize = 500_000;

/// Where protected names begin on the host (`.git`, `.envrc`, `.config`), and links that the owner's own patterns protect.
///
/// The directories' names alone are read, breadth first, without following a link. What is protected as a whole, and
/// repositories, are not gone into here.
pub(crate) fn search(trees: &[LayerTrees], protection: &ProtectionRules) -> Vec<LayerPath> {
    // Another layer is a git directory, and its own name counts.
    let mut found: Vec<LayerPath> = (1..trees.len()).map(|layer| LayerPath::new(layer, "")).collect();
    let Some(workspace) = trees.first() else {
        return found;
    };
    let mut waiting = VecDeque::from([PathBuf::new()]);
    let mut left = MAX_ENTRIES;
    while let Some(path) = waiting.pop_front() {
        let listed = workspace
            .host
            .readable(&path)
            .and_then(|directory| entries_in(&directory));
        // What cannot be entered cannot be changed through us.
        let Ok(entries) = listed else { continue };
        for (name, kind) in entries {
            let Some(rest) = left.checked_sub(1) else {
                return found;
            };
            left = rest;
            let begins = may_begin(name.as_os_str().as_bytes());
            let is_owners = || kind == NodeKind::Symlink && protects(protection, &workspace.root, &path.join(&name));
            if begins || is_owners() {
                found.push(LayerPath::new(0, path.join(&name)));
            }
            let goes_on = || {
                !begins
                    || !is_repository(&name) && protection.rule(0, &workspace.root, &path.join(&name), true).is_none()
            };
            if kind == NodeKind::Directory && goes_on() {
                waiting.push_back(path.join(&name));
            }
        }
    }
    found
}

/// How many protected names of one path are looked at: it can be made of nothing else.
const MAX_IN_A_PATH: usize = 16;

fn is_repository(name: &Path) -> bool {
    let names = folded_names(name.as_os_str().as_bytes());
    matches!(names.first().map(Vec::as_slice), Some(b".git" | b".hg" | b".jj"))
}

fn protects(protection: &ProtectionRules, root: &Path, path: &Path) -> bool {
    protection.has_patterns() && protection.rule(0, root, path, false).is_some()
}

/// The same among what changed.
pub(super) fn changed(around: TrustSurroundings<'_>) -> Vec<LayerPath> {
    let mut found = BTreeSet::new();
    for change in around.changes {
        let is_link = change.after.as_ref().is_some_and(|node| node.kind == NodeKind::Symlink);
        if is_link && change.protected.is_some() {
            found.insert((change.layer, change.path.clone()));
        }
        let names: Vec<_> = change.path.components().collect();
        let begins = (0..names.len()).filter(|index| may_begin(names[*index].as_os_str().as_bytes()));
        for index in begins.take(MAX_IN_A_PATH) {
            found.insert((change.layer, names[..=index].iter().collect()));
        }
    }
    found
        .into_iter()
        .map(|(layer, path)| LayerPath::new(layer, path))
        .collect()
}
