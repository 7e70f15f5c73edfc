//! `offleash diff`, `apply`, `discard` and `runs`.

use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_store::{
    ApplyError, ApplyRequest, ChangeKind, ChangeSelection, LayerChange, RefusalReason, RefusedChange, RunError,
    RunListing, RunState, StateDirectory, StoredRun, leads_out_to, runs as list_runs,
};
use offleash_supervisor::changes;
use offleash_supervisor::lifecycle::{LifecycleError, open_existing_state};
use offleash_supervisor::service::OF_THE_DAEMON;

use crate::args::{ApplyArgs, DiffArgs, DiscardArgs, RunsArgs};
use crate::failure::Failure;
use crate::terminal;

/// Not everything that was asked for was done.
const EXIT_PARTLY: u8 = 1;

pub(crate) fn diff(arguments: &DiffArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let run = open(&arguments.run, state)?;
    check_that_changes_wait(&run)?;
    let selected = select(&run, &arguments.paths)?;
    let roots = run.roots();
    let mut out = Vec::new();
    if arguments.stat {
        out = counts(&selected).into_bytes();
    } else if arguments.json {
        let changes: Vec<ShownChange<'_>> = selected.iter().map(|change| ShownChange::of(change, &roots)).collect();
        out = terminal::json_line(&changes)?;
    } else {
        let mut layer = 0;
        for change in &selected {
            if arguments.summary {
                out.extend(summary_line(change, &roots));
                continue;
            }
            if change.layer != layer {
                layer = change.layer;
                // `git apply` skips such a line.
                out.extend(format!("# below `{}`:\n", shown_root(&roots, layer)).into_bytes());
            }
            if let Some(why) = why_not(change) {
                let path = Text::from(change.shown_path(&roots));
                out.extend(format!("# not applied unless named: `{path}`: {why}\n").into_bytes());
            }
            out.extend(patch(&run, change)?);
        }
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// An empty answer would say that the run changed nothing.
fn check_that_changes_wait(run: &StoredRun) -> Result<(), Failure> {
    let id = run.id().clone();
    match run.state()? {
        RunState::Applied => Err(LifecycleError::from(RunError::AlreadyApplied { id }).into()),
        RunState::Discarded => Err(LifecycleError::from(RunError::Discarded { id }).into()),
        RunState::Running | RunState::Kept | RunState::Crashed | RunState::Damaged => Ok(()),
    }
}

/// A change as `--json` shows it.
#[derive(serde::Serialize)]
struct ShownChange<'a> {
    path: Text,
    layer: usize,
    root: Text,
    kind: ChangeKind,
    protected: Option<&'a str>,
    leads_out: bool,
}

impl<'a> ShownChange<'a> {
    fn of(change: &'a LayerChange, roots: &[PathBuf]) -> Self {
        Self {
            path: Text::from(&change.path),
            layer: change.layer,
            root: shown_root(roots, change.layer),
            kind: change.kind,
            protected: change.protected.as_deref(),
            leads_out: change.leads_out,
        }
    }
}

/// The host directory of a layer.
fn shown_root(roots: &[PathBuf], layer: usize) -> Text {
    Text::from(roots.get(layer).map_or(Path::new(""), PathBuf::as_path))
}

fn patch(run: &StoredRun, change: &LayerChange) -> Result<Vec<u8>, Failure> {
    let diff = run.unified(change).map_err(LifecycleError::from)?;
    if !terminal::shows_to_a_person() {
        return Ok(diff.bytes);
    }
    // The lines are the sandbox's.
    Ok(terminal::literal(&diff.bytes))
}

fn summary_line(change: &LayerChange, roots: &[PathBuf]) -> Vec<u8> {
    let letter = match change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Modified => 'M',
        ChangeKind::Deleted => 'D',
        ChangeKind::ModeChanged => 'm',
        ChangeKind::SymlinkChanged => 'L',
        ChangeKind::TypeChanged => 'T',
    };
    let why = why_not(change).map_or_else(String::new, |why| format!("  ({why})"));
    format!("{letter} {}{why}\n", Text::from(change.shown_path(roots))).into_bytes()
}

