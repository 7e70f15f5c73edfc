//! Makes sandboxes of the level `simulated`.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use offleash_core::level::Level;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::spec::MemoryEnd;
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{Backend, EnforcementReport, LeftoverKeeper, Sandbox};

use crate::code::CodeOfFiles;
use crate::engine::{CompiledStore, EngineKind, InterpreterStoreMaker};
use crate::interpreters::InterpreterPlace;
use crate::next_level::NextLevel;
use crate::sandbox::SimulatedSandbox;
use crate::served::{ServedTrees, not_here};
use crate::shared::SharedSandbox;
use crate::worker::WORKER_ROLE;
use crate::worker_process::{WorkerProcess, worker_setup};

/// How the rule of a command begins that the owner denied.
const DENIED_COMMAND: &str = "commands.deny";

/// Makes sandboxes of the level `simulated`.
#[derive(Debug)]
pub struct SimulatedBackend {
    kind: EngineKind,
    compiled: Option<Box<dyn CompiledStore>>,
    /// What keeps interpreters of scripts, once it is known where.
    interpreters: Option<InterpreterPlace>,
    interpreter_store: Option<InterpreterStoreMaker>,
    /// One that was started ahead.
    worker: Option<WorkerProcess>,
    /// Whether programs run at level `process`.
    escalates: bool,
}

/// The shell.
pub(crate) const SHELL: EngineKind = EngineKind {
    level: Level::Simulated,
    role: WORKER_ROLE,
    name: "the simulated shell",
    commands: "simulated: no program of the machine is executed",
    feature: "simulated",
};

impl Default for SimulatedBackend {
    fn default() -> Self {
        Self::of(SHELL, None)
    }
}

impl SimulatedBackend {
    /// One whose workers have another engine, and what keeps what that compiles.
    pub fn of(kind: EngineKind, compiled: Option<Box<dyn CompiledStore>>) -> Self {
        Self {
            kind,
            compiled,
            interpreters: None,
            interpreter_store: None,
            worker: None,
            escalates: false,
        }
    }

    /// The same with interpreters of scripts, kept as this says.
    #[must_use]
    pub fn with_interpreters(mut self, store: Option<InterpreterStoreMaker>) -> Self {
        self.interpreter_store = store;
        self
    }

    /// Has what its engine compiles kept there.
    pub fn keep_compiled(&mut self, compiled: Box<dyn CompiledStore>) {
        self.compiled = Some(compiled);
    }

    /// One whose sandboxes have programs that they lack run at level `process`, on the same files.
    pub fn escalating() -> Self {
        Self {
            escalates: true,
            ..Self::default()
        }
    }
}

impl Backend for SimulatedBackend {
    fn level(&self) -> Level {
        self.kind.level
    }

    fn prepare(&mut self, _: &offleash_isolation::sandbox::SandboxIds) -> Result<(), IsolationError> {
        if self.worker.is_none() {
            self.worker = Some(start(self.kind)?);
        }
        Ok(())
    }

    fn keep_in(&mut self, state: &Path) {
        let state = state.to_owned();
        self.interpreters = self.interpreter_store.map(|make| InterpreterPlace { make, state });
    }

    fn create(&mut self, plan: &Plan, _: &mut dyn LeftoverKeeper) -> Result<Box<dyn Sandbox>, IsolationError> {
        let outlives_commands = self.kind.level == Level::Simulated && plan.memory_end == MemoryEnd::Process;
        check(plan, outlives_commands)?;
        if self.kind.level == Level::Wasm {
            check_volumes(plan)?;
        }
        if plan.has_own_root() {
            offleash_isolation::process::give_layers(plan)?;
        }
        let mut trees = ServedTrees::open(plan)?;
        trees.make_homes(plan).map_err(|errno| IsolationError::Step {
            level: self.kind.level,
            step: "making home directories".to_owned(),
            subject: String::new(),
            source: errno.into(),
        })?;
        if outlives_commands {
            let enforcement = enforcement_of_many(self.kind, plan);
            let worker = self.worker.take();
            let sandbox = SharedSandbox::new(self.kind, plan, trees, worker, enforcement)
                .with_interpreters(self.interpreters.take());
            return Ok(Box::new(sandbox));
        }
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => start(self.kind)?,
        };
        let limits = &plan.limits;
        let setup = worker_setup(plan, trees.mount_points(), plan.users.first().unwrap_or(&plan.user));
        let mut enforcement = enforcement(self.kind, limits);
        if self.escalates {
            enforcement.holds(
                "programs",
                "level `process`, one at a time, in a sandbox of its own over the same layer",
            );
        }
        let next_level = self.escalates.then(|| NextLevel::new(plan));
        let code = CodeOfFiles::new(self.compiled.take());
        let sandbox = SimulatedSandbox::new(
            self.kind,
            worker,
            Rc::new(RefCell::new(trees)),
            limits.clone(),
            enforcement,
            next_level,
            code,
            InterpreterPlace::open(self.interpreters.as_ref()),
            &setup,
        )?;
        Ok(Box::new(sandbox))
    }
}

