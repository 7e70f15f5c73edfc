//! One run, from request to record.

pub(crate) mod audit;
mod error;
mod level;
mod network;
mod published;
mod report;
mod secrets;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::exec::{ExecRequest, Stdin, TerminalSize};
use offleash_core::id::RunId;
use offleash_core::plan::{Entry, Environment, Node, Plan};
use offleash_core::record::{ChangeSummary, NetworkUse, RunRecord};
use offleash_core::spec::{SandboxSpec, WorkspaceMode};
use offleash_core::text::Text;
use offleash_gateway::Gateway;
use offleash_isolation::sandbox::{Enforcement, Final, Leftovers};
use offleash_store::{
    ApplyRequest, HostIdentity, LeftoverFate, LiveRun, NewRun, Run, RunError, Selection, StateDirectory, Tending,
    reap_with, summarize,
};
use offleash_sys::cgroup::Group;

pub use self::error::ManagerError;
use self::error::with_causes;
pub use self::level::choose as choose_level;
pub use self::network::{ConnectAnswer, explain_connect};
use self::published::PublishedPorts;
pub use self::secrets::SecretsError;
use crate::capture::Capture;
use crate::drive::{Door, Drive, Driven};
use crate::planning::{self, ExecBasis, Host, PlanError};

/// What a command that succeeded is answered with when not everything was written back in mode `rw`.
const EXIT_HELD_BACK: u8 = 1;

/// What is to be run.
#[derive(Debug)]
pub struct RunRequest {
    /// The sandbox.
    pub spec: SandboxSpec,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Working directory inside, if not the usual one.
    pub cwd: Option<PathBuf>,
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
    /// Why its changes could not be read or kept. The run itself is as the record says.
    pub unkept: Option<RunError>,
    /// Why the sandbox could not be made, or was lost; the record says `failed` then.
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
    let trust = network::trust(&request.spec.network)?;
    let host = Host {
        trust: trust.as_deref().map(network::stores),
        ..this_host(state.path())?
    };
    let run_directory = state.path().join("runs").join(id.as_str());
    let resolved = planning::resolve(&request.spec, &host, &request.command, id.clone(), &run_directory);
    let (plan, basis) = match resolved {
        Ok(planned) => planned,
        Err(PlanError::CommandDenied { rule, .. }) => {
            return report::command_denied(request, &state, id, chosen.level(), rule);
        }
        Err(error) => return Err(error.into()),
    };
    let mut plan = Plan {
        level: chosen.level(),
        ..plan
    };
    let secrets = secrets::ready(&request.spec, &host, &plan, &basis.env, &request.command)?;
    let upstream_proxy = network::upstream_proxy(&request.spec.network, &host)?;
    let published = PublishedPorts::listen(&request.spec.network.publish)?;
    let mut live = LiveRun::create(&state, new_run(request, &plan, &host))?;
    place_layers(&mut plan, &live);
    let started_at = live.run().started_at().to_owned();
    let outside = network::Outside {
        trust,
        secrets,
        published,
        upstream_proxy,
    };
    let outcome = execute(request, &mut chosen, &mut plan, &basis, outside, &mut live, door);
    let finished = live.finish();
    let (executed, enforcement) = match outcome {
        Ok(executed) => executed,
        Err(failure) => return report::failed(request, &state, &plan, started_at, failure),
    };
    let mut notes = Vec::new();
    let mut unkept = None;
    let mut held_back = false;
    let workspace = request.spec.workspace.as_ref();
    // What a run did to its files must not keep it out of the record and the log.
    let changes = match finished {
        Ok(finished) => workspace.map(|workspace| {
            let mut summary = summarize(&finished.changes);
            if let (WorkspaceMode::Rw, Some(run)) = (workspace.mode, finished.run) {
                held_back = !write_back(run, &mut summary, &mut notes);
            }
            summary
        }),
        Err(error) => {
            held_back = workspace.is_some_and(|workspace| workspace.mode == WorkspaceMode::Rw);
            Some(ChangeSummary {
                error: Some(with_causes(unkept.insert(error))),
                ..ChangeSummary::default()
            })
        }
    };
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
    if held_back && record.exit_code == 0 {
        record.exit_code = EXIT_HELD_BACK;
    }
    audit::ended(&state, &record)?;
    Ok(RunReport {
        record,
        notes,
        unkept,
        failure: None,
    })
}

