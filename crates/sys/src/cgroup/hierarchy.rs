//! Which hierarchies there are, where we are in them, and where new groups may be made.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode as Permissions, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::delegation::{self, DelegationWay};
use super::error::{CgroupError, ControllerProblem};
use super::mounts::{GroupMembership, HierarchyMount, parse_memberships, parse_mounts};

/// A controller: what a group can limit or account for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU bandwidth.
    Cpu,
    /// CPU time used; every group of version 2 has it without a controller.
    CpuAccounting,
    /// Memory and swap.
    Memory,
    /// Processes and threads.
    Pids,
    /// Pausing a group; every group of version 2 has it without a controller.
    Freezer,
}

impl Controller {
    /// All of them.
    pub const ALL: [Controller; 5] = [
        Controller::Cpu,
        Controller::CpuAccounting,
        Controller::Memory,
        Controller::Pids,
        Controller::Freezer,
    ];

    /// The kernel's name in version 1, which is also the one in version 2 where that has such a controller.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::CpuAccounting => "cpuacct",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
        }
    }

    /// Whether a version 2 group must be handed this controller; the others are part of every group.
    pub(super) fn is_delegated_in_v2(self) -> bool {
        matches!(self, Controller::Cpu | Controller::Memory | Controller::Pids)
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Controller::ALL.into_iter().find(|controller| controller.name() == name)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The two versions of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchyVersion {
    /// One hierarchy for each controller or few controllers.
    V1,
    /// One hierarchy for all.
    V2,
}

impl fmt::Display for HierarchyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HierarchyVersion::V1 => "cgroup v1",
            HierarchyVersion::V2 => "cgroup v2",
        })
    }
}

/// Which versions are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchyMode {
    /// None that holds us.
    None,
    /// Version 1 only.
    V1,
    /// Version 2 only.
    V2,
    /// Both; a controller is in one of them.
    Hybrid,
}

/// All hierarchies that this process is in and can see.
#[derive(Debug)]
pub struct ControlHierarchies {
    trees: Vec<HierarchyTree>,
}

/// One mounted hierarchy.
#[derive(Debug)]
pub(super) struct HierarchyTree {
    pub(super) version: HierarchyVersion,
    /// The controllers that are mounted here; for version 2 those that reach [`Self::parent`].
    pub(super) controllers: Vec<Controller>,
    /// The group below which ours are made.
    pub(super) parent: PathBuf,
    /// Whether a group can be made below `parent` at all.
    pub(super) may_create: Result<(), ControllerProblem>,
    /// Version 2: how controllers are handed to groups below `parent`.
    pub(super) placement: DelegationWay,
}

impl ControlHierarchies {
    /// Reads `/proc/self/cgroup` and `/proc/self/mountinfo` and looks at our own groups; changes nothing.
    ///
    /// # Errors
    /// `Io` when one of the two files cannot be read. No hierarchy at all is not an error, see [`Self::mode`].
    pub fn discover() -> Result<Self, CgroupError> {
        Self::discover_below(Path::new("/"), &[own_pid()], None)
    }

    /// [`Self::discover`], but only of the hierarchies in which groups with `controllers` would be made: nothing is
    /// known of other controllers then, nor of [`Self::mode`]. Of `children`, which this process has started, it is
    /// known that they can be moved with it: they are not in the way of anything.
    ///
    /// # Errors
    /// As [`Self::discover`].
    pub fn discover_for(controllers: &[Controller], children: &[Pid]) -> Result<Self, CgroupError> {
        let children = children.iter().map(|child| child.as_raw_pid());
        let own: Vec<i32> = std::iter::once(own_pid()).chain(children).collect();
        Self::discover_below(Path::new("/"), &own, Some(controllers))
    }

    /// The hierarchies for `controllers`, or all, in the file tree below `root`, for a process whose ids are `own`.
    pub(super) fn discover_below(
        root: &Path,
        own: &[i32],
        controllers: Option<&[Controller]>,
    ) -> Result<Self, CgroupError> {
        let mut memberships = parse_memberships(&read(&root.join("proc/self/cgroup"))?);
        if let Some(controllers) = controllers {
            keep_needed(&mut memberships, controllers);
        }
        let mounts = parse_mounts(&read(&root.join("proc/self/mountinfo"))?);
        let trees = memberships
            .iter()
            .filter_map(|member| HierarchyTree::find(root, own, member, &mounts))
            .collect();
        Ok(Self { trees })
    }

    /// Which versions hold us.
    pub fn mode(&self) -> HierarchyMode {
        let has = |version| self.trees.iter().any(|tree| tree.version == version);
        match (has(HierarchyVersion::V1), has(HierarchyVersion::V2)) {
            (false, false) => HierarchyMode::None,
            (true, false) => HierarchyMode::V1,
            (false, true) => HierarchyMode::V2,
            (true, true) => HierarchyMode::Hybrid,
        }
    }

    /// Whether groups with `controller` can be made, and by which version.
    ///
    /// # Errors
    /// The reason why not.
    pub fn availability(&self, controller: Controller) -> Result<HierarchyVersion, ControllerProblem> {
        let tree = self.tree(controller).ok_or(ControllerProblem::NotMounted)?;
        tree.usable(controller).map(|()| tree.version)
    }

    /// The group below which groups with `controller` are made.
    pub fn parent(&self, controller: Controller) -> Option<&Path> {
        self.tree(controller).map(|tree| tree.parent.as_path())
    }

