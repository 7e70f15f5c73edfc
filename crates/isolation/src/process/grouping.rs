//! How a sandbox of this level is bounded in memory, CPU and processes: by a cgroup where this process may make one,
//! else by rlimits, affinity and the watcher; and the enforcement says which.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::Plan;
use offleash_core::spec::{MemoryEnd, ZygoteRole};
pub(crate) use offleash_sys::cgroup::ControlGroup;
use offleash_sys::cgroup::{CgroupError, ControlHierarchies, Controller, GroupLimits, NAME_PREFIX};
use rustix::process::Pid;

use crate::limits::HeldByGroup;
use crate::sandbox::EnforcementReport;

/// How limits of the network are held.
const BY_GATEWAY: &str = "counted by the gateway, without which there are no connections";

/// What the cgroup of one sandbox is going to be.
#[derive(Debug)]
pub(crate) struct GroupPlan {
    hierarchy: Option<ControlHierarchies>,
    name: String,
    limits: GroupLimits,
    /// What cannot be bounded by a group, and why.
    missing: Vec<(LimitName, String)>,
    /// Processes of ours that are about to end.
    ending: Vec<Pid>,
}

impl GroupPlan {
    /// Finds out which of the limits a group can hold here; the sandbox's first process may be there already, and others
    /// of ours that are `ending`.
    pub(crate) fn plan(plan: &Plan, first: Option<Pid>, ending: Vec<Pid>) -> Self {
        let (limits, sandbox) = (&plan.limits, plan.id.as_str());
        let name = format!("{NAME_PREFIX}{sandbox}");
        let mut controllers = vec![Controller::Memory, Controller::Pids];
        controllers.extend(limits.cpus.map(|_| Controller::Cpu));
        controllers.extend(limits.cpu_time.map(|_| Controller::CpuAccounting));
        controllers.extend(plan.pausable.then_some(Controller::Freezer));
        let children: Vec<Pid> = first.into_iter().chain(ending.iter().copied()).collect();
        let mut grouping = match ControlHierarchies::discover_for(&controllers, &children) {
            Ok(hierarchy) => Self {
                hierarchy: Some(hierarchy),
                name,
                limits: GroupLimits::default(),
                missing: Vec::new(),
                ending,
            },
            Err(error) => {
                let missing =
                    [LimitName::Memory, LimitName::Pids, LimitName::Cpus].map(|limit| (limit, error.to_string()));
                return Self {
                    hierarchy: None,
                    name,
                    limits: GroupLimits::default(),
                    missing: missing.into(),
                    ending,
                };
            }
        };
        if grouping.has(Controller::Memory, LimitName::Memory) {
            grouping.limits.memory_bytes = limits.memory.map(|memory| memory.0);
            grouping.limits.swap_bytes = limits.memory.and(limits.swap).map(|swap| swap.0);
        }
        if grouping.has(Controller::Pids, LimitName::Pids) {
            grouping.limits.pids = limits.pids;
        }
        if limits.cpus.is_some() && grouping.has(Controller::Cpu, LimitName::Cpus) {
            grouping.limits.cpus_millis = limits.cpus.map(|cpus| cpus.millis);
        }
        if limits.cpu_time.is_some() && grouping.has(Controller::CpuAccounting, LimitName::CpuTime) {
            grouping.limits.cpu_accounting = true;
        }
        // Where no group can stop them, processes are stopped one by one.
        grouping.limits.pause = plan.pausable && grouping.can(Controller::Freezer);
        // With its first process ends all that lies below a zygote.
        grouping.limits.ends_one = plan.descent == ZygoteRole::Zygote || plan.memory_end == MemoryEnd::Process;
        // One that moves between two servers of one machine is at both for a moment: a group is one sandbox's alone.
        if grouping.paths().iter().any(|path| path.exists()) {
            grouping.name = format!("{}_{}", grouping.name, std::process::id());
        }
        grouping
    }