/// What planning needs to know of this process and its machine.
///
/// # Errors
/// When the current directory is gone.
pub fn this_host(state_directory: &std::path::Path) -> Result<Host, ManagerError> {
    let cwd = std::env::current_dir().map_err(|source| ManagerError::Host {
        action: "find the current directory",
        source,
    })?;
    Ok(Host {
        euid: rustix::process::geteuid().as_raw(),
        egid: rustix::process::getegid().as_raw(),
        home: std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from),
        cwd,
        env: std::env::vars_os().collect(),
        state_directory: state_directory.to_owned(),
        trust: None,
    })
}

/// Opens the state directory, and finishes what crashed runs left there.
///
/// # Errors
/// When it cannot be opened or written.
pub fn open_state(explicit: Option<&std::path::Path>) -> Result<StateDirectory, ManagerError> {
    let state = StateDirectory::open(explicit, &HostIdentity::of_this_process())?;
    for leftover in reap_with(&state, &mut remove_leftover_groups)? {
        if matches!(leftover.fate, LeftoverFate::Postponed(_)) {
            continue;
        }
        match audit::crashed(&state, &leftover) {
            // A full disk must not keep anybody from the commands that free it.
            Err(error) if error.kind() == ErrorKind::Exhausted => {}
            noted => noted?,
        }
    }
    Ok(state)
}

