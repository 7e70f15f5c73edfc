//! One control group of ours: made, joined, removed.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::delegation;
use super::directory::GroupDirectory;
use super::error::CgroupError;
use super::hierarchy::{ControlHierarchies, Controller, HierarchyTree, HierarchyVersion};
use super::limits::{self, EnforcedLimits, GroupLimits};

/// How long [`ControlGroup::remove`] waits for the kernel to let go of the last process.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);

/// A group, which in version 1 is one directory in each hierarchy that a limit needs.
///
/// Dropping it leaves it in place: a group outlives a supervisor that dies, and removal can fail and must be heard.
#[derive(Debug)]
pub struct ControlGroup {
    pub(super) parts: Vec<GroupPart>,
    pub(super) enforced: EnforcedLimits,
}

/// The group's directory in one hierarchy.
#[derive(Debug)]
pub(super) struct GroupPart {
    pub(super) version: HierarchyVersion,
    /// The controllers that are used here; for version 2 those that are part of every group as well.
    pub(super) controllers: Vec<Controller>,
    pub(super) directory: GroupDirectory,
}

/// Moves this process, which must have one thread, into the version 1 groups behind `entrances`.
///
/// Moving another process, or all threads of one, makes the kernel wait until no process on the machine forks or exits
/// (`cgroup_threadgroup_rwsem`), which takes 15 ms when nobody did so shortly before. A thread that moves itself, by
/// writing 0 to `tasks`, waits for nothing.
///
/// # Errors
/// What the kernel answers to the write.
pub fn enter(entrances: &[OwnedFd]) -> io::Result<()> {
    for entrance in entrances {
        rustix::io::write(entrance, b"0")?;
    }
    Ok(())
}

impl ControlGroup {
    /// Makes the group `name`, such as `offleash-7f3a`, with `limits`, in only the controllers that they need.
    ///
    /// With version 2 a group is made even when no limit needs a controller, since killing and pausing come with it.
    /// Limits are as the kernel rounds them, see [`Self::limits`].
    ///
    /// # Errors
    /// `Unavailable` before anything is made, when a controller cannot be used; `Io` when a call fails, after what
    /// had been made was removed.
    pub fn create(hierarchy: &ControlHierarchies, name: &str, limits: &GroupLimits) -> Result<Self, CgroupError> {
        Self::create_for(hierarchy, name, limits, &[])
    }

