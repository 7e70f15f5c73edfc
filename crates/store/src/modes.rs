//! Which directories of the host have other permissions after a run because of the run.
//!
//! A directory is copied as soon as something in it changes, with the permissions that it has then. So the host's may differ
//! later although the run changed none, and are the host's own then.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::change::{ChangeKind, LayerChange};
use crate::failure::FileError;
use crate::node::{NodeTime, TreeNode};
use crate::places;

pub(crate) const MODES: &str = "modes";

/// For each directory whose mode differed when its run ended: what the host's was, or `None` if the host touched it during
/// the run, so that nobody knows who changed it.
#[derive(Debug, Default)]
pub(crate) struct DirectoryModes(HashMap<(usize, PathBuf), Option<u32>>);

impl DirectoryModes {
    fn of(changes: &[LayerChange], latest_untouched: NodeTime) -> Self {
        let differing = changes.iter().filter(|change| is_mode_of_directory(change));
        let known = |before: &TreeNode| (before.identity.ctime <= latest_untouched).then_some(before.mode);
        let found = differing.filter_map(|change| {
            let before = change.before.as_ref()?;
            Some(((change.layer, change.path.clone()), known(before)))
        });
        Self(found.collect())
    }

    /// Whether the run may have changed it.
    pub(crate) fn may_be_changed(&self, change: &LayerChange) -> bool {
        !is_mode_of_directory(change) || self.0.contains_key(&(change.layer, change.path.clone()))
    }

    /// Whether the run alone changed it, and the host has the mode that it had.
    pub(crate) fn is_the_runs(&self, change: &LayerChange, before: &TreeNode) -> bool {
        let then = self.0.get(&(change.layer, change.path.clone()));
        then.copied().flatten() == Some(before.mode)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for ((layer, path), mode) in &self.0 {
            let mode = mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
            bytes.extend_from_slice(format!("{layer}\0{mode}\0").as_bytes());
            bytes.extend_from_slice(path.as_os_str().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let mut fields = bytes.split(|byte| *byte == 0);
        let mut all = HashMap::new();
        while let (Some(layer), Some(mode), Some(path)) = (fields.next(), fields.next(), fields.next()) {
            let text = |field| std::str::from_utf8(field).ok();
            if let Some(layer) = text(layer).and_then(|layer| layer.parse().ok()) {
                let mode = text(mode).and_then(|mode| u32::from_str_radix(mode, 8).ok());
                all.insert((layer, PathBuf::from(OsStr::from_bytes(path))), mode);
            }
        }
        Self(all)
    }
}

pub(crate) fn is_mode_of_directory(change: &LayerChange) -> bool {
    change.kind == ChangeKind::ModeChanged && change.before.as_ref().is_some_and(TreeNode::is_directory)
}

/// Notes them. `latest_untouched` is the latest change time of an untouched entry.
pub(crate) fn note(directory: &OwnedFd, changes: &[LayerChange], latest_untouched: NodeTime) -> Result<(), FileError> {
    let bytes = DirectoryModes::of(changes, latest_untouched).to_bytes();
    places::replace_bytes(directory, MODES, &bytes)
}

/// `None` before the run has ended.
pub(crate) fn read(directory: &OwnedFd) -> Result<Option<DirectoryModes>, FileError> {
    let bytes = places::read_bytes(directory, MODES)?;
    Ok(bytes.map(|bytes| DirectoryModes::of_bytes(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let path = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path));
        let all = DirectoryModes(HashMap::from([
            ((0, path(b".")), Some(0o755)),
            ((1, path(b"a\nb/\xff")), None),
        ]));
        assert_eq!(DirectoryModes::of_bytes(&all.to_bytes()).0, all.0);
        assert!(DirectoryModes::of_bytes(b"").0.is_empty());
    }
}
