//! What was changed: by runs of this state directory whose changes are kept, which can be applied or dropped, and in
//! sandboxes, compared with what they were made of.
//!
//! All of it is the store's, which reaches no path of a sandbox but by descriptor. Deliberately not here: who may ask.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained, with_causes};
use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_planner::base::{ChangesAnswer, ChangesOrder, ListedChange, MAX_PATCH};
use offleash_store::{
    ApplyReport, ApplyRequest, ChangeKind, ChangePatch, ChangeSelection, DiffForm, LayerChange, MAX_LAYER_CHANGES,
    NodeKind, RunError, RunListing, RunState, StateDirectory, StoredRun, TreeNode, leads_out_to, runs,
};
use offleash_supervisor::changes;
use offleash_supervisor::lifecycle::LifecycleError;
use offleash_supervisor::roles::SupervisorRole;
use offleash_supervisor::service::OF_THE_DAEMON;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::DaemonError;
use crate::inspection_error::InspectionError;
use crate::jobs::blocking;
use crate::one_order::carried_out;

/// How many runs are listed at most, the newest.
pub const MAX_RUNS: usize = 1000;
/// How many changes of one run are told of at most.
pub const MAX_CHANGES: usize = MAX_LAYER_CHANGES;
/// How many bytes of a diff are told.
pub const MAX_DIFF: usize = MAX_PATCH;
/// How many of these look at files at a time: each reads as much as somebody wrote.
const AT_A_TIME: usize = 2;
/// How long looking at a sandbox may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
const TRIED: &str = "look at the changes of a sandbox";

/// A run whose changes are kept, or were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRun {
    /// Its id.
    pub id: String,
    /// `running`, `kept`, `crashed`, `applied`, `discarded` or `damaged`.
    pub state: &'static str,
    /// Program and arguments; empty if damaged.
    pub command: Vec<Text>,
    /// What it is part of, such as `template build`.
    pub purpose: Option<Text>,
    /// When it started, RFC 3339 in UTC.
    pub started_at: String,
    /// The directory that its changes are for.
    pub workspace: Option<Text>,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeList {
    /// By path, [`MAX_CHANGES`] at most.
    pub changes: Vec<ChangeView>,
    /// Whether there are more.
    pub has_more: bool,
    /// How many files and directories could not be looked at.
    pub unreadable: u64,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeView {
    /// Where: of a run relative to the workspace, or absolute outside of it; of a sandbox absolute inside.
    pub path: Text,
    /// `added`, `modified`, `deleted`, `mode_changed`, `symlink_changed`, `type_changed` or `replaced`.
    pub kind: &'static str,
    /// What is there now, or was: `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    pub entry: &'static str,
    /// Bytes before, of a file.
    pub size_before: Option<u64>,
    /// Bytes now, of a file.
    pub size_after: Option<u64>,
    /// Why it is not applied unless that is said.
    pub held_back: Option<String>,
}

/// A change as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffView {
    /// `text`, `binary`, `too_large`, `unreadable` or `metadata`.
    pub form: &'static str,
    /// A patch in git's form; the bytes are the sandbox's.
    pub patch: Text,
    /// Whether that is the beginning alone.
    pub is_cut: bool,
    /// Lines that were added.
    pub added_lines: u64,
    /// Lines that were removed.
    pub removed_lines: u64,
}

/// Which changes are to be applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplyOrder {
    /// Those at or beneath these paths, as [`ChangeView::path`] has them; all if `None`.
    pub paths: Option<Vec<Text>>,
    /// Whether nothing beneath the paths is meant.
    pub exactly: bool,
    /// Whether those at the paths are meant, too, that are held back; of a directory that is, also what is in it.
    pub held_back: bool,
}

/// What became of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedChanges {
    /// Those that were written back.
    pub applied: Vec<Text>,
    /// Those that were not, and why.
    pub refused: Vec<(Text, String)>,
    /// How many are left; at 0 the run is over.
    pub pending: usize,
}

/// Shows changes, and applies those of runs.
#[derive(Debug)]
pub(crate) struct ChangeService {
    state: StateDirectory,
    /// Ours if `None`.
    program: Option<PathBuf>,
    places: Semaphore,
}

