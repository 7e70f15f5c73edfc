//! A sandbox of the level `microvm` while it runs.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use offleash_core::level::Level;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::Plan;
use offleash_core::record::LimitHit;
use offleash_core::vm::{Acceleration, TemplateUse, VmTemplatePlan};
use offleash_sys::namespaces::ForkedChild;
use rustix::process::Pid;

use super::beginning::served_memory;
use super::{NOT_RESTORED, template};
use crate::error::IsolationError;
use crate::guest_link::GuestLink;
use crate::limits::{CountedInside, LimitWatcher, TmpfsMounts};
use crate::process::running::{SandboxParts, end_with_first, last_words, mounts_of};
use crate::sandbox::{EnforcementReport, FinalReport, SandboxEvent};
use crate::supervised::{LevelHolding, ServedBy, SupervisedSandbox};

/// What is read of what a carrier says of a template, bytes.
const MAX_REASON: u64 = 4096;
/// How often to look how full each directory in memory of the tree is.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What holds it.
#[derive(Debug)]
pub(super) struct VmHolding {
    first: ForkedChild,
    /// What they say.
    said: Option<File>,
    /// Directories in memory of the tree.
    tmpfs: TmpfsMounts,
    next_look: Instant,
    /// The machine's own directories in memory, of which its guest tells.
    inside: TmpfsMounts,
    /// What was asked for.
    asked: Limits,
    /// Of a template that its machine saves, until that is done.
    lock: Option<File>,
    /// What the machine is restored from, until it is known whether it was.
    template: Option<VmTemplatePlan>,
    /// Why it was not.
    not_restored: Option<String>,
}

/// Puts a sandbox together.
pub(super) fn new_sandbox(
    plan: &Plan,
    outside: &Plan,
    parts: SandboxParts,
    lock: Option<File>,
) -> Result<SupervisedSandbox<VmHolding>, IsolationError> {
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
    describe(outside, &mut enforcement);
    let served = ServedBy {
        link,
        watcher: LimitWatcher::new(outside.limits.clone(), parts.group, first.pid, plan.layers())
            .with_volumes(plan.written_volumes())
            .ending(plan.memory_end),
    };
    let of_the_tree = Plan {
        entries: served_memory(plan),
        ..plan.clone()
    };
    let holding = VmHolding {
        tmpfs: TmpfsMounts::new(first.pid, &of_the_tree),
        next_look: Instant::now() + LOOK_INTERVAL,
        inside: TmpfsMounts::new(first.pid, plan),
        asked: plan.limits.clone(),
        lock,
        template: outside.vm.as_ref().and_then(|vm| vm.template.clone()),
        not_restored: None,
        first,
        said: parts.shown.map(File::from),
    };
    Ok(SupervisedSandbox::by(holding, served, parts.channel, enforcement).with_network(parts.network))
}

fn describe(plan: &Plan, enforcement: &mut EnforcementReport) {
    let Some(vm) = &plan.vm else { return };
    let shown = vm.hypervisor.display();
    enforcement.holds(
        "hypervisor",
        format!("{} ({shown}), in a sandbox of level `process`", vm.version),
    );
    enforcement.holds("kernel", format!("Linux {}, the machine's own", vm.release));
    if vm.acceleration == Acceleration::Tcg {
        enforcement.holds("emulation", vm.acceleration.name());
    }
    let started = match vm.template.as_ref().map(|template| template.used) {
        Some(TemplateUse::Restore) => "restored from its template",
        Some(TemplateUse::Save) => "booted, and saved as a template",
        None => "booted",
    };
    let inside = "a control group of the machine's kernel; the hypervisor by one of the host's where that has them";
    if vm.pids.is_some() {
        enforcement.holds("limit.pids", inside);
    }
    enforcement.holds("limit.memory", inside);
    let machine = format!("{} MiB, {} CPUs, {started}", vm.memory_mib, vm.cpus);
    enforcement.holds("machine", machine);
    let capabilities = match plan.has_superuser() {
        true => "ten of the machine's own for its superuser, none for others",
        false => "none, in any set",
    };
    enforcement.holds("capabilities", capabilities);
}

/// What a carrier said first, if that is why a machine was not restored. Machines are heard there, too, but no earlier.
fn not_restored(said: &mut File) -> Option<String> {
    let mut bytes = Vec::new();
    said.seek(SeekFrom::Start(0)).ok()?;
    said.take(MAX_REASON).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let place = text.find(NOT_RESTORED)?;
    // What the hypervisor said of it comes before.
    let end = text[place..].find('\n').map_or(text.len(), |length| place + length);
    Some(offleash_core::text::one_line(text[..end].as_bytes()).into_owned())
}

impl LevelHolding for VmHolding {
    const LEVEL: Level = Level::Microvm;
    const SERVES_FILES: bool = true;

    fn take_in(&mut self, served: &mut ServedBy) -> Vec<SandboxEvent> {
        if served.link.has_spoken() {
            self.lock = None;
            if let Some(template) = self.template.take() {
                self.not_restored = self.said.as_mut().and_then(not_restored);
                if self.not_restored.is_some() {
                    template::remove(&template);
                }
            }
        }
        let Some(report) = served.link.take_report() else {
            return Vec::new();
        };
        served.watcher.note_counts(CountedInside {
            memory_kills: report.memory_kills,
            refused_processes: report.refused_processes,
        });
        let full = self.inside.full_as_told(&report.tmpfs);
        full.into_iter().map(SandboxEvent::Limit).collect()
    }

    fn look(&mut self, now: Instant, _served: &mut ServedBy) -> Result<Vec<SandboxEvent>, IsolationError> {
        if now < self.next_look {
            return Ok(Vec::new());
        }
        self.next_look = now + LOOK_INTERVAL;
        Ok(self.tmpfs.full().into_iter().map(SandboxEvent::Limit).collect())
    }

    fn correct(&mut self, enforcement: &mut EnforcementReport) {
        if let Some(reason) = self.not_restored.take() {
            if let Some(machine) = enforcement.enforced.get_mut("machine") {
                let size: Vec<&str> = machine.split(", ").take(2).collect();
                *machine = format!("{}, booted", size.join(", "));
            }
            enforcement.lacks("template", reason);
        }
    }

    fn reached(&self, hit: LimitHit) -> LimitHit {
        // What the hypervisor is held by is more than was asked for, and it ends there.
        let value = match hit.limit {
            LimitName::Memory => self.asked.memory.map(|memory| memory.0),
            LimitName::Pids => self.asked.pids,
            _ => None,
        };
        LimitHit {
            value: value.unwrap_or(hit.value),
            ..hit
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
