//! Watches one sandbox: tells which limits were hit and what was used.

mod memory;
mod uncounted;
mod volumes;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use offleash_core::limits::{LimitName, Limits, MAX_DEPTH};
use offleash_core::record::{LimitEffect, LimitHit, RunUsage};
use offleash_sys::cgroup::ControlGroup;
use offleash_sys::process::ResourceUsage;
use offleash_sys::rlimit::{self, LimitedResource};
use rustix::process::Pid;

use super::deleted;
use super::inside::InsideMeasurement;
use super::layer::{LayerMeter, LayerRoom, LayerUsage};
use super::process_tree::{ExactMemory, ProcessTree, TreeUsage};
use super::schedule;
use crate::sandbox::{FinalReport, UsageMeasure};
use volumes::VolumeMeter;

/// Exact measurements that are slow are made so seldom that they take at most one part in this many of the time.
const SLOW_PART: u32 = 20;
/// How long a search for open files without a name may wait when nothing calls for one.
const NAMELESS_LATEST: Duration = Duration::from_secs(2);
/// How many searches in a row, and for how long, must have seen everything before what they did not find counts as others'.
const CLEAR_SEARCHES: u32 = 4;
const CLEAR_FOR: Duration = Duration::from_secs(5);

/// From this age on a sandbox in which nothing runs is one that waits, and not one whose command is about to start.
const SETTLED: Duration = Duration::from_millis(250);
/// How often at most a layer is measured by a process of its own, and after one that failed.
const INSIDE_EVERY: Duration = Duration::from_secs(1);
const INSIDE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How often to see what such a process has found.
const MEASURING: Duration = Duration::from_millis(20);

/// Unexplained growth of a file system that is worth a search for open files without a name.
const UNEXPLAINED_BYTES: u64 = 16 * 1024 * 1024;
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
    near_a_limit: bool,
    /// Nothing of the kernel's bounds the memory of some process.
    closely: bool,
    /// Where the sandbox outlives the lack of memory: the kills for that.
    kills: Option<memory::MemoryKills>,
    /// Open files of a process that were allowed when the sandbox was made: no limit of ours raises that.
    open_files: Option<u64>,
}

/// How much of the growth of the layers' file systems is of others, as far as that is certain.
///
/// A search that saw everything says that what it did not find is not the sandbox's. One such search can be had by luck,
/// when a file is handed on while it goes from process to process; so many of them in a row cannot.
#[derive(Debug, Default)]
struct ForeignGrowth {
    bytes: u64,
    /// Since when every search saw everything, how many there were, and the least that was left over.
    clear: Option<(Instant, u32, u64)>,
}

