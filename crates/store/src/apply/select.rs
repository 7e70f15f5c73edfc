//! Which changes are asked for, and which of those are refused because of what they are.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use super::{ApplyError, ApplyRequest, ChangeSelection, RefusalReason, RefusedChange};
use crate::StoredRun;
use crate::change::{ChangeKind, LayerChange};
use crate::node::{NodeKind, TreeNode};
use crate::protection::ProtectionRules;
use crate::trusted::TrustedPaths;

/// The changes to apply, parents first, and the refused ones.
pub(crate) struct SelectedChanges {
    pub(crate) changes: Vec<LayerChange>,
    pub(crate) refused: Vec<RefusedChange>,
}

/// A layer and a path in it, empty for its root.
type ChangePath = (usize, PathBuf);

pub(crate) fn select(
    run: &StoredRun,
    changes: &[LayerChange],
    trusted: TrustedPaths,
    request: &ApplyRequest,
) -> Result<SelectedChanges, ApplyError> {
    let roots = run.roots();
    let named: Vec<ChangePath> = request.named.iter().filter_map(|path| place(&roots, path)).collect();
    let above = nearest_above(changes);
    let wanted = wanted(run, &roots, changes, &above, &request.selection)?;
    let mut judge = ChangeJudge {
        protection: ProtectionRules::of(&run.file)?,
        trusted,
        above,
        reasons: vec![None; changes.len()],
        roots,
        changes,
        wanted,
        named,
    };
    judge.each_for_itself();
    judge.below_refused();
    judge.not_empty();
    judge.below_refused();
    Ok(judge.selected())
}

/// Where a path of the owner leads: relative ones begin at the workspace.
fn place(roots: &[PathBuf], path: &Path) -> Option<ChangePath> {
    let (layer, rest) = if path.is_absolute() {
        let holds = |(layer, root): (usize, &PathBuf)| Some((layer, path.strip_prefix(root).ok()?));
        // The innermost root, if one lies in another.
        roots
            .iter()
            .enumerate()
            .filter_map(holds)
            .min_by_key(|(_, rest)| rest.as_os_str().len())?
    } else {
        (0, path)
    };
    let names = rest.components().filter(|component| *component != Component::CurDir);
    let names: Option<PathBuf> = names
        .map(|name| matches!(name, Component::Normal(_)).then_some(name))
        .collect();
    Some((layer, names?))
}

fn key(change: &LayerChange) -> ChangePath {
    let path = if change.path == Path::new(".") {
        PathBuf::new()
    } else {
        change.path.clone()
    };
    (change.layer, path)
}

/// For each change the nearest one above it.
///
/// Changes are sorted, so that what is beneath one follows it. Looking up each directory on the way by its path would
/// cost the cube of the depth.
fn nearest_above(changes: &[LayerChange]) -> Vec<Option<usize>> {
    let mut open: Vec<(usize, ChangePath)> = Vec::new();
    let mut above = Vec::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        let (layer, path) = key(change);
        let holds = |(of, at): &ChangePath| *of == layer && path.starts_with(at);
        while open.pop_if(|(_, place)| !holds(place)).is_some() {}
        above.push(open.last().map(|(index, _)| *index));
        open.push((index, (layer, path)));
    }
    above
}

fn wanted(
    run: &StoredRun,
    roots: &[PathBuf],
    changes: &[LayerChange],
    above: &[Option<usize>],
    selection: &ChangeSelection,
) -> Result<Vec<bool>, ApplyError> {
    let (paths, beneath) = match selection {
        ChangeSelection::All => return Ok(vec![true; changes.len()]),
        ChangeSelection::Paths(paths) => (paths, true),
        ChangeSelection::Exactly(paths) => (paths, false),
    };
    let mut wanted = vec![false; changes.len()];
    for path in paths {
        let none = || ApplyError::NoSuchChange {
            id: run.id().clone(),
            path: path.clone(),
        };
        let (layer, prefix) = place(roots, path).ok_or_else(none)?;
        let mut any = false;
        for (wanted, change) in wanted.iter_mut().zip(changes) {
            let (of, at) = key(change);
            let hit = of == layer && (at == prefix || beneath && at.starts_with(&prefix));
            any |= hit;
            *wanted |= hit;
        }
        if !any {
            return Err(none());
        }
    }
    with_new_parents(changes, above, &mut wanted);
    Ok(wanted)
}

/// What is in a new directory needs that directory; children come last, so backwards.
fn with_new_parents(changes: &[LayerChange], above: &[Option<usize>], wanted: &mut [bool]) {
    let mut needed = vec![false; changes.len()];
    for child in (0..changes.len()).rev() {
        wanted[child] |= needed[child] && makes_room(&changes[child]);
        let needs = needed[child] || (wanted[child] && changes[child].kind != ChangeKind::Deleted);
        if let Some(above) = above[child] {
            needed[above] |= needs;
        }
    }
}

/// Whether what is beneath it could not be there without it.
fn makes_room(change: &LayerChange) -> bool {
    matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged)
}

