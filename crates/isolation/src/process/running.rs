//! A sandbox of the level `process` while it runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecRequest, TerminalSize};
use offleash_core::level::Level;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::Plan;
use offleash_core::record::{LimitEffect, LimitHit, Usage};
use offleash_protocol as protocol;
use offleash_sys::namespaces::Child;
use offleash_sys::process;

use super::failed;
use super::grouping::Group;
use super::handshake::ParentEnd;
use crate::error::IsolationError;
use crate::guest_link::{GuestLink, running};
use crate::limits::Watcher;
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

/// How often the guest is asked what the sandbox holds: how full each tmpfs is and, where no cgroup counts it, memory.
const REPORT_PERIOD: Duration = Duration::from_millis(250);

/// How long a guest has for the answer when its sandbox is about to be killed.
const LAST_REPORT: Duration = Duration::from_millis(50);

/// A running sandbox.
#[derive(Debug)]
pub(super) struct ProcessSandbox {
    first: Child,
    /// Tells, until the guest speaks, why it could not be exec'd.
    channel: Option<ParentEnd>,
    link: GuestLink,
    watcher: Watcher,
    enforcement: Enforcement,
    limits: Limits,
    /// When the guest is asked again what the sandbox holds.
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
        Ok(Self {
            first,
            channel: Some(channel),
            link: GuestLink::new(control, listener),
            watcher,
            enforcement,
            limits: plan.limits.clone(),
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

    /// When the command failed, asks once more: a full tmpfs is told as the limit that it is.
    fn last_report(&mut self) -> Result<Vec<LimitHit>, IsolationError> {
        let mut events = Vec::new();
        if !self.link.has_failed() || self.link.is_gone() {
            return Ok(Vec::new());
        }
        self.link.ask_for_report()?;
        let until = Instant::now() + LAST_REPORT;
        while !self.link.is_gone() && Instant::now() < until {
            self.link.wait_briefly()?;
            self.link.turn(true)?;
            if let Some(report) = self.link.take_report() {
                self.take_report(&report, &mut events);
                break;
            }
        }
        let hit = |event| match event {
            SandboxEvent::Limit(hit) => Some(hit),
            _ => None,
        };
        Ok(events.into_iter().filter_map(hit).collect())
    }

    fn take_report(&mut self, report: &protocol::Usage, events: &mut Vec<SandboxEvent>) {
        let tmpfs: u64 = report.tmpfs.iter().map(|tmpfs| tmpfs.used).sum();
        self.watcher.note_guest_usage(report.shm_bytes.saturating_add(tmpfs));
        let full = report.tmpfs.iter().any(|tmpfs| {
            tmpfs.total > 0 && tmpfs.used >= tmpfs.total
                || tmpfs.files_total > 0 && tmpfs.files_used >= tmpfs.files_total
        });
        if full && let Some(size) = self.limits.tmp {
            events.push(SandboxEvent::Limit(LimitHit {
                limit: LimitName::Tmp,
                value: size.0,
                effect: LimitEffect::Refused,
            }));
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
            self.take_report(&report, &mut events);
        }
        let now = Instant::now();
        if now >= self.watcher.next_tick() && !self.link.is_gone() {
            events.extend(self.watcher.tick(now).into_iter().map(SandboxEvent::Limit));
            if now >= self.next_report && self.link.has_spoken() {
                self.next_report = now + REPORT_PERIOD;
                self.link.ask_for_report()?;
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
        let last_hits = self.last_report()?;
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