fn start(kind: EngineKind) -> Result<WorkerProcess, IsolationError> {
    WorkerProcess::start(kind.role).map_err(|source: io::Error| IsolationError::Step {
        level: kind.level,
        step: "starting the worker".to_owned(),
        subject: String::new(),
        source,
    })
}

/// Refuses what this level cannot hold or give.
///
/// A sandbox that outlives its commands is made before anybody knows whether one of them will want a network, or who asks: it has
/// several users, and nothing in it makes connections.
fn check(plan: &Plan, outlives_commands: bool) -> Result<(), IsolationError> {
    if plan.network && !outlives_commands {
        return Err(not_here("a network", "nothing in it makes connections"));
    }
    if !plan.executables.is_empty() {
        return Err(not_here(
            "that only some programs run",
            "it has commands of its own, and no program",
        ));
    }
    if plan.entries.iter().any(|entry| entry.rule.starts_with(DENIED_COMMAND)) {
        return Err(not_here(
            "that some programs do not run",
            "it has commands of its own, and no program",
        ));
    }
    if plan.users.len() > 1 && !plan.has_own_root() {
        return Err(not_here("several users", "it has one"));
    }
    Ok(())
}

/// Refuses volumes, of which nobody has tried what modules do to them.
fn check_volumes(plan: &Plan) -> Result<(), IsolationError> {
    let is_volume = |entry: &PlanEntry| matches!(entry.node, PlanNode::Volume { .. });
    match plan.entries.iter().any(is_volume) {
        true => Err(not_here("a volume", "it keeps files for the run alone")),
        false => Ok(()),
    }
}

/// What holds such a sandbox, and its limits.
fn enforcement(kind: EngineKind, limits: &Limits) -> EnforcementReport {
    let mut report = EnforcementReport::default();
    report.holds("commands", kind.commands);
    report.holds(
        "files",
        "served by the supervisor, below the directories that are granted",
    );
    report.holds("network", "none: a filter of system calls without sockets");
    report.holds(
        "worker",
        "a process with one socket, seccomp, rlimits and no capability",
    );
    for (limit, means) in [
        (LimitName::Memory, "RLIMIT_DATA of the worker"),
        (LimitName::CpuTime, "RLIMIT_CPU of the worker"),
        (LimitName::WallTime, "the supervisor's clock"),
        (LimitName::Output, "the supervisor counts"),
        (LimitName::Workspace, "the supervisor counts what it writes"),
        (LimitName::Inodes, "the supervisor counts what it writes"),
        (LimitName::Depth, "the supervisor counts what it writes"),
        (LimitName::FileSize, "the supervisor counts what it writes"),
        (LimitName::Tmp, "the file system in the worker's memory"),
    ] {
        report.holds_limit(limit, means);
    }
    for (limit, reason) in [
        (LimitName::Pids, "there are no processes"),
        (LimitName::OpenFiles, "there are no descriptors of the kernel"),
        (
            LimitName::Swap,
            "the memory limit is of address space, wherever its pages are",
        ),
    ] {
        report.holds_limit(limit, reason);
    }
    if limits.cpus.is_some() {
        report.holds_limit(LimitName::Cpus, "one thread runs");
    }
    report
}

/// What holds a sandbox that outlives its commands, and its limits.
fn enforcement_of_many(kind: EngineKind, plan: &Plan) -> EnforcementReport {
    let mut report = enforcement(kind, &plan.limits);
    report.holds(
        "worker",
        "each command in a process of its own with one socket, seccomp, rlimits and no capability",
    );
    for (limit, means) in [
        (
            LimitName::Memory,
            "RLIMIT_DATA of each worker, and the supervisor adds up what they have",
        ),
        (LimitName::Cpus, "all workers stay on as many processors"),
        (LimitName::Pids, "the supervisor counts commands, of which each is one"),
    ] {
        report.holds_limit(limit, means);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{PlanFixture, entry};

    fn refusal(change: impl FnOnce(&mut Plan)) -> String {
        let mut fixture = PlanFixture::new();
        check(&fixture.plan, false).unwrap();
        change(&mut fixture.plan);
        check(&fixture.plan, false).unwrap_err().to_string()
    }

    #[test]
    fn rules_about_commands_are_refused_since_those_of_the_shell_are_no_programs() {
        let denied = entry(
            "/usr/bin/curl",
            PlanNode::Hidden { directory: false },
            "commands.deny `curl`",
        );
        assert!(refusal(|plan| plan.entries.push(denied)).contains("that some programs do not run"));
        let allowed = |plan: &mut Plan| plan.executables.push("/usr/bin/git".into());
        assert!(refusal(allowed).contains("that only some programs run"));
    }

    #[test]
    fn a_network_and_several_users_are_refused() {
        assert!(refusal(|plan| plan.network = true).contains("a network"));
        assert!(refusal(|plan| plan.users = vec![plan.user.clone(), plan.user.clone()]).contains("several users"));
    }
}
