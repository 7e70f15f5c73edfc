//! What the owner mounts: host paths and empty directories.

use std::path::Path;

use offleash_core::limits::Limits;
use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::spec::{MountAccess, MountSpec, TmpfsSpec, VolumeMount};
use offleash_core::text::Text;

use super::error::PlanError;
use super::host::PlanningHost;
use super::reach;
use super::system::inodes_in_memory;
use super::tree::EntryTree;

/// Adds the mounts, those above first, whatever the order in which they were written.
pub(super) fn add(
    mounts: &[MountSpec],
    host: &PlanningHost,
    workspace: Option<&Path>,
    tree: &mut EntryTree,
) -> Result<(), PlanError> {
    let mut entries = Vec::new();
    for mount in mounts {
        entries.push(entry(mount, host, workspace)?);
    }
    entries.sort_by_key(|(entry, _)| entry.target.components().count());
    for (entry, directory) in entries {
        tree.add("mount target", entry, directory)?;
    }
    Ok(())
}

fn entry(mount: &MountSpec, host: &PlanningHost, workspace: Option<&Path>) -> Result<(PlanEntry, bool), PlanError> {
    const ROLE: &str = "mount source";
    let target = reach::check_target("mount target", &mount.target)?;
    let (source, metadata) = reach::resolve(ROLE, &mount.source, host)?;
    reach::check_kind(ROLE, &source, &metadata)?;
    reach::check_stays(ROLE, &mount.source, &source, host, workspace)?;
    match mount.access {
        MountAccess::Ro => reach::check_source(ROLE, &source, host)?,
        MountAccess::Rw => reach::check_writable_source(ROLE, &source, host)?,
    }
    let rule = format!("mount: {}", target.display());
    Ok((
        PlanEntry {
            target,
            node: PlanNode::Bind {
                source,
                access: mount.access,
            },
            rule,
        },
        metadata.is_dir(),
    ))
}

/// Adds the volumes.
pub(super) fn add_volumes(mounts: &[VolumeMount], host: &PlanningHost, tree: &mut EntryTree) -> Result<(), PlanError> {
    const ROLE: &str = "volume target";
    let mut mounts: Vec<&VolumeMount> = mounts.iter().collect();
    mounts.sort_by_key(|mount| mount.target.components().count());
    for mount in mounts {
        let target = reach::check_target(ROLE, &mount.target)?;
        let found = host.volumes.iter().find(|found| found.key == mount.volume);
        let found = found.ok_or_else(|| PlanError::UnknownVolume {
            name: mount.volume.to_string(),
            target: Text::from(&target),
        })?;
        let rule = format!("volume: {} at {}", found.name, target.display());
        let node = PlanNode::Volume {
            name: found.name.clone(),
            source: found.data.clone(),
            access: mount.access,
            quota: found.quota,
            used: found.used,
        };
        tree.add(ROLE, PlanEntry { target, node, rule }, true)?;
    }
    Ok(())
}

/// Adds the empty directories.
pub(super) fn add_tmpfs(list: &[TmpfsSpec], limits: &Limits, tree: &mut EntryTree) -> Result<(), PlanError> {
    let mut list: Vec<&TmpfsSpec> = list.iter().collect();
    list.sort_by_key(|tmpfs| tmpfs.target.components().count());
    for tmpfs in list {
        let target = reach::check_target("tmpfs target", &tmpfs.target)?;
        let rule = format!("tmpfs: {}", target.display());
        let node = PlanNode::Tmpfs {
            size: tmpfs.size.or(limits.tmp),
            inodes: inodes_in_memory(limits),
            mode: 0o1777,
        };
        tree.add("tmpfs target", PlanEntry { target, node, rule }, true)?;
    }
    Ok(())
}
