//! Watches one sandbox: tells which limits were hit and what was used.

mod activity;
mod cpu;
mod layers;
mod memory;
mod uncounted;
mod volumes;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use offleash_core::limits::{LimitName, Limits};
use offleash_core::record::{LimitEffect, LimitHit, RunUsage};
use offleash_sys::cgroup::ControlGroup;
use offleash_sys::process::ResourceUsage;
use offleash_sys::rlimit::{self, LimitedResource};
use rustix::process::Pid;

use super::forks::ForkCounter;
use super::inside::InsideMeasurement;
use super::layer::LayerMeter;
use super::process_tree::{ExactMemory, ProcessTree, TreeUsage};
use super::schedule;
use crate::sandbox::{ActivityMeasure, FinalReport, UsageMeasure};
use layers::ForeignGrowth;
use volumes::VolumeMeter;

/// Exact measurements that are slow are made so seldom that they take at most one part in this many of the time.
const SLOW_PART: u32 = 20;
/// How long a search for open files without a name may wait when nothing calls for one.
const NAMELESS_LATEST: Duration = Duration::from_secs(2);

/// From this age on a sandbox in which nothing runs is one that waits, and not one whose command is about to start.
const SETTLED: Duration = Duration::from_millis(250);
/// How often to see what such a process has found.
const MEASURING: Duration = Duration::from_millis(20);

/// More names than this many times the inode limit is an abuse of hard links.
const NAMES_PER_INODE: u64 = 4;

/// Watches one sandbox from its start to its end; see the module.
#[derive(Debug)]
pub struct LimitWatcher {
    limits: Limits,
    group: Option<ControlGroup>,
    tree: ProcessTree,
    layers: Vec<LayerMeter>,
    /// The volumes that it writes to.
    volumes: Vec<VolumeMeter>,
    /// The first process, whose user namespace is the sandbox's.
    init: Pid,
    /// A layer that is being measured by who may enter all of it.
    measuring: Option<(usize, InsideMeasurement)>,
    /// The next one may be begun.
    measuring_due: Instant,
    /// Why a layer cannot be measured.
    unmeasured: Option<io::Error>,
    started: Instant,
    next_tick: Instant,
    /// What was told of each limit, as far as it says most.
    reported: BTreeMap<LimitName, LimitEffect>,
    seen: PeakValues,
    host_cpus: u64,
    /// CPU time cannot have run out before.
    cpu_due: Instant,
    /// Exact memory may be measured again.
    exact_due: Instant,
    exact: Option<ExactMemory>,
    /// Open files without a name may be searched for again.
    nameless_due: Instant,
    /// And are searched for at the latest.
    nameless_latest: Instant,
    nameless_bytes: u64,
    /// The last search met a place that can hold files which it cannot see.
    concealed: bool,
    /// Growth of the layers' file systems that is charged to the sandbox because of such a place.
    concealed_bytes: u64,
    /// What others did to the file systems, which is not charged.
    foreign: ForeignGrowth,
    /// Unexplained growth at the last search.
    searched_at_bytes: u64,
    guest_memory_bytes: u64,
    counted_inside: CountedInside,
    near_a_limit: bool,
    /// Nothing of the kernel's bounds the memory of some process.
    closely: bool,
    /// Where the sandbox outlives the lack of memory: the kills for that.
    kills: Option<memory::MemoryKills>,
    /// Open files of a process that were allowed when the sandbox was made: no limit of ours raises that.
    open_files: Option<u64>,
    /// What was started inside.
    forks: ForkCounter,
    /// What it had done when it was looked at last.
    activity: Option<ActivityMeasure>,
}

/// What a kernel of the sandbox's own has counted, where it has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CountedInside {
    /// Processes that were killed for want of memory.
    pub(crate) memory_kills: u64,
    /// Processes and threads that were refused.
    pub(crate) refused_processes: u64,
}

