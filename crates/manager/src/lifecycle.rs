//! One run, from request to record.

mod ahead;
pub(crate) mod audit;
mod error;
mod kept;
mod level;
pub(crate) mod making;
mod network;
mod own_root;
mod prepared;
mod published;
mod report;
mod secrets;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use offleash_core::error::{ErrorKind, Explained as _, with_causes};
use offleash_core::exec::{ExecEnd, ExecRequest, Stdin, TerminalSize};
use offleash_core::id::RunId;
use offleash_core::limits::LimitName;
use offleash_core::plan::{Environment, Plan, User};
use offleash_core::record::{ChangeSummary, NetworkUse, Outcome, RunRecord};
use offleash_core::spec::{IdChoice, SandboxSpec, WorkspaceMode, WorkspaceSpec};
use offleash_core::text::Text;
use offleash_gateway::Gateway;
use offleash_isolation::sandbox::{Enforcement, Final};
use offleash_store::{
    ApplyRequest, Finished, HostIdentity, LeftoverFate, LiveRun, NewRun, Run, RunError, Selection, StateDirectory,
    reap_with, summarize,
};
use offleash_sys::cgroup::Group;

pub use self::error::ManagerError;
pub(crate) use self::kept::{Kept, record_kept};
pub(crate) use self::level::Chosen;
pub use self::level::choose as choose_level;
use self::making::{Made, Resolved, new_run, place_layers};
pub use self::network::{ConnectAnswer, explain_connect};
pub(crate) use self::network::{Outside, stores, way_out};
pub(crate) use self::own_root::OwnRoot;
pub use self::prepared::{Checked, Prepared, Remains};
pub use self::secrets::SecretsError;
use crate::capture::Capture;
use crate::drive::{self, Door, Drive, Driven, Ending};
use offleash_planner::{self, ExecBasis, Host, PlanError};

/// What a command that succeeded is answered with when not everything was written back in mode `rw`.
const EXIT_HELD_BACK: u8 = 1;

/// How long after its command a run may go on for what was begun and is not finished (`Sandbox::is_finishing`).
const FINISHING: Duration = Duration::from_secs(30);

/// What a user is told whose command failed, and something of it wanted a network.
const NO_NETWORK: &str =
    "network: the sandbox has none, and something in it tried to reach one; `--allow HOST` lets a host be reached";

/// What is to be run.
#[derive(Debug)]
pub struct RunRequest {
    /// The sandbox.
    pub spec: SandboxSpec,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// What it is part of, for lists of runs; nothing when a person asked for it.
    pub purpose: Option<&'static str>,
    /// Working directory inside, if not the usual one.
    pub cwd: Option<PathBuf>,
    /// The user of the command by name; the usual one when absent.
    pub user: Option<String>,
    /// A terminal instead of pipes.
    pub tty: Option<TerminalSize>,
    /// How many bytes of each output stream the record keeps.
    pub capture: usize,
    /// The state directory, if not the usual one.
    pub state: Option<PathBuf>,
    /// When the request came in; wall time counts from here.
    pub started: Instant,
}

/// A run that is over.
#[derive(Debug)]
pub struct RunReport {
    /// What happened.
    pub record: RunRecord,
    /// Things the user should know that are no part of the outcome, a line each.
    pub notes: Vec<String>,
    /// What was to be written back and is not, and where it is now: to be said last, since a command that succeeded is
    /// answered with another exit code because of it.
    pub held_back: Option<String>,
    /// Why its changes could not be read or kept. The run itself is as the record says.
    pub unkept: Option<RunError>,
    /// Why the sandbox could not be made, or was lost; the record says `failed` then. Or why the run is not in the audit log.
    pub failure: Option<ManagerError>,
}

