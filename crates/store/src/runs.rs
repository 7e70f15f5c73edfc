//! Lists runs, and forgets old ones that hold nothing any more.

use offleash_core::id::RunId;
use offleash_core::text::Text;

use crate::claim::RunClaim;
use crate::failure::{FailedCall, FileError};
use crate::removal::remove_tree;
use crate::run_file::{RunFile, RunPhase};
use crate::{RunError, StateDirectory, StoredRun, run};

/// How many applied and discarded runs stay in lists; older ones are forgotten when another is applied or discarded.
///
/// Runs whose changes are still there are never removed without being asked for.
pub const KEPT_TOMBSTONES: usize = 200;

/// Where a run is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is going on, or its changes are being applied or discarded right now.
    Running,
    /// It is over and its changes wait.
    Kept,
    /// Its process died; its changes wait.
    Crashed,
    /// Its changes were applied.
    Applied,
    /// Its changes were dropped.
    Discarded,
    /// Its record cannot be understood.
    Damaged,
}

impl RunState {
    /// As it is shown: `kept`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Kept => "kept",
            Self::Crashed => "crashed",
            Self::Applied => "applied",
            Self::Discarded => "discarded",
            Self::Damaged => "damaged",
        }
    }

    pub(crate) fn of(phase: RunPhase, held: bool) -> Self {
        match phase {
            RunPhase::Applied => Self::Applied,
            RunPhase::Discarded => Self::Discarded,
            _ if held => Self::Running,
            RunPhase::Kept => Self::Kept,
            RunPhase::Started | RunPhase::Crashed => Self::Crashed,
        }
    }
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RunListing {
    /// Its id.
    pub id: RunId,
    /// Where it is in its life.
    pub state: RunState,
    /// Program and arguments; empty if damaged.
    pub command: Vec<Text>,
    /// What it is part of, such as `template build`, unless it was asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Text>,
    /// When it started, RFC 3339 in UTC; empty if damaged.
    pub started_at: String,
    /// The workspace, if it had one.
    pub workspace: Option<Text>,
}

/// All runs, oldest first.
///
/// # Errors
/// `File` if the state directory cannot be read.
pub fn runs(state: &StateDirectory) -> Result<Vec<RunListing>, RunError> {
    let mut listings = Vec::new();
    for id in ids(state).map_err(|source| RunError::File {
        id: RunId::from_parts(0, 0),
        source,
    })? {
        match StoredRun::open(state, &id) {
            // A sandbox that waits for its command has run nothing.
            Ok(run) if run.command().is_empty() && run.state()? == RunState::Running => {}
            Ok(run) => listings.push(RunListing {
                state: run.state()?,
                command: run.command().to_vec(),
                purpose: run.file.purpose.clone(),
                started_at: run.started_at().to_owned(),
                workspace: run.file.layers.first().map(|layer| layer.root.clone()),
                id,
            }),
            // It ended, or is being made, at this moment.
            Err(RunError::NotFound { .. }) => {}
            Err(RunError::Damaged { .. }) => listings.extend(damaged(state, id)?),
            Err(error) => return Err(error),
        }
    }
    Ok(listings)
}

/// A run that is being made has no complete record yet; it holds its lock.
fn damaged(state: &StateDirectory, id: RunId) -> Result<Option<RunListing>, RunError> {
    let held = RunClaim::is_held(state, &id).map_err(|source| RunError::File { id: id.clone(), source })?;
    Ok((!held).then(|| RunListing {
        id,
        state: RunState::Damaged,
        command: Vec::new(),
        purpose: None,
        started_at: String::new(),
        workspace: None,
    }))
}

fn ids(state: &StateDirectory) -> Result<Vec<RunId>, FileError> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let again = rustix::fs::openat(&*state.runs, ".", flags, rustix::fs::Mode::empty()).tried("opening", "runs")?;
    let names = crate::tree::names_in(&again).tried("listing", "runs")?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Forgets the oldest applied and discarded runs above [`KEPT_TOMBSTONES`].
pub(crate) fn retain(state: &StateDirectory) -> Result<(), FileError> {
    let all = ids(state)?;
    if all.len() <= KEPT_TOMBSTONES {
        return Ok(());
    }
    let mut tombstones = Vec::new();
    for id in all {
        let Ok(directory) = run::open_run(state, &id) else {
            continue;
        };
        if matches!(RunFile::read(&directory)?, Some(Ok(file)) if matches!(file.phase, RunPhase::Applied | RunPhase::Discarded))
        {
            tombstones.push(id);
        }
    }
    let surplus = tombstones.len().saturating_sub(KEPT_TOMBSTONES);
    tombstones
        .iter()
        .take(surplus)
        .try_for_each(|id| remove_tree(&state.runs, id.as_str().as_ref()))
}
