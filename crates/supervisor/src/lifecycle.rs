//! One run, from request to record.

pub(crate) mod audit;
mod error;
mod kept;
mod level;
pub(crate) mod making;
mod network;
mod own_root;
mod preload;
mod prewarmed;
mod published;
mod report;
mod runtimes;
mod secrets;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use offleash_core::error::{ErrorKind, Explained as _, with_causes};
use offleash_core::exec::{ExecEnd, ExecRequest, Stdin, TerminalSize};
use offleash_core::id::RunId;
use offleash_core::plan::{Environment, Plan, SandboxUser};
use offleash_core::record::{AlertRecord, ChangeSummary, NetworkUse, Outcome, RunRecord, ToolUse};
use offleash_core::spec::{IdChoice, SandboxSpec, WorkspaceMode, WorkspaceSpec};
use offleash_core::text::Text;
use offleash_isolation::sandbox::{EnforcementReport, FinalReport};
use offleash_store::{
    ApplyRequest, ChangeSelection, FinishedRun, HostIdentity, LeftoverFate, RunError, StateDirectory, StoredRun,
    reap_with, summarize,
};
use offleash_sys::cgroup::ControlGroup;

pub use self::error::LifecycleError;
pub(crate) use self::kept::{KeptSandbox, record_kept};
pub use self::level::choose as choose_level;
pub use self::level::{find_hypervisor, find_runtime};
use self::making::{
    CallerEnvironment, HeldSandbox, LaunchSpec, PlannedCommand, RunningSandbox, SandboxMaking, SandboxSetup,
    StateSource, UnmadeSandbox,
};
pub use self::network::{ConnectAnswer, explain_connect};
pub(crate) use self::network::{loss, stores, way_out};
use self::own_root::OwnRoot;
pub use self::prewarmed::{CheckedRun, MountRemains, PrewarmedSandbox};
use self::published::PublishedPorts;
pub use self::secrets::SecretsError;
pub(crate) use self::secrets::read_file;
use crate::capture::Capture;
use crate::run_client::{ExecIo, RunClient, RunOutcome};
use crate::sandbox_loop::Ending;
use crate::tools::ToolsPlace;
use crate::tools::ToolsProcess;
use offleash_planner::{ExecBasis, PlanError, PlanningHost};

/// What a command that succeeded is answered with when not everything was written back in mode `rw`.
const EXIT_HELD_BACK: u8 = 1;

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
    pub failure: Option<LifecycleError>,
}

/// Runs a command in a new sandbox and answers when it is over and everything of it is gone.
///
/// # Errors
/// When the request is wrong or the state directory cannot be used. A sandbox that cannot be made, or is lost through a
/// failure of ours, has a record, too ([`RunReport::failure`]).
pub fn run(request: &RunRequest, io: &mut dyn ExecIo) -> Result<RunReport, LifecycleError> {
    let id = new_id()?;
    let mut making = SandboxMaking::begin(LaunchSpec {
        spec: request.spec.clone(),
        id: id.clone(),
        state: StateSource::Swept(request.state.as_deref()),
        environment: CallerEnvironment::Own,
        planned_for: PlannedCommand::Known(&request.command),
        user: request.user.as_deref(),
        recorded: &request.command,
        purpose: request.purpose,
        wants_copy: false,
        tools: ToolsPlace::default(),
    })?;
    let planned = match making.plan() {
        Err(LifecycleError::Plan(PlanError::CommandDenied { rule, .. })) => {
            return report::command_denied(request, making.state(), id, making.level(), rule);
        }
        planned => planned?,
    };
    let HeldSandbox {
        mut running,
        mut setup,
        mut tending,
    } = match making.make(planned) {
        Ok(held) => held,
        Err(UnmadeSandbox { error, setup: None }) => return Err(error),
        Err(UnmadeSandbox {
            error,
            setup: Some(setup),
        }) => return conclude(request, *setup, Err(error)),
    };
    let outcome = carry_out(request, &mut setup, &mut running, &mut || tending.step(), io);
    drop(running);
    conclude(request, setup, outcome)
}