/// Why a change is not applied unless it is named.
fn why_not(change: &LayerChange) -> Option<String> {
    let target = change.after.as_ref().and_then(|node| node.target.as_deref());
    match (target.filter(|_| change.leads_out), &change.protected) {
        (Some(target), _) => Some(leads_out_to(target)),
        (None, Some(rule)) => Some(format!("protected: {rule}")),
        (None, None) => None,
    }
}

/// How many changes there are of each kind, in a line.
fn counts(changes: &[LayerChange]) -> String {
    let count = |is_such: &dyn Fn(&LayerChange) -> bool| changes.iter().filter(|change| is_such(change)).count();
    let kinds = [
        (ChangeKind::Added, "added"),
        (ChangeKind::Modified, "modified"),
        (ChangeKind::Deleted, "deleted"),
        (ChangeKind::ModeChanged, "of mode"),
        (ChangeKind::SymlinkChanged, "of link"),
        (ChangeKind::TypeChanged, "of type"),
    ];
    let mut parts: Vec<String> = kinds
        .into_iter()
        .map(|(kind, word)| (count(&|change| change.kind == kind), word))
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    let held_back = count(&|change| why_not(change).is_some());
    if held_back > 0 {
        parts.push(format!("{held_back} not applied unless named among them"));
    }
    let of = if parts.is_empty() { "" } else { ": " };
    let s = if changes.len() == 1 { "" } else { "s" };
    format!("{} change{s}{of}{}\n", changes.len(), parts.join(", "))
}

fn select(run: &StoredRun, paths: &[PathBuf]) -> Result<Vec<LayerChange>, Failure> {
    let changes = run.changes().map_err(LifecycleError::from)?;
    if paths.is_empty() {
        return Ok(changes);
    }
    let roots = run.roots();
    let is_at = |change: &LayerChange, path: &Path| {
        // `./a` is `a`.
        let path: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        let absolute = roots.get(change.layer).map(|root| root.join(&change.path));
        change.path.starts_with(&path) || absolute.is_some_and(|absolute| absolute.starts_with(&path))
    };
    let wanted = |change: &LayerChange| paths.iter().any(|path| is_at(change, path));
    for path in paths {
        if !changes.iter().any(|change| is_at(change, path)) {
            return Err(
                Failure::new(format!("run `{}` has no change at `{}`", run.id(), Text::from(path)))
                    .with_hint(format!("`offleash diff --summary {}` lists its changes", run.id())),
            );
        }
    }
    Ok(changes.into_iter().filter(wanted).collect())
}

pub(crate) fn apply(arguments: &ApplyArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let run = id_of(&arguments.run)?;
    let state = state_of(&run, state)?;
    let selection = if arguments.paths.is_empty() {
        ChangeSelection::All
    } else {
        ChangeSelection::Paths(arguments.paths.clone())
    };
    let report = changes::apply(
        &state,
        &run,
        &ApplyRequest {
            selection,
            named: arguments.paths.clone(),
        },
    )
    .map_err(apply_failure)?;
    let mut out = Vec::new();
    if arguments.stat {
        out = counts(&report.applied).into_bytes();
    } else if !arguments.quiet {
        out.extend(
            report
                .applied
                .iter()
                .flat_map(|change| summary_line(change, &report.roots)),
        );
    }
    terminal::print(&out)?;
    for refusal in &report.refused {
        terminal::complain(&refusal_line(refusal, &report.roots));
    }
    if report.refused.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let (count, hint) = (report.refused.len(), hint_of_refusals(&run, &report.refused));
    let were = if count == 1 { "change was" } else { "changes were" };
    terminal::complain(&format!(
        "\nexit code {EXIT_PARTLY}: {count} {were} not applied\nhint: {hint}"
    ));
    Ok(ExitCode::from(EXIT_PARTLY))
}

