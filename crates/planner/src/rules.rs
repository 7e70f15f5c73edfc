//! Makes the rules of the file system into mounts: what is read, written, protected, denied.
//!
//! Rules are about paths inside, which for everything but mounts with another target are the host's. What is deeper
//! wins, and what the owner granted by other means (workspace, mounts, toolchains) counts as a rule for its path. A
//! deny hides what exists when the sandbox starts; in the workspace, what is protected or denied and appears later is
//! held back when changes are applied.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use offleash_core::path_rules::{PathAccess, PathPattern, PathRules, PatternAnchors, rule_text};
use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::protected::PROTECTED_NAMES;
use offleash_core::spec::{MountAccess, SandboxSpec};
use offleash_core::text::Text;

use super::error::PlanError;
use super::host::PlanningHost;
use super::reach;
use super::tree::EntryTree;
use super::view::{PlanView, source_of};

/// How many paths the patterns of one rule are compared with.
pub(super) const MAX_PATHS: usize = 200_000;

/// A path that a pattern names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PatternMatch {
    /// The path inside, free of links.
    pub(super) inside: PathBuf,
    /// The host's path behind it.
    pub(super) host: PathBuf,
    /// Whether it is a directory.
    pub(super) directory: bool,
}

/// Adds what `read` and `write` grant, and keeps read-only what is protected in what may be written on the host.
pub(super) fn grant(
    rules: &PathRules,
    anchors: PatternAnchors<'_>,
    host: &PlanningHost,
    tree: &mut EntryTree,
) -> Result<(), PlanError> {
    // With a deny, what is shown by a tree above may be hidden with it, and so needs a mount of its own.
    let shortcut = rules.deny.is_empty();
    let mut grants = Vec::new();
    for (access, pattern) in rules
        .all()
        .filter(|(access, _)| matches!(access, PathAccess::Read | PathAccess::Write))
    {
        let rule = rule_text(access, pattern);
        for path in on_host(pattern, anchors, &rule)? {
            let decided = rules.decide(&path, anchors).map(|verdict| verdict.access);
            if decided == Some(access) && !leads_away(&path, pattern, anchors) {
                grants.push((path, access, rule.clone()));
            }
        }
    }
    grants.sort_by_key(|(path, ..)| path.components().count());
    for (path, access, rule) in grants {
        if !(shortcut && already_readable(tree.view(), &path, access)) {
            add_grant(&path, access, rule, host, anchors.workspace, tree)?;
        }
    }
    protect(rules, anchors, tree)
}

fn add_grant(
    path: &Path,
    access: PathAccess,
    rule: String,
    host: &PlanningHost,
    workspace: Option<&Path>,
    tree: &mut EntryTree,
) -> Result<(), PlanError> {
    const ROLE: &str = "path of a rule";
    let (resolved, metadata) = reach::resolve(ROLE, path, host)?;
    reach::check_kind(ROLE, &resolved, &metadata)?;
    reach::check_stays(ROLE, path, &resolved, host, workspace)?;
    let access = if access == PathAccess::Write {
        MountAccess::Rw
    } else {
        MountAccess::Ro
    };
    match access {
        MountAccess::Ro => reach::check_source(ROLE, &resolved, host)?,
        MountAccess::Rw => reach::check_writable_source(ROLE, &resolved, host)?,
    }
    let entry = PlanEntry {
        target: resolved.clone(),
        node: PlanNode::Bind {
            source: resolved.clone(),
            access,
        },
        rule: rule.clone(),
    };
    let is_there = tree
        .view()
        .entry_at(&resolved)
        .is_some_and(|there| there.node == entry.node);
    if !is_there {
        tree.add(ROLE, entry, metadata.is_dir())?;
    }
    link(path, &resolved, rule, tree);
    Ok(())
}

/// Whether a wildcard met a link to something that the pattern does not speak of; nobody wrote that path.
fn leads_away(path: &Path, pattern: &PathPattern, anchors: PatternAnchors<'_>) -> bool {
    pattern.is_glob() && !pattern.covers(&reach::existing(path), anchors)
}

