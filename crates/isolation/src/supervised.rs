//! A running sandbox that a guest and a watcher serve: what is the same at every level of processes.

use std::borrow::Cow;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecRequest, TerminalSize, UserIds};
use offleash_core::level::Level;
use offleash_core::record::{LimitHit, RunUsage};
use offleash_core::spec::ProcessRef;
use offleash_sys::network::NetworkSockets;
use offleash_sys::process;
use rustix::process::Pid;

use crate::entered::{EnteredProcesses, not_entered};
use crate::error::IsolationError;
use crate::guest_link::GuestLink;
use crate::limits::LimitWatcher;
use crate::pause::{self, PauseMeans};
use crate::process::door::JoinedProcess;
use crate::process::handshake::ParentEnd;
use crate::sandbox::{
    ActivityMeasure, DescriptorInterest, EnforcementReport, ExecId, FinalReport, Sandbox, SandboxEvent, UsageMeasure,
};

/// How long there is nothing to look at while nothing runs.
const LONG: Duration = Duration::from_secs(3600);

/// What a level does in its own way.
pub(crate) trait LevelHolding: Debug {
    const LEVEL: Level;
    /// Whether paths inside are what the guest sees, so that it can serve files.
    const SERVES_FILES: bool;

    /// The request as the guest is to carry it out.
    fn request<'r>(&self, request: &'r ExecRequest) -> Result<Cow<'r, ExecRequest>, IsolationError> {
        Ok(Cow::Borrowed(request))
    }

    /// Takes in, at each turn, what the guest told.
    fn take_in(&mut self, served: &mut ServedBy) -> Vec<SandboxEvent>;

    /// Corrects what was said of the sandbox when it was made, by what the guest told.
    fn correct(&mut self, enforcement: &mut EnforcementReport) {
        let _as_said = enforcement;
    }

    /// Looks, after each tick of the watcher, at what that does not.
    fn look(&mut self, now: Instant, served: &mut ServedBy) -> Result<Vec<SandboxEvent>, IsolationError> {
        let _nothing_more = (now, served);
        Ok(Vec::new())
    }

    /// What reaching a limit means at this level.
    fn reached(&self, hit: LimitHit) -> LimitHit {
        hit
    }

    /// The sandbox's first process, where it is one.
    fn first_process(&self) -> Option<Pid> {
        None
    }

    /// Lets a copy of a zygote's process in, which then waits: the one that was asked for ahead, or one of the zygote to
    /// which `zygote` connects.
    fn let_in(
        &mut self,
        served: &ServedBy,
        request: &ExecRequest,
        zygote: &mut dyn FnMut() -> io::Result<OwnedFd>,
    ) -> Result<JoinedProcess, IsolationError> {
        let _not_here = (served, request, zygote);
        Err(IsolationError::Unsupported {
            level: Self::LEVEL,
            operation: "let a process into a sandbox that runs",
        })
    }

    /// Ends the copy of a zygote's process that was asked for ahead, if none was let in yet: it is among the sandbox's
    /// processes, and nobody else's code runs there as long as it is not as they are.
    fn turn_away(&mut self) {}

    /// As [`Sandbox::found_no_route`].
    fn found_no_route(&self) -> u64 {
        0
    }

    /// As [`Sandbox::keep_mounts`].
    fn keep_mounts(&self) -> Option<OwnedFd> {
        None
    }

    /// Why a guest never spoke, where whoever was to start it has said something.
    fn why_not_started(&mut self) -> Option<String> {
        None
    }

    /// Ends every process and removes what the sandbox consists of.
    fn end(&mut self, served: &mut ServedBy) -> Result<FinalReport, IsolationError>;
}

/// Who serves a sandbox.
#[derive(Debug)]
pub(crate) struct ServedBy {
    pub(crate) link: GuestLink,
    pub(crate) watcher: LimitWatcher,
}

