//! What a run changed: its upper directories compared with the host as it is now.
//!
//! A file that was copied up but is equal is no change. A directory that was deleted, or deleted and made again, shows
//! everything that is gone. Owners, times and extended attributes are not compared.

mod renaming;
mod walk;

use std::path::{Path, PathBuf};

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::record::ChangeSummary;
use offleash_core::text::Text;

use crate::failure::FileError;
use crate::node::TreeNode;

pub(crate) use renaming::take_out;
pub(crate) use walk::{LayerTrees, changes_in_layer};

/// Why what was left of an old name is not applied unless named.
const UNFINISHED: &str = "what is left of a renaming that was not finished";

/// One changed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerChange {
    /// Which layer of the run, in the order in which they were given; 0 is the workspace.
    pub layer: usize,
    /// The path below the layer's host directory, as bytes the sandbox chose; `.` is that directory itself.
    pub path: PathBuf,
    /// What happened to it.
    pub kind: ChangeKind,
    /// What the host has.
    pub before: Option<TreeNode>,
    /// What the run left.
    pub after: Option<TreeNode>,
    /// The rule that protects it: it is applied only if named.
    pub protected: Option<String>,
    /// Whether it is a symbolic link that leads out of the workspace, or may, to what the sandbox did not see read-only
    /// of the host: it is applied only if named.
    pub leads_out: bool,
    pub(crate) copied_up: bool,
}

impl LayerChange {
    /// Whether it is what was left of an old name when a renaming was not finished.
    pub(crate) fn is_of_unfinished_renaming(&self) -> bool {
        self.protected.as_deref() == Some(UNFINISHED)
    }

    /// The path as `diff` and `apply` show and take it: relative in the workspace, else absolute.
    ///
    /// `roots` are the host directories of the run's layers ([`StoredRun::roots`](crate::StoredRun::roots)).
    #[must_use]
    pub fn shown_path(&self, roots: &[PathBuf]) -> PathBuf {
        shown_path(roots, self.layer, &self.path)
    }
}

/// A path in a layer as a person names it: relative in the workspace, else absolute.
pub(crate) fn shown_path(roots: &[PathBuf], layer: usize, path: &Path) -> PathBuf {
    match roots.get(layer) {
        Some(root) if layer > 0 && path == Path::new(".") => root.clone(),
        Some(root) if layer > 0 => root.join(path),
        _ => path.to_owned(),
    }
}

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// A file with other contents, and perhaps another mode.
    Modified,
    /// It is gone.
    Deleted,
    /// Only its permissions changed.
    ModeChanged,
    /// A symbolic link that points elsewhere.
    SymlinkChanged,
    /// It became something of another type, such as a link in place of a file.
    TypeChanged,
}

/// Why changes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The layer does not hold the contents of an entry.
    #[error("the layer has only a reference to `{}`, made by overlayfs with metacopy or redirect_dir", Text::from(.path))]
    Incomplete {
        /// The path.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot compare `{}`", Text::from(.path))]
    File {
        /// The path.
        path: PathBuf,
        /// The call that failed.
        source: FileError,
    },
}

impl Explained for ChangeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Incomplete { .. } => ErrorKind::Unsupported,
            Self::File { source, .. } => source.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Incomplete { .. } => Some("mount the layer with metacopy=off and redirect_dir=off".into()),
            Self::File { source, .. } => source.hint(),
        }
    }
}

/// Counts changes for a record.
pub fn summarize(changes: &[LayerChange]) -> ChangeSummary {
    let count = |wanted: &[ChangeKind]| {
        let found = changes.iter().filter(|change| wanted.contains(&change.kind)).count();
        u64::try_from(found).unwrap_or(u64::MAX)
    };
    ChangeSummary {
        added: count(&[ChangeKind::Added]),
        modified: count(&[
            ChangeKind::Modified,
            ChangeKind::SymlinkChanged,
            ChangeKind::TypeChanged,
        ]),
        deleted: count(&[ChangeKind::Deleted]),
        mode: count(&[ChangeKind::ModeChanged]),
        applied: false,
        protected: changes
            .iter()
            .filter(|change| change.protected.is_some())
            .map(|change| Text::from(&change.path))
            .collect(),
        error: None,
    }
}

#[cfg(test)]
pub(crate) use tests::make_deep;

#[cfg(test)]
mod tests;
