//! A sandbox of this level while it runs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use offleash_core::exec::{ExecRequest, TerminalSize};
use offleash_core::level::Level;
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;
use offleash_core::record::{LimitEffect, LimitHit, Usage};
use offleash_sys::namespaces::Child;
use offleash_sys::seccomp::{Listener, Notification};
use rustix::io::Errno;

use super::attributes::Attributes;
use super::create::MadeCopy;
use super::failed;
use super::forks::Forks;
use super::places::Places;
use super::remains::Remains;
use super::workspace;
use crate::error::IsolationError;
use crate::guest_link::{GuestLink, Mediator, running};
use crate::limits::Watcher;
use crate::process::grouping::Group;
use crate::process::handshake::ParentEnd;
use crate::sandbox::{Enforcement, ExecId, Final, Interest, Sandbox, SandboxEvent};

/// What the filter leaves to us.
#[derive(Debug)]
struct LeftToUs {
    attributes: Attributes,
    /// Where no group counts.
    forks: Option<Forks>,
}

impl Mediator for LeftToUs {
    fn admits_process(&mut self) -> bool {
        self.forks.as_mut().is_none_or(Forks::admit)
    }

    fn carry_out(&mut self, call: &Notification, listener: &Listener) -> Option<Result<(), Errno>> {
        self.attributes.carry_out(call, listener)
    }
}

/// What a sandbox is put together from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) first: Child,
    pub(super) remains: Remains,
    pub(super) channel: ParentEnd,
    pub(super) control: OwnedFd,
    pub(super) listener: Option<OwnedFd>,
    pub(super) group: Option<Group>,
    pub(super) enforcement: Enforcement,
    pub(super) places: Places,
    pub(super) copies: Vec<MadeCopy>,
    pub(super) attributes: Attributes,
    /// How many processes to admit, where no group counts them.
    pub(super) most_processes: Option<u64>,
}

/// A running sandbox.
#[derive(Debug)]
pub(super) struct LandlockSandbox {
    /// Held so that its id stays its own.
    _first: Child,
    remains: Remains,
    /// Tells, until the guest speaks, why it could not be exec'd.
    channel: Option<ParentEnd>,
    link: GuestLink,
    watcher: Watcher,
    enforcement: Enforcement,
    places: Places,
    copies: Vec<MadeCopy>,
    pids: Option<u64>,
    killed: Option<Final>,
}

impl LandlockSandbox {
    pub(super) fn new(plan: &Plan, parts: Parts) -> Self {
        let Parts {
            first,
            remains,
            channel,
            control,
            listener,
            group,
            enforcement,
            places,
            copies,
            attributes,
            most_processes,
        } = parts;
        let copied = copies
            .iter()
            .filter_map(|(directory, _)| Some(directory.parent()?.to_owned()));
        let layers = copied.chain([places.as_layer()]).collect();
        let forks = most_processes.map(|most| Forks::new(first.pid, most));
        let left_to_us = LeftToUs { attributes, forks };
        let watcher = Watcher::new(plan.limits.clone(), group, first.pid, layers);
        Self {
            _first: first,
            remains,
            channel: Some(channel),
            link: GuestLink::new(control, listener)
                .without_oom_score()
                .mediated_by(left_to_us),
            watcher,
            enforcement,
            places,
            copies,
            pids: plan.limits.pids,
            killed: None,
        }
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

impl Sandbox for LandlockSandbox {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        if request.tty.is_some() {
            // It would be one of the host's terminals, among those of the user.
            return Err(IsolationError::Unsupported {
                level: Level::ProcessLandlock,
                operation: "give a command a terminal",
            });
        }
        self.link.exec(&self.places.translate(request))
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
        if self.link.take_put_off()
            && let Some(value) = self.pids
        {
            let (limit, effect) = (LimitName::Pids, LimitEffect::Refused);
            events.push(SandboxEvent::Limit(LimitHit { limit, value, effect }));
        }
        let now = Instant::now();
        if now >= self.watcher.next_tick() && !self.link.is_gone() {
            events.extend(self.watcher.tick(now).into_iter().map(SandboxEvent::Limit));
        }
        Ok(events)
    }

    fn usage(&mut self) -> Usage {
        self.watcher.usage()
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported {
            level: Level::ProcessLandlock,
            operation: "pause a sandbox",
        })
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported {
            level: Level::ProcessLandlock,
            operation: "resume a sandbox",
        })
    }

    fn kill(&mut self) -> Result<Final, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        if let Some(group) = self.watcher.group() {
            // Nothing escapes this; what follows is for what is in no group, and reaps.
            group
                .kill()
                .map_err(io::Error::other)
                .map_err(running("kill the sandbox's cgroup"))?;
        }
        let resources = self.remains.kill().map_err(running("kill the sandbox's processes"))?;
        let denials = self.link.finish()?;
        // Before the last measurement, which is of the changes and not of the copy.
        for (directory, manifest) in &self.copies {
            workspace::reduce(directory, manifest).map_err(running("find out what changed in the workspace"))?;
        }
        self.copies.clear();
        let mut last = self.watcher.finish(&resources).map_err(running("remove the cgroup"))?;
        last.denials = denials;
        self.places.remove();
        self.killed = Some(last.clone());
        Ok(last)
    }
}

impl Drop for LandlockSandbox {
    fn drop(&mut self) {
        // A caller that wants to know whether it worked calls `kill` itself.
        let _killed = self.kill();
    }
}