impl ForeignGrowth {
    fn note(&mut self, now: Instant, unseen: u64, concealed: bool) {
        self.bytes = self.bytes.min(unseen);
        if concealed {
            self.clear = None;
            return;
        }
        let (since, count, least) = self.clear.map_or((now, 1, unseen), |(since, count, least)| {
            (since, count.saturating_add(1), least.min(unseen))
        });
        self.clear = Some((since, count, least));
        if count >= CLEAR_SEARCHES && now.saturating_duration_since(since) >= CLEAR_FOR {
            self.bytes = self.bytes.max(least);
            // What grows from here on has to be clear for as long again.
            self.clear = Some((now, 1, unseen));
        }
    }
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
            near_a_limit: false,
            closely: false,
            kills: None,
            open_files: rlimit::current(LimitedResource::OpenFiles).0,
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
        self.seen.memory_bytes = self.seen.memory_bytes.max(Some(memory_bytes));
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
        let Some(Ok(events)) = self.group.as_ref().map(ControlGroup::events) else {
            return;
        };
        if let (Some(limit), Some(kills)) = (self.limits.memory, events.oom_kills) {
            self.check_kills(now, kills, limit.0, hits);
        }
        if let (Some(limit), Some(1..)) = (self.limits.pids, events.pids_max_hits) {
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

    fn check_cpu(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        if self.limits.cpu_time.is_none() || now < self.cpu_due {
            return;
        }
        let used_us = self.cpu_us();
        self.compare_cpu(used_us, hits);
        self.cpu_due = now + self.until_cpu_is_due(used_us);
    }

    fn until_cpu_is_due(&self, used_us: u64) -> Duration {
        let limit_us = self
            .limits
            .cpu_time
            .map_or(u64::MAX, |limit| limit.0.saturating_mul(1000));
        let earliest = schedule::cpu_exhausted_at_the_earliest(limit_us.saturating_sub(used_us), self.host_cpus);
        // Not more often than every few milliseconds, or the last ones before the limit would be spent on looking.
        earliest.clamp(Duration::from_millis(5), Duration::from_secs(3600))
    }

    fn compare_cpu(&self, used_us: u64, hits: &mut Vec<LimitHit>) {
        if let Some(limit) = self
            .limits
            .cpu_time
            .filter(|limit| used_us >= limit.0.saturating_mul(1000))
        {
            hits.push(killed(LimitName::CpuTime, limit.0));
        }
    }

    /// CPU time so far, of the group or of the processes; it never goes down.
    fn cpu_us(&mut self) -> u64 {
        if let Some(Ok(Some(used))) = self.group.as_ref().map(ControlGroup::cpu_us) {
            return used;
        }
        let (user, system) = self.tree.cpu_us(&self.tree.processes());
        self.seen.user_us = self.seen.user_us.max(user);
        self.seen.system_us = self.seen.system_us.max(system);
        self.seen.user_us.saturating_add(self.seen.system_us)
    }

    fn check_layers(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        if self.layers.is_empty() && self.unmeasured.is_none() {
            return;
        }
        let used = self.layers_usage();
        let room = LayerRoom {
            bytes: self.limits.workspace.map(|limit| limit.0.saturating_sub(used.bytes)),
            inodes: self.limits.inodes.map(|limit| limit.saturating_sub(used.inodes)),
        };
        for meter in &mut self.layers {
            meter.tick(now, room);
        }
        self.measure_inside(now);
        if let Some(limit) = self.limits.workspace {
            self.search_nameless(now, limit.0);
        }
        self.compare_layers(hits);
    }

    /// Has layers measured that we may not enter all of.
    fn measure_inside(&mut self, now: Instant) {
        if let Some((layer, measuring)) = &mut self.measuring {
            let Some(found) = measuring.poll() else { return };
            self.measuring_due = now + INSIDE_AFTER_FAILURE;
            if let (Ok((usage, took)), Some(meter)) = (found, self.layers.get_mut(*layer)) {
                meter.note_inside(usage);
                self.measuring_due = now + (took * SLOW_PART).max(INSIDE_EVERY);
            }
            self.measuring = None;
        }
        if now < self.measuring_due {
            return;
        }
        for (number, meter) in self.layers.iter_mut().enumerate() {
            let Some(upper) = meter.take_wanted() else { continue };
            match InsideMeasurement::begin(self.init, upper) {
                Ok(measuring) => self.measuring = Some((number, measuring)),
                Err(_) => self.measuring_due = now + INSIDE_AFTER_FAILURE,
            }
            return;
        }
    }

    /// Searches for files without a name when a file system grew by more than the walks explain.
    fn search_nameless(&mut self, now: Instant, limit: u64) {
        let unexplained = self.unexplained_bytes();
        // Compared with the last search and not the last walk, or slow growth would stay below it for ever.
        self.searched_at_bytes = self.searched_at_bytes.min(unexplained);
        let enough = UNEXPLAINED_BYTES.min(limit / 4);
        let grown = unexplained.saturating_sub(self.searched_at_bytes);
        // Growth can hide behind somebody else who frees space at the same time; therefore now and then anyway.
        let overdue = now >= self.nameless_latest;
        let search = (grown > 0 && grown >= enough) || self.nameless_bytes > 0 || self.concealed || overdue;
        if !search || now < self.nameless_due {
            return;
        }
        let began = Instant::now();
        let found = deleted::search(&self.tree.processes());
        self.nameless_due = now + (began.elapsed() * SLOW_PART).max(Duration::from_millis(100));
        self.nameless_latest = now + NAMELESS_LATEST.max(began.elapsed() * SLOW_PART);
        self.searched_at_bytes = unexplained;
        self.nameless_bytes = found.bytes;
        let unseen = unexplained.saturating_sub(found.bytes);
        self.foreign.note(began, unseen, found.concealed);
        // Twice in a row: programs pass descriptors, and end, all the time. Only with a hiding place, since others
        // write to the disk too.
        self.concealed_bytes = if found.concealed && self.concealed {
            unseen.saturating_sub(self.foreign.bytes)
        } else {
            0
        };
        self.concealed = found.concealed;
    }

    /// By how much the layers' file systems grew since the start beyond what walks found in the layers.
    fn unexplained_bytes(&self) -> u64 {
        let mut devices: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let of_layers = self
            .layers
            .iter()
            .map(|meter| (meter.device(), meter.dropped_and_found_bytes()));
        for (device, (dropped, found)) in of_layers.chain(self.growth_of_volumes()) {
            let sum = devices.entry(device).or_insert((u64::MAX, 0));
            // The least: a walk of one layer long ago does not know what it grew by since.
            *sum = (sum.0.min(dropped), sum.1.saturating_add(found));
        }
        let each = devices.values().map(|(dropped, found)| dropped.saturating_sub(*found));
        each.fold(0, u64::saturating_add)
    }

    fn layers_usage(&self) -> LayerUsage {
        let mut sum = LayerUsage {
            bytes: self.nameless_bytes.saturating_add(self.concealed_bytes),
            ..LayerUsage::default()
        };
        for usage in self.layers.iter().map(LayerMeter::usage) {
            sum.bytes = sum.bytes.saturating_add(usage.bytes);
            sum.inodes = sum.inodes.saturating_add(usage.inodes);
            sum.names = sum.names.saturating_add(usage.names);
            sum.depth = sum.depth.max(usage.depth);
            sum.hidden |= usage.hidden;
        }
        sum
    }

    fn compare_layers(&self, hits: &mut Vec<LimitHit>) {
        let used = self.layers_usage();
        // What nobody bounds the depth of may hold anything below what is measured.
        let is_unmeasured = self.unmeasured.is_some() || (self.limits.depth.is_none() && used.depth > MAX_DEPTH);
        if let Some(limit) = self.limits.workspace.map(|limit| limit.0)
            && (used.bytes > limit || used.hidden || is_unmeasured)
        {
            hits.push(killed(LimitName::Workspace, limit));
        }
        if let Some(limit) = self.limits.inodes
            && (used.inodes > limit || is_unmeasured || used.names > limit.saturating_mul(NAMES_PER_INODE))
        {
            hits.push(killed(LimitName::Inodes, limit));
        }
        if let Some(limit) = self.limits.depth.filter(|limit| used.depth > *limit) {
            hits.push(killed(LimitName::Depth, limit));
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