/// Runs a command in a new sandbox and answers when it is over and everything of it is gone.
///
/// # Errors
/// When the request is wrong or the state directory cannot be used. A sandbox that cannot be made, or is lost through a
/// failure of ours, has a record, too ([`RunReport::failure`]).
pub fn run(request: &RunRequest, door: &mut dyn Door) -> Result<RunReport, ManagerError> {
    // While the kernel makes namespaces, the rest is found out.
    let id = new_id()?;
    let mut chosen = level::Chosen::prepare(&request.spec, &id)?;
    let state = open_state(request.state.as_deref())?;
    let host = this_host(state.path())?;
    let resolved = match Resolved::of(&request.spec, host, &request.command, id.clone(), &chosen) {
        Ok(resolved) => resolved,
        Err(ManagerError::Plan(PlanError::CommandDenied { rule, .. })) => {
            return report::command_denied(request, &state, id, chosen.level(), rule);
        }
        Err(error) => return Err(error),
    };
    let outside = resolved.outside(&request.spec, &request.command)?;
    let Resolved {
        host,
        mut plan,
        basis,
        own_root,
        ..
    } = resolved;
    let user = request
        .user
        .as_deref()
        .map(|name| plan.user_named(name))
        .transpose()?
        .cloned();
    let new = NewRun {
        purpose: request.purpose,
        ..new_run(&request.spec, &request.command, &plan, &host)
    };
    let mut live = LiveRun::create(&state, new)?;
    place_layers(&mut plan, &live);
    let task = Task {
        request,
        basis: &basis,
        user: user.as_ref().unwrap_or(&basis.user),
    };
    let notes = offleash_planner::grants_of_nothing(&request.spec, &host);
    let outcome = execute(&task, &mut chosen, &mut plan, outside, &mut live, door);
    let over = Over {
        state,
        host,
        plan,
        own_root,
        live,
        notes,
    };
    conclude(request, over, outcome)
}

/// A run whose execution is over, with what is to be settled of it.
struct Over {
    state: StateDirectory,
    host: Host,
    plan: Plan,
    own_root: Option<OwnRoot>,
    live: LiveRun,
    /// What was to be said of the request when the run began.
    notes: Vec<String>,
}

/// Keeps or writes back what changed, and puts the run on record.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
fn conclude(
    request: &RunRequest,
    over: Over,
    outcome: Result<(Executed, Enforcement), ManagerError>,
) -> Result<RunReport, ManagerError> {
    let Over {
        state,
        host,
        plan,
        own_root,
        live,
        notes: before,
    } = over;
    let started_at = live.run().started_at().to_owned();
    let finished = live.finish();
    let outdated = own_root.as_ref().and_then(OwnRoot::note);
    let discarded = own_root.map_or(Ok(()), OwnRoot::discard);
    let (executed, enforcement) = match outcome {
        Ok(executed) => executed,
        Err(failure) => return report::failed(request, &state, &plan, started_at, failure),
    };
    let mut notes = Vec::from_iter(outdated);
    if executed.strays > 0 {
        notes.push(NO_NETWORK.to_owned());
    }
    if let Err(error) = discarded {
        notes.push(format!("the sandbox's layer was not removed: {}", with_causes(&error)));
    }
    let exceeded = report::exceeded_by_changes(&executed);
    let Settled {
        changes,
        unkept,
        held_back,
    } = settle(finished, request.spec.workspace.as_ref(), exceeded, &mut notes);
    let facts = report::Facts {
        request,
        plan: &plan,
        host: &host,
        started_at,
        executed,
        enforcement,
        changes,
    };
    let mut record = facts.into_record();
    notes.extend(before);
    notes.extend(written_back_of_an_ended_run(&record));
    notes.extend(part_of_a_repository(&record, request.spec.workspace.as_ref()));
    if held_back.is_some() && record.exit_code == 0 {
        record.exit_code = EXIT_HELD_BACK;
    }
    let failure = audit::ended(&state, &record).err();
    Ok(RunReport {
        record,
        notes,
        held_back,
        unkept,
        failure,
    })
}