/// Keeps or writes back what changed, and puts the run on record.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
fn conclude(
    request: &RunRequest,
    setup: SandboxSetup,
    outcome: Result<(ExecutedRun, EnforcementReport), LifecycleError>,
) -> Result<RunReport, LifecycleError> {
    let mut ended = setup.end();
    let (executed, enforcement) = match outcome {
        Ok(executed) => executed,
        Err(failure) => return report::failed(request, ended, failure),
    };
    if executed.strays > 0 {
        ended.notes.push(NO_NETWORK.to_owned());
    }
    let settled = ended.settle(report::why_held_back(&executed));
    let has_told_of_loss = executed.outcome.has_told_of_loss;
    let mut record = report::of_run(request, &ended, executed, enforcement, settled.changes);
    let mut notes = ended.notes;
    notes.extend(written_back_of_an_ended_run(&record));
    notes.extend(lost_network(&record).filter(|_| !has_told_of_loss));
    notes.extend(part_of_a_repository(&record, ended.spec.workspace.as_ref()));
    if settled.held_back.is_some() && record.exit_code == 0 {
        record.exit_code = EXIT_HELD_BACK;
    }
    let failure = audit::ended(&ended.state, &record).err();
    Ok(RunReport {
        record,
        notes,
        held_back: settled.held_back,
        unkept: settled.unkept,
        failure,
    })
}

/// What planning needs to know of this process and its machine.
///
/// # Errors
/// When the current directory is gone.
pub fn this_host(state_directory: &std::path::Path) -> Result<PlanningHost, LifecycleError> {
    let cwd = match std::env::current_dir() {
        // It was removed. What needs it has asked for it by now.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PathBuf::from("/"),
        found => found.map_err(|source| LifecycleError::Host {
            action: "find the current directory",
            source,
        })?,
    };
    Ok(PlanningHost {
        euid: rustix::process::geteuid().as_raw(),
        egid: rustix::process::getegid().as_raw(),
        home: offleash_planner::this_home(),
        cwd,
        env: std::env::vars_os().collect(),
        state_directory: state_directory.to_owned(),
        ids: IdChoice::Single,
        base: None,
        trust: None,
        volumes: Vec::new(),
        known: None,
    })
}

/// Opens the state directory, and finishes what crashed runs left there.
///
/// # Errors
/// When it cannot be opened or written.
// In a frame of its own, which is not there while the command runs.
#[inline(never)]
pub fn open_state(explicit: Option<&std::path::Path>) -> Result<StateDirectory, LifecycleError> {
    let state = StateDirectory::open(explicit, &HostIdentity::of_this_process())?;
    finish_crashed(&state)?;
    Ok(state)
}

/// The same for who only looks, and makes no state directory; `None` when none was named and there is none.
///
/// # Errors
/// As [`open_state`], and when one was named that does not exist.
pub fn open_existing_state(explicit: Option<&std::path::Path>) -> Result<Option<StateDirectory>, LifecycleError> {
    let state = StateDirectory::open_existing(explicit, &HostIdentity::of_this_process())?;
    if let Some(state) = &state {
        finish_crashed(state)?;
    }
    Ok(state)
}

