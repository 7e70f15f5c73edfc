//! What the owner mounts: host paths and empty directories.

use std::path::Path;

use offleash_core::limits::Limits;
use offleash_core::plan::{Entry, Node};
use offleash_core::spec::{Access, MountSpec, TmpfsSpec};

use super::error::PlanError;
use super::host::Host;
use super::reach;
use super::system::inodes_in_memory;
use super::tree::EntryTree;

/// Adds the mounts, those above first, whatever the order in which they were written.
pub(super) fn add(
    mounts: &[MountSpec],
    host: &Host,
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

fn entry(mount: &MountSpec, host: &Host, workspace: Option<&Path>) -> Result<(Entry, bool), PlanError> {
    const ROLE: &str = "mount source";
    let target = reach::check_target("mount target", &mount.target)?;
    let (source, metadata) = reach::resolve(ROLE, &mount.source, host)?;
    reach::check_kind(ROLE, &source, &metadata)?;
    reach::check_stays(ROLE, &mount.source, &source, host, workspace)?;
    match mount.access {
        Access::Ro => reach::check_source(ROLE, &source, host)?,
        Access::Rw => reach::check_writable_source(ROLE, &source, host)?,
    }
    let rule = format!("mount: {}", target.display());
    Ok((
        Entry {
            target,
            node: Node::Bind {
                source,
                access: mount.access,
            },
            rule,
        },
        metadata.is_dir(),
    ))
}

/// Adds the empty directories.
pub(super) fn add_tmpfs(list: &[TmpfsSpec], limits: &Limits, tree: &mut EntryTree) -> Result<(), PlanError> {
    let mut list: Vec<&TmpfsSpec> = list.iter().collect();
    list.sort_by_key(|tmpfs| tmpfs.target.components().count());
    for tmpfs in list {
        let target = reach::check_target("tmpfs target", &tmpfs.target)?;
        let rule = format!("tmpfs: {}", target.display());
        let node = Node::Tmpfs {
            size: tmpfs.size.or(limits.tmp),
            inodes: inodes_in_memory(limits),
            mode: 0o1777,
        };
        tree.add("tmpfs target", Entry { target, node, rule }, true)?;
    }
    Ok(())
}
