//! An entry in both forms that it may have: as the host has it, and as the run left it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{LayerPath, TrustSurroundings};
use crate::change::LayerChange;
use crate::node::{NodeKind, TreeNode};
use crate::tree::entries_in;

/// The longest file of settings that is read.
const MAX_FILE: u64 = 4 << 20;

/// The entries of all layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryForms<'a> {
    pub(super) around: TrustSurroundings<'a>,
}

/// What a directory has under a name.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct NameKinds {
    pub(super) file: bool,
    pub(super) directory: bool,
    pub(super) link: bool,
}

impl NameKinds {
    fn add(&mut self, kind: NodeKind) {
        match kind {
            NodeKind::File => self.file = true,
            NodeKind::Directory => self.directory = true,
            NodeKind::Symlink => self.link = true,
            NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => {}
        }
    }
}

impl<'a> EntryForms<'a> {
    pub(super) fn new(around: TrustSurroundings<'a>) -> Self {
        Self { around }
    }

    /// What is there: of the host's, and of the run's if that changed it.
    pub(super) fn of(&self, place: &LayerPath) -> impl Iterator<Item = TreeNode> + use<> {
        let host = self.around.trees.get(place.layer);
        // What is reached through a link or a mount is no part of the layer.
        let host = host.and_then(|trees| trees.host.node(&place.path).ok().flatten());
        let changed = self.changed(place).and_then(|change| change.after.clone());
        host.into_iter().chain(changed)
    }

    /// What there is in a directory, in either form.
    pub(super) fn children(&self, place: &LayerPath) -> BTreeMap<PathBuf, NameKinds> {
        let mut found: BTreeMap<PathBuf, NameKinds> = BTreeMap::new();
        let trees = self.around.trees.get(place.layer);
        let listed = trees.and_then(|trees| {
            let directory = trees.host.readable(&place.path).ok()?;
            entries_in(&directory).ok()
        });
        for (name, kind) in listed.into_iter().flatten() {
            found.entry(name).or_default().add(kind);
        }
        let mut beneath = self.changes_beneath(place);
        while let Some(change) = beneath.first() {
            let rest = change.path.strip_prefix(&place.path).ok();
            let mut names = rest.into_iter().flat_map(Path::components);
            let Some(name) = names.next() else {
                beneath = &beneath[1..];
                continue;
            };
            let child = place.path.join(name);
            if let Some(after) = change.after.as_ref().filter(|_| names.next().is_none()) {
                found.entry(name.as_os_str().into()).or_default().add(after.kind);
            }
            // What is beneath it is no child.
            let next = beneath.partition_point(|change| change.path.starts_with(&child));
            beneath = &beneath[next.max(1)..];
        }
        found
    }

    /// The contents of a file, in each form.
    pub(super) fn contents(&self, place: &LayerPath) -> Vec<Result<Vec<u8>, String>> {
        let Some(trees) = self.around.trees.get(place.layer) else {
            return Vec::new();
        };
        let changed = self.changed(place).and_then(|change| change.after.as_ref());
        let is_changed = changed.is_some_and(|after| after.kind == NodeKind::File);
        let of_run = is_changed.then(|| trees.upper.file(&place.path));
        let opened = std::iter::once(trees.host.file(&place.path)).chain(of_run);
        opened.filter_map(read).collect()
    }

    fn changed(&self, place: &LayerPath) -> Option<&'a LayerChange> {
        let changes = self.around.changes;
        let key =
            |change: &LayerChange| (change.layer, change.path.as_path()).cmp(&(place.layer, place.path.as_path()));
        let index = changes.binary_search_by(key).ok()?;
        changes.get(index)
    }

    fn changes_beneath(&self, place: &LayerPath) -> &'a [LayerChange] {
        let changes = self.around.changes;
        let key = (place.layer, place.path.as_path());
        let first = changes.partition_point(|change| (change.layer, change.path.as_path()) < key);
        let rest = &changes[first..];
        let end = rest.partition_point(|change| change.layer == place.layer && change.path.starts_with(&place.path));
        &rest[..end]
    }
}

/// What a file holds; nothing where there is none that can be read at all.
fn read(opened: Result<File, Errno>) -> Option<Result<Vec<u8>, String>> {
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::INVAL) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    let mut bytes = Vec::new();
    Some(match file.take(MAX_FILE + 1).read_to_end(&mut bytes) {
        Err(error) => Err(error.to_string()),
        Ok(_) if bytes.len() as u64 > MAX_FILE => Err(format!("longer than {} MiB", MAX_FILE >> 20)),
        Ok(_) => Ok(bytes),
    })
}

/// The names of a path from its beginning; `..` among them.
pub(super) fn names_of(path: &[u8]) -> Vec<&OsStr> {
    let names = path.split(|byte| *byte == b'/');
    names
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(OsStr::from_bytes)
        .collect()
}

/// A path with each `..` taken for the name before it.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    for name in names_of(path.as_os_str().as_bytes()) {
        if name == ".." {
            found.pop();
        } else {
            found.push(name);
        }
    }
    found
}