/// What the host did meanwhile is no failure of offleash's own, but a reason to refuse.
fn apply_failure(error: LifecycleError) -> Failure {
    let is_conflict = matches!(error, LifecycleError::Apply(ApplyError::Conflicts { .. }));
    let failure = Failure::from(error);
    if is_conflict {
        failure.with_code(EXIT_PARTLY)
    } else {
        failure
    }
}

fn hint_of_refusals(run: &RunId, refused: &[RefusedChange]) -> String {
    let any = |is_such: fn(&RefusalReason) -> bool| refused.iter().any(|refusal| is_such(&refusal.reason));
    if any(|reason| matches!(reason, RefusalReason::Protected { .. } | RefusalReason::LeadsOut { .. })) {
        format!("name a path to apply it nonetheless: `offleash apply {run} PATH`")
    } else if any(|reason| matches!(reason, RefusalReason::SpecialFile { .. })) {
        format!(
            "a special file is never applied: make it on the host if you need it; `offleash discard {run}` drops it"
        )
    } else {
        format!("`offleash diff --summary {run}` lists what waits; name what is around or in it as well")
    }
}

fn refusal_line(refusal: &RefusedChange, roots: &[PathBuf]) -> String {
    refusal.told(roots)
}

pub(crate) fn discard(arguments: &DiscardArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    // A name that is no run's is found before anything is dropped.
    let ids = arguments
        .runs
        .iter()
        .map(|run| id_of(run))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(first) = ids.first() else {
        return Ok(ExitCode::SUCCESS);
    };
    let state = state_of(first, state)?;
    let mut failed = None;
    for id in &ids {
        if let Err(error) = changes::discard(&state, id)
            && let Some(earlier) = failed.replace(Failure::from(error))
        {
            terminal::complain(&earlier.to_string());
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

pub(crate) fn runs(arguments: &RunsArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut runs = match open_existing_state(state)? {
        Some(state) => list_runs(&state)?,
        None => Vec::new(),
    };
    if !arguments.all {
        // What the daemon has, waiting ones among them, `ls` lists.
        let is_of_daemon = |run: &RunListing| {
            run.purpose
                .as_ref()
                .is_some_and(|purpose| purpose.as_bytes() == OF_THE_DAEMON.as_bytes())
        };
        runs.retain(|run| match run.state {
            RunState::Applied | RunState::Discarded => false,
            RunState::Running => !is_of_daemon(run),
            RunState::Kept | RunState::Crashed | RunState::Damaged => true,
        });
    }
    let mut out = Vec::new();
    if arguments.json {
        terminal::print(&terminal::json_line(&runs)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for run in &runs {
        let words: Vec<String> = run.command.iter().map(ToString::to_string).collect();
        let workspace = run
            .workspace
            .as_ref()
            .map_or_else(|| "-".to_owned(), ToString::to_string);
        let purpose = run
            .purpose
            .as_ref()
            .map_or_else(String::new, |purpose| format!("[{purpose}] "));
        let written = writeln!(
            out,
            "{}  {:9}  {}  {workspace}  {purpose}{}",
            run.id,
            run.state.word(),
            run.started_at,
            words.join(" ")
        );
        written.map_err(|error| Failure::from_error(&error))?;
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}

fn id_of(text: &str) -> Result<RunId, Failure> {
    text.parse().map_err(|error: offleash_core::id::RunIdError| {
        Failure::new(error.to_string()).with_hint("`offleash runs` lists the runs whose changes are kept")
    })
}

fn open(run: &str, state: Option<&Path>) -> Result<StoredRun, Failure> {
    let id = id_of(run)?;
    let state = state_of(&id, state)?;
    Ok(StoredRun::open(&state, &id).map_err(LifecycleError::from)?)
}

/// The state directory in which a run is looked for.
fn state_of(id: &RunId, named: Option<&Path>) -> Result<StateDirectory, Failure> {
    let found = open_existing_state(named)?;
    Ok(found.ok_or_else(|| LifecycleError::from(RunError::NotFound { id: id.clone() }))?)
}
