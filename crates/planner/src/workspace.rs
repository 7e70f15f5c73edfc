//! The workspace: which directory may be one, and what belongs to it.

use std::fs;
use std::path::{Path, PathBuf};

use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::spec::{MountAccess, WorkspaceMode, WorkspaceSpec};
use offleash_core::text::Text;

use super::error::PlanError;
use super::host::PlanningHost;
use super::{git, reach};

const ROLE: &str = reach::WORKSPACE;

/// Directories that hold the work of many, or what the sandbox has for itself.
const TOO_WIDE: [&str; 8] = ["/home", "/root", "/var", "/run", "/tmp", "/var/tmp", "/opt", "/srv"];

/// The directory, resolved and checked.
///
/// # Errors
/// When it is missing, unreadable, no directory, or one that must not be a workspace.
pub(super) fn resolve(spec: &WorkspaceSpec, host: &PlanningHost) -> Result<PathBuf, PlanError> {
    let (path, metadata) = reach::resolve(ROLE, &spec.path, host)?;
    if !metadata.is_dir() {
        return Err(PlanError::WrongKind {
            role: ROLE,
            path: Text::from(&spec.path),
            found: "not a directory",
        });
    }
    reach::check_writable_source(ROLE, &path, host)?;
    if TOO_WIDE.iter().any(|wide| path == Path::new(wide)) {
        return Err(PlanError::Reserved {
            role: ROLE,
            path: Text::from(&path),
            reason: "a directory that many things share",
            hint: "name the directory of one project with `--workspace DIR`",
        });
    }
    let unreadable = |source| PlanError::Unreachable {
        role: ROLE,
        path: Text::from(&spec.path),
        source,
    };
    fs::read_dir(&path).map_err(unreadable)?;
    Ok(path)
}

/// The entries of the workspace at `path`: itself, and the git directories outside it that it belongs to.
///
/// Layers are numbered directories in `run_directory/layers`; making them is the store's business.
pub(super) fn entries(path: &Path, mode: WorkspaceMode, host: &PlanningHost, run_directory: &Path) -> Vec<PlanEntry> {
    let outside = git::directories_outside(path, host.euid);
    let trees = std::iter::once((path.to_path_buf(), "workspace"))
        .chain(outside.into_iter().map(|git| (git, "workspace: git")));
    let entry = |(number, (tree, rule)): (usize, (PathBuf, &str))| {
        let node = match mode {
            WorkspaceMode::Overlay | WorkspaceMode::Rw => PlanNode::Overlay {
                lower: tree.clone(),
                layer: run_directory.join("layers").join(number.to_string()),
            },
            WorkspaceMode::Ro => PlanNode::Bind {
                source: tree.clone(),
                access: MountAccess::Ro,
            },
        };
        PlanEntry {
            target: tree,
            node,
            rule: rule.to_owned(),
        }
    };
    trees.enumerate().map(entry).collect()
}

/// The directory that a command starts in: the caller's own where that lies in the workspace.
pub(super) fn directory(workspace: Option<&Path>, host: &PlanningHost, home: &Path) -> PathBuf {
    let cwd = reach::existing(&host.cwd);
    match workspace {
        Some(workspace) if cwd.starts_with(workspace) => cwd,
        Some(workspace) => workspace.to_path_buf(),
        None => home.to_path_buf(),
    }
}
