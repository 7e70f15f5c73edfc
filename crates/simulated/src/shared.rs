//! A sandbox of level `simulated` that outlives its commands: each has a worker of its own, all are served the same trees, and so
//! is whoever asks for files from outside.
//!
//! A worker is one command's, is ended with it and says nothing of another. What it may do with files is what the command's
//! user may. Many run at once; how many, and how much memory they have together, is bounded here.

mod commands;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, TerminalSize, UserIds};
use offleash_core::plan::Plan;
use offleash_core::record::{DenialRecord, LimitHit, RunUsage};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{
    DescriptorInterest, EnforcementReport, ExecId, FinalReport, Sandbox, SandboxEvent, UsageMeasure,
};
use rustix::io::Errno;

use crate::channel::{FileChannel, UserNames};
use crate::engine::EngineKind;
use crate::interpreters::InterpreterPlace;
use crate::sandbox::SimulatedSandbox;
use crate::served::{ServedTrees, SharedTrees, usual_caller};
use crate::tree::FileCaller;
use crate::worker_process::WorkerProcess;
use commands::CommandWorker;

/// Most commands at once, each of which is a process.
pub(crate) const MAX_COMMANDS: usize = 64;
/// Most conversations about files at once.
const MAX_CHANNELS: usize = 256;
/// How often it is looked how much memory workers have.
const MEMORY_LOOK: Duration = Duration::from_millis(100);
/// How many kinds of refusals are put on record.
const MAX_DENIALS: usize = 1000;
/// How long there is nothing to look at.
const LONG: Duration = Duration::from_secs(3600);

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct SharedSandbox {
    kind: EngineKind,
    plan: Plan,
    enforcement: EnforcementReport,
    trees: SharedTrees,
    names: UserNames,
    /// One that was started ahead.
    ready: Option<WorkerProcess>,
    interpreters: Option<InterpreterPlace>,
    commands: BTreeMap<ExecId, CommandWorker>,
    channels: Vec<FileChannel>,
    next_exec: u32,
    events: VecDeque<SandboxEvent>,
    /// Since when nothing moves.
    paused_since: Option<Instant>,
    looks_at_memory: Instant,
    usage: RunUsage,
    denials: Vec<DenialRecord>,
    limits_hit: Vec<LimitHit>,
    killed: Option<FinalReport>,
}

impl SharedSandbox {
    /// One of this plan, without a command.
    pub(crate) fn new(
        kind: EngineKind,
        plan: &Plan,
        trees: ServedTrees,
        ready: Option<WorkerProcess>,
        enforcement: EnforcementReport,
    ) -> Self {
        Self {
            kind,
            plan: plan.clone(),
            enforcement,
            trees: Rc::new(RefCell::new(trees)),
            names: UserNames::of(&plan.users),
            ready,
            interpreters: None,
            commands: BTreeMap::new(),
            channels: Vec::new(),
            next_exec: 1,
            events: VecDeque::new(),
            paused_since: None,
            looks_at_memory: Instant::now(),
            usage: RunUsage::default(),
            denials: Vec::new(),
            limits_hit: Vec::new(),
            killed: None,
        }
    }

    /// The same with interpreters of scripts.
    pub(crate) fn with_interpreters(self, interpreters: Option<InterpreterPlace>) -> Self {
        Self { interpreters, ..self }
    }

    fn caller(&self, user: Option<UserIds>) -> FileCaller {
        user.map_or_else(
            || usual_caller(&self.plan),
            |ids| FileCaller {
                uid: ids.uid,
                gid: ids.gid,
            },
        )
    }

    fn tell(&mut self, exec: ExecId, event: ExecEvent) {
        self.events.push_back(SandboxEvent::Exec { exec, event });
    }

    fn note_hit(&mut self, hit: LimitHit) {
        if !self.limits_hit.contains(&hit) {
            self.limits_hit.push(hit.clone());
        }
        self.events.push_back(SandboxEvent::Limit(hit));
    }

    /// Has each conversation about files take its turn, and tells those that watch.
    fn turn_channels(&mut self) {
        let mut trees = self.trees.borrow_mut();
        for channel in &mut self.channels {
            channel.turn(&mut trees, &self.names);
        }
        self.channels.retain(|channel| !channel.is_over());
        trees.tell_changes(self.channels.iter().any(FileChannel::watches));
        let changes = trees.take_changes();
        if !changes.is_empty() {
            for channel in &mut self.channels {
                channel.tell(&changes, &mut trees, &self.names);
            }
        }
        let hits = trees.take_hits();
        drop(trees);
        hits.into_iter().for_each(|hit| self.note_hit(hit));
    }

    fn stop_workers(&mut self) -> Result<(), IsolationError> {
        if self.paused_since.is_some() {
            return Ok(());
        }
        for command in self.commands.values() {
            command.sandbox.stop_worker().map_err(running("stop a worker"))?;
        }
        self.paused_since = Some(Instant::now());
        Ok(())
    }

    fn unsupported<T>(&self, operation: &'static str) -> Result<T, IsolationError> {
        let level = self.kind.level;
        Err(IsolationError::Unsupported { level, operation })
    }

    fn command(&mut self, exec: ExecId) -> Option<(&mut SimulatedSandbox, ExecId)> {
        let command = self.commands.get_mut(&exec)?;
        Some((&mut command.sandbox, command.inner))
    }
}

fn running(action: &'static str) -> impl FnOnce(io::Error) -> IsolationError {
    move |source| IsolationError::Running { action, source }
}

