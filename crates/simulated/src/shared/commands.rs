//! The commands of a sandbox, each with its worker.

use std::io;
use std::time::Instant;

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, StartFailure};
use offleash_core::limits::LimitName;
use offleash_core::plan::SandboxUser;
use offleash_core::record::{DenialRecord, LimitEffect, LimitHit};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{EnforcementReport, ExecId, Sandbox as _, SandboxEvent};
use rustix::io::Errno;

use super::{MAX_COMMANDS, MAX_DENIALS, MEMORY_LOOK, SharedSandbox};
use crate::channel::check_directory;
use crate::code::CodeOfFiles;
use crate::interpreters::InterpreterPlace;
use crate::sandbox::SimulatedSandbox;
use crate::worker_process::{WorkerProcess, worker_setup};
use crate::worker_use::{WorkerUse, worker_use};

/// The process id inside of the first command; 1 would be the sandbox's own.
const FIRST_PID: u32 = 2;
const SIGKILL: i32 = 9;

/// A command, and the sandbox of it alone that its worker is.
#[derive(Debug)]
pub(super) struct CommandWorker {
    pub(super) sandbox: SimulatedSandbox,
    pub(super) inner: ExecId,
    /// The limit for which it was ended, if one was.
    killed_for: Option<LimitHit>,
    has_ended: bool,
}

impl SharedSandbox {
    /// How many commands may run at once.
    fn max_commands(&self) -> usize {
        let pids = self.plan.limits.pids.and_then(|pids| usize::try_from(pids).ok());
        pids.unwrap_or(MAX_COMMANDS).min(MAX_COMMANDS)
    }

    /// Whom the command takes itself for: where all users have one id, its environment says so.
    fn user(&self, request: &ExecRequest) -> &SandboxUser {
        let (plan, variable) = (&self.plan, request.env.iter().find(|(name, _)| name == "USER"));
        let is_it = |user: &&SandboxUser| match (request.user, variable) {
            (Some(ids), _) => user.uid == ids.uid,
            (None, Some((_, name))) => name == user.name.as_str(),
            (None, None) => false,
        };
        plan.users.iter().find(is_it).unwrap_or(&plan.user)
    }

