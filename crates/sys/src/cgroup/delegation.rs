//! Version 2: whether and how our group can hand controllers to the groups we make.
//!
//! The rules are those of <https://docs.kernel.org/admin-guide/cgroup-v2.html>, "Top-down Constraint", "No Internal
//! Process Constraint" and "Delegation"; the module above describes what follows from them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::Pid;

use super::NAME_PREFIX;
use super::directory::GroupDirectory;
use super::error::{CgroupError, ControllerProblem};
use super::hierarchy::{Controller, HierarchyTree, HierarchyVersion, writable};
use super::mounts::{GroupMembership, HierarchyMount};
use crate::process::is_own_child;

/// The leaf of our own group that this process moves to, so that the group may hand controllers down.
const SUPERVISOR: &str = "offleash-supervisor";

/// How a version 2 group hands controllers to the groups below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DelegationWay {
    /// Version 1: every group below has the controllers of its hierarchy.
    NotNeeded,
    /// These are handed down already; others cannot be.
    Only {
        enabled: Vec<Controller>,
        /// Why no others.
        otherwise: ControllerProblem,
    },
    /// These are handed down already, others will be by a write to `cgroup.subtree_control`.
    Enable { enabled: Vec<Controller> },
    /// As `Enable`, after this process has moved into the leaf.
    MoveThenEnable { enabled: Vec<Controller> },
}

impl DelegationWay {
    pub(super) fn impossible(reason: ControllerProblem) -> Self {
        DelegationWay::Only {
            enabled: Vec::new(),
            otherwise: reason,
        }
    }

    pub(super) fn allows(&self, controller: Controller) -> Result<(), ControllerProblem> {
        match self {
            DelegationWay::Only { enabled, otherwise } if !enabled.contains(&controller) => Err(otherwise.clone()),
            _ => Ok(()),
        }
    }

    fn enabled(&self) -> &[Controller] {
        match self {
            DelegationWay::NotNeeded => &[],
            DelegationWay::Only { enabled, .. }
            | DelegationWay::Enable { enabled }
            | DelegationWay::MoveThenEnable { enabled } => enabled,
        }
    }
}

/// The version 2 tree of a process that is in `own_group` and whose ids are `own`.
pub(super) fn tree(
    own: &[i32],
    member: &GroupMembership,
    mount: &HierarchyMount,
    top: &Path,
    own_group: PathBuf,
) -> HierarchyTree {
    let found = if mount.read_only {
        Err(ControllerProblem::ReadOnly {
            path: own_group.clone(),
        })
    } else {
        in_own_group(own, &own_group).or_else(|reason| match at_the_top(member, mount, top) {
            Some(found) => Ok(found),
            None => Err(reason),
        })
    };
    match found {
        Ok(found) => found,
        Err(reason) => HierarchyTree {
            version: HierarchyVersion::V2,
            controllers: Vec::new(),
            parent: own_group,
            may_create: Err(reason.clone()),
            placement: DelegationWay::impossible(reason),
        },
    }
}

/// Our own group, or its parent if we are in the supervisor's leaf already.
fn in_own_group(own: &[i32], own_group: &Path) -> Result<HierarchyTree, ControllerProblem> {
    let in_leaf = own_group.file_name() == Some(OsStr::new(SUPERVISOR));
    let parent = if in_leaf {
        own_group.parent().unwrap_or(own_group)
    } else {
        own_group
    };
    let group = open_writable(parent)?;
    let enabled = controllers_in(&group, "cgroup.subtree_control");
    // The root group is the only one without a type, and is exempt from the rule against internal processes.
    let is_root = !group.has("cgroup.type");
    let others = if is_root { 0 } else { others_in(&group, own) };
    let placement = if is_root || (in_leaf && others == 0) {
        DelegationWay::Enable { enabled }
    } else if others == 0 && undelegated_unit(parent) {
        DelegationWay::Only {
            enabled,
            otherwise: ControllerProblem::UnitNotDelegated {
                path: parent.to_path_buf(),
            },
        }
    } else if others == 0 {
        DelegationWay::MoveThenEnable { enabled }
    } else {
        DelegationWay::Only {
            enabled,
            otherwise: ControllerProblem::OtherProcesses {
                path: parent.to_path_buf(),
                count: others,
            },
        }
    };
    if let DelegationWay::Only { enabled, otherwise } = &placement
        && enabled.is_empty()
    {
        return Err(otherwise.clone());
    }
    Ok(HierarchyTree {
        version: HierarchyVersion::V2,
        controllers: controllers_in(&group, "cgroup.controllers"),
        parent: parent.to_path_buf(),
        may_create: Ok(()),
        placement,
    })
}

