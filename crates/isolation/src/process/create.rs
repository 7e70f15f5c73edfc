//! The parent's half of making a sandbox.
//!
//! While the child makes its namespaces and mounts, the parent maps ids, makes the cgroup and writes the guest into a
//! sealed file: on two processors the two halves cost little more than the longer one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use offleash_core::level::Level;
use offleash_core::plan::{Plan, PlanNode};
use offleash_core::spec::{MountAccess, ZygoteRole};
use offleash_sys::namespaces::{self, ForkedChild, NamespaceSet};
use offleash_sys::{mount, process, socket};

use super::below::ZygoteProcess;
use super::child::HousedProgram;
use super::door::{JoinSpec, PendingFork};
use super::enforcement::{describe, require};
use super::grouping::{self, GroupPlan};
use super::handshake::{self, ChildReport, ParentEnd, StepFailure};
use super::identity::{self, IdMaps, MapWriter};
use super::layers::prepare_layers;
use super::owners::OwnerMaps;
use super::running::{ProcessSandbox, SandboxParts};
use super::tree::HousedFile;
use super::{child, failed, network, tree};
use crate::error::IsolationError;
use crate::guest_image;
use crate::sandbox::{EnforcementReport, LeftoverKeeper, SandboxIds};

/// A first process in namespaces of its own that waits to be told what to become.
///
/// It knows nothing of its sandbox yet but the ids, so it can be made before there is a plan. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct PendingInit {
    ids: SandboxIds,
    identity: IdMaps,
    unfinished: UnfinishedSandbox,
    channel: ParentEnd,
    control: OwnedFd,
    /// A copy of its zygote's process that was asked for ahead.
    coming: Option<PendingFork>,
}

impl PendingInit {
    /// Starts one; the calling process must have one thread.
    pub(crate) fn new(ids: SandboxIds, housed: Option<&dyn HousedProgram>) -> Result<Self, IsolationError> {
        let identity = identity::choose(&ids).map_err(|error| failed("choosing user ids", "", error))?;
        let (control, guest_control) =
            socket::stream_pair().map_err(|error| failed("making the control socket", "", error))?;
        let (channel, child_end) = handshake::pair().map_err(|error| failed("making the set-up socket", "", error))?;
        let inherited = child::InheritedDescriptors {
            channel: &child_end,
            control: guest_control.as_fd(),
            hands_out: ids.descent == ZygoteRole::Zygote,
            parents: &[control.as_fd(), channel.0.as_fd()],
            housed,
        };
        // Without the network namespace, which takes longest and which the child makes itself at the same time.
        let namespaces = NamespaceSet {
            user: true,
            pid: true,
            mount: true,
            ipc: true,
            uts: true,
            network: false,
        };
        let first = match ids.descent {
            ZygoteRole::Below(zygote) => ZygoteProcess::find(zygote)
                .and_then(|zygote| zygote.fork(&ids, &identity, namespaces, || child::run(&inherited)))
                .map_err(|error| failed("making namespaces below a zygote", "", error))?,
            ZygoteRole::Alone | ZygoteRole::Zygote => {
                namespaces::fork_into(namespaces, None, || child::run(&inherited))
                    .map_err(|error| failed("making namespaces", "", error))?
            }
        };
        let pid = first.pid;
        place_apart(pid);
        let embryo = Self {
            ids,
            identity,
            unfinished: UnfinishedSandbox {
                first: Some(first),
                group: None,
            },
            channel,
            control,
            coming: None,
        };
        if !embryo.is_below() {
            let mapped = embryo.identity.write_maps(pid);
            mapped.map_err(|error| failed("mapping user ids", "", error))?;
        }
        embryo
            .channel
            .mapped(embryo.changes_user().then_some((embryo.ids.uid, embryo.ids.gid)))
            .map_err(|error| failed("telling the first process", "", error))?;
        Ok(embryo)
    }

    /// Has the zygote at the other end of `zygote`, below which it was made, make a copy of its process meanwhile.
    pub(super) fn ask_for_copy(&mut self, zygote: OwnedFd) -> Result<(), IsolationError> {
        if !self.is_below() {
            return Err(IsolationError::Unsupported {
                level: Level::Process,
                operation: "copy a process into a sandbox that was not made below a zygote",
            });
        }
        let asked = PendingFork::ask(zygote, self.unfinished.first()?.pid);
        self.coming = Some(asked.map_err(|error| failed("asking for a copy of the zygote's process", "", error))?);
        Ok(())
    }

    /// Whether these are its ids.
    pub(crate) fn has(&self, ids: &SandboxIds) -> bool {
        self.ids == *ids
    }

    /// Whether the process must change to the sandbox's user; others are it already.
    fn changes_user(&self) -> bool {
        self.identity.writer == MapWriter::Privileged || self.is_below()
    }

