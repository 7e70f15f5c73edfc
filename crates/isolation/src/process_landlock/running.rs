//! A sandbox of this level while it runs.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;

use offleash_core::exec::ExecRequest;
use offleash_core::level::Level;
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_sys::namespaces::ForkedChild;
use offleash_sys::seccomp::{CallNotification, NotifyListener};
use rustix::io::Errno;

use super::attributes::AttributeMediator;
use super::create::MadeCopy;
use super::forks::KnownForks;
use super::places::PathPairs;
use super::remains::RemainingProcesses;
use super::workspace;
use crate::error::IsolationError;
use crate::guest_link::{CallMediator, GuestLink, running};
use crate::limits::LimitWatcher;
use crate::process::grouping::ControlGroup;
use crate::process::handshake::ParentEnd;
use crate::sandbox::{EnforcementReport, FinalReport, SandboxEvent};
use crate::supervised::{LevelHolding, ServedBy, SupervisedSandbox};

/// What the filter leaves to us.
#[derive(Debug)]
struct LeftToUs {
    attributes: AttributeMediator,
    /// Where no group counts.
    forks: Option<KnownForks>,
}

impl CallMediator for LeftToUs {
    fn admits_process(&mut self) -> bool {
        self.forks.as_mut().is_none_or(KnownForks::admit)
    }

    fn carry_out(&mut self, call: &CallNotification, listener: &NotifyListener) -> Option<Result<(), Errno>> {
        self.attributes.carry_out(call, listener)
    }
}

/// What a sandbox is put together from.
#[derive(Debug)]
pub(super) struct SandboxParts {
    pub(super) first: ForkedChild,
    pub(super) remains: RemainingProcesses,
    pub(super) channel: ParentEnd,
    pub(super) control: OwnedFd,
    pub(super) listener: Option<OwnedFd>,
    pub(super) group: Option<ControlGroup>,
    pub(super) enforcement: EnforcementReport,
    pub(super) places: PathPairs,
    pub(super) copies: Vec<MadeCopy>,
    pub(super) attributes: AttributeMediator,
    /// How many processes to admit, where no group counts them.
    pub(super) most_processes: Option<u64>,
}

/// A running sandbox.
pub(super) type LandlockSandbox = SupervisedSandbox<RuleHolding>;

/// What holds it.
#[derive(Debug)]
pub(super) struct RuleHolding {
    /// Held so that its id stays its own.
    _first: ForkedChild,
    remains: RemainingProcesses,
    places: PathPairs,
    copies: Vec<MadeCopy>,
    pids: Option<u64>,
}

impl LandlockSandbox {
    pub(super) fn new(plan: &Plan, parts: SandboxParts) -> Self {
        let SandboxParts {
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
        let forks = most_processes.map(|most| KnownForks::new(first.pid, most));
        let left_to_us = LeftToUs { attributes, forks };
        let served = ServedBy {
            link: GuestLink::new(control, listener)
                .without_oom_score()
                .mediated_by(left_to_us),
            watcher: LimitWatcher::new(plan.limits.clone(), group, first.pid, layers),
        };
        let rules = RuleHolding {
            _first: first,
            remains,
            places,
            copies,
            pids: plan.limits.pids,
        };
        Self::by(rules, served, channel, enforcement)
    }
}

impl LevelHolding for RuleHolding {
    const LEVEL: Level = Level::ProcessLandlock;
    const SERVES_FILES: bool = false;

    fn request<'r>(&self, request: &'r ExecRequest) -> Result<Cow<'r, ExecRequest>, IsolationError> {
        if request.tty.is_some() {
            // It would be one of the host's terminals, among those of the user.
            return Err(IsolationError::Unsupported {
                level: Self::LEVEL,
                operation: "give a command a terminal",
            });
        }
        Ok(Cow::Owned(self.places.translate(request)))
    }

    fn take_in(&mut self, served: &mut ServedBy) -> Vec<SandboxEvent> {
        served.watch_what_is_reserved();
        let refused = self.pids.filter(|_| served.link.take_put_off());
        let (limit, effect) = (LimitName::Pids, LimitEffect::Refused);
        let hit = refused.map(|value| LimitHit { limit, value, effect });
        hit.map(SandboxEvent::Limit).into_iter().collect()
    }

    fn end(&mut self, served: &mut ServedBy) -> Result<FinalReport, IsolationError> {
        if let Some(group) = served.watcher.group() {
            // Nothing escapes this; what follows is for what is in no group, and reaps.
            group
                .kill()
                .map_err(io::Error::other)
                .map_err(running("kill the sandbox's cgroup"))?;
        }
        let resources = self.remains.kill().map_err(running("kill the sandbox's processes"))?;
        let denials = served.link.finish()?;
        // Before the last measurement, which is of the changes and not of the copy.
        for (directory, manifest) in &self.copies {
            workspace::reduce(directory, manifest).map_err(running("find out what changed in the workspace"))?;
        }
        self.copies.clear();
        let mut last = served
            .watcher
            .finish(&resources)
            .map_err(running("remove the cgroup"))?;
        last.denials = denials;
        self.places.remove();
        Ok(last)
    }
}