fn new_id() -> Result<RunId, ManagerError> {
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

fn new_run(request: &RunRequest, plan: &Plan, host: &Host) -> NewRun {
    let mut layers: Vec<(usize, PathBuf)> = plan.entries.iter().filter_map(numbered_layer).collect();
    layers.sort();
    NewRun {
        id: plan.id.clone(),
        command: request.command.iter().map(Text::from).collect(),
        layers: layers.into_iter().map(|(_, lower)| lower).collect(),
        protect: protect_patterns(&request.spec),
        home: host.home.clone(),
    }
}

/// The number of an overlay's layer, the workspace's first, and the directory that it lies over. The plan knows layers
/// by number; where they are is for the store to say.
fn numbered_layer(entry: &Entry) -> Option<(usize, PathBuf)> {
    match &entry.node {
        Node::Overlay { lower, layer } => Some((layer.file_name()?.to_str()?.parse().ok()?, lower.clone())),
        _ => None,
    }
}

/// Puts the store's directories in place of the plan's numbers.
fn place_layers(plan: &mut Plan, live: &LiveRun) {
    for entry in &mut plan.entries {
        let number = numbered_layer(entry);
        if let (Some((number, _)), Node::Overlay { layer, .. }) = (number, &mut entry.node) {
            *layer = live.layer_directory(number);
        }
    }
}

/// Drops what was in files of the sandbox, copies of the machine's above all: it has them now, and may wait for long.
fn forget_contents(plan: &mut Plan) {
    for entry in &mut plan.entries {
        if let Node::File { contents } = &mut entry.node {
            *contents = Vec::new();
        }
    }
}

/// What is not applied unless named: what the owner protects, and what is hidden from the sandbox. Mounts hide what
/// exists when the run starts; a hidden name can be made anew in the writable layer, and must not reach the host.
fn protect_patterns(spec: &SandboxSpec) -> Vec<Text> {
    let patterns = spec.paths.protect.iter().chain(&spec.paths.deny);
    patterns.map(|pattern| Text::from(pattern.to_string())).collect()
}

/// What came of an execution.
#[derive(Debug)]
struct Executed {
    driven: Driven,
    last: Final,
    network: Option<NetworkUse>,
}

fn execute(
    request: &RunRequest,
    chosen: &mut level::Chosen,
    plan: &mut Plan,
    basis: &ExecBasis,
    outside: network::Outside,
    live: &mut LiveRun,
    door: &mut dyn Door,
) -> Result<(Executed, Enforcement), ManagerError> {
    let mut tending = live.tending();
    let mut noted = Noted {
        live,
        tending: &mut tending,
    };
    let mut sandbox = chosen.create(plan, &mut noted)?;
    forget_contents(plan);
    let gateway = match sandbox.take_network() {
        Some(sockets) => {
            let asked = &request.spec.network;
            Some(network::start(asked, &plan.limits, &outside, sockets)?)
        }
        None => None,
    };
    outside.published.news().for_each(|line| door.note(&line));
    let (cwd, mut env) = directory_and_environment(request, basis);
    env.extend(outside.secrets.variables);
    let exec = sandbox.exec(&ExecRequest {
        argv: request.command.clone(),
        env,
        cwd,
        stdin: Stdin::Stream,
        tty: request.tty,
        user: None,
    })?;
    let capture = Capture::new(request.capture);
    let mut driven = Drive::new(&mut *sandbox, door, exec, &plan.limits, request.started, capture)
        .with_chore(&mut || tending.step())
        .with_questions(gateway.as_ref().map(Gateway::questions))
        .with_gateway(gateway.as_ref())
        .run()?;
    let last = sandbox.kill()?;
    let network = gateway.map(|gateway| {
        let mut account = gateway.finish();
        driven.limits_hit.append(&mut account.limits_hit);
        network::told(account, outside.published)
    });
    let mut enforcement = sandbox.enforcement().clone();
    if let Some(reason) = chosen.fallen() {
        enforcement.lacks("level", reason);
    }
    Ok((Executed { driven, last, network }, enforcement))
}

/// Where the command starts, and its environment, in which `PWD` says the same unless the owner set another.
fn directory_and_environment(request: &RunRequest, basis: &ExecBasis) -> (PathBuf, Environment) {
    let cwd = request.cwd.clone().unwrap_or_else(|| basis.cwd.clone());
    let mut env = basis.env.clone();
    for (name, value) in &mut env {
        if name == "PWD" && value.as_os_str() == basis.cwd {
            *value = cwd.clone().into();
        }
    }
    (cwd, env)
}

/// Writes down in the run's record what a crash would leave.
struct Noted<'a> {
    live: &'a mut LiveRun,
    tending: &'a mut Tending,
}

impl Leftovers for Noted<'_> {
    fn cgroups(&mut self, paths: &[PathBuf]) -> std::io::Result<()> {
        self.live.record_cgroups(paths).map_err(std::io::Error::other)
    }

    fn meanwhile(&mut self) -> bool {
        self.tending.step()
    }
}

/// Mode `rw`: applies what may be applied; the rest is kept like that of an overlay. Answers whether there is no rest.
fn write_back(mut run: Run, summary: &mut ChangeSummary, notes: &mut Vec<String>) -> bool {
    let id = run.id().clone();
    let request = ApplyRequest {
        selection: Selection::All,
        named: Vec::new(),
    };
    match run.apply(&request) {
        Ok(report) => {
            summary.applied = true;
            if !report.refused.is_empty() {
                notes.push(format!(
                    "{} not written back; `offleash diff {id}` shows them, `offleash apply {id} PATH` applies one",
                    counted(
                        report.refused.len(),
                        "protected or special change was",
                        "protected or special changes were"
                    )
                ));
            }
            report.refused.is_empty()
        }
        Err(error) => {
            notes.push(format!(
                "nothing was written back: {error}; the changes are kept as run {id}"
            ));
            false
        }
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Whether every group that a crashed run left is gone now.
fn remove_leftover_groups(paths: &[PathBuf]) -> bool {
    Group::adopt(paths.iter().cloned())
        .and_then(|group| group.kill().and_then(|()| group.remove()))
        .is_ok()
}