impl ChangeService {
    pub(crate) fn new(state: StateDirectory, program: Option<PathBuf>) -> Self {
        Self {
            state,
            program,
            places: Semaphore::new(AT_A_TIME),
        }
    }

    /// Runs whose changes are kept and those that go on, the newest first; with `all` also those that are over.
    ///
    /// # Errors
    /// `Inspection`.
    pub(crate) async fn runs(&self, all: bool) -> Result<Vec<KeptRun>, DaemonError> {
        self.look_at_run("list runs", move |state| {
            let mut listed = runs(state)?;
            listed.retain(|run| {
                let is_ours = run
                    .purpose
                    .as_ref()
                    .is_some_and(|purpose| purpose.0 == OF_THE_DAEMON.as_bytes());
                match run.state {
                    RunState::Applied | RunState::Discarded => all,
                    RunState::Running => !is_ours,
                    RunState::Kept | RunState::Crashed | RunState::Damaged => true,
                }
            });
            listed.reverse();
            listed.truncate(MAX_RUNS);
            let run = |run: RunListing| KeptRun {
                id: run.id.to_string(),
                state: run.state.word(),
                command: run.command,
                purpose: run.purpose,
                started_at: run.started_at,
                workspace: run.workspace,
            };
            Ok(listed.into_iter().map(run).collect())
        })
        .await
    }

    /// What a run changed and was not applied.
    ///
    /// # Errors
    /// `Inspection`.
    pub(crate) async fn of_run(&self, id: &str) -> Result<ChangeList, DaemonError> {
        let id = run_id(id)?;
        self.look_at_run("look at changes", move |state| {
            let run = StoredRun::open(state, &id)?;
            let roots = run.roots();
            let changes = run.changes()?;
            Ok(ChangeList {
                has_more: changes.len() > MAX_CHANGES,
                changes: changes
                    .iter()
                    .take(MAX_CHANGES)
                    .map(|change| of_run(change, &roots))
                    .collect(),
                unreadable: 0,
            })
        })
        .await
    }

    /// One of them as text.
    ///
    /// # Errors
    /// `Inspection`.
    pub(crate) async fn diff_of_run(&self, id: &str, path: Text) -> Result<DiffView, DaemonError> {
        let (id, shown) = (run_id(id)?, path.clone());
        let diff = self.look_at_run("look at a change", move |state| {
            let run = StoredRun::open(state, &id)?;
            let roots = run.roots();
            let changes = run.changes()?;
            let found = changes
                .iter()
                .find(|change| change.shown_path(&roots) == path.as_path());
            let patch = found.map(|change| run.unified(change)).transpose()?;
            Ok(patch.map(diff))
        });
        let none = InspectionError::NoSuchChange { path: shown };
        diff.await?.ok_or_else(|| none.into())
    }

    /// Writes changes of a run back to the host: all that were asked for, or none.
    ///
    /// # Errors
    /// `Inspection`, also where the host changed meanwhile.
    pub(crate) async fn apply(&self, id: &str, order: ApplyOrder) -> Result<AppliedChanges, DaemonError> {
        let id = run_id(id)?;
        self.look_at_run("apply changes", move |state| {
            let paths: Option<Vec<PathBuf>> = order
                .paths
                .map(|paths| paths.iter().map(|path| path.as_path().to_owned()).collect());
            let named = match (order.held_back, &paths) {
                (true, Some(paths)) => paths.clone(),
                (true, None) => paths_of(state, &id)?,
                (false, _) => Vec::new(),
            };
            let selection = match (paths, order.exactly) {
                (None, _) => ChangeSelection::All,
                (Some(paths), false) => ChangeSelection::Paths(paths),
                (Some(paths), true) => ChangeSelection::Exactly(paths),
            };
            Ok(applied(changes::apply(state, &id, &ApplyRequest { selection, named })?))
        })
        .await
    }

    /// Drops the changes of a run.
    ///
    /// # Errors
    /// `Inspection`.
    pub(crate) async fn discard(&self, id: &str) -> Result<(), DaemonError> {
        let id = run_id(id)?;
        self.look_at_run("discard changes", move |state| changes::discard(state, &id))
            .await
    }