/// Whether a read grant changes nothing, because a read-only tree shows the path already.
fn already_readable(view: PlanView<'_>, path: &Path, access: PathAccess) -> bool {
    let shows = |entry: &PlanEntry| {
        matches!(
            &entry.node,
            PlanNode::Bind {
                access: MountAccess::Ro,
                ..
            }
        )
    };
    access == PathAccess::Read
        && view.entry_above(path).is_some_and(shows)
        && view.host_path(path).as_deref() == Some(path)
}

/// Makes the link by which the owner knows a granted path, where the sandbox's own tree can hold it.
pub(super) fn link(path: &Path, resolved: &Path, rule: String, tree: &mut EntryTree) {
    if path == resolved || tree.view().resolve(path).is_some() {
        return;
    }
    let holds = |entry: &PlanEntry| {
        matches!(
            entry.node,
            PlanNode::Tmpfs { .. } | PlanNode::Directory | PlanNode::Base { .. }
        )
    };
    let is_free = tree
        .view()
        .entry_above(path)
        .is_none_or(|above| above.target != path && holds(above));
    let covers = tree.entries().iter().any(|entry| entry.target.starts_with(path));
    if is_free && !covers {
        tree.put(PlanEntry {
            target: path.to_path_buf(),
            node: PlanNode::Symlink {
                to: resolved.to_path_buf(),
            },
            rule,
        });
    }
}

/// In overlays protected names are held back when changes are applied; what is written to the host directly is kept
/// from changing by a read-only mount.
fn protect(rules: &PathRules, anchors: PatternAnchors<'_>, tree: &mut EntryTree) -> Result<(), PlanError> {
    protect_by_name(rules, anchors, tree);
    for pattern in &rules.protect {
        let rule = rule_text(PathAccess::Protected, pattern);
        for found in inside(pattern, anchors, tree.view(), &rule)? {
            let verdict = rules.decide(&found.inside, anchors).map(|verdict| verdict.access);
            let writable = tree.view().entry_above(&found.inside).is_some_and(is_writable_bind);
            if writable && verdict == Some(PathAccess::Protected) {
                tree.put(read_only(found.inside, found.host, rule.clone()));
            }
        }
    }
    Ok(())
}

/// Keeps names that run code later from changing where a writable directory has them at its top. What is not there
/// cannot be mounted upon, and may be made: only overlays hold that back.
fn protect_by_name(rules: &PathRules, anchors: PatternAnchors<'_>, tree: &mut EntryTree) {
    let is_writable_directory =
        |entry: &&PlanEntry| is_writable_bind(entry) && source_of(&entry.node).is_some_and(Path::is_dir);
    let trees: Vec<PlanEntry> = tree.entries().iter().filter(is_writable_directory).cloned().collect();
    for entry in &trees {
        for protected in PROTECTED_NAMES
            .iter()
            .filter(|protected| !protected.pattern.contains('*'))
        {
            let target = entry.target.join(protected.pattern);
            let Some(host) = source_of(&entry.node).map(|source| source.join(protected.pattern)) else {
                continue;
            };
            let is_granted = rules.write.iter().any(|pattern| pattern.names(&target, anchors));
            let is_there = fs::symlink_metadata(&host).is_ok_and(|found| found.is_dir() || found.is_file());
            if is_there && !is_granted && tree.view().entry_at(&target).is_none() && reach::existing(&host) == host {
                let rule = format!("protected: {} ({})", protected.pattern, protected.why);
                tree.put(read_only(target, host, rule));
            }
        }
    }
}

fn is_writable_bind(entry: &PlanEntry) -> bool {
    matches!(
        entry.node,
        PlanNode::Bind {
            access: MountAccess::Rw,
            ..
        }
    )
}

fn read_only(target: PathBuf, source: PathBuf, rule: String) -> PlanEntry {
    PlanEntry {
        target,
        node: PlanNode::Bind {
            source,
            access: MountAccess::Ro,
        },
        rule,
    }
}