    fn can(&self, controller: Controller) -> bool {
        let found = self.hierarchy.as_ref();
        found.is_some_and(|found| found.availability(controller).is_ok())
    }

    fn has(&mut self, controller: Controller, limit: LimitName) -> bool {
        match self
            .hierarchy
            .as_ref()
            .map(|hierarchy| hierarchy.availability(controller))
        {
            Some(Ok(_)) => true,
            Some(Err(reason)) => {
                self.missing.push((limit, reason.to_string()));
                false
            }
            None => false,
        }
    }

    fn lacks(&self, limit: LimitName) -> Option<&str> {
        self.missing
            .iter()
            .find(|(missing, _)| *missing == limit)
            .map(|(_, reason)| reason.as_str())
    }

    /// The limits that this sandbox has: all, but of a zygote those that a group holds. Limits of a process would be those of
    /// its copies, and whoever adds up what its processes use would add up what lies below it.
    pub(crate) fn limits(&self, plan: &Plan) -> Limits {
        let asked = plan.limits.clone();
        if plan.descent != ZygoteRole::Zygote {
            return asked;
        }
        Limits {
            memory: asked.memory.filter(|_| self.limits.memory_bytes.is_some()),
            pids: asked.pids.filter(|_| self.limits.pids.is_some()),
            cpus: asked.cpus.filter(|_| self.limits.cpus_millis.is_some()),
            cpu_time: None,
            ..asked
        }
    }

    /// What a group bounds, as opposed to rlimits and the watcher.
    pub(crate) fn held(&self) -> HeldByGroup {
        HeldByGroup {
            memory: self.limits.memory_bytes.is_some(),
            pids: self.limits.pids.is_some(),
        }
    }

    /// Whether no group measures CPUs out, so that being kept to some is all that bounds how many are used.
    pub(crate) fn keeps_to_cpus(&self, limits: &Limits) -> bool {
        limits.cpus.is_some() && self.limits.cpus_millis.is_none()
    }

    /// Says how each limit is held.
    pub(crate) fn describe(&self, limits: &Limits, enforcement: &mut EnforcementReport) {
        let by_group =
            |controller: Controller| match self.hierarchy.as_ref().map(|found| found.availability(controller)) {
                Some(Ok(version)) => format!("{version}, controller {}", controller.name()),
                _ => String::new(),
            };
        if limits.memory.is_some() {
            enforcement.holds_limit(
                LimitName::Memory,
                match self.lacks(LimitName::Memory) {
                    None => by_group(Controller::Memory),
                    Some(reason) => format!("RLIMIT_DATA and a watcher, without a cgroup: {reason}"),
                },
            );
        }
        if limits.pids.is_some() {
            enforcement.holds_limit(
                LimitName::Pids,
                match self.lacks(LimitName::Pids) {
                    None => by_group(Controller::Pids),
                    Some(reason) => format!("RLIMIT_NPROC of the sandbox's user namespace, without a cgroup: {reason}"),
                },
            );
        }
        if let Some(cpus) = limits.cpus {
            match self.lacks(LimitName::Cpus) {
                None => enforcement.holds_limit(LimitName::Cpus, by_group(Controller::Cpu)),
                Some(reason) if cpus.millis % 1000 == 0 => {
                    enforcement.holds_limit(LimitName::Cpus, format!("CPU affinity, without a cgroup: {reason}"));
                }
                Some(reason) => enforcement.lacks(
                    "limit.cpus",
                    format!("a fraction of a CPU needs a cgroup ({reason}); affinity allows the next whole number"),
                ),
            }
        }
        for (limit, present, means) in [
            (
                LimitName::CpuTime,
                limits.cpu_time.is_some(),
                "a watcher, and RLIMIT_CPU for each process",
            ),
            (
                LimitName::WallTime,
                limits.wall_time.is_some(),
                "the supervisor's clock",
            ),
            (
                LimitName::Workspace,
                limits.workspace.is_some(),
                "a watcher on the writable layer",
            ),
            (
                LimitName::Inodes,
                limits.inodes.is_some(),
                "a watcher on the writable layer",
            ),
            (
                LimitName::Depth,
                limits.depth.is_some(),
                "a watcher on the writable layer",
            ),
            (LimitName::FileSize, limits.file_size.is_some(), "RLIMIT_FSIZE"),
            (LimitName::Tmp, limits.tmp.is_some(), "the size of each tmpfs"),
            (LimitName::OpenFiles, limits.open_files.is_some(), "RLIMIT_NOFILE"),
            (LimitName::Output, limits.output.is_some(), "counted by the supervisor"),
            (LimitName::NetBytes, limits.net_bytes.is_some(), BY_GATEWAY),
            (LimitName::NetRate, limits.net_rate.is_some(), BY_GATEWAY),
            (LimitName::NetConnections, limits.net_connections.is_some(), BY_GATEWAY),
            (LimitName::NetAtOnce, limits.net_at_once.is_some(), BY_GATEWAY),
        ] {
            if present {
                enforcement.holds_limit(limit, means);
            }
        }
    }