impl Sandbox for SharedSandbox {
    fn enforcement(&self) -> &EnforcementReport {
        &self.enforcement
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        if request.tty.is_some() {
            return self.unsupported("give a command a terminal");
        }
        let exec = ExecId(self.next_exec);
        self.next_exec = self.next_exec.wrapping_add(1);
        match self.start(request) {
            Ok(command) => {
                self.commands.insert(exec, command);
            }
            Err(failure) => self.tell(exec, ExecEvent::Ended(ExecEnd::NotStarted(failure))),
        }
        Ok(exec)
    }

    fn enter(&mut self, _: &ExecRequest, _: &mut dyn FnMut() -> io::Result<OwnedFd>) -> Result<ExecId, IsolationError> {
        self.unsupported("let a process into a sandbox that runs")
    }

    fn input_window(&self, exec: ExecId) -> usize {
        let command = self.commands.get(&exec);
        command.map_or(0, |command| command.sandbox.input_window(command.inner))
    }

    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        match self.command(exec) {
            Some((sandbox, inner)) => sandbox.input(inner, bytes),
            None => Ok(()),
        }
    }

    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        match self.command(exec) {
            Some((sandbox, inner)) => sandbox.close_input(inner),
            None => Ok(()),
        }
    }

    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        match self.command(exec) {
            Some((sandbox, inner)) => sandbox.signal(inner, signal),
            None => Ok(()),
        }
    }

    fn hold_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        match self.command(exec) {
            Some((sandbox, inner)) => sandbox.hold_output(inner),
            None => Ok(()),
        }
    }

    fn release_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        match self.command(exec) {
            Some((sandbox, inner)) => sandbox.release_output(inner),
            None => Ok(()),
        }
    }

    fn resize(&mut self, _: ExecId, _: TerminalSize) -> Result<(), IsolationError> {
        self.unsupported("give a command a terminal")
    }

    fn open_files(&mut self, user: Option<UserIds>) -> Result<OwnedFd, IsolationError> {
        if self.channels.len() >= MAX_CHANNELS {
            return Err(running("serve files to one more client")(Errno::MFILE.into()));
        }
        let opened = FileChannel::open(self.caller(user));
        let (channel, theirs) = opened.map_err(running("open a socket for files"))?;
        self.channels.push(channel);
        Ok(theirs)
    }

    fn take_tool_calls(&mut self) -> Result<OwnedFd, IsolationError> {
        self.unsupported("offer tools")
    }

    fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>> {
        if self.paused_since.is_some() {
            return Vec::new();
        }
        let of_commands = self.commands.values();
        let of_commands = of_commands.flat_map(|command| command.sandbox.wait_on(take_output));
        let of_channels = self.channels.iter().map(|channel| {
            let (descriptor, writable) = channel.interest();
            DescriptorInterest { descriptor, writable }
        });
        of_commands.chain(of_channels).collect()
    }

    fn next_turn(&self) -> Instant {
        let now = Instant::now();
        if !self.events.is_empty() {
            return now;
        }
        if self.paused_since.is_some() {
            return now + LONG;
        }
        if self.channels.iter().any(FileChannel::has_work) {
            return now;
        }
        let of_commands = self.commands.values().map(|command| command.sandbox.next_turn());
        let bounds_memory = self.plan.limits.memory.is_some() && !self.commands.is_empty();
        let of_memory = bounds_memory.then_some(self.looks_at_memory);
        of_commands.chain(of_memory).fold(now + LONG, Instant::min)
    }

    fn news(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        self.turn(take_output)
    }

    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        if self.paused_since.is_none() && self.killed.is_none() {
            self.turn_commands(take_output)?;
            self.turn_channels();
            self.bound_memory()?;
            self.start_ahead();
        }
        Ok(self.events.drain(..).collect())
    }

    fn usage(&mut self) -> RunUsage {
        self.usage.workspace_bytes = Some(self.trees.borrow().layer_bytes());
        self.usage.peak_pids = self.usage.peak_pids.max(Some(0));
        self.usage.clone()
    }

    fn measure(&mut self) -> UsageMeasure {
        let uses = self.uses();
        let memory_bytes = uses.iter().map(|(_, found)| found.memory_bytes).sum();
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(Some(memory_bytes));
        let of_ended = self.usage.user_cpu_us.saturating_add(self.usage.system_cpu_us);
        UsageMeasure {
            cpu_us: uses
                .iter()
                .fold(of_ended, |sum, (_, found)| sum.saturating_add(found.cpu_us)),
            memory_bytes,
            memory_cache_bytes: 0,
            memory_peak_bytes: self.usage.peak_memory_bytes.unwrap_or(0),
            pids: u64::try_from(uses.len()).unwrap_or(u64::MAX),
            disk_bytes: self.trees.borrow().layer_bytes(),
        }
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        self.stop_workers()
    }

    fn hold_still(&mut self) -> Result<(), IsolationError> {
        self.stop_workers()
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        let Some(since) = self.paused_since.take() else {
            return Ok(());
        };
        for command in self.commands.values_mut() {
            command.sandbox.postpone(since.elapsed());
            command
                .sandbox
                .continue_worker()
                .map_err(running("continue a worker"))?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<FinalReport, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        self.ready = None;
        self.channels.clear();
        let all: Vec<ExecId> = self.commands.keys().copied().collect();
        let ended: Vec<Result<(), IsolationError>> = all.into_iter().map(|exec| self.forget(exec)).collect();
        let last = FinalReport {
            usage: self.usage(),
            denials: std::mem::take(&mut self.denials),
            limits_hit: Vec::new(),
            out_of_memory: false,
            uncounted: Vec::new(),
            open_files: None,
        };
        self.killed = Some(last.clone());
        ended.into_iter().collect::<Result<(), _>>()?;
        Ok(last)
    }
}