/// For root in a login session, which sets no limits of its own: the top of the tree, as it is.
///
/// A service is left alone: leaving its group would leave the limits that were put on it.
fn at_the_top(member: &GroupMembership, mount: &HierarchyMount, top: &Path) -> Option<HierarchyTree> {
    if !member.path.starts_with("/user.slice") || mount.root != Path::new("/") {
        return None;
    }
    let group = open_writable(top).ok().filter(|group| !group.has("cgroup.type"))?;
    let enabled = controllers_in(&group, "cgroup.subtree_control");
    Some(HierarchyTree {
        version: HierarchyVersion::V2,
        controllers: enabled.clone(),
        parent: top.to_path_buf(),
        may_create: Ok(()),
        placement: DelegationWay::Only {
            enabled,
            otherwise: ControllerProblem::NotDelegated {
                path: top.to_path_buf(),
            },
        },
    })
}

/// The group, if we may make groups in it and move processes between them.
fn open_writable(group: &Path) -> Result<GroupDirectory, ControllerProblem> {
    writable(group)?;
    for file in ["cgroup.procs", "cgroup.subtree_control"] {
        // Without these two a directory that happens to be ours is not delegated (cgroup-v2, "Model of Delegation").
        rustix::fs::accessat(CWD, group.join(file), Access::WRITE_OK, AtFlags::EACCESS).map_err(|_| {
            ControllerProblem::NotPermitted {
                path: group.to_path_buf(),
            }
        })?;
    }
    GroupDirectory::open(group.to_path_buf()).map_err(|_| ControllerProblem::NotPermitted {
        path: group.to_path_buf(),
    })
}

/// Whether `group` is a systemd unit without `Delegate=yes`: at its next reload systemd would take back what we enable.
///
/// systemd marks delegated units with an extended attribute: `trusted.delegate` since version 238, which only root
/// can read, and `user.delegate` since 251. For others than root a missing mark says nothing.
fn undelegated_unit(group: &Path) -> bool {
    let is_unit = group
        .extension()
        .is_some_and(|kind| kind == "service" || kind == "scope");
    let marked = |name: &str| {
        let mut value = [0_u8; 1];
        rustix::fs::getxattr(group, name, &mut value).is_ok_and(|length| length == 1 && value == *b"1")
    };
    is_unit && rustix::process::geteuid().is_root() && !marked("trusted.delegate") && !marked("user.delegate")
}

fn controllers_in(group: &GroupDirectory, file: &str) -> Vec<Controller> {
    let text = group.read(file).unwrap_or_default();
    text.split_whitespace().filter_map(Controller::from_name).collect()
}

/// Processes in the group that are neither us nor started by us, which can be moved along; unreadable counts as one. Those of
/// other pid namespaces read as 0.
fn others_in(group: &GroupDirectory, own: &[i32]) -> usize {
    let Ok(text) = group.read_list("cgroup.procs") else {
        return 1;
    };
    let is_own = |pid: i32| own.contains(&pid) || is_own_child(pid);
    text.lines()
        .filter(|line| !line.trim().parse().is_ok_and(is_own))
        .count()
}