/// The largest values so far, and the last ones of what only grows.
#[derive(Debug, Clone, Copy, Default)]
struct PeakValues {
    user_us: u64,
    system_us: u64,
    memory_bytes: Option<u64>,
    pids: Option<u64>,
    read_bytes: u64,
    written_bytes: u64,
    out_of_memory: bool,
}

impl LimitWatcher {
    /// A watcher of the sandbox whose first process is `init`, an id outside, and which `group` holds, if there is one.
    ///
    /// `layers` are the writable layers of its overlays: directories that hold `upper`. The first process must not be
    /// waited for as long as [`Self::tick`] is called. When a layer cannot be opened, the first tick ends the run and
    /// [`Self::finish`] says why: what cannot be measured must not run.
    pub fn new(limits: Limits, group: Option<ControlGroup>, init: Pid, layers: Vec<PathBuf>) -> Self {
        let (meters, failures): (Vec<_>, Vec<_>) = layers
            .iter()
            .map(|layer| LayerMeter::new(layer))
            .partition(Result::is_ok);
        let now = Instant::now();
        let mut watcher = Self {
            limits,
            group,
            tree: ProcessTree::new(init),
            layers: meters.into_iter().flatten().collect(),
            volumes: Vec::new(),
            init,
            measuring: None,
            measuring_due: now,
            unmeasured: failures.into_iter().find_map(Result::err),
            started: now,
            next_tick: now,
            reported: BTreeMap::new(),
            seen: PeakValues::default(),
            host_cpus: host_cpus(),
            cpu_due: now,
            exact_due: now,
            exact: None,
            nameless_due: now,
            nameless_latest: now + NAMELESS_LATEST,
            nameless_bytes: 0,
            concealed: false,
            concealed_bytes: 0,
            foreign: ForeignGrowth::default(),
            searched_at_bytes: 0,
            guest_memory_bytes: 0,
            counted_inside: CountedInside::default(),
            near_a_limit: false,
            closely: false,
            kills: None,
            open_files: rlimit::current(LimitedResource::OpenFiles).0,
            forks: ForkCounter::default(),
            activity: None,
        };
        watcher.cpu_due = now + watcher.until_cpu_is_due(0);
        // The command has not started: there is nothing to find yet but processes, and where we count them ourselves the
        // first look may be the only one.
        if watcher.unmeasured.is_none() && watcher.held_by_group("memory") && watcher.held_by_group("pids") {
            watcher.next_tick = now + watcher.wait(now);
        }
        watcher
    }

    /// Looks at the sandbox; each limit that was hit is told once, and once more if it is then exceeded.
    ///
    /// `Killed` means that the run must end: the caller kills it, if the kernel has not.
    pub fn tick(&mut self, now: Instant) -> Vec<LimitHit> {
        let mut hits = Vec::new();
        self.check_group(now, &mut hits);
        self.check_processes(now, &mut hits);
        self.check_cpu(now, &mut hits);
        self.check_layers(now, &mut hits);
        self.check_volumes(now, &mut hits);
        self.next_tick = now + self.wait(now);
        self.not_told_yet(hits)
    }

    /// Watches a process whose parent is none of the sandbox's, with its children.
    pub(crate) fn watch_too(&mut self, pid: Pid) {
        self.tree.add(pid);
    }

    /// When [`Self::tick`] is to be called again.
    pub fn next_tick(&self) -> Instant {
        self.next_tick
    }

