//! Writes changes back to the host: all that were asked for, or none.
//!
//! 1. [`select`]: which changes are asked for, and which are refused because of what they are.
//! 2. [`plan`]: conflicts with what the host did meanwhile, and the list of operations.
//! 3. [`journal`]: the list, synced to disk, before anything is touched.
//! 4. [`commit`]: new contents are staged in `.offleash-ID` in the workspace, then renamed into place, originals into
//!    the staging directory. Each entry is looked at once more at the moment it is replaced.
//! 5. [`rollback`]: on any failure the operations are undone in reverse; after a crash the next start does that.
//!
//! Owners are those of the replaced file or of the directory around; set-user-id and set-group-id bits and extended
//! attributes are not carried; times of modification are. Replacing a file that has other hard links leaves those with
//! the old contents; the kernel marks those as changed, so that a later apply of one is a conflict.

mod commit;
mod error;
mod journal;
mod nearest;
mod plan;
mod restored;
mod rollback;
mod select;
mod stage;

use std::fmt;
use std::path::{Path, PathBuf};

use offleash_core::text::Text;

use crate::change::{LayerChange, shown_path};
use crate::modes;
use crate::node::NodeKind;
use crate::run_file::RunPhase;
use crate::seen;
use crate::{RunError, StoredRun};

pub use error::{ApplyError, ConflictAt, ConflictReason};
pub(crate) use journal::{APPLIED, applied};
pub(crate) use restored::RESTORED;
pub(crate) use rollback::recover;

/// Which changes to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeSelection {
    /// All that are left.
    All,
    /// Those at or beneath these paths, relative to the workspace or absolute.
    Paths(Vec<PathBuf>),
    /// Those at these paths alone, in the same form, and the new directories that they are in.
    Exactly(Vec<PathBuf>),
}

/// What to apply, and what the owner named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyRequest {
    /// Which changes.
    pub selection: ChangeSelection,
    /// Paths, in the same form, at which a protected name or a link that leads out of the workspace is meant.
    ///
    /// Naming a protected directory names what is in it; naming a directory that is not protected does not.
    pub named: Vec<PathBuf>,
}

/// What an apply did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyReport {
    /// The changes that were written back.
    pub applied: Vec<LayerChange>,
    /// The changes that were asked for and refused; they stay pending.
    pub refused: Vec<RefusedChange>,
    /// How many changes are left, the refused ones included. At 0 the run is over.
    pub pending: usize,
    /// The host directories of the run's layers ([`StoredRun::roots`]).
    pub roots: Vec<PathBuf>,
}

/// A change that is not applied because of what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedChange {
    /// The layer.
    pub layer: usize,
    /// The path in the layer.
    pub path: PathBuf,
    /// Why.
    pub reason: RefusalReason,
}

impl RefusedChange {
    /// The path as `diff` and `apply` show and take it; see [`LayerChange::shown_path`].
    #[must_use]
    pub fn shown_path(&self, roots: &[PathBuf]) -> PathBuf {
        shown_path(roots, self.layer, &self.path)
    }

    /// What is said of it, in a line.
    #[must_use]
    pub fn told(&self, roots: &[PathBuf]) -> String {
        format!("not applied: `{}`: {}", Text::from(self.shown_path(roots)), self.reason)
    }
}

/// Why a change is not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalReason {
    /// Its name is protected; naming the path applies it.
    Protected {
        /// The rule.
        rule: String,
    },
    /// A symbolic link that leads out of the workspace, or may, to what the sandbox did not see read-only of the host;
    /// naming the path applies it.
    LeadsOut {
        /// Where it points.
        target: PathBuf,
    },
    /// A fifo, a socket or a device is never applied.
    SpecialFile {
        /// Which.
        kind: NodeKind,
    },
    /// A directory to be removed or replaced in which something stays.
    NotEmpty,
    /// The entry above it is refused.
    BelowRefused {
        /// That entry, as [`LayerChange::shown_path`] has it.
        above: PathBuf,
    },
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected { rule } => write!(formatter, "protected ({rule})"),
            Self::LeadsOut { target } => write!(formatter, "{}", leads_out_to(target)),
            Self::SpecialFile { kind } => write!(formatter, "a special file ({kind:?})"),
            Self::NotEmpty => formatter.write_str("something in it stays"),
            Self::BelowRefused { above } => write!(formatter, "in `{}`, which is refused", Text::from(above)),
        }
    }
}

/// What is said of a link that is not applied because of where it leads.
pub fn leads_out_to(target: &Path) -> String {
    format!("a link that leads out of the workspace, to `{}`", Text::from(target))
}

impl StoredRun {
    /// Writes changes back to the host.
    ///
    /// # Errors
    /// `Run` if the run is unknown, going on, applied or discarded; `NoSuchChange` if a path selects nothing;
    /// `Conflicts` if the host changed meanwhile; `Failed` if a call failed. The host is as it was in every case but
    /// `RollbackFailed`, which the next [`crate::reap()`] tries again.
    pub fn apply(&mut self, request: &ApplyRequest) -> Result<ApplyReport, ApplyError> {
        self.apply_until(request, &mut ApplySteps::unlimited())
    }