    /// What was changed in a sandbox since it was made; `None` where that is not known, as at levels without a layer.
    ///
    /// # Errors
    /// `Host`, and `Overloaded` if it takes too long.
    pub(crate) async fn of_sandbox(&self, id: &RunId) -> Result<Option<ChangeList>, DaemonError> {
        match self.look_at_sandbox(id, None).await? {
            ChangesAnswer::Listed(listed) => Ok(Some(ChangeList {
                changes: listed.changes.into_iter().map(of_sandbox).collect(),
                has_more: listed.has_more,
                unreadable: listed.unreadable,
            })),
            ChangesAnswer::Unknown => Ok(None),
            other => Err(not_shown(other)),
        }
    }

    /// One of them as text; `None` as for all.
    ///
    /// # Errors
    /// As [`Self::of_sandbox`]; `Inspection` where nothing was changed.
    pub(crate) async fn diff_of_sandbox(&self, id: &RunId, path: Text) -> Result<Option<DiffView>, DaemonError> {
        if !is_plain(path.as_path()) {
            return Err(InspectionError::NoSuchChange { path }.into());
        }
        match self.look_at_sandbox(id, Some(path.clone())).await? {
            ChangesAnswer::Patch(Some(patch)) => Ok(Some(DiffView {
                form: form_word(patch.form),
                patch: patch.text,
                is_cut: patch.is_cut,
                added_lines: patch.added_lines,
                removed_lines: patch.removed_lines,
            })),
            ChangesAnswer::Patch(None) => Err(InspectionError::NoSuchChange { path }.into()),
            ChangesAnswer::Unknown => Ok(None),
            other => Err(not_shown(other)),
        }
    }

    /// Has a process of its own look at a sandbox.
    async fn look_at_sandbox(&self, id: &RunId, path: Option<Text>) -> Result<ChangesAnswer, DaemonError> {
        let _place = self.places.acquire().await.map_err(|_| DaemonError::Draining)?;
        let order = ChangesOrder {
            state: Text::from(self.state.path()),
            id: id.clone(),
            path,
        };
        let looked = carried_out(self.program.as_deref(), SupervisorRole::ShowChanges, &order);
        match timeout(LOOK_TIMEOUT, looked).await {
            Ok(answer) => answer.map_err(DaemonError::host(TRIED)),
            Err(_) => Err(DaemonError::Overloaded {
                what: "time to look at changes",
                retry_after: LOOK_TIMEOUT,
            }),
        }
    }

    /// Does what reads files, a few at a time.
    async fn look<T: Send + 'static>(
        &self,
        tried: &'static str,
        work: impl FnOnce(&StateDirectory) -> T + Send + 'static,
    ) -> Result<T, DaemonError> {
        let _place = self.places.acquire().await.map_err(|_| DaemonError::Draining)?;
        let state = self.state.clone();
        blocking(tried, move || work(&state)).await
    }

    async fn look_at_run<T: Send + 'static>(
        &self,
        tried: &'static str,
        work: impl FnOnce(&StateDirectory) -> Result<T, LifecycleError> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let looked = self.look(tried, work).await?;
        looked.map_err(|error| failed(&error).into())
    }
}

fn failed(error: &LifecycleError) -> InspectionError {
    InspectionError::Run {
        kind: error.kind(),
        message: with_causes(error),
        hint: error.hint(),
    }
}

fn run_id(id: &str) -> Result<RunId, InspectionError> {
    let unknown = |_| InspectionError::Run {
        kind: ErrorKind::NotFound,
        message: format!("there is no run `{}`", id.escape_debug()),
        hint: None,
    };
    id.parse().map_err(unknown)
}

/// The paths of all changes.
fn paths_of(state: &StateDirectory, id: &RunId) -> Result<Vec<PathBuf>, RunError> {
    let run = StoredRun::open(state, id)?;
    let roots = run.roots();
    Ok(run.changes()?.iter().map(|change| change.shown_path(&roots)).collect())
}

fn applied(report: ApplyReport) -> AppliedChanges {
    let shown = |change: &LayerChange| Text::from(change.shown_path(&report.roots));
    let refused = report.refused.iter().map(|refused| {
        (
            Text::from(refused.shown_path(&report.roots)),
            refused.reason.to_string(),
        )
    });
    AppliedChanges {
        applied: report.applied.iter().map(shown).collect(),
        refused: refused.collect(),
        pending: report.pending,
    }
}

