//! Gives the writable layers of a sandbox to its user, before anything is made of them.

use std::path::Path;

use offleash_core::plan::{Plan, PlanNode};

use super::failed;
use super::identity::{IdMaps, MapWriter};
use crate::error::IsolationError;

/// Gives the writable layers to the sandbox's user.
pub(super) fn prepare_layers(plan: &Plan, identity: &IdMaps) -> Result<(), IsolationError> {
    if identity.writer != MapWriter::Privileged {
        return Ok(());
    }
    for entry in &plan.entries {
        let (layer, before) = match &entry.node {
            PlanNode::Overlay { layer, .. } => (layer, None),
            // That of an earlier sandbox belongs to the ids which that had, and is mapped.
            PlanNode::Base { layer, .. } => (layer, owner_of_layer(layer)?),
            _ => continue,
        };
        let owner = before.unwrap_or(identity.outside);
        if matches!(&entry.node, PlanNode::Base { .. }) && before.is_none() {
            give_all(&layer.join("upper"), owner)?;
        }
        let is_new = matches!(&entry.node, PlanNode::Overlay { .. }) || owner == identity.outside;
        let upper = is_new.then(|| layer.join("upper"));
        for directory in [layer.clone(), layer.join("work")].into_iter().chain(upper) {
            give(&directory, owner)?;
        }
        // What it lies over is the worker's, and so is the directory at its top.
        if matches!(&entry.node, PlanNode::Overlay { .. }) && identity.worker != identity.outside {
            give(&layer.join("upper"), identity.worker)?;
        }
    }
    Ok(())
}

/// Gives what is in a directory, in which no sandbox ever was.
fn give_all(directory: &Path, owner: (u32, u32)) -> Result<(), IsolationError> {
    let found = std::fs::read_dir(directory);
    let found = found.map_err(|error| failed("preparing the layer", directory.to_string_lossy(), error))?;
    for entry in found {
        let entry = entry.map_err(|error| failed("preparing the layer", directory.to_string_lossy(), error))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            give_all(&entry.path(), owner)?;
        }
        give(&entry.path(), owner)?;
    }
    Ok(())
}

/// Gives a directory, or whatever is called so; no link is followed.
fn give(directory: &Path, (uid, gid): (u32, u32)) -> Result<(), IsolationError> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    rustix::fs::chownat(
        rustix::fs::CWD,
        directory,
        Some(uid),
        Some(gid),
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .map_err(|error| failed("preparing the layer", directory.to_string_lossy(), error.into()))
}

/// To whom a layer was given by an earlier sandbox, if there was one.
fn owner_of_layer(layer: &Path) -> Result<Option<(u32, u32)>, IsolationError> {
    let found = rustix::fs::lstat(layer).map_err(|error| failed("examining", layer.to_string_lossy(), error.into()))?;
    let is_given = found.st_uid != rustix::process::geteuid().as_raw();
    Ok(is_given.then_some((found.st_uid, found.st_gid)))
}
