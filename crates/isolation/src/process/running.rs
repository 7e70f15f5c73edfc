//! A sandbox of the level `process` while it runs.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::exec::ExecRequest;
use offleash_core::level::Level;
use offleash_core::plan::Plan;
use offleash_sys::namespaces::ForkedChild;
use offleash_sys::network::NetworkSockets;
use offleash_sys::process;
use rustix::process::Pid;

use super::census::OtherProcesses;
use super::door::{JoinSpec, JoinedProcess, PendingFork};
use super::grouping::ControlGroup;
use super::handshake::ParentEnd;
use super::no_route;
use super::showing::ShownFiles;
use crate::entered::not_entered;
use crate::error::IsolationError;
use crate::guest_link::{GuestLink, running};
use crate::limits::shown::UsedAmounts;
use crate::limits::{LimitWatcher, TmpfsMounts};
use crate::sandbox::{EnforcementReport, FinalReport, SandboxEvent};
use crate::supervised::{LevelHolding, ServedBy, SupervisedSandbox};

/// How much of what a first process said is told, bytes.
const MAX_SAID: u64 = 2048;

/// What a sandbox is put together from.
#[derive(Debug)]
pub(crate) struct SandboxParts {
    pub(crate) first: Option<ForkedChild>,
    pub(crate) channel: ParentEnd,
    pub(crate) control: OwnedFd,
    pub(crate) listener: Option<OwnedFd>,
    /// Where what is shown of the limits is kept up to date.
    pub(crate) shown: Option<OwnedFd>,
    pub(crate) network: Option<NetworkSockets>,
    pub(crate) group: Option<ControlGroup>,
    pub(crate) enforcement: EnforcementReport,
    /// Where processes that were not started inside come in, if they may.
    pub(crate) door: Option<JoinSpec>,
    /// What comes in there first, if it was asked for ahead.
    pub(crate) coming: Option<PendingFork>,
}

/// How often to look how full each tmpfs is and, where no cgroup counts memory, to ask the guest what the sandbox holds.
const REPORT_PERIOD: Duration = Duration::from_millis(250);

/// A running sandbox.
pub(super) type ProcessSandbox = SupervisedSandbox<NamespaceHolding>;

/// What holds it.
#[derive(Debug)]
pub(super) struct NamespaceHolding {
    first: ForkedChild,
    door: Option<JoinSpec>,
    coming: Option<PendingFork>,
    /// Whether nothing was ever started there.
    is_empty: bool,
    tmpfs: TmpfsMounts,
    /// When it is time for the next report.
    next_report: Instant,
    showing: Option<ShownFiles>,
}

impl ProcessSandbox {
    pub(super) fn new(plan: &Plan, parts: SandboxParts) -> Result<Self, IsolationError> {
        let Some(first) = parts.first else {
            return Err(IsolationError::Guest {
                reason: "the first process is gone".to_owned(),
            });
        };
        let mut link = GuestLink::new(parts.control, parts.listener);
        if plan.has_overlay() {
            link = link.renaming(first.pid, plan);
        }
        if plan.has_own_root() {
            link.serve_sudo()?;
        }
        let showing = parts
            .shown
            .and_then(|directory| ShownFiles::new(plan, first.pid, directory));
        link.show_memory(
            showing
                .as_ref()
                .and_then(|showing| showing.figures(&UsedAmounts::default())),
        );
        let served = ServedBy {
            link,
            watcher: LimitWatcher::new(super::limits_of_itself(plan), parts.group, first.pid, plan.layers())
                .with_volumes(plan.written_volumes())
                .ending(plan.memory_end),
        };
        let namespaces = NamespaceHolding {
            tmpfs: TmpfsMounts::new(first.pid, plan),
            first,
            door: parts.door,
            coming: parts.coming,
            is_empty: true,
            next_report: Instant::now() + REPORT_PERIOD,
            showing,
        };
        Ok(Self::by(namespaces, served, parts.channel, parts.enforcement).with_network(parts.network))
    }
}

impl LevelHolding for NamespaceHolding {
    const LEVEL: Level = Level::Process;
    const SERVES_FILES: bool = true;

    fn take_in(&mut self, served: &mut ServedBy) -> Vec<SandboxEvent> {
        served.watch_what_is_reserved();
        if let Some(report) = served.link.take_report() {
            let tmpfs: u64 = report.tmpfs.iter().map(|tmpfs| tmpfs.used).sum();
            served.watcher.note_guest_usage(report.shm_bytes.saturating_add(tmpfs));
        }
        Vec::new()
    }