/// What planning needs to know of this process and its machine.
///
/// # Errors
/// When the current directory is gone.
pub fn this_host(state_directory: &std::path::Path) -> Result<Host, ManagerError> {
    let cwd = match std::env::current_dir() {
        // It was removed. What needs it has asked for it by now.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PathBuf::from("/"),
        found => found.map_err(|source| ManagerError::Host {
            action: "find the current directory",
            source,
        })?,
    };
    Ok(Host {
        euid: rustix::process::geteuid().as_raw(),
        egid: rustix::process::getegid().as_raw(),
        home: offleash_planner::this_home(),
        cwd,
        env: std::env::vars_os().collect(),
        state_directory: state_directory.to_owned(),
        ids: IdChoice::Single,
        base: None,
        trust: None,
        known: None,
    })
}

/// Opens the state directory, and finishes what crashed runs left there.
///
/// # Errors
/// When it cannot be opened or written.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub fn open_state(explicit: Option<&std::path::Path>) -> Result<StateDirectory, ManagerError> {
    let state = StateDirectory::open(explicit, &HostIdentity::of_this_process())?;
    finish_crashed(&state)?;
    Ok(state)
}

/// The same for who only looks, and makes no state directory; `None` when none was named and there is none.
///
/// # Errors
/// As [`open_state`], and when one was named that does not exist.
pub fn open_existing_state(explicit: Option<&std::path::Path>) -> Result<Option<StateDirectory>, ManagerError> {
    let state = StateDirectory::open_existing(explicit, &HostIdentity::of_this_process())?;
    if let Some(state) = &state {
        finish_crashed(state)?;
    }
    Ok(state)
}

fn finish_crashed(state: &StateDirectory) -> Result<(), ManagerError> {
    for leftover in reap_with(state, &mut remove_leftover_groups)? {
        if matches!(leftover.fate, LeftoverFate::Postponed(_)) {
            continue;
        }
        match audit::crashed(state, &leftover) {
            // A full disk must not keep anybody from the commands that free it.
            Err(error) if error.kind() == ErrorKind::Exhausted => {}
            noted => noted?,
        }
    }
    Ok(())
}

/// How many ids a sandbox of `spec` has, which has a root of its own.
///
/// # Errors
/// When the machine does not let its level be had.
pub(crate) fn ids_of_own_root(spec: &SandboxSpec) -> Result<IdChoice, ManagerError> {
    Ok(level::Chosen::prepare(spec, &new_id()?)?.ids())
}

/// The id of a new run: now, and 64 random bits.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn new_id() -> Result<RunId, ManagerError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|error| {
        ManagerError::Host {
            action: "read random bytes",
            source: error.into(),
        }
    })?;
    Ok(RunId::from_parts(
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        u64::from_le_bytes(random),
    ))
}

/// What came of an execution.
#[derive(Debug)]
struct Executed {
    driven: Driven,
    last: Final,
    network: Option<NetworkUse>,
    /// What a command that failed tried to reach without a network.
    strays: u64,
}

/// What is to be executed, and from what it starts.
struct Task<'a> {
    request: &'a RunRequest,
    basis: &'a ExecBasis,
    user: &'a User,
}

fn execute(
    task: &Task<'_>,
    chosen: &mut level::Chosen,
    plan: &mut Plan,
    outside: network::Outside,
    live: &mut LiveRun,
    door: &mut dyn Door,
) -> Result<(Executed, Enforcement), ManagerError> {
    let mut tending = live.tending();
    let mut made = making::make(&task.request.spec, chosen, plan, &outside, live, &mut tending)?;
    carry_out(task, chosen, plan, outside, &mut made, &mut || tending.step(), door)
}