/// Hides what `deny` names.
pub(super) fn deny(
    rules: &PathRules,
    anchors: PatternAnchors<'_>,
    workspace: Option<&Path>,
    tree: &mut EntryTree,
) -> Result<(), PlanError> {
    let is_denied = |path: &Path| {
        let named = rules.deny.iter().any(|pattern| pattern.names(path, anchors));
        rules
            .decide(path, anchors)
            .filter(|verdict| named && verdict.access == PathAccess::Denied)
    };
    if let Some((workspace, verdict)) = workspace.and_then(|path| Some((path, is_denied(path)?))) {
        return Err(PlanError::WorkspaceDenied {
            path: Text::from(workspace),
            rule: verdict.rule,
        });
    }
    tree.remove_where(|entry| is_denied(&entry.target).is_some());
    for pattern in &rules.deny {
        let rule = rule_text(PathAccess::Denied, pattern);
        for found in inside(pattern, anchors, tree.view(), &rule)? {
            let overruled = rules
                .decide(&found.inside, anchors)
                .is_some_and(|verdict| verdict.access != PathAccess::Denied);
            if !overruled {
                tree.hide(&found.inside, found.directory, rule.clone());
            }
        }
    }
    Ok(())
}

/// The one path that a pattern names, if it has no wildcard but that of everything beneath.
fn only_path(pattern: &PathPattern, anchors: PatternAnchors<'_>) -> Option<PathBuf> {
    let base = pattern.base(anchors)?;
    (!pattern.is_glob() || pattern.is_beneath() && pattern.names(&base, anchors)).then_some(base)
}

/// Refuses a pattern without wildcards that names nothing on the host. For one that was given by hand, and so mistyped:
/// a policy, which goes from machine to machine, may name what is not on all of them.
///
/// # Errors
/// `Unreachable`.
pub fn check_exists(
    role: &'static str,
    given: &OsStr,
    pattern: &PathPattern,
    anchors: PatternAnchors<'_>,
) -> Result<(), PlanError> {
    let missing = only_path(pattern, anchors).and_then(|path| fs::symlink_metadata(path).err());
    match missing {
        Some(source) if source.kind() == io::ErrorKind::NotFound => Err(PlanError::Unreachable {
            role,
            path: Text::from(given),
            source,
        }),
        _ => Ok(()),
    }
}

/// What is to be said of `read` and `write` rules whose path does not exist, a line each. Names of the workspace are
/// visible anyway, and a run may make them.
pub fn grants_of_nothing(spec: &SandboxSpec, host: &PlanningHost) -> Vec<String> {
    let workspace = spec
        .workspace
        .as_ref()
        .map(|workspace| reach::existing(&reach::absolute(&workspace.path, host)));
    let home = host.home.as_deref().map(reach::existing);
    let anchors = PatternAnchors {
        workspace: workspace.as_deref(),
        home: home.as_deref(),
    };
    let is_the_workspace_s = |path: &Path| workspace.as_ref().is_some_and(|workspace| path.starts_with(workspace));
    let grants = [
        (PathAccess::Read, &spec.paths.read),
        (PathAccess::Write, &spec.paths.write),
    ];
    let grants = grants
        .into_iter()
        .flat_map(|(access, list)| list.iter().map(move |pattern| (access, pattern)));
    let missing = grants.filter_map(|(access, pattern)| {
        let path = only_path(pattern, anchors).filter(|path| !is_the_workspace_s(path))?;
        let error = fs::symlink_metadata(&path).err()?;
        (error.kind() == io::ErrorKind::NotFound).then(|| {
            let rule = rule_text(access, pattern);
            format!("`{rule}` grants nothing: `{}` does not exist", Text::from(&path))
        })
    });
    missing.collect()
}