impl ServedBy {
    /// Where room was made for what a process reserves, what it uses of that is bounded by the watcher alone.
    pub(crate) fn watch_what_is_reserved(&mut self) {
        if self.link.has_made_room() {
            self.watcher.watch_closely();
        }
    }
}

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct SupervisedSandbox<H: LevelHolding> {
    holding: H,
    served: ServedBy,
    /// Tells, until the guest speaks, why it could not be exec'd.
    channel: Option<ParentEnd>,
    enforcement: EnforcementReport,
    network: Option<NetworkSockets>,
    entered: EnteredProcesses,
    /// While it is paused.
    pause: Option<PauseMeans>,
    killed: Option<FinalReport>,
}

impl<H: LevelHolding> SupervisedSandbox<H> {
    pub(crate) fn by(holding: H, served: ServedBy, channel: ParentEnd, enforcement: EnforcementReport) -> Self {
        Self {
            holding,
            served,
            channel: Some(channel),
            enforcement,
            network: None,
            entered: EnteredProcesses::default(),
            pause: None,
            killed: None,
        }
    }

    /// The same with a network.
    pub(crate) fn with_network(mut self, network: Option<NetworkSockets>) -> Self {
        self.network = network;
        self
    }

    fn limits_reached(&mut self, now: Instant) -> Vec<SandboxEvent> {
        let hits = self.served.watcher.tick(now).into_iter();
        hits.map(|hit| SandboxEvent::Limit(self.holding.reached(hit))).collect()
    }

    /// A guest that never spoke was perhaps never exec'd; then the first process said why.
    fn check_that_it_started(&mut self) -> Result<(), IsolationError> {
        if self.served.link.has_spoken() {
            self.channel = None;
        }
        if !self.served.link.is_gone() {
            return Ok(());
        }
        match self.channel.take().map(|channel| channel.report()) {
            Some(Err(failure)) if failure.source.kind() != io::ErrorKind::UnexpectedEof => Err(IsolationError::Step {
                level: H::LEVEL,
                step: failure.step,
                subject: failure.subject,
                source: failure.source,
            }),
            Some(_) => self.holding.why_not_started().map_or(Ok(()), |said| {
                Err(IsolationError::Step {
                    level: H::LEVEL,
                    step: "starting the guest".to_owned(),
                    subject: String::new(),
                    source: io::Error::other(said),
                })
            }),
            None => Ok(()),
        }
    }
}

impl<H: LevelHolding> Sandbox for SupervisedSandbox<H> {
    fn enforcement(&self) -> &EnforcementReport {
        &self.enforcement
    }

    fn take_network(&mut self) -> Option<NetworkSockets> {
        self.network.take()
    }

    fn was_out_of_memory(&mut self) -> Option<u64> {
        self.served.watcher.was_out_of_memory(Instant::now())
    }

    fn found_no_route(&self) -> u64 {
        self.holding.found_no_route()
    }

    fn is_finishing(&self) -> bool {
        self.served.link.is_renaming()
    }

    fn keep_mounts(&self) -> Option<OwnedFd> {
        self.holding.keep_mounts()
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        self.holding.turn_away();
        self.served.watcher.expect_work();
        self.served.link.exec(&*self.holding.request(request)?)
    }

    fn first_process(&self) -> Option<ProcessRef> {
        let pid = self.holding.first_process()?.as_raw_pid();
        Some(ProcessRef {
            pid: pid.cast_unsigned(),
            start_ticks: process::start_ticks(pid).ok()??,
        })
    }

    fn enter(
        &mut self,
        request: &ExecRequest,
        zygote: &mut dyn FnMut() -> io::Result<OwnedFd>,
    ) -> Result<ExecId, IsolationError> {
        self.served.watcher.expect_work();
        let arrived = self.holding.let_in(&self.served, request, zygote)?;
        let pid = arrived.pid;
        let (listener, process) = arrived.go().map_err(not_entered)?;
        let exec = self.served.link.reserve();
        self.served.link.listen_to(listener);
        self.served.watcher.watch_too(pid);
        self.entered.add(exec, process);
        Ok(exec)
    }