/// Runs the command in a sandbox that was made, and ends both; the `chore` is done in between.
fn carry_out(
    task: &Task<'_>,
    chosen: &level::Chosen,
    plan: &Plan,
    outside: network::Outside,
    made: &mut Made,
    chore: &mut dyn FnMut() -> bool,
    door: &mut dyn Door,
) -> Result<(Executed, Enforcement), ManagerError> {
    let request = task.request;
    let Made {
        sandbox,
        gateway,
        ahead,
    } = made;
    outside.published.news().for_each(|line| door.note(&line));
    let command = command_of(task, plan, outside.secrets.variables);
    let exec = match ahead.take() {
        Some(ahead) => ahead.become_command(&command, &mut **sandbox)?,
        None => sandbox.exec(&command)?,
    };
    let capture = Capture::new(request.capture);
    let mut driven = Drive::new(&mut **sandbox, door, exec, &plan.limits, request.started, capture)
        .with_chore(chore)
        .with_questions(gateway.as_ref().map(Gateway::questions))
        .with_gateway(gateway.as_ref())
        .run()?;
    if matches!(driven.ending, Ending::Command(_)) {
        drive::finish(&mut **sandbox, Instant::now() + FINISHING)?;
    }
    let strays = match &driven.ending {
        Ending::Command(ExecEnd::Exited { code: 0 }) => 0,
        _ if gateway.is_some() => 0,
        _ => sandbox.found_no_route(),
    };
    let last = sandbox.kill()?;
    let network = gateway.take().map(|gateway| {
        let mut account = gateway.finish();
        driven.limits_hit.append(&mut account.limits_hit);
        network::told(account, outside.published)
    });
    let mut enforcement = sandbox.enforcement().clone();
    if let Some(reason) = chosen.fallen() {
        enforcement.lacks("level", reason);
    }
    let executed = Executed {
        driven,
        last,
        network,
        strays,
    };
    Ok((executed, enforcement))
}

/// The command as the sandbox is asked for it, with these variables beside its own.
fn command_of(task: &Task<'_>, plan: &Plan, more: Environment) -> ExecRequest {
    let (cwd, mut env) = directory_and_environment(task);
    env.extend(more);
    ExecRequest {
        argv: task.request.command.clone(),
        env,
        cwd,
        stdin: Stdin::Stream,
        tty: task.request.tty,
        // The first process is that user already, unless there are several.
        user: plan.has_superuser().then(|| task.user.ids()),
    }
}

/// Where the command starts, and its environment, in which `PWD` says the same unless the owner set another.
fn directory_and_environment(task: &Task<'_>) -> (PathBuf, Environment) {
    let basis = task.basis;
    // Whoever stands in the usual user's home stands in his own.
    let usual = match basis.cwd == basis.user.home {
        true => &task.user.home,
        false => &basis.cwd,
    };
    let cwd = task.request.cwd.clone().unwrap_or_else(|| usual.clone());
    let mut env = basis.environment_of(task.user);
    for (name, value) in &mut env {
        if name == "PWD" && value.as_os_str() == basis.cwd {
            *value = cwd.clone().into();
        }
    }
    (cwd, env)
}

/// What became of the changes of a run that is over.
struct Settled {
    changes: Option<ChangeSummary>,
    /// Why they could not be read or kept.
    unkept: Option<RunError>,
    /// What was to be written back and is not ([`RunReport::held_back`]).
    held_back: Option<String>,
}

/// Keeps or writes back what a run changed in its workspace; what is more than a limit allows (`exceeded`) is not written
/// back. What it did to its files must not keep it out of the record and the log.
fn settle(
    finished: Result<Finished, RunError>,
    workspace: Option<&WorkspaceSpec>,
    exceeded: Option<LimitName>,
    notes: &mut Vec<String>,
) -> Settled {
    let mut settled = Settled {
        changes: None,
        unkept: None,
        held_back: None,
    };
    match finished {
        Ok(finished) => {
            settled.changes = workspace.map(|workspace| {
                let mut summary = summarize(&finished.changes);
                if let (WorkspaceMode::Rw, Some(run)) = (workspace.mode, finished.run) {
                    settled.held_back = match exceeded {
                        Some(limit) => Some(held_back_by(limit)),
                        None => write_back(run, &mut summary, notes),
                    };
                }
                summary
            });
        }
        Err(error) => {
            settled.held_back = workspace
                .filter(|workspace| workspace.mode == WorkspaceMode::Rw)
                .map(|_| "nothing was written back, since what was changed cannot be read".to_owned());
            settled.changes = Some(ChangeSummary {
                error: Some(with_causes(settled.unkept.insert(error))),
                ..ChangeSummary::default()
            });
        }
    }
    settled
}

