//! Toolchains: programs that live in a home directory, granted read-only at the same path.
//!
//! Each name stands for directories, for the variables by which its programs find themselves, and for the directories
//! that go to the front of `PATH`. Files with credentials among them are hidden.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::plan::{Environment, PlanEntry, PlanNode};
use offleash_core::spec::MountAccess;
use offleash_core::text::Text;

use super::error::PlanError;
use super::host::PlanningHost;
use super::toolchain_names::TOOLCHAIN_NAMES;
use super::tree::EntryTree;
use super::{reach, rules};

mod known;
mod version;

const ROLE: &str = "toolchain";

/// What the toolchains of a sandbox add to the environment.
#[derive(Debug, Default)]
pub(super) struct ToolchainAdditions {
    /// Directories for the front of `PATH`.
    pub(super) path: Vec<PathBuf>,
    /// Variables.
    pub(super) variables: Environment,
}

/// What one toolchain consists of.
#[derive(Debug, Default)]
struct ToolchainParts {
    /// Files and directories, as their owner knows them.
    granted: Vec<PathBuf>,
    /// Files among them with credentials.
    hidden: Vec<PathBuf>,
    /// Directories of programs, the first searched first; what does not exist is left out.
    programs: Vec<PathBuf>,
    /// Variables.
    variables: Vec<(&'static str, PathBuf)>,
}

/// Adds the toolchains with these names or paths.
pub(super) fn add(
    names: &[OsString],
    host: &PlanningHost,
    workspace: Option<&Path>,
    tree: &mut EntryTree,
) -> Result<ToolchainAdditions, PlanError> {
    let mut added = ToolchainAdditions::default();
    for name in names {
        let toolchain = find(name, host, workspace)?;
        let rule = format!("toolchain: {}", Text::from(name));
        for path in &toolchain.granted {
            grant(path, &rule, host, tree)?;
        }
        for path in toolchain
            .hidden
            .iter()
            .filter_map(|path| tree.view().resolve(path))
            .collect::<Vec<_>>()
        {
            tree.hide(&path.inside, path.metadata.is_dir(), format!("{rule}: credentials"));
        }
        added
            .path
            .extend(toolchain.programs.into_iter().filter(|directory| directory.is_dir()));
        let variables = toolchain.variables.into_iter();
        added
            .variables
            .extend(variables.map(|(name, value)| (OsString::from(name), value.into_os_string())));
    }
    Ok(added)
}

fn find(name: &OsStr, host: &PlanningHost, workspace: Option<&Path>) -> Result<ToolchainParts, PlanError> {
    let is_path = name.as_bytes().contains(&b'/') || name.as_bytes().starts_with(b"~");
    if is_path {
        return at_path(Path::new(name), host, workspace);
    }
    match known::find(name, host, workspace) {
        Some(known::ToolchainSearch::Found(toolchain)) => Ok(toolchain),
        Some(known::ToolchainSearch::Missing { name, looked }) => Err(PlanError::ToolchainMissing { name, looked }),
        None => Err(PlanError::UnknownToolchain { name: Text::from(name) }),
    }
}

fn at_path(given: &Path, host: &PlanningHost, workspace: Option<&Path>) -> Result<ToolchainParts, PlanError> {
    let (path, metadata) = reach::resolve(ROLE, given, host)?;
    reach::check_kind(ROLE, &path, &metadata)?;
    reach::check_stays(ROLE, given, &path, host, workspace)?;
    // As strict as for writing: a toolchain is not the home directory or the system.
    reach::check_writable_source(ROLE, &path, host)?;
    let bin = path.join("bin");
    let programs = if metadata.is_file() {
        path.parent().map(Path::to_path_buf)
    } else {
        Some(if bin.is_dir() { bin } else { path.clone() })
    };
    Ok(ToolchainParts {
        granted: vec![path],
        programs: programs.into_iter().collect(),
        ..ToolchainParts::default()
    })
}

/// Shows `path` inside, where the host has it; what does not exist, or is shown already, needs nothing.
fn grant(path: &Path, rule: &str, host: &PlanningHost, tree: &mut EntryTree) -> Result<(), PlanError> {
    let Ok(resolved) = fs::canonicalize(path) else {
        return Ok(());
    };
    reach::check_writable_source(ROLE, &resolved, host)?;
    let shown = tree.view().host_path(&resolved).is_some_and(|shown| shown == resolved);
    if !shown {
        let node = PlanNode::Bind {
            source: resolved.clone(),
            access: MountAccess::Ro,
        };
        let directory = resolved.is_dir();
        tree.add(
            ROLE,
            PlanEntry {
                target: resolved.clone(),
                node,
                rule: rule.to_owned(),
            },
            directory,
        )?;
    }
    rules::link(path, &resolved, rule.to_owned(), tree);
    Ok(())
}

/// The name of the toolchain that `path`, or what it leads to, is part of.
pub(super) fn owner_of(path: &Path, host: &PlanningHost) -> Option<&'static str> {
    let resolved = reach::existing(path);
    TOOLCHAIN_NAMES
        .into_iter()
        .find(|name| match known::find(OsStr::new(name), host, None) {
            Some(known::ToolchainSearch::Found(toolchain)) => {
                let holds =
                    |granted: &PathBuf| path.starts_with(granted) || resolved.starts_with(reach::existing(granted));
                toolchain.granted.iter().any(holds)
            }
            _ => false,
        })
}

#[cfg(test)]
mod tests;
