//! Makes a sandbox of this level: the supervisor's half.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use offleash_core::level::Level;
use offleash_core::limits::Limits;
use offleash_core::plan::Plan;
use offleash_core::units::Bytes;
use offleash_sys::landlock::GrantAccess;
use offleash_sys::namespaces::{self, ForkedChild, NamespaceSet};
use offleash_sys::rlimit::LimitedResource;
use offleash_sys::{process, socket};

use super::attributes::AttributeMediator;
use super::grants::{self, GrantLayout};
use super::places::PathPairs;
use super::remains::RemainingProcesses;
use super::running::{LandlockSandbox, SandboxParts};
use super::workspace::{self, CopyError, CopyManifest, CopyRoom};
use super::{child, describe, failed};
use crate::error::IsolationError;
use crate::guest_image;
use crate::limits::{self, HeldByGroup};
use crate::process::grouping::{ControlGroup, GroupPlan};
use crate::process::handshake::{self, ChildReport, ParentEnd};
use crate::sandbox::{EnforcementReport, LeftoverKeeper};

/// Makes a sandbox; when it fails, everything that was made is gone again.
pub(super) fn create(plan: &Plan, leftovers: &mut dyn LeftoverKeeper) -> Result<LandlockSandbox, IsolationError> {
    if plan.network {
        return Err(IsolationError::NotEnforceable {
            level: Level::ProcessLandlock,
            what: "a network of which every connection leads to the gateway".to_owned(),
            reason: "without namespaces a sandbox shares the machine's network".to_owned(),
            hint: "leave out what gives it a network, or make level `process` available: `offleash doctor` says how"
                .to_owned(),
        });
    }
    let layout = grants::lay_out(plan);
    let grouping = GroupPlan::plan(plan, None, Vec::new());
    let mut enforcement = EnforcementReport::default();
    grouping.describe(&plan.limits, &mut enforcement);
    describe::require(plan, &enforcement)?;
    describe::limits(plan, grouping.held().pids, &mut enforcement);
    describe::check(plan, &layout, &mut enforcement)?;

    let places = PathPairs::new(plan, &layout);
    let mut unfinished = UnfinishedSandbox {
        places,
        copies: Vec::new(),
        remains: None,
        group: None,
    };
    unfinished.make_directories(plan, &layout)?;
    let grants = unfinished.grants(plan, &layout);
    let (control, guest_control) =
        socket::stream_pair().map_err(|error| failed("making the control socket", "", error))?;
    let (channel, child_end) = handshake::pair().map_err(|error| failed("making the set-up socket", "", error))?;
    let inherited = child::InheritedDescriptors {
        plan,
        channel: &child_end,
        control: guest_control.as_fd(),
        parents: &[control.as_fd(), channel.0.as_fd()],
        grants: &grants,
        rlimits: &rlimits(&plan.limits, grouping.held()),
        held: grouping.held(),
        affinity: plan
            .limits
            .cpus
            .and_then(|cpus| usize::try_from(cpus.millis.div_ceil(1000)).ok()),
        kept_to_cpus: grouping.keeps_to_cpus(&plan.limits),
    };
    let remains = RemainingProcesses::prepare().map_err(|error| failed("becoming the parent of orphans", "", error))?;
    let first = namespaces::fork_into(NamespaceSet::default(), None, || child::run(&inherited))
        .map_err(|error| failed("starting the first process", "", error))?;
    drop((child_end, guest_control));
    let first = unfinished.remains.insert(StartedChild { remains, first });
    first.remains.watch(first.first.pid);

    let report = unfinished.finish(&grouping, &channel, leftovers)?;
    describe::nature(&layout, &unfinished.places, &report, &mut enforcement);
    // What this level cannot do is noted by now, and was asked for with it; a limit was not.
    let mut swap = EnforcementReport::default();
    grouping.describe_swap(&plan.limits, unfinished.group.as_ref(), &mut swap);
    describe::require(plan, &swap)?;
    enforcement.enforced.extend(swap.enforced);
    enforcement.not_enforced.extend(swap.not_enforced);
    let (places, copies, started, group) = unfinished.complete();
    let Some(StartedChild { remains, first }) = started else {
        return Err(IsolationError::Guest {
            reason: "the first process is gone".to_owned(),
        });
    };
    let parts = SandboxParts {
        first,
        remains,
        channel,
        control,
        listener: report.listener,
        group,
        enforcement,
        places,
        copies,
        attributes: AttributeMediator::new(&grants),
        most_processes: plan.limits.pids.filter(|_| !grouping.held().pids),
    };
    Ok(LandlockSandbox::new(plan, parts))
}

