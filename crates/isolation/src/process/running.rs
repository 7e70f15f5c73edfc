//! A sandbox of the level `process` while it runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecRequest, TerminalSize};
use offleash_core::level::Level;
use offleash_core::plan::Plan;
use offleash_core::record::Usage;
use offleash_sys::namespaces::Child;
use offleash_sys::process;

use super::failed;
use super::grouping::Group;
use super::handshake::ParentEnd;
use crate::error::IsolationError;
use crate::guest_link::{GuestLink, running};
use crate::limits::{TmpfsMounts, Watcher};
use crate::sandbox::{Enforcement, ExecId, Final, Interest, Sandbox, SandboxEvent};

/// What a sandbox is put together from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) first: Option<Child>,
    pub(super) channel: ParentEnd,
    pub(super) control: OwnedFd,
    pub(super) listener: Option<OwnedFd>,
    pub(super) group: Option<Group>,
    pub(super) enforcement: Enforcement,
}

/// How often to look how full each tmpfs is and, where no cgroup counts memory, to ask the guest what the sandbox holds.
const REPORT_PERIOD: Duration = Duration::from_millis(250);

/// A running sandbox.
#[derive(Debug)]
pub(super) struct ProcessSandbox {
    first: Child,
    /// Tells, until the guest speaks, why it could not be exec'd.
    channel: Option<ParentEnd>,
    link: GuestLink,
    watcher: Watcher,
    enforcement: Enforcement,
    tmpfs: TmpfsMounts,
    /// When it is time for the next report.
    next_report: Instant,
    killed: Option<Final>,
}

impl ProcessSandbox {
    pub(super) fn new(plan: &Plan, parts: Parts) -> Result<Self, IsolationError> {
        let Parts {
            first,
            channel,
            control,
            listener,
            group,
            enforcement,
        } = parts;
        let Some(first) = first else {
            return Err(IsolationError::Guest {
                reason: "the first process is gone".to_owned(),
            });
        };
        let layers = plan.layers();
        let watcher = Watcher::new(plan.limits.clone(), group, first.pid, layers);
        let tmpfs = TmpfsMounts::new(first.pid, plan);
        Ok(Self {
            first,
            channel: Some(channel),
            link: GuestLink::new(control, listener),
            watcher,
            enforcement,
            tmpfs,
            next_report: Instant::now() + REPORT_PERIOD,
            killed: None,
        })
    }

    /// A guest that never spoke was perhaps never exec'd; then the first process said why.
    fn check_that_it_started(&mut self) -> Result<(), IsolationError> {
        if self.link.has_spoken() {
            self.channel = None;
        }
        if !self.link.is_gone() {
            return Ok(());
        }
        match self.channel.take().map(|channel| channel.report()) {
            Some(Err(failure)) if failure.source.kind() != io::ErrorKind::UnexpectedEof => {
                Err(failed(failure.step, failure.subject, failure.source))
            }
            _ => Ok(()),
        }
    }
}

impl Sandbox for ProcessSandbox {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        self.link.exec(request)
    }

    fn input_window(&self, exec: ExecId) -> usize {
        self.link.input_window(exec)
    }

    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        self.link.input(exec, bytes)
    }

    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        self.link.close_input(exec)
    }

    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        self.link.signal(exec, signal)
    }

    fn resize(&mut self, exec: ExecId, size: TerminalSize) -> Result<(), IsolationError> {
        self.link.resize(exec, size)
    }

    fn wait_on(&self, take_output: bool) -> Vec<Interest<'_>> {
        self.link.wait_on(take_output)
    }

    fn next_turn(&self) -> Instant {
        self.watcher.next_tick()
    }

    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        let mut events = self.link.turn(take_output)?;
        self.check_that_it_started()?;
        if let Some(report) = self.link.take_report() {
            let tmpfs: u64 = report.tmpfs.iter().map(|tmpfs| tmpfs.used).sum();
            self.watcher.note_guest_usage(report.shm_bytes.saturating_add(tmpfs));
        }
        let now = Instant::now();
        if now >= self.watcher.next_tick() && !self.link.is_gone() {
            events.extend(self.watcher.tick(now).into_iter().map(SandboxEvent::Limit));
            if now >= self.next_report && self.link.has_spoken() {
                self.next_report = now + REPORT_PERIOD;
                events.extend(self.tmpfs.full().into_iter().map(SandboxEvent::Limit));
                if self.watcher.needs_guest_usage() {
                    self.link.ask_for_report()?;
                }
            }
        }
        Ok(events)
    }

    fn usage(&mut self) -> Usage {
        self.watcher.usage()
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported {
            level: Level::Process,
            operation: "pause a sandbox yet",
        })
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported {
            level: Level::Process,
            operation: "resume a sandbox yet",
        })
    }

    fn kill(&mut self) -> Result<Final, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        // The last time that it can be seen.
        let mut last_hits = self.tmpfs.full();
        last_hits.extend(self.watcher.count_before_the_end(u64::from(self.link.has_failed())));
        process::kill(self.first.pidfd.as_fd()).map_err(running("kill the first process"))?;
        // Returns when every process of the pid namespace is gone: the kernel lets its first one end last.
        let resources = process::reap(self.first.pid).map_err(running("wait for the first process"))?;
        let denials = self.link.finish()?;
        let mut last = self.watcher.finish(&resources).map_err(running("remove the cgroup"))?;
        last.denials = denials;
        last.limits_hit.extend(last_hits);
        self.killed = Some(last.clone());
        Ok(last)
    }
}

impl Drop for ProcessSandbox {
    fn drop(&mut self) {
        // A caller that wants to know whether it worked calls `kill` itself.
        let _killed = self.kill();
    }
}