    fn wait(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.started);
        let mut wait = match age > SETTLED && self.is_alone() {
            true => schedule::ALONE,
            false => schedule::interval(age, self.near_a_limit || self.closely),
        };
        if self.limits.cpu_time.is_some() {
            wait = wait.min(self.cpu_due.saturating_duration_since(now));
        }
        let walks = self.meters().filter_map(LayerMeter::wants_tick_in);
        let measuring = self.measuring.iter().map(|_| MEASURING);
        walks
            .chain(measuring)
            .fold(wait, Duration::min)
            .max(Duration::from_millis(1))
    }

    /// Whether there is no process but the first one, which is ours.
    pub(crate) fn is_alone(&self) -> bool {
        self.group.as_ref().and_then(ControlGroup::pids) == Some(1)
    }

    /// Looks as often as near a limit from now on.
    pub(crate) fn watch_closely(&mut self) {
        if !self.closely {
            self.closely = true;
            self.look_soon();
        }
    }

    /// Makes the next tick due as for a new sandbox: something of the caller's is started.
    pub(crate) fn expect_work(&mut self) {
        let soon = schedule::interval(Duration::ZERO, self.near_a_limit);
        self.next_tick = self.next_tick.min(Instant::now() + soon);
    }

    /// A limit that was told as refused is told once more when the run must end for it.
    fn not_told_yet(&mut self, mut hits: Vec<LimitHit>) -> Vec<LimitHit> {
        hits.retain(|hit| match self.reported.get(&hit.limit) {
            Some(LimitEffect::Killed) => false,
            // They are told again as often as there is need.
            _ if hit.effect == LimitEffect::Ended => true,
            Some(_) if hit.effect != LimitEffect::Killed => false,
            _ => {
                self.reported.insert(hit.limit, hit.effect);
                true
            }
        });
        hits
    }

    /// Takes note of memory that no process has mapped: bytes in the sandbox's tmpfs mounts and System V segments.
    ///
    /// Of use without a memory group only, which counts it by itself.
    pub fn note_guest_usage(&mut self, memory_bytes: u64) {
        self.guest_memory_bytes = memory_bytes;
    }

    /// Takes note of what a kernel of the sandbox's own has counted.
    pub(crate) fn note_counts(&mut self, counts: CountedInside) {
        if counts != self.counted_inside {
            self.counted_inside = CountedInside {
                memory_kills: counts.memory_kills.max(self.counted_inside.memory_kills),
                refused_processes: counts.refused_processes.max(self.counted_inside.refused_processes),
            };
            self.look_soon();
        }
    }

    /// Kills for want of memory: those of the group, if that is known, and those that were counted inside.
    fn all_kills(&self, of_group: Option<u64>) -> Option<u64> {
        let inside = self.counted_inside.memory_kills;
        match of_group {
            Some(kills) => Some(kills.saturating_add(inside)),
            None => Some(inside).filter(|inside| *inside > 0),
        }
    }

    /// Whether [`Self::note_guest_usage`] is of use.
    pub fn needs_guest_usage(&self) -> bool {
        self.limits.memory.is_some() && !self.held_by_group("memory")
    }

    /// What is used now.
    pub fn measure(&mut self) -> UsageMeasure {
        let now = self
            .group
            .as_ref()
            .and_then(|group| group.now().ok())
            .unwrap_or_default();
        let group_cpu = self.group.as_ref().and_then(|group| group.cpu_us().ok().flatten());
        let needs_tree = now.memory_bytes.is_none() || now.pids.is_none() || group_cpu.is_none();
        let tree = match needs_tree {
            true => self.tree.usage(&self.tree.processes()),
            false => TreeUsage::default(),
        };
        // Of processes that nobody waited for, the time is not known any more: it never goes back all the same.
        let cpu_us = group_cpu.unwrap_or_else(|| {
            tree.user_us
                .saturating_add(tree.system_us)
                .max(self.seen.user_us.saturating_add(self.seen.system_us))
        });
        let memory_bytes = now
            .memory_bytes
            .unwrap_or_else(|| tree.anonymous_bytes.saturating_add(self.guest_memory_bytes));
        // What was there for a moment between two looks, a kernel remembers.
        let of_group = self.group.as_ref().and_then(|group| group.memory_peak().ok().flatten());
        self.seen.memory_bytes = self.seen.memory_bytes.max(Some(memory_bytes)).max(of_group);
        if group_cpu.is_none() {
            self.seen.user_us = self.seen.user_us.max(cpu_us.saturating_sub(self.seen.system_us));
        }
        UsageMeasure {
            cpu_us,
            memory_bytes,
            memory_cache_bytes: now.cache_bytes.unwrap_or(0),
            memory_peak_bytes: self.seen.memory_bytes.unwrap_or(memory_bytes),
            pids: now.pids.unwrap_or(tree.pids),
            disk_bytes: self.disk_bytes(),
        }
    }

    fn disk_bytes(&self) -> u64 {
        self.layers
            .iter()
            .map(|meter| meter.usage().bytes)
            .fold(0, u64::saturating_add)
    }

    /// The ids of all processes of the sandbox, parents before children.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.tree.processes()
    }

    /// Makes the next tick due: there was a time in which there was none.
    pub(crate) fn look_soon(&mut self) {
        self.next_tick = Instant::now();
    }

    /// The group that holds the sandbox.
    pub fn group(&self) -> Option<&ControlGroup> {
        self.group.as_ref()
    }

    /// What was used so far; wall time is counted from the watcher's making.
    pub fn usage(&mut self) -> RunUsage {
        self.account(&ResourceUsage::default());
        self.used()
    }

    /// Measures everything once more and exactly, and removes the group, after every process has ended.
    ///
    /// `resources` is what waiting for the first process told; the kernel has added up its whole tree there, except for
    /// processes that nobody waited for. A limit that only this measurement finds hit counts as any other.
    ///
    /// # Errors
    /// When the group cannot be removed (what could be was), or a layer could not be measured from the start.
    pub fn finish(&mut self, resources: &ResourceUsage) -> io::Result<FinalReport> {
        let mut hits = Vec::new();
        self.account(resources);
        self.check_group(Instant::now(), &mut hits);
        self.compare_cpu(self.seen.user_us.saturating_add(self.seen.system_us), &mut hits);
        self.nameless_bytes = 0;
        self.concealed_bytes = 0;
        for meter in &mut self.layers {
            meter.measure();
        }
        self.compare_layers(&mut hits);
        self.measure_volumes(&mut hits);
        let limits_hit = self.not_told_yet(hits);
        let uncounted = self.uncounted();
        if let Some(group) = self.group.take() {
            // Empty already, unless something was moved into it from outside.
            group.end().map_err(io::Error::other)?;
        }
        if let Some(error) = self.unmeasured.take() {
            return Err(io::Error::new(
                error.kind(),
                format!("a writable layer could not be measured: {error}"),
            ));
        }
        Ok(FinalReport {
            usage: self.used(),
            limits_hit,
            out_of_memory: self.ends_out_of_memory(Instant::now()),
            uncounted,
            open_files: self.open_files,
            ..FinalReport::default()
        })
    }

    fn used(&self) -> RunUsage {
        RunUsage {
            wall_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            user_cpu_us: self.seen.user_us,
            system_cpu_us: self.seen.system_us,
            peak_memory_bytes: self.seen.memory_bytes,
            peak_pids: self.seen.pids,
            read_bytes: self.seen.read_bytes,
            written_bytes: self.seen.written_bytes,
            workspace_bytes: (!self.layers.is_empty()).then(|| self.disk_bytes()),
        }
    }

    /// Limits that the kernel holds: what it says about them.
    fn check_group(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        // The kernel holds these limits whether we can read the counters or not.
        let events = self
            .group
            .as_ref()
            .and_then(|group| group.events().ok())
            .unwrap_or_default();
        let kills = self.all_kills(events.oom_kills);
        if let (Some(limit), Some(kills)) = (self.limits.memory, kills) {
            self.check_kills(now, kills, limit.0, hits);
        }
        let refusals = events
            .pids_max_hits
            .unwrap_or(0)
            .max(self.counted_inside.refused_processes);
        if let (Some(limit), 1..) = (self.limits.pids, refusals) {
            hits.push(refused(LimitName::Pids, limit));
        }
    }

    /// Limits that no group holds: what the processes use, one by one.
    fn check_processes(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        let memory = self
            .limits
            .memory
            .filter(|_| !self.held_by_group("memory"))
            .map(|limit| limit.0);
        let pids = self.limits.pids.filter(|_| !self.held_by_group("pids"));
        if memory.is_none() && pids.is_none() {
            return;
        }
        let processes = self.tree.processes();
        let usage = self.tree.usage(&processes);
        self.seen.pids = self.seen.pids.max(Some(usage.pids));
        match pids {
            Some(limit) if usage.pids > limit => hits.push(killed(LimitName::Pids, limit)),
            // `RLIMIT_NPROC` refuses the next one; nobody counts how often.
            Some(limit) if usage.pids == limit => hits.push(refused(LimitName::Pids, limit)),
            _ => {}
        }
        if let Some(limit) = memory {
            if self.is_of_no_help(now) {
                self.exact_due = now;
            }
            let used = self.memory_of(now, &processes, usage, limit);
            self.seen.memory_bytes = self.seen.memory_bytes.max(Some(used));
            self.near_a_limit = schedule::is_near(used, Some(limit));
            match used > limit {
                true => self.relieve(now, &processes, limit, hits),
                false => self.note_enough_memory(),
            }
        }
    }

    /// Memory of all processes together: quick sums as long as they are below the limit, exact ones above.
    ///
    /// The quick sum counts pages that forked processes share several times, so alone it would kill the innocent.
    fn memory_of(&mut self, now: Instant, processes: &[u32], usage: TreeUsage, limit: u64) -> u64 {
        let quick = usage.anonymous_bytes.saturating_add(self.guest_memory_bytes);
        let most = usage.resident_bytes.saturating_add(self.guest_memory_bytes);
        if most <= limit {
            return quick;
        }
        if now >= self.exact_due {
            let began = Instant::now();
            self.exact = self.tree.exact_memory(processes);
            self.exact_due = now + began.elapsed() * SLOW_PART;
        }
        match self.exact {
            // Shared memory that is mapped is in the guest's numbers too, unless it has no name.
            Some(exact) => exact
                .anonymous_bytes
                .saturating_add(exact.shared_bytes.max(self.guest_memory_bytes)),
            None => quick,
        }
    }

    /// Takes the sums of everything that no tick needs, from whoever knows most.
    fn account(&mut self, resources: &ResourceUsage) {
        let processes = self.tree.processes();
        let group = self
            .group
            .as_ref()
            .and_then(|group| group.usage().ok())
            .unwrap_or_default();
        let (user, system) = match (group.cpu_user_us, group.cpu_system_us) {
            (Some(user), Some(system)) => (user, system),
            _ => {
                let (user, system) = self.tree.cpu_us(&processes);
                (user.max(resources.user_us), system.max(resources.system_us))
            }
        };
        let (read, written) = self.tree.storage_bytes(&processes);
        let bytes = |blocks: u64| blocks.saturating_mul(512);
        let seen = &mut self.seen;
        seen.user_us = seen.user_us.max(user);
        seen.system_us = seen.system_us.max(system);
        seen.memory_bytes = seen.memory_bytes.max(group.memory_peak);
        seen.pids = seen.pids.max(group.pids_peak);
        seen.read_bytes = seen
            .read_bytes
            .max(group.read_bytes.unwrap_or(read))
            .max(bytes(resources.blocks_read));
        seen.written_bytes = seen
            .written_bytes
            .max(group.written_bytes.unwrap_or(written))
            .max(bytes(resources.blocks_written));
    }

    fn held_by_group(&self, limit: &str) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.enforced().contains_key(limit))
    }
}

fn killed(limit: LimitName, value: u64) -> LimitHit {
    LimitHit {
        limit,
        value,
        effect: LimitEffect::Killed,
    }
}

fn refused(limit: LimitName, value: u64) -> LimitHit {
    LimitHit {
        limit,
        value,
        effect: LimitEffect::Refused,
    }
}

/// The processors of the machine; so many that nothing is missed, where that is not known.
fn host_cpus() -> u64 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    schedule::count_cpus(&list).unwrap_or(4096)
}

#[cfg(test)]
#[path = "watcher_tests.rs"]
mod tests;