struct ChangeJudge<'a> {
    protection: ProtectionRules,
    trusted: TrustedPaths,
    roots: Vec<PathBuf>,
    changes: &'a [LayerChange],
    /// The nearest change above each.
    above: Vec<Option<usize>>,
    wanted: Vec<bool>,
    named: Vec<ChangePath>,
    reasons: Vec<Option<RefusalReason>>,
}

impl ChangeJudge<'_> {
    fn each_for_itself(&mut self) {
        for index in 0..self.changes.len() {
            self.reasons[index] = self.reason(&self.changes[index]);
        }
    }

    fn reason(&self, change: &LayerChange) -> Option<RefusalReason> {
        let after = change.after.as_ref();
        match after.map(|node| node.kind) {
            Some(kind @ (NodeKind::Fifo | NodeKind::Socket | NodeKind::Device)) => {
                return Some(RefusalReason::SpecialFile { kind });
            }
            Some(NodeKind::Symlink) if change.leads_out && !self.is_named_exactly(change) => {
                let target = after.and_then(|node| node.target.clone()).unwrap_or_default();
                return Some(RefusalReason::LeadsOut { target });
            }
            _ => {}
        }
        let rule = change.protected.clone()?;
        (!self.is_named(change)).then_some(RefusalReason::Protected { rule })
    }

    fn is_named_exactly(&self, change: &LayerChange) -> bool {
        self.named.contains(&key(change))
    }

    fn is_named(&self, change: &LayerChange) -> bool {
        let (layer, path) = key(change);
        self.named.iter().any(|(of, named)| {
            let root = &self.roots[layer];
            let by_name = |path| self.protection.rule(layer, root, path, true).is_some();
            // What leads to a directory names what is in it, but for what is protected by its own name.
            let led_to = || {
                let rule = self.trusted.rule(&self.protection, &self.roots, (layer, named), true);
                rule.is_some() && !by_name(&path)
            };
            let is_old_name = || {
                let of_renaming = |change: &&LayerChange| change.is_of_unfinished_renaming();
                let mut changes = self.changes.iter().filter(of_renaming);
                change.is_of_unfinished_renaming() && changes.any(|change| key(change) == (*of, named.clone()))
            };
            let above = || path.starts_with(named) && (by_name(named) || led_to() || is_old_name());
            *of == layer && (*named == path || named.starts_with(&path) || above())
        })
    }

    /// Neither what is in a refused new directory, nor what would be removed to make room for a refused entry.
    fn below_refused(&mut self) {
        // The nearest such entry above each; parents come first.
        let mut refused: Vec<Option<usize>> = Vec::with_capacity(self.changes.len());
        for index in 0..self.changes.len() {
            let nearest = self.above[index].and_then(|above| {
                let refuses = makes_room(&self.changes[above]) && self.stays(above);
                if refuses { Some(above) } else { refused[above] }
            });
            refused.push(nearest);
            if let (None, Some(above)) = (&self.reasons[index], nearest) {
                let above = self.changes[above].shown_path(&self.roots);
                self.reasons[index] = Some(RefusalReason::BelowRefused { above });
            }
        }
    }

    /// A directory in which something stays can be neither removed nor replaced; children come last, so backwards.
    fn not_empty(&mut self) {
        let mut holding: HashSet<ChangePath> = HashSet::new();
        for index in (0..self.changes.len()).rev() {
            let change = &self.changes[index];
            let removes = change.after.is_none() || change.kind == ChangeKind::TypeChanged;
            let directory = change.before.as_ref().is_some_and(TreeNode::is_directory);
            let (layer, path) = key(change);
            if removes && directory && !self.stays(index) && holding.contains(&(layer, path.clone())) {
                self.reasons[index] = Some(RefusalReason::NotEmpty);
            }
            if let Some(parent) = path.parent()
                && removes
                && self.stays(index)
            {
                holding.insert((layer, parent.to_owned()));
            }
        }
    }

    fn stays(&self, index: usize) -> bool {
        !self.wanted[index] || self.reasons[index].is_some()
    }

    fn selected(self) -> SelectedChanges {
        let mut selected = SelectedChanges {
            changes: Vec::new(),
            refused: Vec::new(),
        };
        for ((change, wanted), reason) in self.changes.iter().zip(self.wanted).zip(self.reasons) {
            match reason {
                _ if !wanted => {}
                None => selected.changes.push(change.clone()),
                Some(reason) => selected.refused.push(RefusedChange {
                    layer: change.layer,
                    path: change.path.clone(),
                    reason,
                }),
            }
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_paths_lead_to_a_layer_or_nowhere() {
        let roots = [PathBuf::from("/w"), PathBuf::from("/w/sub/.git"), PathBuf::from("/g")];
        for (path, found) in [
            ("a/b", Some((0, "a/b"))),
            ("./a", Some((0, "a"))),
            (".", Some((0, ""))),
            ("/w/a", Some((0, "a"))),
            ("/w", Some((0, ""))),
            ("/w/sub/.git/config", Some((1, "config"))),
            ("/g/x", Some((2, "x"))),
            ("/elsewhere", None),
            ("../a", None),
            ("a/../b", None),
        ] {
            let expected = found.map(|(layer, path)| (layer, PathBuf::from(path)));
            assert_eq!(place(&roots, Path::new(path)), expected, "{path}");
        }
    }
}
