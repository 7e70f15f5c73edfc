//! What of a plan's tree Landlock can grant where the host has it, and what it cannot.
//!
//! Rules of Landlock only add: what is granted for a directory holds for all beneath it. So nothing can be hidden or
//! made read-only inside something that is granted, and nothing can be shown under another name.

use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::spec::MountAccess;
use offleash_sys::landlock::GrantAccess;

/// The devices that a sandbox may use. No terminal is among them: those of the user are in the same directory as any
/// that a sandbox would get.
const DEVICES: [&str; 5] = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];

/// Files up to this size are compared with what the plan would have written.
const COMPARED_UP_TO: u64 = 64 << 10;

/// A plan as this level can carry it out.
#[derive(Debug, Default)]
pub(super) struct GrantLayout {
    /// What is granted of the host, by its path.
    pub(super) grants: Vec<(PathBuf, GrantAccess)>,
    /// The host directories that are copied, and the layers for the copies.
    pub(super) copies: Vec<CopiedDirectory>,
    /// What was asked for and cannot be, with the reason.
    pub(super) impossible: Vec<(String, String)>,
    /// Whether git directories outside of the workspace are only readable.
    pub(super) git_is_read_only: bool,
}

/// A directory that is worked on as a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopiedDirectory {
    /// The host's directory.
    pub(super) lower: PathBuf,
    /// The layer, in which `upper` becomes the copy.
    pub(super) layer: PathBuf,
    /// What a rule hides, relative to the directory: it is left out.
    pub(super) hidden: Vec<PathBuf>,
}

impl CopiedDirectory {
    pub(super) fn directory(&self) -> PathBuf {
        self.layer.join("upper")
    }

    /// Where `path`, a path of the host, is in the copy.
    pub(super) fn translate(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.lower).ok()?;
        // Joining an empty path would leave a slash at the end.
        Some(if rest.as_os_str().is_empty() {
            self.directory()
        } else {
            self.directory().join(rest)
        })
    }
}

/// Resolves the plan's entries, in their order, into what this level can do.
pub(super) fn lay_out(plan: &Plan) -> GrantLayout {
    let mut layout = GrantLayout::default();
    for (number, entry) in plan.entries.iter().enumerate() {
        let above = plan.entries[..number]
            .iter()
            .rev()
            .find(|other| entry.target.starts_with(&other.target));
        layout.add(entry, above);
    }
    layout.restrict_execution(plan);
    layout
}

impl GrantLayout {
    fn add(&mut self, entry: &PlanEntry, above: Option<&PlanEntry>) {
        match &entry.node {
            PlanNode::Bind { source, access } => self.bind(entry, source, *access, above),
            PlanNode::Volume { name, .. } => self.impossible.push((
                format!("volume `{name}` at `{}`", entry.target.display()),
                format!("without mounts a file is where the host has it ({})", entry.rule),
            )),
            PlanNode::Overlay { lower, layer } => self.overlay(lower, layer),
            PlanNode::Tmpfs { .. } => self.tmpfs(entry),
            PlanNode::Proc => self.grant("/proc", GrantAccess::Read),
            PlanNode::Dev => {
                for device in DEVICES {
                    self.grant(device, GrantAccess::Write);
                }
            }
            PlanNode::Device { source } => self.grant(source, GrantAccess::Write),
            PlanNode::File { contents } => {
                if let Some(path) = same_on_host(&entry.target, contents) {
                    self.grant(path, GrantAccess::Read);
                }
            }
            PlanNode::Hidden { .. } => self.hide(entry, above),
            PlanNode::Base { .. } => self.impossible.push((
                format!("a writable root at `{}`", entry.target.display()),
                "without mounts there is no layer above the host's files".to_owned(),
            )),
            // The host has its own directories, links and programs.
            PlanNode::Directory | PlanNode::Symlink { .. } | PlanNode::Home { .. } | PlanNode::Guest => {}
        }
    }

    fn grant(&mut self, path: impl Into<PathBuf>, access: GrantAccess) {
        self.grants.push((path.into(), access));
    }