#[derive(Debug)]
struct StartedChild {
    remains: RemainingProcesses,
    first: ForkedChild,
}

/// A copy that was made: its directory, and what is in it.
pub(super) type MadeCopy = (PathBuf, CopyManifest);

/// What was made so far, and is unmade if the rest fails.
#[derive(Debug)]
struct UnfinishedSandbox {
    places: PathPairs,
    copies: Vec<MadeCopy>,
    remains: Option<StartedChild>,
    group: Option<ControlGroup>,
}

type MadeSandbox = (PathPairs, Vec<MadeCopy>, Option<StartedChild>, Option<ControlGroup>);

impl UnfinishedSandbox {
    fn make_directories(&mut self, plan: &Plan, layout: &GrantLayout) -> Result<(), IsolationError> {
        self.places.make().map_err(|error| {
            failed(
                "making the sandbox's own directories",
                self.places.writable().to_string_lossy(),
                error,
            )
        })?;
        let room = CopyRoom {
            bytes: plan.limits.workspace.map(|size| size.0),
            inodes: plan.limits.inodes,
        };
        for copy in &layout.copies {
            let directory = copy.directory();
            let (manifest, copied) = workspace::copy(&copy.lower, &directory, &copy.hidden, room);
            self.copies.push((directory, manifest));
            copied.map_err(|error| explain(error, &copy.lower, &plan.limits))?;
        }
        Ok(())
    }

    fn grants(&self, plan: &Plan, layout: &GrantLayout) -> Vec<(PathBuf, GrantAccess)> {
        let access = if plan.executables.is_empty() {
            GrantAccess::WriteExecute
        } else {
            GrantAccess::Write
        };
        layout
            .grants
            .iter()
            .cloned()
            .chain([(self.places.writable(), access)])
            .collect()
    }