    /// Where copies of its zygote's processes come in, if it has one.
    fn door(
        &self,
        plan: &Plan,
        grouping: &GroupPlan,
        ruleset: Option<OwnedFd>,
    ) -> Result<Option<JoinSpec>, IsolationError> {
        if !self.is_below() {
            return Ok(None);
        }
        let bounds = bounds(grouping, plan);
        let door = JoinSpec::new(plan, self.unfinished.first()?.pid, &self.identity, &bounds)
            .map_err(|error| failed("finding its processes", "", error))?;
        Ok(Some(JoinSpec { ruleset, ..door }))
    }

    /// Whether it was made below a zygote, where its ids were mapped as it was made.
    fn is_below(&self) -> bool {
        matches!(self.ids.descent, ZygoteRole::Below(_))
    }

    /// Makes it the sandbox of `plan`; when it fails, everything that was made is gone again.
    pub(super) fn become_sandbox(
        self,
        plan: &Plan,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<ProcessSandbox, IsolationError> {
        ProcessSandbox::new(plan, self.make(plan, leftovers)?)
    }

    /// Has it take the last steps to what it is to become; what the sandbox of `plan` is put together from.
    pub(crate) fn make(
        mut self,
        plan: &Plan,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<SandboxParts, IsolationError> {
        prepare_layers(plan, &self.identity)?;
        let order = child::ChildOrder {
            plan,
            from_parent: trees_of_the_parent(plan, &self.identity),
        };
        let parent = ParentSide {
            identity: &self.identity,
            order: &order,
            channel: &self.channel,
            control: self.control.as_fd(),
            coming: self.coming.as_ref(),
        };
        let mut owners = OwnerMaps::new(&self.identity);
        let sent = parent.send_order(&mut owners);
        // While the child assembles its file system.
        let grouping = GroupPlan::plan(plan, Some(self.unfinished.first()?.pid), owners.makers());
        let mut enforcement = EnforcementReport::default();
        let limits = grouping.limits(plan);
        grouping.describe(&limits, &mut enforcement);
        require(plan, &enforcement)?;
        let mut report = parent.finish(sent, &mut self.unfinished, &grouping, leftovers)?;
        let door = self.door(plan, &grouping, report.ruleset.take())?;
        describe(plan, &self.identity, &report, &mut enforcement);
        grouping.describe_swap(&limits, self.unfinished.group.as_ref(), &mut enforcement);
        require(plan, &enforcement)?;
        let Self {
            unfinished,
            channel,
            control,
            coming,
            ..
        } = self;
        let sockets = network::from_order(report.network, &plan.network_doors);
        let sockets = sockets.map_err(|error| failed("taking over the sockets of the network", "", error))?;
        let network = plan.network.then_some(sockets);
        let (first, group) = unfinished.complete();
        Ok(SandboxParts {
            first,
            channel,
            control,
            listener: report.listener,
            shown: report.shown,
            network,
            group,
            enforcement,
            door,
            coming,
        })
    }
}

fn bounds(grouping: &GroupPlan, plan: &Plan) -> child::ChildBounds {
    child::ChildBounds {
        held: grouping.held(),
        kept_to_cpus: grouping.keeps_to_cpus(&plan.limits),
    }
}

/// Moves the first process to another CPU than ours.
///
/// The kernel starts a child where its parent runs, where it would wait until we do; the two halves would take turns
/// instead of working at the same time. It is not kept there: should the others be busy, it comes back as soon as we
/// wait for it. Only speed depends on it.
fn place_apart(first: rustix::process::Pid) {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    let mut others = all;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() > 0 && rustix::thread::sched_setaffinity(Some(first), &others).is_ok() {
        // It fails only if those CPUs were taken away meanwhile; then the kernel chose others.
        let _lifted = rustix::thread::sched_setaffinity(Some(first), &all);
    }
}

/// What was made so far, and is unmade if the rest fails.
#[derive(Debug)]
struct UnfinishedSandbox {
    first: Option<ForkedChild>,
    group: Option<grouping::ControlGroup>,
}

impl UnfinishedSandbox {
    fn first(&self) -> Result<&ForkedChild, IsolationError> {
        self.first.as_ref().ok_or(IsolationError::Guest {
            reason: "the first process is gone".to_owned(),
        })
    }

    fn complete(mut self) -> (Option<ForkedChild>, Option<grouping::ControlGroup>) {
        (self.first.take(), self.group.take())
    }
}

impl Drop for UnfinishedSandbox {
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            // The first failure is what the user is told; the kernel reaps for us should these fail.
            let _killed = process::kill(first.pidfd.as_fd());
            let _reaped = process::reap(first.pid);
        }
        if let Some(group) = self.group.take() {
            let _removed = group.remove();
        }
    }
}