    fn input_window(&self, exec: ExecId) -> usize {
        if self.entered.has(exec) {
            return self.entered.input_window(exec);
        }
        self.served.link.input_window(exec)
    }

    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        if self.entered.has(exec) {
            self.entered.input(exec, bytes);
            return Ok(());
        }
        self.served.link.input(exec, bytes)
    }

    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        if self.entered.has(exec) {
            self.entered.close_input(exec);
            return Ok(());
        }
        self.served.link.close_input(exec)
    }

    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        if self.entered.has(exec) {
            return self.entered.signal(exec, signal);
        }
        self.served.link.signal(exec, signal)
    }

    fn hold_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        if self.entered.has(exec) {
            self.entered.hold(exec, true);
            return Ok(());
        }
        self.served.link.hold_output(exec)
    }

    fn release_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        if self.entered.has(exec) {
            self.entered.hold(exec, false);
            return Ok(());
        }
        self.served.link.release_output(exec)
    }

    fn resize(&mut self, exec: ExecId, size: TerminalSize) -> Result<(), IsolationError> {
        self.served.link.resize(exec, size)
    }

    fn open_files(&mut self, user: Option<UserIds>) -> Result<OwnedFd, IsolationError> {
        if !H::SERVES_FILES {
            return Err(IsolationError::Unsupported {
                level: H::LEVEL,
                operation: "serve files",
            });
        }
        self.holding.turn_away();
        self.served.watcher.expect_work();
        self.served.link.open_files(user)
    }

    fn take_tool_calls(&mut self) -> Result<OwnedFd, IsolationError> {
        // The socket that they come through has a name in the network that they are in.
        if !H::SERVES_FILES {
            return Err(IsolationError::Unsupported {
                level: H::LEVEL,
                operation: "offer tools",
            });
        }
        self.served.link.take_tool_calls()
    }

    fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>> {
        let mut interests = self.served.link.wait_on(take_output);
        interests.extend(self.entered.wait_on(take_output));
        interests
    }

    fn next_turn(&self) -> Instant {
        match self.pause {
            // Nothing runs, so nothing is reached.
            Some(_) => Instant::now() + LONG,
            None => self.served.watcher.next_tick(),
        }
    }

    fn news(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        let mut events = self.served.link.turn(take_output)?;
        self.check_that_it_started()?;
        if self.pause.is_none() {
            events.extend(self.entered.turn(take_output));
        }
        events.extend(self.holding.take_in(&mut self.served));
        self.holding.correct(&mut self.enforcement);
        if events.contains(&SandboxEvent::Gone) && self.killed.is_none() {
            // What it ended of, if that was a limit, comes first.
            events.splice(0..0, self.limits_reached(Instant::now()));
        }
        Ok(events)
    }

    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        let mut events = self.news(take_output)?;
        let now = Instant::now();
        if self.pause.is_none() && now >= self.served.watcher.next_tick() && !self.served.link.is_gone() {
            events.extend(self.limits_reached(now));
            events.extend(self.holding.look(now, &mut self.served)?);
        }
        Ok(events)
    }

    fn usage(&mut self) -> RunUsage {
        self.served.watcher.usage()
    }

    fn measure(&mut self) -> UsageMeasure {
        self.served.watcher.measure()
    }

    fn activity(&mut self, counts_forks: bool) -> ActivityMeasure {
        let measured = self.served.watcher.activity(counts_forks);
        self.served.link.with_refused(measured)
    }

    fn throttle(&mut self, cpus_millis: u64) -> Result<(), IsolationError> {
        let throttled = self.served.watcher.throttle(cpus_millis);
        throttled.map_err(|source| IsolationError::Running {
            action: "slow the sandbox down",
            source,
        })
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        self.hold_still()?;
        if let Some(pause) = &self.pause {
            pause.give_memory_back(&self.served);
        }
        Ok(())
    }

    fn hold_still(&mut self) -> Result<(), IsolationError> {
        if self.pause.is_none() {
            self.pause = Some(pause::pause(&mut self.served)?);
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        if let Some(pause) = &self.pause {
            pause.end(&self.served)?;
            self.pause = None;
            self.served.watcher.look_soon();
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<FinalReport, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        if let Some(pause) = self.pause.take() {
            pause.end_for_good(&self.served)?;
        }
        let last = self.holding.end(&mut self.served)?;
        self.killed = Some(last.clone());
        Ok(last)
    }
}

impl<H: LevelHolding> Drop for SupervisedSandbox<H> {
    fn drop(&mut self) {
        // A caller that wants to know whether it worked calls `kill` itself.
        let _killed = self.kill();
    }
}