    /// As [`StoredRun::apply`], dying when `steps` are used up: what tests do in place of SIGKILL.
    pub(crate) fn apply_until(
        &mut self,
        request: &ApplyRequest,
        steps: &mut ApplySteps,
    ) -> Result<ApplyReport, ApplyError> {
        let claim = self.claim()?;
        let result = self.apply_claimed(request, steps);
        if !matches!(result, Err(ApplyError::RollbackFailed { .. } | ApplyError::Stopped)) {
            claim.release().map_err(|source| self.failed(source))?;
        }
        result
    }

    fn apply_claimed(&mut self, request: &ApplyRequest, steps: &mut ApplySteps) -> Result<ApplyReport, ApplyError> {
        self.recover()?;
        let (changes, trusted) = self.changes_and_trusted()?;
        let selected = select::select(self, &changes, trusted, request)?;
        let total = changes.len();
        if !selected.changes.is_empty() {
            self.write_back(&selected.changes, steps)?;
        }
        let pending = total - selected.changes.len();
        if pending == 0 {
            self.enter(RunPhase::Applied)?;
            self.drop_layers()?;
            crate::runs::retain(&self.state).map_err(|source| self.failed(source))?;
        }
        Ok(ApplyReport {
            applied: selected.changes,
            refused: selected.refused,
            pending,
            roots: self.roots(),
        })
    }

    fn write_back(&self, changes: &[LayerChange], steps: &mut ApplySteps) -> Result<(), ApplyError> {
        let trees = (0..self.file.layers.len())
            .map(|layer| self.trees(layer))
            .collect::<Result<Vec<_>, _>>()?;
        let plan = plan::plan(&trees, changes, &self.known()?).map_err(|stop| self.stopped(stop))?;
        let outcome = commit::commit(self, &trees, changes, &plan, steps);
        if outcome.is_ok() && commit::clean(self, &trees, steps).is_ok() {
            return Ok(());
        }
        if steps.are_used_up() {
            return Err(ApplyError::Stopped);
        }
        self.recover()?;
        outcome.map_err(|failure| self.stopped(failure))
    }

    fn known(&self) -> Result<plan::KnownNodes, RunError> {
        Ok(plan::KnownNodes {
            latest_untouched: self.file.baseline.latest_untouched(),
            seen: seen::read(&self.directory).map_err(|source| self.failed(source))?,
            modes: modes::read(&self.directory)
                .map_err(|source| self.failed(source))?
                .unwrap_or_default(),
            restored: restored::read(&self.directory).map_err(|source| self.failed(source))?,
        })
    }

    fn recover(&self) -> Result<(), ApplyError> {
        let unfinished = |source| ApplyError::RollbackFailed {
            id: self.id().clone(),
            source,
        };
        rollback::recover(&self.directory).map(|_| ()).map_err(unfinished)
    }

    fn stopped(&self, failure: OperationFailure) -> ApplyError {
        let id = self.id().clone();
        match failure {
            OperationFailure::Conflicts(mut conflicts) => {
                let roots = self.roots();
                for conflict in &mut conflicts {
                    conflict.path = shown_path(&roots, conflict.layer, &conflict.path);
                }
                ApplyError::Conflicts { id, conflicts }
            }
            OperationFailure::File(source) => ApplyError::Failed { id, source },
            OperationFailure::Stopped => ApplyError::Stopped,
        }
    }
}

/// Why operations were not carried out.
#[derive(Debug)]
pub(crate) enum OperationFailure {
    Conflicts(Vec<ConflictAt>),
    File(crate::FileError),
    /// Only in tests: the process is taken to be dead.
    Stopped,
}

impl From<crate::FileError> for OperationFailure {
    fn from(source: crate::FileError) -> Self {
        Self::File(source)
    }
}

/// Counts the steps of an apply, so that tests can end it between any two of them.
#[derive(Debug)]
pub(crate) struct ApplySteps {
    left: Option<usize>,
    /// Whether the file system is taken to be one without `RENAME_EXCHANGE`.
    pub(crate) without_exchange: bool,
}

impl ApplySteps {
    fn unlimited() -> Self {
        Self {
            left: None,
            without_exchange: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn limited(left: usize, without_exchange: bool) -> Self {
        Self {
            left: Some(left),
            without_exchange,
        }
    }

    fn are_used_up(&self) -> bool {
        self.left == Some(0)
    }

    /// To be called before each step that leaves a trace on disk.
    pub(crate) fn next(&mut self) -> Result<(), OperationFailure> {
        match &mut self.left {
            None => Ok(()),
            Some(0) => Err(OperationFailure::Stopped),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