struct ParentSide<'a> {
    identity: &'a IdMaps,
    order: &'a child::ChildOrder<&'a Plan>,
    channel: &'a ParentEnd,
    control: BorrowedFd<'a>,
    coming: Option<&'a PendingFork>,
}

impl ParentSide<'_> {
    /// Sends what the child needs first.
    fn send_order(&self, owners: &mut OwnerMaps<'_>) -> Result<(), IsolationError> {
        child::send_order(self.control, self.order).map_err(|error| failed("telling the first process", "", error))?;
        self.send_trees(owners)
    }

    /// Serves the child after its order was `sent`, and waits for its report.
    fn finish(
        &self,
        sent: Result<(), IsolationError>,
        unfinished: &mut UnfinishedSandbox,
        grouping: &GroupPlan,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<ChildReport, IsolationError> {
        let pid = unfinished.first()?.pid;
        let served = sent.and_then(|()| self.serve(pid, unfinished, grouping, leftovers));
        if served.is_err() {
            // The child waits for more; it must end rather than wait for ever.
            let _told = rustix::net::shutdown(self.channel.0.as_fd(), rustix::net::Shutdown::Write);
            let _told = rustix::net::shutdown(self.control, rustix::net::Shutdown::Write);
        }
        while served.is_ok() && !self.channel.has_report() && leftovers.meanwhile() {}
        match (served, self.channel.report()) {
            (Ok(()), Ok(report)) => Ok(report),
            // What the child says comes first: our own failure is then only that it stopped listening.
            (_, Err(failure)) if !is_lost(&failure) => Err(failed(failure.step, failure.subject, failure.source)),
            (Err(error), _) => Err(error),
            (Ok(()), Err(failure)) => Err(failed(failure.step, failure.subject, failure.source)),
        }
    }

    /// In the order in which the child needs it.
    fn serve(
        &self,
        pid: rustix::process::Pid,
        unfinished: &mut UnfinishedSandbox,
        grouping: &GroupPlan,
        leftovers: &mut dyn LeftoverKeeper,
    ) -> Result<(), IsolationError> {
        let telling = |error| failed("telling the first process", "", error);
        // From outside, where it may take a capability of ours, and before the guest, so that no command starts without.
        // Where it fails, the guest does it for each command.
        let _preferred = crate::limits::prefer_to_kill(&pid.to_string(), crate::limits::OOM_SCORE);
        leftovers
            .cgroups(&grouping.paths())
            .map_err(|error| failed("noting the cgroup", "", error))?;
        let made = grouping.make(pid);
        let mut entrances = Vec::new();
        if let Some(made) = made.map_err(|error| failed("making the cgroup", "", io::Error::other(error)))? {
            unfinished.group = Some(made.0);
            entrances = made.1;
        }
        if let Some(coming) = self.coming {
            // If it does not hear of it, it is not let in later.
            let _told = coming.enter(unfinished.group.as_ref());
        }
        let guest = match self.order.plan.guest {
            Some(_) => None,
            None => Some(guest_image::sealed_memfd().map_err(|error| failed("writing the guest", "", error))?),
        };
        let bounds = bounds(grouping, self.order.plan);
        let told = postcard::to_allocvec(&bounds).map_err(|error| telling(io::Error::other(error)))?;
        self.channel
            .start(guest.as_ref().map(AsFd::as_fd), &entrances, &told)
            .map_err(telling)
    }

    /// Makes and sends the trees that need the host's privilege: files outside the system's own directories, with
    /// their owner mapped to the sandbox's user.
    fn send_trees(&self, owners: &mut OwnerMaps<'_>) -> Result<(), IsolationError> {
        let housed = HousedFile::all_of(self.order.plan);
        for &number in &self.order.from_parent {
            if let (tree::GUEST, Some(guest)) = (number, &self.order.plan.guest) {
                let tree = mount::clone_tree(mount::current_directory(), guest);
                let tree = tree.map_err(|error| failed("opening", guest.to_string_lossy(), error))?;
                self.send_tree(number, tree.as_fd())?;
                continue;
            }
            if let Some(file) = housed.iter().find(|file| file.number == number) {
                let tree = file.open();
                let tree = tree.map_err(|error| failed("opening", file.path.to_string_lossy(), error))?;
                self.send_tree(number, tree.as_fd())?;
                continue;
            }
            let path = path_of(&self.order.plan.entries[tree::entry_of(number)].node, number);
            let opened = if number != tree::layer_number(tree::entry_of(number)) {
                mount::clone_resolved(path)
            } else {
                mount::clone_tree(mount::current_directory(), path)
            };
            let tree = opened.map_err(|error| failed("opening", path.to_string_lossy(), error))?;
            self.map_owner(number, tree.as_fd(), path, owners)?;
            self.send_tree(number, tree.as_fd())?;
        }
        Ok(())
    }

    fn send_tree(&self, number: usize, tree: BorrowedFd<'_>) -> Result<(), IsolationError> {
        let index =
            u16::try_from(number).map_err(|_| failed("counting mounts", "", io::ErrorKind::InvalidInput.into()))?;
        self.channel
            .tree(index, tree)
            .map_err(|error| failed("telling the first process", "", error))
    }

    /// Shows the files of a tree, and lets them be made, as the sandbox's own.
    fn map_owner(
        &self,
        number: usize,
        tree: BorrowedFd<'_>,
        path: &Path,
        owners: &mut OwnerMaps<'_>,
    ) -> Result<(), IsolationError> {
        let node = &self.order.plan.entries[tree::entry_of(number)].node;
        let is_source = number == tree::source_number(tree::entry_of(number));
        let stat =
            rustix::fs::fstat(tree).map_err(|error| failed("examining", path.to_string_lossy(), error.into()))?;
        let owner = (stat.st_uid, stat.st_gid);
        let namespace = match node {
            PlanNode::Base { .. } if is_source => owners.of_system(owner),
            PlanNode::Base { .. } if owner == self.identity.outside => return Ok(()),
            PlanNode::Base { .. } => owners.of_earlier(owner),
            PlanNode::Volume { .. } => owners.of_volume(owner),
            _ if is_source => owners.of_worker(owner),
            _ => return Ok(()),
        };
        let mapped = namespace.and_then(|namespace| mount::map_ids(tree, namespace));
        match mapped {
            Ok(()) => Ok(()),
            // Read-only and readable for everybody: the mapping would only have shown another owner.
            Err(_)
                if matches!(
                    node,
                    PlanNode::Bind {
                        access: MountAccess::Ro,
                        ..
                    } | PlanNode::Volume {
                        access: MountAccess::Ro,
                        ..
                    }
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(IsolationError::NotEnforceable {
                level: Level::Process,
                what: "that code does not run as the host's root".to_owned(),
                reason: format!("the file system of `{}` cannot map owners ({error})", path.display()),
                hint: "run offleash as the user who owns the files, or mount the workspace read-only with \
                       `--workspace DIR:ro`"
                    .to_owned(),
            }),
        }
    }
}

/// The numbers of the trees that the child, without the host's privilege, could not make.
fn trees_of_the_parent(plan: &Plan, identity: &IdMaps) -> Vec<usize> {
    if identity.writer != MapWriter::Privileged {
        return Vec::new();
    }
    // In the order in which they are asked for.
    let mut numbers: Vec<usize> = HousedFile::all_of(plan).iter().map(|file| file.number).collect();
    numbers.extend(plan.guest.is_some().then_some(tree::GUEST));
    for (entry, node) in plan.entries.iter().map(|entry| &entry.node).enumerate() {
        match node {
            PlanNode::Volume { .. } => numbers.push(tree::source_number(entry)),
            PlanNode::Bind { source, .. } if !tree::is_system(source) => numbers.push(tree::source_number(entry)),
            PlanNode::Overlay { .. } => numbers.extend([tree::source_number(entry), tree::layer_number(entry)]),
            PlanNode::Base { template, snapshot, .. } => {
                // In the order in which they are asked for.
                numbers.extend(snapshot.is_some().then_some(tree::snapshot_number(entry)));
                numbers.extend(template.is_some().then_some(tree::template_number(entry)));
                numbers.extend([tree::source_number(entry), tree::layer_number(entry)]);
            }
            _ => {}
        }
    }
    numbers
}

fn path_of(node: &PlanNode, number: usize) -> &Path {
    let is_template = number == tree::template_number(tree::entry_of(number));
    let is_snapshot = number == tree::snapshot_number(tree::entry_of(number));
    match node {
        PlanNode::Base {
            snapshot: Some(snapshot),
            ..
        } if is_snapshot => snapshot,
        PlanNode::Base {
            template: Some(template),
            ..
        } if is_template => template,
        PlanNode::Bind { source, .. } | PlanNode::Volume { source, .. } => source,
        PlanNode::Overlay { lower, .. } | PlanNode::Base { lower, .. }
            if number == tree::source_number(tree::entry_of(number)) =>
        {
            lower
        }
        PlanNode::Overlay { layer, .. } | PlanNode::Base { layer, .. } => layer,
        _ => Path::new("/"),
    }
}

fn is_lost(failure: &StepFailure) -> bool {
    failure.source.kind() == io::ErrorKind::UnexpectedEof
}