    fn look(&mut self, now: Instant, served: &mut ServedBy) -> Result<Vec<SandboxEvent>, IsolationError> {
        // Where nothing runs nobody looks.
        if let Some(showing) = self.showing.as_mut().filter(|showing| showing.is_due(now))
            && !served.watcher.is_alone()
        {
            let figures = showing.refresh(now, &served.watcher.measure());
            served.link.show_memory(figures);
        }
        if now < self.next_report || !served.link.has_spoken() {
            return Ok(Vec::new());
        }
        self.next_report = now + REPORT_PERIOD;
        if served.watcher.needs_guest_usage() {
            served.link.ask_for_report()?;
        }
        Ok(self.tmpfs.full().into_iter().map(SandboxEvent::Limit).collect())
    }

    fn first_process(&self) -> Option<Pid> {
        Some(self.first.pid)
    }

    fn let_in(
        &mut self,
        served: &ServedBy,
        request: &ExecRequest,
        zygote: &mut dyn FnMut() -> io::Result<OwnedFd>,
    ) -> Result<JoinedProcess, IsolationError> {
        let Some(door) = &self.door else {
            return Err(IsolationError::Unsupported {
                level: Level::Process,
                operation: "let a process into a sandbox that was not made below a zygote",
            });
        };
        let group = served.watcher.group();
        let others = || match self.is_empty {
            true => Ok(OtherProcesses::Nobody),
            false => door.others(),
        };
        let ahead = self.coming.take();
        let ahead = ahead.map(|coming| door.let_in(request, coming, &OtherProcesses::Nobody, group));
        let arrived = ahead.and_then(Result::ok).map_or_else(
            // None was on its way, or it got lost there.
            || {
                let others = others()?;
                let coming = PendingFork::ask(zygote()?, self.first.pid)?;
                coming.enter(group)?;
                door.let_in(request, coming, &others, group)
            },
            Ok,
        );
        self.is_empty &= arrived.is_err();
        arrived.map_err(not_entered)
    }

    fn turn_away(&mut self) {
        self.is_empty = false;
        if let (Some(coming), Some(door)) = (self.coming.take(), &self.door) {
            door.turn_away(coming);
        }
    }

    fn found_no_route(&self) -> u64 {
        no_route::count(self.first.pid)
    }

    fn keep_mounts(&self) -> Option<OwnedFd> {
        mounts_of(&self.first)
    }

    fn end(&mut self, served: &mut ServedBy) -> Result<FinalReport, IsolationError> {
        end_with_first(&self.first, &mut self.tmpfs, served)
    }
}

/// Ends a sandbox with its first process, and removes what it consists of.
pub(crate) fn end_with_first(
    first: &ForkedChild,
    tmpfs: &mut TmpfsMounts,
    served: &mut ServedBy,
) -> Result<FinalReport, IsolationError> {
    // The last time that it can be seen.
    let mut last_hits = tmpfs.full();
    last_hits.extend(served.watcher.count_before_the_end(u64::from(served.link.has_failed())));
    process::kill(first.pidfd.as_fd()).map_err(running("kill the first process"))?;
    // Returns when every process of the pid namespace is gone: the kernel lets its first one end last.
    let resources = process::reap(first.pid).map_err(running("wait for the first process"))?;
    let denials = served.link.finish()?;
    let mut last = served
        .watcher
        .finish(&resources)
        .map_err(running("remove the cgroup"))?;
    last.denials = denials;
    last.limits_hit.extend(last_hits);
    Ok(last)
}

/// The end of what a first process said before it ended, in one line; nothing if it said nothing.
pub(crate) fn last_words(said: &mut File) -> Option<String> {
    let length = said.seek(SeekFrom::End(0)).ok()?;
    said.seek(SeekFrom::Start(length.saturating_sub(MAX_SAID))).ok()?;
    let mut bytes = Vec::new();
    said.take(MAX_SAID).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then(|| offleash_core::text::one_line(text.as_bytes()).into_owned())
}

/// What is mounted in the namespace of a first process.
pub(crate) fn mounts_of(first: &ForkedChild) -> Option<OwnedFd> {
    // Not reaped yet, so its number is its own. Where it may not be looked at, nothing is kept.
    let namespace = File::open(format!("/proc/{}/ns/mnt", first.pid.as_raw_pid()));
    namespace.ok().map(OwnedFd::from)
}