    /// Starts a worker for a command, and tells it the command.
    pub(super) fn start(&mut self, request: &ExecRequest) -> Result<CommandWorker, StartFailure> {
        let other = |step: &str, error: io::Error| StartFailure::Other {
            step: step.to_owned(),
            errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        if self.commands.len() >= self.max_commands() {
            let most = self.max_commands();
            let step = format!("start one more command beside {most}");
            return Err(other(&step, Errno::AGAIN.into()));
        }
        let caller = self.caller(request.user);
        let cwd = request.cwd.as_os_str().as_encoded_bytes();
        let mut trees = self.trees.borrow_mut();
        // Others may be in the worker's memory, and it says so itself.
        if trees.has_root() {
            let entered = check_directory(&mut trees, caller, cwd);
            entered.map_err(|errno| StartFailure::Directory {
                errno: errno.raw_os_error(),
            })?;
        }
        drop(trees);
        let worker = match self.ready.take() {
            Some(worker) => Ok(worker),
            None => WorkerProcess::start(self.kind.role),
        };
        let worker = worker.map_err(|error| other("start a worker", error))?;
        if let Some(cpus) = self.plan.limits.cpus {
            let bound = worker.stay_on(cpus.millis.div_ceil(1000));
            bound.map_err(|error| other("bind a worker to processors", error))?;
        }
        let setup = worker_setup(&self.plan, self.trees.borrow().mount_points(), self.user(request));
        let made = SimulatedSandbox::new(
            self.kind,
            worker,
            self.trees.clone(),
            self.plan.limits.clone(),
            EnforcementReport::default(),
            None,
            CodeOfFiles::new(None),
            InterpreterPlace::open(self.interpreters.as_ref()),
            &setup,
        );
        let lost = |error: IsolationError| StartFailure::Other {
            step: error.to_string(),
            errno: Errno::IO.raw_os_error(),
        };
        let mut sandbox = made.map_err(lost)?.for_caller(caller);
        let inner = sandbox.exec(request).map_err(lost)?;
        Ok(CommandWorker {
            sandbox,
            inner,
            killed_for: None,
            has_ended: false,
        })
    }

    /// Has each command take its turn.
    pub(super) fn turn_commands(&mut self, take_output: bool) -> Result<(), IsolationError> {
        let all: Vec<ExecId> = self.commands.keys().copied().collect();
        for exec in all {
            let Some(command) = self.commands.get_mut(&exec) else {
                continue;
            };
            for event in command.sandbox.turn(take_output)? {
                self.take_event(exec, event);
            }
            if self.commands.get(&exec).is_some_and(|command| command.has_ended) {
                self.forget(exec)?;
            }
        }
        Ok(())
    }

    fn take_event(&mut self, exec: ExecId, event: SandboxEvent) {
        let Some(command) = self.commands.get_mut(&exec) else {
            return;
        };
        match event {
            SandboxEvent::Exec { event, .. } => {
                let event = match event {
                    ExecEvent::Started { .. } => ExecEvent::Started { pid: pid_of(exec) },
                    event => event,
                };
                command.has_ended |= matches!(event, ExecEvent::Ended(_));
                self.tell(exec, event);
            }
            SandboxEvent::Limit(hit) if hit.effect == LimitEffect::Killed => command.killed_for = Some(hit),
            SandboxEvent::Limit(hit) => self.note_hit(hit),
            SandboxEvent::Gone if !command.has_ended => {
                command.has_ended = true;
                let end = end_for(command.killed_for.as_ref());
                self.tell(exec, ExecEvent::Ended(end));
            }
            SandboxEvent::Gone => {}
        }
    }

    /// Ends the worker of a command that has ended, and keeps what is on record of it.
    pub(super) fn forget(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        let Some(mut command) = self.commands.remove(&exec) else {
            return Ok(());
        };
        let last = command.sandbox.kill()?;
        self.usage.user_cpu_us += last.usage.user_cpu_us;
        self.usage.system_cpu_us += last.usage.system_cpu_us;
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(last.usage.peak_memory_bytes);
        for denial in last.denials {
            self.note_denial(denial);
        }
        Ok(())
    }

    fn note_denial(&mut self, denial: DenialRecord) {
        let is_it = |known: &&mut DenialRecord| {
            (&known.subject, &known.name, &known.rule) == (&denial.subject, &denial.name, &denial.rule)
        };
        let has_room = self.denials.len() < MAX_DENIALS;
        match self.denials.iter_mut().find(is_it) {
            Some(known) => known.count = known.count.saturating_add(denial.count),
            None if has_room => self.denials.push(denial),
            None => {}
        }
    }

    /// Ends the largest worker where all together have more memory than the sandbox may have.
    pub(super) fn bound_memory(&mut self) -> Result<(), IsolationError> {
        let Some(limit) = self.plan.limits.memory.map(|memory| memory.0) else {
            return Ok(());
        };
        if self.commands.is_empty() || Instant::now() < self.looks_at_memory {
            return Ok(());
        }
        self.looks_at_memory = Instant::now() + MEMORY_LOOK;
        let uses = self.uses();
        let together: u64 = uses.iter().map(|(_, found)| found.memory_bytes).sum();
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(Some(together));
        let largest = uses.iter().max_by_key(|(_, found)| found.memory_bytes);
        let Some((exec, _)) = largest.filter(|_| together > limit) else {
            return Ok(());
        };
        let exec = *exec;
        let hit = LimitHit {
            limit: LimitName::Memory,
            value: limit,
            effect: LimitEffect::Killed,
        };
        self.tell(exec, ExecEvent::Ended(end_for(Some(&hit))));
        self.forget(exec)
    }

    pub(super) fn uses(&self) -> Vec<(ExecId, WorkerUse)> {
        let all = self.commands.iter();
        all.map(|(exec, command)| (*exec, worker_use(command.sandbox.worker_pid())))
            .collect()
    }

    /// Starts a worker ahead of the next command, once one was taken.
    pub(super) fn start_ahead(&mut self) {
        if self.ready.is_none() && !self.commands.is_empty() && self.killed.is_none() {
            // Without it the next command starts its own, or says why it cannot.
            self.ready = WorkerProcess::start(self.kind.role).ok();
        }
    }
}

/// How a command ended whose worker is gone.
fn end_for(killed_for: Option<&LimitHit>) -> ExecEnd {
    match killed_for {
        Some(hit) if hit.limit == LimitName::Memory => ExecEnd::OutOfMemory { limit: hit.value },
        _ => ExecEnd::Signaled { signal: SIGKILL },
    }
}

fn pid_of(exec: ExecId) -> u32 {
    exec.0.wrapping_add(FIRST_PID - 1).max(FIRST_PID)
}
