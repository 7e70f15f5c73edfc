//! What of a plan's entries is served, as trees.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use offleash_core::level::Level;
use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_core::spec::MountAccess;
use offleash_isolation::error::IsolationError;
use offleash_isolation::limits::LayerMeter;
use rustix::io::Errno;

use super::{hidden_below, not_here};
use crate::tree::{FileCaller, LayerOwners, LayerQuota, LowerPart, ServedTree, SharedQuota, TreeParts, owners_of};

/// How a rule begins that the owner asked for by a mount.
const MOUNT_RULE: &str = "mount";
/// The directory of a layer that holds what was written.
const UPPER: &str = "upper";
/// The number that whoever works in a sandbox has in volumes of several users.
const WORKER: u32 = 1000;

/// A tree of a plan's entry; none where that grants no directory.
type NewTree = Result<Option<ServedTree>, IsolationError>;

/// Whether an entry is a directory below a layer.
pub(super) fn is_overlay(entry: &PlanEntry) -> bool {
    matches!(entry.node, PlanNode::Overlay { .. })
}

/// The sandbox's usual user.
pub(crate) fn usual_caller(plan: &Plan) -> FileCaller {
    FileCaller {
        uid: plan.user.uid,
        gid: plan.user.gid,
    }
}

/// A directory of the host, which is only read or lies below a layer.
pub(super) fn of_the_host(plan: &Plan, entry: &PlanEntry) -> NewTree {
    let (lower, upper) = match &entry.node {
        PlanNode::Overlay { lower, layer } => (lower, Some(layer.join(UPPER))),
        PlanNode::Bind {
            source,
            access: MountAccess::Ro,
        } if source.is_dir() => (source, None),
        PlanNode::Bind {
            access: MountAccess::Ro,
            ..
        } if entry.rule.starts_with(MOUNT_RULE) => {
            return Err(not_here("a mount of a single file", "it serves directories alone"));
        }
        PlanNode::Bind {
            access: MountAccess::Rw,
            ..
        } => {
            return Err(not_here(
                "a mount that is written to",
                "what is written goes into the run's layer",
            ));
        }
        _ => return Ok(None),
    };
    let owners = owners_of(lower).map_err(|errno| cannot_open(lower, errno))?;
    assemble(
        lower,
        TreeParts {
            lowers: vec![LowerPart {
                path: lower,
                owners,
                is_layer: false,
            }],
            upper: upper.as_deref().map(|upper| (upper, LayerOwners::One)),
            hidden: hidden_below(plan, &entry.target),
            quota: SharedQuota::new(LayerQuota::new(&plan.limits)),
            user: usual_caller(plan),
            is_shared: false,
        },
    )
}

/// A volume: what is in it, and what is written, in one place.
pub(super) fn of_volume(plan: &Plan, entry: &PlanEntry) -> NewTree {
    let PlanNode::Volume {
        source,
        access,
        quota,
        used,
        ..
    } = &entry.node
    else {
        return Ok(None);
    };
    let found = source.metadata().map_err(|error| cannot_read(source, error))?;
    let owners = match rustix::process::geteuid().is_root() {
        false => LayerOwners::One,
        true if plan.ids.is_one() => LayerOwners::Only(found.uid()),
        true => LayerOwners::Range(found.uid().saturating_sub(WORKER)),
    };
    let is_written = *access == MountAccess::Rw;
    let lower = LowerPart {
        path: source,
        owners,
        is_layer: false,
    };
    assemble(
        source,
        TreeParts {
            lowers: if is_written { Vec::new() } else { vec![lower] },
            upper: is_written.then_some((source.as_path(), owners)),
            hidden: Vec::new(),
            quota: SharedQuota::new(LayerQuota::of_volume(*quota, *used, &plan.limits)),
            user: usual_caller(plan),
            is_shared: true,
        },
    )
}

/// A part of a root of its own: what the sandbox, its snapshot and its template wrote. Of the machine itself only what the base
/// holds is there, and none of its programs.
pub(super) fn of_own_root(plan: &Plan, entry: &PlanEntry, quota: &SharedQuota) -> NewTree {
    let PlanNode::Base {
        lower,
        stack,
        template,
        snapshot,
        layer,
        ..
    } = &entry.node
    else {
        return Ok(None);
    };
    if !stack.is_empty() {
        return Err(not_here("an image as its root", "it runs no program of an image"));
    }
    let is_root = rustix::process::geteuid().is_root();
    if is_root && plan.ids.is_one() {
        return Err(not_here(
            "a root of its own with one id",
            "files of it have several owners",
        ));
    }
    let owners = |part: &Path| {
        let found = part.symlink_metadata().map_err(|error| cannot_read(part, error))?;
        Ok::<_, IsolationError>(if is_root {
            LayerOwners::Range(found.uid())
        } else {
            LayerOwners::One
        })
    };
    let mut below = Vec::new();
    for part in [snapshot, template].into_iter().flatten() {
        below.push((part.join(UPPER), owners(part)?, true));
    }
    if entry.target == Path::new("/") {
        let of_system = if is_root {
            LayerOwners::Range(0)
        } else {
            LayerOwners::One
        };
        below.push((lower.clone(), of_system, false));
    }
    let upper = layer.join(UPPER);
    let found = LayerMeter::of_directory(&upper).map(|mut meter| meter.measure());
    let found = found.map_err(|error| cannot_read(&upper, error))?;
    quota.lock().add_found(found.bytes, found.inodes);
    assemble(
        &upper,
        TreeParts {
            lowers: below
                .iter()
                .map(|(path, owners, is_layer)| LowerPart {
                    path,
                    owners: *owners,
                    is_layer: *is_layer,
                })
                .collect(),
            upper: Some((&upper, owners(layer)?)),
            hidden: hidden_below(plan, &entry.target),
            quota: quota.clone(),
            user: usual_caller(plan),
            is_shared: false,
        },
    )
}

fn assemble(place: &Path, parts: TreeParts<'_>) -> NewTree {
    let tree = ServedTree::assemble(parts).map_err(|errno| cannot_open(place, errno))?;
    Ok(Some(tree))
}

fn cannot_open(place: &Path, errno: Errno) -> IsolationError {
    cannot_read(place, errno.into())
}

fn cannot_read(place: &Path, source: io::Error) -> IsolationError {
    IsolationError::Step {
        level: Level::Simulated,
        step: "opening a directory that is served".to_owned(),
        subject: place.to_string_lossy().into_owned(),
        source,
    }
}