    /// The tree that has `controller`: the version 1 hierarchy it is mounted with, or else version 2.
    pub(super) fn tree(&self, controller: Controller) -> Option<&HierarchyTree> {
        let holds = |tree: &&HierarchyTree| tree.controllers.contains(&controller);
        self.trees
            .iter()
            .find(|tree| tree.version == HierarchyVersion::V1 && holds(tree))
            .or_else(|| self.unified())
    }

    /// The version 2 hierarchy.
    pub(super) fn unified(&self) -> Option<&HierarchyTree> {
        self.trees.iter().find(|tree| tree.version == HierarchyVersion::V2)
    }

    /// Whether `controller` is in a hierarchy of version 1.
    pub(super) fn has_v1(&self, controller: Controller) -> bool {
        self.tree(controller)
            .is_some_and(|tree| tree.version == HierarchyVersion::V1)
    }
}

#[cfg(test)]
impl ControlHierarchies {
    /// As on a machine that has only `version` mounted.
    pub(super) fn keep_only(&mut self, version: HierarchyVersion) {
        self.trees.retain(|tree| tree.version == version);
    }
}

impl HierarchyTree {
    /// The tree that `member` is about; `None` for one without a controller of interest.
    fn find(root: &Path, own: &[i32], member: &GroupMembership, mounts: &[HierarchyMount]) -> Option<Self> {
        let version = if member.is_v2() {
            HierarchyVersion::V2
        } else {
            HierarchyVersion::V1
        };
        let controllers: Vec<Controller> = member
            .controllers
            .iter()
            .filter_map(|name| Controller::from_name(name))
            .collect();
        if version == HierarchyVersion::V1 && controllers.is_empty() {
            return None;
        }
        let mounted = mounts.iter().filter(|mount| {
            mount.v2 == member.is_v2() && member.controllers.iter().all(|name| mount.options.contains(name))
        });
        // The same hierarchy may be mounted several times; the one that shows our group and is writable is wanted.
        let mut located: Vec<(&HierarchyMount, PathBuf)> = mounted
            .filter_map(|mount| Some((mount, below(root, &mount.locate(&member.path)?))))
            .collect();
        located.sort_by_key(|(mount, _)| mount.read_only);
        let Some((mount, own_group)) = located.into_iter().next() else {
            let outside = mounts
                .iter()
                .any(|mount| mount.v2 == member.is_v2() && version == HierarchyVersion::V2)
                || version == HierarchyVersion::V1;
            return outside.then(|| Self::outside(version, controllers, member));
        };
        Some(match version {
            HierarchyVersion::V1 => Self::v1(controllers, own_group, mount.read_only),
            HierarchyVersion::V2 => delegation::tree(own, member, mount, &below(root, &mount.point), own_group),
        })
    }

    fn outside(version: HierarchyVersion, controllers: Vec<Controller>, member: &GroupMembership) -> Self {
        let reason = ControllerProblem::OutsideView {
            path: member.path.clone(),
        };
        Self {
            version,
            controllers,
            parent: member.path.clone(),
            may_create: Err(reason.clone()),
            placement: DelegationWay::impossible(reason),
        }
    }

    fn v1(controllers: Vec<Controller>, parent: PathBuf, read_only: bool) -> Self {
        let may_create = if read_only {
            Err(ControllerProblem::ReadOnly { path: parent.clone() })
        } else {
            writable(&parent)
        };
        Self {
            version: HierarchyVersion::V1,
            controllers,
            parent,
            may_create,
            placement: DelegationWay::NotNeeded,
        }
    }

    /// Whether a group made here can have `controller`.
    pub(super) fn usable(&self, controller: Controller) -> Result<(), ControllerProblem> {
        self.may_create.clone()?;
        if self.version == HierarchyVersion::V1 || !controller.is_delegated_in_v2() {
            return Ok(());
        }
        if !self.controllers.contains(&controller) {
            return Err(ControllerProblem::NotDelegated {
                path: self.parent.clone(),
            });
        }
        self.placement.allows(controller)
    }
}

/// Whether we may make directories in `group`.
pub(super) fn writable(group: &Path) -> Result<(), ControllerProblem> {
    let path = group.to_path_buf();
    match rustix::fs::accessat(CWD, group, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::ROFS) => Err(ControllerProblem::ReadOnly { path }),
        Err(Errno::NOENT) => Err(ControllerProblem::OutsideView { path }),
        Err(_) => Err(ControllerProblem::NotPermitted { path }),
    }
}

/// Leaves the hierarchies that [`ControlHierarchies::tree`] finds for `controllers`.
fn keep_needed(memberships: &mut Vec<GroupMembership>, controllers: &[Controller]) {
    let has = |member: &GroupMembership, controller: &Controller| {
        member.controllers.iter().any(|name| name == controller.name())
    };
    let elsewhere = |controller: &Controller| memberships.iter().any(|member| has(member, controller));
    let needs_v2 = !controllers.iter().all(elsewhere);
    memberships.retain(|member| match member.is_v2() {
        true => needs_v2,
        false => controllers.iter().any(|controller| has(member, controller)),
    });
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The whole of a file of `/proc`, which does not say how long it is, in few large reads.
fn read(path: &Path) -> Result<Vec<u8>, CgroupError> {
    let fail = |errno| CgroupError::io("reading", path, errno);
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Permissions::empty()).map_err(fail)?;
    let mut text = Vec::new();
    loop {
        text.reserve(16 * 1024);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text)) {
            Ok(0) => return Ok(text),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
}

#[cfg(test)]
mod tests;
