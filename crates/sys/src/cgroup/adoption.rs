//! Takes over the groups that a supervisor left behind when it died.

use std::path::{Path, PathBuf};

use super::delegation;
use super::directory::GroupDirectory;
use super::error::CgroupError;
use super::group::{ControlGroup, GroupPart};
use super::hierarchy::{Controller, HierarchyVersion};
use super::limits::EnforcedLimits;

/// `CGROUP_SUPER_MAGIC` of `statfs(2)`.
const V1_MAGIC: u64 = 0x0027_e0eb;
/// `CGROUP2_SUPER_MAGIC` of `statfs(2)`.
const V2_MAGIC: u64 = 0x6367_7270;

impl ControlGroup {
    /// The group with these recorded directories, to be killed and removed or watched further.
    ///
    /// Directories that are gone, as after a restart of the machine, are left out; [`Self::paths`] may be empty.
    ///
    /// # Errors
    /// `NotOurs` when a path is not a control group or does not bear a name that we give: the record may have been
    /// damaged, and nothing else may be killed because of it.
    pub fn adopt(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, CgroupError> {
        let mut parts = Vec::new();
        for path in paths {
            parts.extend(adopt_part(path)?);
        }
        Ok(Self {
            parts,
            enforced: EnforcedLimits::new(),
        })
    }
}

fn adopt_part(path: PathBuf) -> Result<Option<GroupPart>, CgroupError> {
    let named = path
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(delegation::valid_name);
    if !named || !path.is_absolute() || !is_plain(&path) {
        return Err(CgroupError::NotOurs {
            path,
            why: "its name is not one that we give",
        });
    }
    let directory = match GroupDirectory::open(path) {
        Ok(directory) => directory,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = rustix::fs::fstatfs(directory.as_fd())
        .map_err(|errno| CgroupError::io("reading the file system of", directory.path(), errno))?;
    // The type is signed and of different widths on different machines; the two values fit them all.
    let version = match u64::try_from(found.f_type) {
        Ok(V1_MAGIC) => HierarchyVersion::V1,
        Ok(V2_MAGIC) => HierarchyVersion::V2,
        _ => {
            let path = directory.path().to_path_buf();
            return Err(CgroupError::NotOurs {
                path,
                why: "it is not in a control group file system",
            });
        }
    };
    Ok(Some(GroupPart {
        version,
        controllers: controllers_of(&directory, version),
        directory,
    }))
}

fn is_plain(path: &Path) -> bool {
    use std::path::Component;
    path.components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// The controllers that a group has, by their files.
fn controllers_of(group: &GroupDirectory, version: HierarchyVersion) -> Vec<Controller> {
    let file = |controller| match (controller, version) {
        (Controller::Cpu, HierarchyVersion::V1) => "cpu.cfs_quota_us",
        (Controller::Cpu, HierarchyVersion::V2) => "cpu.max",
        (Controller::CpuAccounting, HierarchyVersion::V1) => "cpuacct.usage",
        (Controller::CpuAccounting, HierarchyVersion::V2) => "cpu.stat",
        (Controller::Memory, HierarchyVersion::V1) => "memory.limit_in_bytes",
        (Controller::Memory, HierarchyVersion::V2) => "memory.max",
        (Controller::Pids, _) => "pids.max",
        (Controller::Freezer, HierarchyVersion::V1) => "freezer.state",
        (Controller::Freezer, HierarchyVersion::V2) => "cgroup.freeze",
    };
    Controller::ALL
        .into_iter()
        .filter(|controller| group.has(file(*controller)))
        .collect()
}