    /// [`Self::create`] by a process that has `children`: where it must leave its own group, they are taken along.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_for(
        hierarchy: &ControlHierarchies,
        name: &str,
        limits: &GroupLimits,
        children: &[Pid],
    ) -> Result<Self, CgroupError> {
        if !delegation::valid_name(name) {
            return Err(CgroupError::Name { name: name.to_owned() });
        }
        let trees = trees_for(hierarchy, limits)?;
        for (tree, controllers) in &trees {
            delegation::enable(tree, controllers, children)?;
        }
        let mut group = Self {
            parts: Vec::with_capacity(trees.len()),
            enforced: EnforcedLimits::new(),
        };
        for (tree, controllers) in trees {
            if let Err(first) = group.add_part(tree, controllers, name, limits) {
                return Err(match group.remove() {
                    Ok(()) => first,
                    Err(second) => CgroupError::CleanUp {
                        first: Box::new(first),
                        second: Box::new(second),
                    },
                });
            }
        }
        Ok(group)
    }

    fn add_part(
        &mut self,
        tree: &HierarchyTree,
        controllers: Vec<Controller>,
        name: &str,
        limits: &GroupLimits,
    ) -> Result<(), CgroupError> {
        let path = tree.parent.join(name);
        // Exists: it is somebody else's, and must be left as it is.
        fs::create_dir(&path).map_err(|source| CgroupError::io("making", &path, source))?;
        let directory = GroupDirectory::open(path.clone()).inspect_err(|_| {
            let _ = fs::remove_dir(&path);
        })?;
        self.parts.push(GroupPart {
            version: tree.version,
            controllers,
            directory,
        });
        let Some(part) = self.parts.last() else { return Ok(()) };
        limits::write(
            &part.directory,
            part.version,
            &part.controllers,
            limits,
            &mut self.enforced,
        )
    }

    /// Moves process `pid`, with all its threads, into the group; what it starts from now on is in it too.
    ///
    /// # Errors
    /// `Io` when a hierarchy refuses; the process is then in some of them and must not be let run.
    pub fn join(&self, pid: u32) -> Result<(), CgroupError> {
        self.parts.iter().try_for_each(|part| part.join(pid))
    }

    /// [`Self::join`] for a process that was cloned into [`Self::descriptor_for_clone`]: the other hierarchies.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_after_clone(&self, pid: u32) -> Result<(), CgroupError> {
        self.parts
            .iter()
            .filter(|part| part.version == HierarchyVersion::V1)
            .try_for_each(|part| part.join(pid))
    }

    /// Moves process `pid` into the version 2 part of the group, if there is one; version 1 is entered by
    /// [`enter`] from the inside.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_version_2(&self, pid: u32) -> Result<(), CgroupError> {
        self.parts
            .iter()
            .filter(|part| part.version == HierarchyVersion::V2)
            .try_for_each(|part| part.join(pid))
    }

    /// A descriptor for each version 1 hierarchy, through which [`enter`] moves the process that holds them.
    ///
    /// # Errors
    /// `Io` when a file cannot be opened.
    pub fn entrances(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let version_1 = self.parts.iter().filter(|part| part.version == HierarchyVersion::V1);
        version_1.map(|part| part.directory.open_to_write("tasks")).collect()
    }

    /// As [`Self::entrances`], with one for version 2: for a process of one thread of which we do not know the number yet.
    ///
    /// Who may move it is who opened them (Linux 5.16).
    ///
    /// # Errors
    /// `Io` when a file cannot be opened.
    pub fn entrances_to_all(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let file = |part: &GroupPart| match part.version {
            HierarchyVersion::V1 => "tasks",
            HierarchyVersion::V2 => "cgroup.procs",
        };
        let opened = self.parts.iter().map(|part| part.directory.open_to_write(file(part)));
        opened.collect()
    }

    /// The version 2 directory, for `CLONE_INTO_CGROUP` (`clone3(2)`, Linux 5.7); `None` when the group has none.
    pub fn descriptor_for_clone(&self) -> Option<BorrowedFd<'_>> {
        self.parts
            .iter()
            .find(|part| part.version == HierarchyVersion::V2)
            .map(|part| part.directory.as_fd())
    }

    /// The directories, to be recorded so that [`Self::adopt`] finds them after a crash.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.directory.path())
    }

    /// The limits that the kernel holds, rounded as it does.
    ///
    /// # Errors
    /// `Io` when a file cannot be read, `Text` when it is not understood.
    pub fn limits(&self) -> Result<GroupLimits, CgroupError> {
        let mut found = GroupLimits::default();
        for part in &self.parts {
            limits::read(&part.directory, part.version, &part.controllers, &mut found)?;
        }
        Ok(found)
    }

    /// Which limits this group enforces and by what: `memory` by `cgroup v1 memory`. Empty for an adopted group.
    pub fn enforced(&self) -> &EnforcedLimits {
        &self.enforced
    }

    /// Whether the group accounts for CPU time.
    pub fn accounts_cpu(&self) -> bool {
        self.part(Controller::CpuAccounting).is_some()
    }

    /// Processes in the group, as ids of our pid namespace; processes in none of its views are left out.
    ///
    /// # Errors
    /// `Io` when a list cannot be read.
    pub fn processes(&self) -> Result<Vec<i32>, CgroupError> {
        let mut all = Vec::new();
        for part in &self.parts {
            match part.directory.processes() {
                Ok(found) => all.extend(found),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Removes the group and all groups below it; one that is gone already counts as removed.
    ///
    /// Waits up to half a second for processes that were killed to leave. All directories are tried.
    ///
    /// # Errors
    /// `StillBusy` when processes remain, `Io` when the kernel refuses otherwise; the first failure is reported.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        let results = self
            .parts
            .iter()
            .map(|part| remove_tree(part.directory.path(), deadline));
        // Collected first, so that a failure in one hierarchy does not spare the others.
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// Kills what is left in the group, if anything is, and removes it.
    ///
    /// # Errors
    /// As [`Self::kill`] and [`Self::remove`].
    pub fn end(&self) -> Result<(), CgroupError> {
        // The kernel removes what is empty and refuses the rest, which is quicker than looking first.
        let removed = |part: &GroupPart| rustix::fs::rmdir(part.directory.path()).is_ok();
        if self.parts.iter().all(removed) {
            return Ok(());
        }
        self.kill()?;
        self.remove()
    }

    /// Bounds the CPUs of a group that was made with such a limit, in thousandths of one.
    ///
    /// # Errors
    /// `Unavailable` where it was made without, `Io` when the kernel refuses.
    pub fn set_cpus(&self, millis: u64) -> Result<(), CgroupError> {
        let controller = Controller::Cpu;
        let reason = super::ControllerProblem::NotMounted;
        let part = self
            .part(controller)
            .ok_or(CgroupError::Unavailable { controller, reason })?;
        super::limits::write_cpus(&part.directory, part.version, millis)
    }

    pub(super) fn part(&self, controller: Controller) -> Option<&GroupPart> {
        self.parts.iter().find(|part| part.controllers.contains(&controller))
    }
}

impl GroupPart {
    fn join(&self, pid: u32) -> Result<(), CgroupError> {
        self.directory.write_number("cgroup.procs", u64::from(pid))
    }
}

/// The trees that `limits` need, each with the controllers to use in it.
fn trees_for<'a>(
    hierarchy: &'a ControlHierarchies,
    limits: &GroupLimits,
) -> Result<Vec<(&'a HierarchyTree, Vec<Controller>)>, CgroupError> {
    let mut trees: Vec<(&HierarchyTree, Vec<Controller>)> = Vec::with_capacity(3);
    for controller in limits.controllers() {
        let unavailable = |reason| CgroupError::Unavailable { controller, reason };
        let tree = hierarchy
            .tree(controller)
            .ok_or_else(|| unavailable(super::ControllerProblem::NotMounted))?;
        tree.usable(controller).map_err(unavailable)?;
        match trees.iter_mut().find(|(known, _)| std::ptr::eq(*known, tree)) {
            Some((_, controllers)) => controllers.push(controller),
            None => trees.push((tree, vec![controller])),
        }
    }
    // A hybrid machine has its controllers in version 1; joining the empty version 2 tree too would cost half a
    // millisecond and bring nothing that the others do not have.
    let hybrid = Controller::ALL.iter().any(|controller| hierarchy.has_v1(*controller));
    if let (Some(tree), true) = (
        hierarchy.unified().filter(|tree| tree.may_create.is_ok()),
        trees.is_empty() && !hybrid,
    ) {
        trees.push((tree, Vec::new()));
    }
    for (tree, controllers) in &mut trees {
        if tree.version == HierarchyVersion::V2 {
            controllers.retain(|controller| controller.is_delegated_in_v2());
            controllers.extend([Controller::CpuAccounting, Controller::Freezer]);
        }
    }
    Ok(trees)
}

/// Removes the group at `path`, children first, trying again until `deadline` while the kernel says it is in use.
fn remove_tree(path: &Path, deadline: Instant) -> Result<(), CgroupError> {
    let mut pause = Duration::from_micros(200);
    loop {
        let errno = match rustix::fs::rmdir(path) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(errno) => errno,
        };
        if errno != rustix::io::Errno::BUSY {
            return Err(CgroupError::io("removing", path, errno));
        }
        for child in children(path)? {
            remove_tree(&child, deadline)?;
        }
        if Instant::now() >= deadline {
            return Err(CgroupError::StillBusy {
                path: path.to_path_buf(),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn children(path: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let names = GroupDirectory::open(path.to_path_buf()).and_then(|group| group.children());
    match names {
        Ok(names) => Ok(names.into_iter().map(|name| path.join(name)).collect()),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
