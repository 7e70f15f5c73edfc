//! A sandbox of the level `container` while it runs.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use offleash_core::level::Level;
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_core::runtime::{RuntimeKind, RuntimePlatform};
use offleash_sys::namespaces::ForkedChild;
use rustix::process::Pid;

use crate::error::IsolationError;
use crate::guest_link::GuestLink;
use crate::limits::{LimitWatcher, TmpfsMounts};
use crate::process::running::{SandboxParts, end_with_first, last_words, mounts_of};
use crate::runtime_facts as facts;
use crate::sandbox::{EnforcementReport, FinalReport, SandboxEvent};
use crate::supervised::{LevelHolding, ServedBy, SupervisedSandbox};

/// How often to look how full each tmpfs is.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What holds it.
#[derive(Debug)]
pub(super) struct RuntimeHolding {
    first: ForkedChild,
    /// Whether the runtime ends where it gets no further process.
    ends_without_processes: bool,
    /// What the runtime says.
    said: Option<std::fs::File>,
    tmpfs: TmpfsMounts,
    next_look: Instant,
}

/// Puts a sandbox together.
pub(super) fn new_sandbox(
    plan: &Plan,
    parts: SandboxParts,
) -> Result<SupervisedSandbox<RuntimeHolding>, IsolationError> {
    let Some(first) = parts.first else {
        return Err(IsolationError::Guest {
            reason: "the first process is gone".to_owned(),
        });
    };
    let mut link = GuestLink::new(parts.control, None).without_oom_score();
    if plan.has_own_root() {
        link.serve_sudo()?;
    }
    let mut enforcement = parts.enforcement;
    describe(plan, &mut enforcement);
    let served = ServedBy {
        link,
        watcher: LimitWatcher::new(plan.limits.clone(), parts.group, first.pid, plan.layers())
            .with_volumes(plan.written_volumes())
            .ending(plan.memory_end),
    };
    let holding = RuntimeHolding {
        tmpfs: TmpfsMounts::new(first.pid, plan),
        first,
        ends_without_processes: plan
            .runtime
            .as_ref()
            .is_some_and(|runtime| runtime.kind == RuntimeKind::Runsc),
        said: parts.shown.map(std::fs::File::from),
        next_look: Instant::now() + LOOK_INTERVAL,
    };
    Ok(SupervisedSandbox::by(holding, served, parts.channel, enforcement).with_network(parts.network))
}

fn describe(plan: &Plan, enforcement: &mut EnforcementReport) {
    let Some(runtime) = &plan.runtime else { return };
    let shown = runtime.program.display();
    let version = runtime.facts.version.as_deref();
    let kernel = match runtime.kind {
        RuntimeKind::Runsc => {
            let platform = runtime.facts.platform.unwrap_or(RuntimePlatform::Systrap).name();
            format!("gVisor's, in user space, on its platform {platform}")
        }
        RuntimeKind::Kata => "that of a virtual machine".to_owned(),
        RuntimeKind::Crun | RuntimeKind::Runc | RuntimeKind::Youki => "the host's".to_owned(),
    };
    let known = version.map_or_else(|| "of an unknown version".to_owned(), str::to_owned);
    enforcement.holds("runtime", format!("{} {known} ({shown})", runtime.kind));
    enforcement.holds("kernel", kernel);
    // Not refused: distributions mend versions without another number, and the sandbox around the runtime holds.
    if let Some(reason) = version.and_then(|version| facts::advised_against(runtime.kind, version)) {
        enforcement.lacks("runtime", reason);
    }
    let capabilities = match plan.has_superuser() {
        true => "ten of the container's own for its superuser, none for others",
        false => "none, in any set",
    };
    enforcement.holds("capabilities", capabilities);
}

impl LevelHolding for RuntimeHolding {
    const LEVEL: Level = Level::Container;
    const SERVES_FILES: bool = true;

    fn take_in(&mut self, served: &mut ServedBy) -> Vec<SandboxEvent> {
        let _for_nobody = served.link.take_report();
        Vec::new()
    }

    fn look(&mut self, now: Instant, _served: &mut ServedBy) -> Result<Vec<SandboxEvent>, IsolationError> {
        if now < self.next_look {
            return Ok(Vec::new());
        }
        self.next_look = now + LOOK_INTERVAL;
        Ok(self.tmpfs.full().into_iter().map(SandboxEvent::Limit).collect())
    }

    fn reached(&self, hit: LimitHit) -> LimitHit {
        match hit.limit {
            // A runtime that gets no thread for a process ends, and all with it.
            LimitName::Pids if self.ends_without_processes => LimitHit {
                effect: LimitEffect::Killed,
                ..hit
            },
            _ => hit,
        }
    }

    fn first_process(&self) -> Option<Pid> {
        Some(self.first.pid)
    }

    fn keep_mounts(&self) -> Option<OwnedFd> {
        mounts_of(&self.first)
    }

    fn why_not_started(&mut self) -> Option<String> {
        self.said.as_mut().and_then(last_words)
    }

    fn end(&mut self, served: &mut ServedBy) -> Result<FinalReport, IsolationError> {
        end_with_first(&self.first, &mut self.tmpfs, served)
    }
}