fn of_run(change: &LayerChange, roots: &[PathBuf]) -> ChangeView {
    let target = change.after.as_ref().and_then(|node| node.target.as_deref());
    let held_back = match (target.filter(|_| change.leads_out), &change.protected) {
        (Some(target), _) => Some(leads_out_to(target)),
        (None, Some(rule)) => Some(rule.clone()),
        (None, None) => None,
    };
    let nodes = (change.before.as_ref(), change.after.as_ref());
    ChangeView {
        held_back,
        ..view(&change.shown_path(roots), kind_word(change.kind), nodes)
    }
}

fn of_sandbox(change: ListedChange) -> ChangeView {
    ChangeView {
        path: change.path,
        kind: if change.is_replaced {
            "replaced"
        } else {
            kind_word(change.kind)
        },
        entry: entry_word(change.entry),
        size_before: change.size_before,
        size_after: change.size_after,
        held_back: None,
    }
}

/// Whether a path is absolute and goes only down: no other one is in a list.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// What failed is the machine's, and not told to whoever asks.
fn not_shown(answer: ChangesAnswer) -> DaemonError {
    let why = match answer {
        ChangesAnswer::Failed { reason } => reason,
        _ => "it was answered otherwise than asked".to_owned(),
    };
    DaemonError::host(TRIED)(io::Error::other(why))
}

fn view(path: &Path, kind: &'static str, (before, after): (Option<&TreeNode>, Option<&TreeNode>)) -> ChangeView {
    let size = |node: Option<&TreeNode>| node.filter(|node| node.kind == NodeKind::File).map(|node| node.size);
    ChangeView {
        path: Text::from(path),
        kind,
        entry: after.or(before).map_or("file", |node| entry_word(node.kind)),
        size_before: size(before),
        size_after: size(after),
        held_back: None,
    }
}

fn diff(patch: ChangePatch) -> DiffView {
    let mut bytes = patch.bytes;
    let is_cut = bytes.len() > MAX_DIFF;
    bytes.truncate(MAX_DIFF);
    let count = |lines: usize| u64::try_from(lines).unwrap_or(u64::MAX);
    DiffView {
        form: form_word(patch.form),
        patch: Text(bytes),
        is_cut,
        added_lines: count(patch.added_lines),
        removed_lines: count(patch.removed_lines),
    }
}

fn form_word(form: DiffForm) -> &'static str {
    match form {
        DiffForm::Text => "text",
        DiffForm::Binary => "binary",
        DiffForm::TooLarge => "too_large",
        DiffForm::Unreadable => "unreadable",
        DiffForm::Metadata => "metadata",
    }
}

fn kind_word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
        ChangeKind::ModeChanged => "mode_changed",
        ChangeKind::SymlinkChanged => "symlink_changed",
        ChangeKind::TypeChanged => "type_changed",
    }
}

fn entry_word(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Symlink => "symlink",
        NodeKind::Fifo => "fifo",
        NodeKind::Socket => "socket",
        NodeKind::Device => "device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_diff_is_cut() {
        let patch = |length: usize| ChangePatch {
            form: DiffForm::Text,
            bytes: vec![b'x'; length],
            added_lines: 1,
            removed_lines: 0,
        };
        let (whole, cut) = (diff(patch(MAX_DIFF)), diff(patch(MAX_DIFF + 1)));
        assert!(!whole.is_cut && whole.patch.0.len() == MAX_DIFF);
        assert!(cut.is_cut && cut.patch.0.len() == MAX_DIFF);
    }

    #[test]
    fn a_path_of_a_change_goes_only_down() {
        for (path, is_one) in [
            ("/etc/passwd", true),
            ("/", true),
            ("/a/../b", false),
            ("/..", false),
            ("a", false),
            ("", false),
        ] {
            assert_eq!(is_plain(Path::new(path)), is_one, "{path}");
        }
    }

    #[test]
    fn what_is_no_id_names_no_run() {
        for id in ["", "..", "../x", "a/b", "\u{1b}[2J"] {
            assert!(
                matches!(
                    run_id(id),
                    Err(InspectionError::Run {
                        kind: ErrorKind::NotFound,
                        ..
                    })
                ),
                "{id:?}"
            );
        }
    }
}