fn finish_crashed(state: &StateDirectory) -> Result<(), LifecycleError> {
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
pub(crate) fn ids_of_own_root(spec: &SandboxSpec) -> Result<IdChoice, LifecycleError> {
    Ok(level::ChosenLevel::prepare(spec, &new_id()?)?.ids())
}

/// The id of a new run: now, and 64 random bits.
///
/// # Errors
/// When the kernel gives no random bytes.
pub fn new_id() -> Result<RunId, LifecycleError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|error| {
        LifecycleError::Host {
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
struct ExecutedRun {
    outcome: RunOutcome,
    last: FinalReport,
    network: Option<NetworkUse>,
    tools: Vec<ToolUse>,
    alerts: Vec<AlertRecord>,
    /// What a command that failed tried to reach without a network.
    strays: u64,
}

/// Runs the command in a sandbox that was made, and ends both; the `chore` is done in between.
fn carry_out(
    request: &RunRequest,
    setup: &mut SandboxSetup,
    running: &mut RunningSandbox,
    chore: &mut dyn FnMut() -> bool,
    io: &mut dyn ExecIo,
) -> Result<(ExecutedRun, EnforcementReport), LifecycleError> {
    setup.outside.news().iter().for_each(|line| io.note(line));
    let more = std::mem::take(&mut setup.outside.secrets.variables);
    let command = setup.command_of(request, &setup.basis, more)?;
    let exec = match running.preload.take() {
        Some(preload) => preload.become_command(&command, &mut *running.sandbox)?,
        None => running.sandbox.exec(&command)?,
    };
    let capture = Capture::new(request.capture);
    let client = RunClient::new(io, exec, &setup.plan.limits, request.started, capture);
    let client = client.on_terminal(request.tty.is_some());
    let mut outcome = client.run(running, chore)?;
    let strays = match &outcome.ending {
        Ending::Command(ExecEnd::Exited { code: 0 }) => 0,
        _ if running.gateway.is_some() => 0,
        _ => running.sandbox.found_no_route(),
    };
    let last = running.sandbox.kill()?;
    let network = running.gateway.take().map(|gateway| {
        let mut account = gateway.finish();
        outcome.limits_hit.append(&mut account.limits_hit);
        network::told(account, std::mem::take(&mut setup.outside.published))
    });
    let tools = running.tools.take().map(ToolsProcess::finish).unwrap_or_default();
    let enforcement = setup.enforcement(&*running.sandbox);
    let alerts = running.monitor.take_alerts();
    let executed = ExecutedRun {
        outcome,
        last,
        network,
        tools,
        alerts,
        strays,
    };
    Ok((executed, enforcement))
}

impl SandboxSetup {
    /// The command as the sandbox is asked for it when it starts from `basis`, with these variables beside its own.
    fn command_of(
        &self,
        request: &RunRequest,
        basis: &ExecBasis,
        more: Environment,
    ) -> Result<ExecRequest, LifecycleError> {
        let named = request.user.as_deref().map(|name| self.plan.user_named(name));
        let user = named.transpose()?.unwrap_or(&basis.user);
        let (cwd, mut env) = directory_and_environment(request, basis, user);
        env.extend(more);
        Ok(ExecRequest {
            argv: request.command.clone(),
            env,
            cwd,
            stdin: match self.plan.level.has_processes() || !rustix::termios::isatty(rustix::stdio::stdin()) {
                true => Stdin::Stream,
                // What it reads is there before it begins, and nobody knows when a person has said all.
                false => Stdin::Null,
            },
            tty: request.tty,
            // The first process is that user already, unless there are several.
            user: self.plan.has_superuser().then(|| user.ids()),
        })
    }
}

/// Where the command starts, and its environment, in which `PWD` says the same unless the owner set another.
fn directory_and_environment(request: &RunRequest, basis: &ExecBasis, user: &SandboxUser) -> (PathBuf, Environment) {
    // Whoever stands in the usual user's home stands in his own.
    let usual = match basis.cwd == basis.user.home {
        true => &user.home,
        false => &basis.cwd,
    };
    let cwd = request.cwd.clone().unwrap_or_else(|| usual.clone());
    let mut env = basis.environment_of(user);
    for (name, value) in &mut env {
        if name == "PWD" && value.as_os_str() == basis.cwd {
            *value = cwd.clone().into();
        }
    }
    (cwd, env)
}

/// A sandbox that has ended, whose changes are to be kept, with what its record is made from.
pub(crate) struct EndedSandbox {
    pub(crate) spec: SandboxSpec,
    pub(crate) state: StateDirectory,
    pub(crate) host: PlanningHost,
    pub(crate) plan: Plan,
    /// What listened on the host.
    published: PublishedPorts,
    started_at: String,
    /// Taken when it is settled.
    finished: Option<Result<FinishedRun, RunError>>,
    /// What its owner should know, a line each.
    notes: Vec<String>,
    /// What was to be said of the request when it began.
    of_request: Vec<String>,
}

impl SandboxSetup {
    /// Takes in what it left on disk, and removes what is not kept.
    fn end(self) -> EndedSandbox {
        let started_at = self.live.run().started_at().to_owned();
        let finished = self.live.finish();
        let mut notes = Vec::from_iter(self.own_root.as_ref().and_then(OwnRoot::note));
        if let Some(Err(error)) = self.own_root.map(OwnRoot::discard) {
            notes.push(format!("the sandbox's layer was not removed: {}", with_causes(&error)));
        }
        EndedSandbox {
            spec: self.spec,
            state: self.state,
            host: self.host,
            plan: self.plan,
            published: self.outside.published,
            started_at,
            finished: Some(finished),
            notes,
            of_request: self.notes,
        }
    }
}

/// What became of the changes of a run that is over.
struct SettledChanges {
    changes: Option<ChangeSummary>,
    /// Why they could not be read or kept.
    unkept: Option<RunError>,
    /// What was to be written back and is not ([`RunReport::held_back`]).
    held_back: Option<String>,
}

impl EndedSandbox {
    /// Keeps or writes back what was changed in the workspace, which is not written back where there is a reason
    /// (`held_back`). What was done to its files must not keep a run out of the record and the log.
    fn settle(&mut self, held_back: Option<String>) -> SettledChanges {
        let mut settled = SettledChanges {
            changes: None,
            unkept: None,
            held_back: None,
        };
        let workspace = self.spec.workspace.as_ref();
        match self.finished.take() {
            Some(Ok(finished)) => {
                settled.changes = workspace.map(|workspace| {
                    let mut summary = summarize(&finished.changes);
                    if let (WorkspaceMode::Rw, Some(run)) = (workspace.mode, finished.run) {
                        settled.held_back = held_back.or_else(|| write_back(run, &mut summary, &mut self.notes));
                    }
                    summary
                });
            }
            Some(Err(error)) => {
                settled.held_back = workspace
                    .filter(|workspace| workspace.mode == WorkspaceMode::Rw)
                    .map(|_| "nothing was written back, since what was changed cannot be read".to_owned());
                settled.changes = Some(ChangeSummary {
                    error: Some(with_causes(settled.unkept.insert(error))),
                    ..ChangeSummary::default()
                });
            }
            None => {}
        }
        self.notes.append(&mut self.of_request);
        settled
    }
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

/// What is told when the gateway was lost.
fn lost_network(record: &RunRecord) -> Option<String> {
    let lost = record.network.as_ref()?.lost.as_ref()?;
    Some(lost.line())
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
const MAX_TOLD: usize = 20;

/// Mode `rw`: applies what may be applied; the rest is kept like that of an overlay. Answers what is said of the rest, if
/// there is one.
fn write_back(mut run: StoredRun, summary: &mut ChangeSummary, notes: &mut Vec<String>) -> Option<String> {
    let id = run.id().clone();
    let request = ApplyRequest {
        selection: ChangeSelection::All,
        named: Vec::new(),
    };
    match run.apply(&request) {
        Ok(report) => {
            summary.applied = true;
            let told = report.refused.iter().take(MAX_TOLD);
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
    ControlGroup::adopt(paths.iter().cloned())
        .and_then(|group| group.kill().and_then(|()| group.remove()))
        .is_ok()
}