/// What is told in mode `rw` when more was changed than the limit allows, all of which is kept, as is told of any run.
fn held_back_by(limit: LimitName) -> String {
    let limit = limit.name();
    format!("nothing was written back, since that is more than the limit of {limit} allows")
}

/// What is told when a run in mode `rw` did not end by itself: what is there now may be half of something.
fn written_back_of_an_ended_run(record: &RunRecord) -> Option<String> {
    let changes = record.changes.as_ref().filter(|changes| changes.applied)?;
    let total = changes.added + changes.modified + changes.deleted + changes.mode;
    let was_ended = matches!(
        record.outcome,
        Outcome::LimitExceeded { .. }
            | Outcome::OutOfMemory { .. }
            | Outcome::Interrupted { .. }
            | Outcome::Signaled { .. }
    );
    (was_ended && total > 0).then(|| {
        format!(
            "{} written back, as far as the command had got, since the workspace is `rw`",
            counted(
                usize::try_from(total).unwrap_or(usize::MAX),
                "change was",
                "changes were"
            )
        )
    })
}

/// What is told when the command ended as git does that finds no repository, and the workspace lies in one.
fn part_of_a_repository(record: &RunRecord, workspace: Option<&WorkspaceSpec>) -> Option<String> {
    const FATAL: u8 = 128;
    if record.outcome != (Outcome::Exited { code: FATAL }) {
        return None;
    }
    let path = workspace?.path.canonicalize().ok()?;
    let mut from_here = path
        .ancestors()
        .map(|directory| (directory, directory.join(".git").exists()));
    let (top, _) = from_here.find(|(_, is_top)| *is_top).filter(|(top, _)| *top != path)?;
    Some(format!(
        "the workspace is a part of the git repository `{top}`, of which the sandbox has nothing else; `--workspace {top}` gives it \
         the whole",
        top = Text::from(top)
    ))
}

/// How many changes that are held back are told of one by one.
const MOST_TOLD: usize = 20;

/// Mode `rw`: applies what may be applied; the rest is kept like that of an overlay. Answers what is said of the rest, if
/// there is one.
fn write_back(mut run: Run, summary: &mut ChangeSummary, notes: &mut Vec<String>) -> Option<String> {
    let id = run.id().clone();
    let request = ApplyRequest {
        selection: Selection::All,
        named: Vec::new(),
    };
    match run.apply(&request) {
        Ok(report) => {
            summary.applied = true;
            let told = report.refused.iter().take(MOST_TOLD);
            notes.extend(told.map(|refusal| refusal.told(&report.roots)));
            (!report.refused.is_empty()).then(|| {
                format!(
                    "{} not written back: `offleash diff {id}` shows {them}, `offleash apply {id} PATH` applies one, \
                     `offleash discard {id}` drops {them}",
                    counted(report.refused.len(), "change was", "changes were"),
                    them = if report.refused.len() == 1 { "it" } else { "them" },
                )
            })
        }
        Err(error) => {
            let why = with_causes(&error);
            Some(format!("nothing was written back: {why}"))
        }
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Whether every group that a crashed run left is gone now.
pub fn remove_leftover_groups(paths: &[PathBuf]) -> bool {
    Group::adopt(paths.iter().cloned())
        .and_then(|group| group.kill().and_then(|()| group.remove()))
        .is_ok()
}