    fn bind(&mut self, entry: &PlanEntry, source: &Path, access: MountAccess, above: Option<&PlanEntry>) {
        // A link of the host that leads there will do as well.
        if fs::canonicalize(&entry.target).ok().as_deref() != Some(source) {
            return self.impossible.push((
                format!("`{}` at `{}`", source.display(), entry.target.display()),
                format!("without mounts a file is where the host has it ({})", entry.rule),
            ));
        }
        let is_inside_writable = above.is_some_and(|above| {
            matches!(
                above.node,
                PlanNode::Overlay { .. }
                    | PlanNode::Bind {
                        access: MountAccess::Rw,
                        ..
                    }
            )
        });
        match access {
            MountAccess::Ro if is_inside_writable => self.impossible.push((
                format!("that `{}` is only read", entry.target.display()),
                format!(
                    "Landlock cannot take away what is granted for the directory around it ({})",
                    entry.rule
                ),
            )),
            MountAccess::Ro => self.grant(source, GrantAccess::ReadExecute),
            MountAccess::Rw => self.grant(source, GrantAccess::WriteExecute),
        }
    }

    fn overlay(&mut self, lower: &Path, layer: &Path) {
        if self.copies.is_empty() {
            let copy = CopiedDirectory {
                lower: lower.to_owned(),
                layer: layer.to_owned(),
                hidden: Vec::new(),
            };
            self.grant(copy.directory(), GrantAccess::WriteExecute);
            self.copies.push(copy);
        } else {
            // Git finds it by the host's path, where a copy is not.
            self.git_is_read_only = true;
            self.grant(lower, GrantAccess::Read);
        }
    }

    fn tmpfs(&mut self, entry: &PlanEntry) {
        // Those of every sandbox have the run's own directories in their place, or are done without.
        if !entry.rule.starts_with("system:") {
            self.impossible.push((
                format!("an empty directory at `{}`", entry.target.display()),
                format!("nothing can be mounted ({})", entry.rule),
            ));
        }
    }

    fn hide(&mut self, entry: &PlanEntry, above: Option<&PlanEntry>) {
        let around = match above.map(|above| (&above.node, &above.target)) {
            Some((PlanNode::Overlay { lower, .. }, _)) => lower,
            Some((
                PlanNode::Bind {
                    access: MountAccess::Ro,
                    ..
                },
                _,
            )) if fs::symlink_metadata(&entry.target).is_err() => return,
            Some((PlanNode::Bind { .. }, target)) => target,
            // Not granted in the first place.
            _ => return,
        };
        if let Some(copy) = self.copies.iter_mut().find(|copy| copy.lower == *around) {
            let inside = entry.target.strip_prefix(&copy.lower).unwrap_or(&entry.target);
            return copy.hidden.push(inside.to_owned());
        }
        self.impossible.push((
            format!("that `{}` is hidden", entry.target.display()),
            format!(
                "Landlock cannot take away what is granted for `{}` ({})",
                around.display(),
                entry.rule
            ),
        ));
    }

    /// With a list of executables, nothing else may be executed.
    fn restrict_execution(&mut self, plan: &Plan) {
        if plan.executables.is_empty() {
            return;
        }
        for (_, access) in &mut self.grants {
            *access = match *access {
                GrantAccess::ReadExecute => GrantAccess::Read,
                GrantAccess::WriteExecute => GrantAccess::Write,
                other => other,
            };
        }
        for executable in &plan.executables {
            let copied = self.copies.iter().find_map(|copy| copy.translate(executable));
            self.grants
                .push((copied.unwrap_or_else(|| executable.clone()), GrantAccess::Execute));
        }
    }
}

/// The host's file at `target`, if it says just what the plan would have written there.
fn same_on_host(target: &Path, contents: &[u8]) -> Option<PathBuf> {
    let path = fs::canonicalize(target).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    let is_small = metadata.is_file() && metadata.len() <= COMPARED_UP_TO;
    (is_small && fs::read(&path).ok()? == contents).then_some(path)
}

#[cfg(test)]
#[path = "grants_tests.rs"]
mod tests;