    /// Puts the first process into its cgroup and has it become the guest.
    fn finish(
        &mut self,
        grouping: &GroupPlan,
        channel: &ParentEnd,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<ChildReport, IsolationError> {
        let served = self.serve(grouping, channel, leftovers);
        if served.is_err() {
            // The child waits for more; it must end rather than wait for ever.
            let _told = rustix::net::shutdown(channel.0.as_fd(), rustix::net::Shutdown::Write);
        }
        match (served, channel.report()) {
            (Ok(()), Ok(report)) => Ok(report),
            // What the child says comes first: our own failure is then only that it stopped listening.
            (_, Err(failure)) if failure.source.kind() != io::ErrorKind::UnexpectedEof => {
                Err(failed(failure.step, failure.subject, failure.source))
            }
            (Err(error), _) => Err(error),
            (Ok(()), Err(failure)) => Err(failed(failure.step, failure.subject, failure.source)),
        }
    }

    fn serve(
        &mut self,
        grouping: &GroupPlan,
        channel: &ParentEnd,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<(), IsolationError> {
        let Some(started) = &self.remains else { return Ok(()) };
        leftovers
            .cgroups(&grouping.paths())
            .map_err(|error| failed("noting the cgroup", "", error))?;
        let made = grouping.make(started.first.pid);
        let made = made.map_err(|error| failed("making the cgroup", "", io::Error::other(error)))?;
        let mut entrances = Vec::new();
        if let Some((group, opened)) = made {
            self.group = Some(group);
            entrances = opened;
        }
        let guest = guest_image::sealed_memfd().map_err(|error| failed("writing the guest", "", error))?;
        channel
            .start(Some(guest.as_fd()), &entrances, &[])
            .map_err(|error| failed("telling the first process", "", error))
    }

    fn complete(mut self) -> MadeSandbox {
        let places = std::mem::take(&mut self.places);
        (
            places,
            std::mem::take(&mut self.copies),
            self.remains.take(),
            self.group.take(),
        )
    }
}

impl Drop for UnfinishedSandbox {
    fn drop(&mut self) {
        // The first failure is what the user is told. What stays in the run's directory goes when the run is removed.
        if let Some(mut started) = self.remains.take() {
            let _killed = process::kill(started.first.pidfd.as_fd());
            let _reaped = started.remains.kill();
        }
        if let Some(group) = self.group.take() {
            let _removed = group.remove();
        }
        for (directory, manifest) in &self.copies {
            let _reduced = workspace::reduce(directory, manifest);
        }
        self.places.remove();
    }
}

fn explain(error: CopyError, lower: &Path, limits: &Limits) -> IsolationError {
    let what = format!("that changes in `{}` are kept aside", lower.display());
    let read_only = "mount it read-only with `--workspace DIR:ro`";
    match error {
        CopyError::Bytes => describe::refused(
            &what,
            &format!(
                "without mounts that takes a copy, which exceeds the limit `workspace` ({})",
                limits.workspace.unwrap_or(Bytes(0))
            ),
            &format!("{read_only}, or raise the limit with `--workspace-size`"),
        ),
        CopyError::Inodes => describe::refused(
            &what,
            &format!(
                "without mounts that takes a copy, which exceeds the limit `inodes` ({})",
                limits.inodes.unwrap_or(0)
            ),
            &format!("{read_only}, or raise the limit with `--inodes`"),
        ),
        CopyError::TooDeep(path) => describe::refused(
            &what,
            &format!(
                "without mounts that takes a copy, and `{}…` is too deep for one",
                shortened(&path)
            ),
            read_only,
        ),
        CopyError::Io(path, source) => failed("copying the workspace", lower.join(path).to_string_lossy(), source),
    }
}

/// The beginning of a path that is long by its nature.
fn shortened(path: &Path) -> String {
    path.to_string_lossy().chars().take(60).collect()
}

/// How many more processes than allowed may be there for a moment: so many that the watcher, which tells that the limit
/// was hit, sees them before the kernel refuses.
const PROCESSES_SLACK: u64 = 256;

/// The limits of each process. Processes are counted by user here, so that limit lies above what the user runs already;
/// root has no such limit.
fn rlimits(limits: &Limits, held: HeldByGroup) -> Vec<(LimitedResource, u64)> {
    let mut set = limits::rlimits(limits, held);
    set.retain(|(resource, _)| *resource != LimitedResource::Processes);
    if let Some(pids) = limits.pids.filter(|_| !held.pids) {
        let most = pids
            .saturating_add(tasks_of_this_user())
            .saturating_add(PROCESSES_SLACK);
        set.push((LimitedResource::Processes, most));
    }
    set
}

/// Processes and threads of this user now.
fn tasks_of_this_user() -> u64 {
    let uid = rustix::process::getuid().as_raw().to_string();
    let threads = |status: String| {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.to_owned())
        };
        if field("Uid:")? == uid {
            field("Threads:")?.parse::<u64>().ok()
        } else {
            None
        }
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    // A name may hold any bytes, so the text is not always UTF-8.
    let statuses = processes.filter_map(|entry| std::fs::read(entry.path().join("status")).ok());
    statuses
        .filter_map(|bytes| threads(String::from_utf8_lossy(&bytes).into_owned()))
        .sum()
}
