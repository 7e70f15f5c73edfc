//! Finds the program that a command leads to inside.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::view::{HostNode, PlanView};

/// A program as it is called and as it is.
#[derive(Debug, Clone)]
pub(super) struct ResolvedProgram {
    /// The path by which it is called.
    pub(super) called: PathBuf,
    /// The file that this leads to.
    pub(super) found: HostNode,
}

impl ResolvedProgram {
    /// The path by which it is called, and that of the file.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        [self.called.as_path(), self.found.inside.as_path()].into_iter()
    }
}

/// The program that a command leads to inside, if it can be known: `directory` is where it starts.
pub(super) fn find(
    command: &OsStr,
    search_path: &[PathBuf],
    directory: &Path,
    view: PlanView<'_>,
) -> Option<ResolvedProgram> {
    let program = |called: PathBuf| {
        Some(ResolvedProgram {
            found: view.resolve(&called)?,
            called,
        })
    };
    if command.as_bytes().contains(&b'/') {
        return program(directory.join(command));
    }
    let mut candidates = search_path
        .iter()
        .filter_map(|searched| program(searched.join(command)));
    candidates.find(|program| program.found.is_executable())
}