/// The host's paths that a pattern names; what does not exist grants nothing.
fn on_host(pattern: &PathPattern, anchors: PatternAnchors<'_>, rule: &str) -> Result<Vec<PathBuf>, PlanError> {
    let Some(base) = pattern.base(anchors) else {
        return Ok(Vec::new());
    };
    if only_path(pattern, anchors).is_some() {
        return match fs::symlink_metadata(&base) {
            Ok(_) => Ok(vec![base]),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(PlanError::Unreachable {
                role: "path of a rule",
                path: Text::from(&base),
                source,
            }),
        };
    }
    let mut walk = PatternWalk::new(pattern, anchors, rule);
    walk.descend(&base, &base, &|_| false)?;
    Ok(walk.found.into_iter().map(|(path, ..)| path).collect())
}

/// What a pattern names in the sandbox's trees of the host, links followed.
pub(super) fn inside(
    pattern: &PathPattern,
    anchors: PatternAnchors<'_>,
    view: PlanView<'_>,
    rule: &str,
) -> Result<Vec<PatternMatch>, PlanError> {
    let Some(base) = pattern.base(anchors) else {
        return Ok(Vec::new());
    };
    let resolve = |path: &Path| {
        let found = view.resolve(path)?;
        let directory = found.metadata.is_dir();
        Some(PatternMatch {
            inside: found.inside,
            host: found.host,
            directory,
        })
    };
    if !pattern.is_glob() {
        return Ok(resolve(&base).into_iter().collect());
    }
    let mut walk = PatternWalk::new(pattern, anchors, rule);
    for (target, source) in view.host_trees() {
        if target.starts_with(&base) {
            walk.descend(target, source, &|path| path != target && view.entry_at(path).is_some())?;
        } else if let Ok(rest) = base.strip_prefix(target) {
            let is_deepest = view.entry_above(&base).is_some_and(|above| above.target == target);
            if is_deepest {
                walk.descend(&base, &source.join(rest), &|path| {
                    path != base && view.entry_at(path).is_some()
                })?;
            }
        }
    }
    Ok(walk.found.iter().filter_map(|(path, ..)| resolve(path)).collect())
}

/// A walk over directories that compares every path with a pattern and follows no link.
struct PatternWalk<'a> {
    pattern: &'a PathPattern,
    anchors: PatternAnchors<'a>,
    rule: &'a str,
    deepest: Option<usize>,
    looked_at: usize,
    found: Vec<(PathBuf, PathBuf)>,
}

impl<'a> PatternWalk<'a> {
    fn new(pattern: &'a PathPattern, anchors: PatternAnchors<'a>, rule: &'a str) -> Self {
        // `components` counts the root as one.
        let deepest = pattern.deepest(anchors).map(|names| names + 1);
        Self {
            pattern,
            anchors,
            rule,
            deepest,
            looked_at: 0,
            found: Vec::new(),
        }
    }

    /// Walks `host`, which is `inside`; a path for which `is_other` holds belongs to another tree.
    fn descend(&mut self, inside: &Path, host: &Path, is_other: &dyn Fn(&Path) -> bool) -> Result<(), PlanError> {
        let mut todo = vec![(inside.to_path_buf(), host.to_path_buf())];
        while let Some((inside, host)) = todo.pop() {
            self.looked_at += 1;
            if self.looked_at > MAX_PATHS {
                return Err(PlanError::TooManyPaths {
                    rule: self.rule.to_owned(),
                    most: MAX_PATHS,
                });
            }
            if is_other(&inside) {
                continue;
            }
            let Ok(metadata) = fs::symlink_metadata(&host) else {
                continue;
            };
            if self.pattern.names(&inside, self.anchors) && (metadata.is_dir() || !self.pattern.is_beneath()) {
                self.found.push((inside, host));
                continue;
            }
            let is_deep_enough = self
                .deepest
                .is_some_and(|deepest| inside.components().count() >= deepest);
            if !metadata.is_dir() || is_deep_enough {
                continue;
            }
            // What the caller may not list, the sandbox may not list either.
            for child in fs::read_dir(&host).into_iter().flatten().flatten() {
                todo.push((inside.join(child.file_name()), child.path()));
            }
        }
        Ok(())
    }
}