/// Hands `controllers` to the groups below the tree's parent, moving this process, its `children` and whatever else it started
/// into the leaf if it must.
///
/// What is handed down already is not written again, so usually nothing is done.
pub(super) fn enable(tree: &HierarchyTree, controllers: &[Controller], children: &[Pid]) -> Result<(), CgroupError> {
    let enabled = tree.placement.enabled();
    let missing: Vec<String> = controllers
        .iter()
        .filter(|controller| controller.is_delegated_in_v2() && !enabled.contains(controller))
        .map(|controller| format!("+{controller}"))
        .collect();
    if tree.version == HierarchyVersion::V1 || missing.is_empty() {
        return Ok(());
    }
    let parent = GroupDirectory::open(tree.parent.clone())?;
    let hand_down = || parent.write("cgroup.subtree_control", &missing.join(" "));
    if !matches!(tree.placement, DelegationWay::MoveThenEnable { .. }) {
        return hand_down();
    }
    let others = parent.read_list("cgroup.procs").unwrap_or_default();
    let others = others.lines().filter_map(|line| line.trim().parse::<i32>().ok());
    let others = others.filter(|pid| is_own_child(*pid)).filter_map(Pid::from_raw);
    let mut children = children.to_vec();
    children.extend(others.filter(|pid| !children.contains(pid)).collect::<Vec<_>>());
    move_into_leaf(&parent, &children)?;
    hand_down().inspect_err(|_| move_back(&parent, &children))
}

fn move_into_leaf(parent: &GroupDirectory, children: &[Pid]) -> Result<(), CgroupError> {
    let leaf = parent.path().join(SUPERVISOR);
    match fs::create_dir(&leaf) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(CgroupError::io("making", leaf, source));
        }
        _ => {}
    }
    let moved = GroupDirectory::open(leaf).and_then(|leaf| move_into(&leaf, children));
    moved.inspect_err(|_| move_back(parent, children))
}

/// Moves this process, all its threads included, and `children` into `group`.
fn move_into(group: &GroupDirectory, children: &[Pid]) -> Result<(), CgroupError> {
    // `0` is the writer itself.
    group.write("cgroup.procs", "0")?;
    for child in children {
        match group.write("cgroup.procs", &child.as_raw_pid().to_string()) {
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Undoes [`move_into_leaf`]; called on the way out with an error, which is the one worth reporting.
fn move_back(parent: &GroupDirectory, children: &[Pid]) {
    if move_into(parent, children).is_ok() {
        // The leaf may be another supervisor's, in which case it is not empty and stays.
        let _ = fs::remove_dir(parent.path().join(SUPERVISOR));
    }
}

/// Whether `systemd-run --user --scope -p Delegate=yes` (for root: without `--user`) can be expected to work here.
///
/// True when the service manager's socket is there and `systemd-run` is in `PATH`; nothing is started.
pub fn systemd_scope_available() -> bool {
    let root = rustix::process::geteuid().is_root();
    let runtime = if root {
        Some(PathBuf::from("/run"))
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map(Into::into)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    runtime.is_some_and(|runtime| scope_available(&runtime, &path))
}

fn scope_available(runtime: &Path, path: &OsStr) -> bool {
    let socket = ["systemd/private", "bus"]
        .iter()
        .any(|name| runtime.join(name).exists());
    socket && std::env::split_paths(path).any(|directory| directory.join("systemd-run").is_file())
}

/// Whether `name` may be the name of a sandbox's group.
pub(super) fn valid_name(name: &str) -> bool {
    let id = name.strip_prefix(NAME_PREFIX).unwrap_or_default();
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !id.is_empty() && name.len() <= 200 && id.bytes().all(word) && name != SUPERVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_accepted() {
        for good in ["offleash-a", "offleash-0a1B_c-d"] {
            assert!(valid_name(good), "{good}");
        }
        for bad in [
            "",
            "offleash-",
            "a",
            "offleash-a/b",
            "offleash-..",
            "offleash-a b",
            SUPERVISOR,
            "../offleash-a",
        ] {
            assert!(!valid_name(bad), "{bad}");
        }
        assert!(!valid_name(&format!("offleash-{}", "a".repeat(200))));
    }

    #[test]
    fn a_scope_needs_both_the_manager_and_the_command() {
        let runtime = tempfile::tempdir().unwrap();
        let bin = tempfile::tempdir().unwrap();
        let path = std::env::join_paths(["/nonexistent".as_ref(), bin.path()]).unwrap();
        assert!(!scope_available(runtime.path(), &path));
        fs::write(bin.path().join("systemd-run"), "").unwrap();
        assert!(!scope_available(runtime.path(), &path));
        fs::write(runtime.path().join("bus"), "").unwrap();
        assert!(scope_available(runtime.path(), &path));
    }
}
