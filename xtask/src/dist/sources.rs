//! What packages take of the workspace: its texts, its version, and directories of the libraries.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::archive::PackagedFile;
use crate::error::TaskError;
use crate::program::workspace_root;

/// What all packages of a release have in common.
#[derive(Debug)]
pub(crate) struct Release {
    /// Its version.
    pub(crate) version: String,
    /// Where its sources are.
    pub(crate) repository: String,
    /// What it is made of.
    pub(crate) sbom: String,
}

impl Release {
    /// Compares the version that is written in a file with that of the release.
    ///
    /// # Errors
    /// `Answer` when they differ.
    pub(crate) fn expect(&self, file: &'static str, version: &str) -> Result<(), TaskError> {
        if version == self.version {
            return Ok(());
        }
        Err(TaskError::Answer {
            from: file,
            why: format!("it has version {version}, and the workspace {}", self.version),
        })
    }
}

#[derive(Debug, Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Debug, Deserialize)]
struct Workspace {
    package: WorkspacePackage,
}

/// What the manifest of the workspace says of all crates.
#[derive(Debug, Deserialize)]
pub(crate) struct WorkspacePackage {
    /// The version.
    pub(crate) version: String,
    /// Where the sources are.
    pub(crate) repository: String,
}

/// What the workspace says of itself.
///
/// # Errors
/// `File`, or `Answer` when the manifest has another form.
pub(crate) fn workspace() -> Result<WorkspacePackage, TaskError> {
    let manifest: Manifest = toml::from_str(&text("Cargo.toml")?).map_err(|error| TaskError::Answer {
        from: "Cargo.toml",
        why: error.to_string(),
    })?;
    Ok(manifest.workspace.package)
}

/// A text of the workspace, by its path there.
///
/// # Errors
/// `File` when it cannot be read.
pub(crate) fn text(name: &str) -> Result<String, TaskError> {
    let path = workspace_root().join(name);
    fs::read_to_string(&path).map_err(TaskError::file("reading", path))
}

/// The files of a directory of the workspace whose paths in it `takes` takes, sorted, below `inside` of `root`.
///
/// # Errors
/// `File` when something cannot be read, `Answer` when nothing is taken.
pub(crate) fn tree(
    root: &str,
    inside: &str,
    takes: impl Fn(&str) -> bool,
) -> Result<Vec<PackagedFile<'static>>, TaskError> {
    let root = workspace_root().join(root);
    let mut found = Vec::new();
    let mut todo = vec![root.join(inside)];
    while let Some(directory) = todo.pop() {
        let entries = fs::read_dir(&directory).map_err(TaskError::file("reading", &directory))?;
        for entry in entries {
            let path = entry.map_err(TaskError::file("reading", &directory))?.path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let name = path_inside(&path, &root)?;
            if takes(&name) {
                let contents = fs::read(&path).map_err(TaskError::file("reading", &path))?;
                found.push(PackagedFile::data(name, contents));
            }
        }
    }
    if found.is_empty() {
        return Err(TaskError::Answer {
            from: "the workspace",
            why: format!("nothing to be packaged is in `{}`", root.join(inside).display()),
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn path_inside(path: &Path, root: &Path) -> Result<String, TaskError> {
    let inside = path.strip_prefix(root).ok().and_then(Path::to_str);
    inside.map(str::to_owned).ok_or_else(|| TaskError::Answer {
        from: "the workspace",
        why: format!("`{}` has a name that no package can have", path.display()),
    })
}