    /// Says how swap is held, which only the group that was made knows: kernels without it, or that do not count it,
    /// leave files out. Without a limit on memory there is nothing that swap would be on top of.
    pub(crate) fn describe_swap(
        &self,
        limits: &Limits,
        group: Option<&ControlGroup>,
        enforcement: &mut EnforcementReport,
    ) {
        if limits.memory.is_none() || limits.swap.is_none() {
            return;
        }
        let by_group = group.and_then(|group| group.enforced().get(LimitName::Swap.name()));
        match (by_group, self.limits.memory_bytes) {
            (Some(means), _) => enforcement.holds_limit(LimitName::Swap, means.clone()),
            (None, None) => enforcement.holds_limit(LimitName::Swap, "the watcher, which counts it as memory"),
            (None, Some(_)) => enforcement.lacks(
                format!("limit.{}", LimitName::Swap.name()),
                "this kernel does not count swap by groups; `--swap 0` keeps a sandbox from it",
            ),
        }
    }

    /// The directories that [`Self::make`] will make.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let Some(hierarchy) = &self.hierarchy else {
            return Vec::new();
        };
        let GroupLimits {
            cpus_millis,
            memory_bytes,
            swap_bytes,
            pids,
            cpu_accounting,
            pause,
            ends_one: _,
        } = self.limits;
        let mut paths: Vec<PathBuf> = [
            (cpus_millis.is_some(), Controller::Cpu),
            (memory_bytes.is_some() || swap_bytes.is_some(), Controller::Memory),
            (pids.is_some(), Controller::Pids),
            (cpu_accounting, Controller::CpuAccounting),
            (pause, Controller::Freezer),
        ]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .filter_map(|(_, controller)| Some(hierarchy.parent(controller)?.join(&self.name)))
        .collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Makes the group; the sandbox's first process enters it, through what is returned beside it.
    pub(crate) fn make(&self, first: Pid) -> Result<Option<(ControlGroup, Vec<OwnedFd>)>, CgroupError> {
        let Some(hierarchy) = &self.hierarchy else {
            return Ok(None);
        };
        let nothing = GroupLimits {
            ends_one: self.limits.ends_one,
            ..GroupLimits::default()
        };
        if self.limits == nothing {
            return Ok(None);
        }
        let children: Vec<Pid> = std::iter::once(first).chain(self.ending.iter().copied()).collect();
        let group = ControlGroup::create_for(hierarchy, &self.name, &self.limits, &children)?;
        match group
            .join_version_2(first.as_raw_pid().cast_unsigned())
            .and_then(|()| group.entrances())
        {
            Ok(entrances) => Ok(Some((group, entrances))),
            Err(error) => match group.remove() {
                Ok(()) => Err(error),
                Err(second) => Err(CgroupError::CleanUp {
                    first: Box::new(error),
                    second: Box::new(second),
                }),
            },
        }
    }
}
