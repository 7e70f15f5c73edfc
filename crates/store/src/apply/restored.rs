//! Originals that a rollback put back: moving them changed their change time, which would look like a change by
//! somebody else to the next apply.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::plan::{ApplyAction, ApplyOperation};
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeIdentity, TreeNode};
use crate::tree::TreeRoot;

/// The file of a run that notes what a rollback put back.
pub(crate) const RESTORED: &str = "restored";
const NEW: &str = "restored.new";

/// What lies where after the last rollback.
pub(crate) type RestoredSlots = HashMap<(usize, PathBuf), NodeIdentity>;

pub(crate) fn read(directory: &OwnedFd) -> Result<RestoredSlots, FileError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, RESTORED, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(RestoredSlots::new()),
        other => other.tried("opening", RESTORED)?,
    };
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).tried("reading", RESTORED)?;
    let entries: Vec<(usize, Text, NodeIdentity)> = serde_json::from_slice(&bytes)
        .map_err(std::io::Error::from)
        .tried("reading", RESTORED)?;
    Ok(entries
        .into_iter()
        .map(|(layer, path, identity)| ((layer, path.as_path().to_owned()), identity))
        .collect())
}

/// Adds the originals of `operations` that are in their places again, unchanged but for the moving.
pub(crate) fn note<'a>(
    directory: &OwnedFd,
    operations: impl Iterator<Item = (&'a ApplyOperation, &'a TreeRoot)>,
) -> Result<(), FileError> {
    let mut restored = read(directory)?;
    for (operation, host) in operations {
        let Some(original) = original(&operation.action) else {
            continue;
        };
        let path = operation.path.as_path();
        if let Ok(Some(found)) = host.node(path)
            && is_same(&found, original, &operation.action)
        {
            restored.insert((operation.layer, path.to_owned()), found.identity);
        }
    }
    let entries: Vec<_> = restored
        .iter()
        .map(|((layer, path), identity)| (layer, Text::from(path), identity))
        .collect();
    let bytes = serde_json::to_vec(&entries)
        .map_err(std::io::Error::from)
        .tried("encoding", RESTORED)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, NEW, flags, Mode::RUSR | Mode::WUSR);
    File::from(opened.tried("creating", NEW)?)
        .write_all(&bytes)
        .tried("writing", NEW)?;
    rustix::fs::renameat(directory, NEW, directory, RESTORED).tried("replacing", RESTORED)
}

fn is_same(found: &TreeNode, original: &NodeIdentity, action: &ApplyAction) -> bool {
    let identity = &found.identity;
    match action {
        // What was in it was put back, too, and that changed its time of modification.
        ApplyAction::Take { directory: true, .. } => (identity.dev, identity.ino) == (original.dev, original.ino),
        // A plan that only opens it up does not ask whether the host put it there.
        ApplyAction::Mode { .. } if found.is_directory() => false,
        _ => identity.same_but_renamed(original),
    }
}

fn original(action: &ApplyAction) -> Option<&NodeIdentity> {
    match action {
        ApplyAction::Take { original, .. } => Some(original),
        ApplyAction::Put { replaces, .. } => replaces.as_ref(),
        ApplyAction::Mode { original, .. } => Some(original),
        ApplyAction::Finish { .. } => None,
    }
}
