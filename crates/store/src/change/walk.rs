//! Walks an upper directory and looks every entry up on the host.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{ChangeError, ChangeKind, LayerChange, UNFINISHED, renaming};
use crate::NodeKind;
use crate::content::same_contents;
use crate::failure::FileError;
use crate::leads_out::{HostPath, leads_out};
use crate::node::TreeNode;
use crate::overlay::{self, OverlayMarks};
use crate::places::LayerPaths;
use crate::protection::ProtectionRules;
use crate::tree::{ModeHandling, TreeRoot, UsableDirectory, names_in, node_at, open_file, stat_at};

/// A layer's upper directory and the host directory below it.
#[derive(Debug)]
pub(crate) struct LayerTrees {
    pub(crate) root: PathBuf,
    pub(crate) upper: TreeRoot,
    pub(crate) host: TreeRoot,
}

/// The changes of one layer in no particular order, without the paths in `applied`.
pub(crate) fn changes_in_layer(
    layer: usize,
    trees: &LayerTrees,
    protection: &ProtectionRules,
    applied: &LayerPaths,
    seen: &[HostPath],
) -> Result<Vec<LayerChange>, ChangeError> {
    let mut walk = ChangeWalk {
        layer,
        trees,
        protection,
        applied,
        seen,
        waiting: vec![(PathBuf::new(), false)],
        gone: BTreeSet::new(),
        found: Vec::new(),
    };
    walk.root()?;
    while let Some((directory, below_opaque)) = walk.waiting.pop() {
        walk.directory(&directory, below_opaque)?;
    }
    walk.take_gone()?;
    Ok(walk.found)
}

struct ChangeWalk<'a> {
    layer: usize,
    trees: &'a LayerTrees,
    protection: &'a ProtectionRules,
    applied: &'a LayerPaths,
    seen: &'a [HostPath],
    /// Directories of the upper tree that are still to be looked at, and whether one above hides the host's.
    waiting: Vec<(PathBuf, bool)>,
    /// What got another name and is no more, though something of it may be left.
    gone: BTreeSet<PathBuf>,
    found: Vec<LayerChange>,
}

/// Names the path that an error is about.
fn at(tried: &'static str, path: &Path) -> impl FnOnce(Errno) -> ChangeError {
    let path = path.to_owned();
    move |error| ChangeError::File {
        source: FileError::new(tried, &path, error),
        path,
    }
}

impl ChangeWalk<'_> {
    fn root(&mut self) -> Result<(), ChangeError> {
        let here = Path::new(".");
        let upper = self.trees.upper.node(Path::new("")).map_err(at("examining", here))?;
        let host = self.trees.host.node(Path::new("")).map_err(at("examining", here))?;
        if upper.as_ref().map(|node| node.mode) != host.as_ref().map(|node| node.mode) {
            self.push(here, ChangeKind::ModeChanged, host, upper, OverlayMarks::default());
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path, below_opaque: bool) -> Result<(), ChangeError> {
        let upper = self.trees.upper.readable(path).map_err(at("opening", path))?;
        let _usable = UsableDirectory::hold(&upper).map_err(at("opening up", path))?;
        let host = self.host_directory(path)?;
        let mut names = names_in(&upper).map_err(at("listing", path))?;
        let gone = renaming::take_out(path, &upper, &mut names).map_err(at("examining", path))?;
        self.gone.extend(gone);
        let opaque = below_opaque || is_opaque(&upper, path)?;
        for name in &names {
            self.entry(&path.join(name), &upper, host.as_ref(), opaque)?;
        }
        if host.is_some() && opaque {
            self.hidden_by_opaque(path, &names)?;
        }
        Ok(())
    }

    /// `None` where the host has no directory, or one that is reached through a link or a mount and so is not ours.
    fn host_directory(&self, path: &Path) -> Result<Option<OwnedFd>, ChangeError> {
        match self.trees.host.directory(path) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => Ok(None),
            Err(error) => Err(at("opening", path)(error)),
        }
    }

    fn entry(&mut self, path: &Path, upper: &OwnedFd, host: Option<&OwnedFd>, opaque: bool) -> Result<(), ChangeError> {
        let name = path.file_name().unwrap_or_default();
        let Some(stat) = stat_at(upper, name).map_err(at("examining", path))? else {
            return Ok(());
        };
        let before = match host {
            Some(host) => node_at(host, name).map_err(at("examining", path))?,
            None => None,
        };
        let marks = self.marks(path, upper, name, &TreeNode::of(&stat))?;
        if overlay::is_whiteout_device(&stat) || marks.whiteout {
            return before.map_or(Ok(()), |before| self.deleted(path, before));
        }
        let Some(after) = node_at(upper, name).map_err(at("examining", path))? else {
            return Ok(());
        };
        if after.is_directory() {
            self.waiting.push((path.to_owned(), opaque));
        }
        match before {
            None => self.push(path, ChangeKind::Added, None, Some(after), marks),
            Some(before) if before.kind != after.kind => {
                if before.is_directory() {
                    self.deleted_beneath(path)?;
                }
                self.push(path, ChangeKind::TypeChanged, Some(before), Some(after), marks);
            }
            Some(before) => {
                if let Some(kind) = self.difference(path, (upper, host), name, (&before, &after))? {
                    self.push(path, kind, Some(before), Some(after), marks);
                }
            }
        }
        Ok(())
    }

    /// Only files and directories have attributes that a mount with `userxattr` sets.
    fn marks(&self, path: &Path, upper: &OwnedFd, name: &OsStr, node: &TreeNode) -> Result<OverlayMarks, ChangeError> {
        if !matches!(node.kind, NodeKind::File | NodeKind::Directory) {
            return Ok(OverlayMarks::default());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(upper, name, flags, Mode::empty()).map_err(at("opening", path))?;
        let mut marks = overlay::marks(&place).map_err(at("reading the attributes of", path))?;
        marks.whiteout &= node.kind == NodeKind::File && node.size == 0;
        if marks.incomplete {
            Err(ChangeError::Incomplete { path: path.to_owned() })
        } else {
            Ok(marks)
        }
    }

    /// How two entries of the same type differ.
    fn difference(
        &self,
        path: &Path,
        (upper, host): (&OwnedFd, Option<&OwnedFd>),
        name: &OsStr,
        (before, after): (&TreeNode, &TreeNode),
    ) -> Result<Option<ChangeKind>, ChangeError> {
        let mode = (before.mode != after.mode).then_some(ChangeKind::ModeChanged);
        match (after.kind, host) {
            (NodeKind::File, Some(host)) => {
                let same = before.size == after.size && same_files(path, upper, host, name)?;
                Ok(if same { mode } else { Some(ChangeKind::Modified) })
            }
            (NodeKind::Symlink, _) => Ok((before.target != after.target).then_some(ChangeKind::SymlinkChanged)),
            _ => Ok(mode),
        }
    }

    fn hidden_by_opaque(&mut self, path: &Path, shown: &[PathBuf]) -> Result<(), ChangeError> {
        for name in self.host_names(path)? {
            let child = path.join(&name);
            if shown.binary_search(&name).is_ok() {
                continue;
            }
            if let Some(before) = self.trees.host.node(&child).map_err(at("examining", &child))? {
                self.deleted(&child, before)?;
            }
        }
        Ok(())
    }

    /// Old names that are no more are deleted, but for what is new there. That is the sandbox's word alone, which may also be
    /// about what it could not remove, so none of it is applied unless it is named.
    fn take_gone(&mut self) -> Result<(), ChangeError> {
        let gone = std::mem::take(&mut self.gone);
        if gone.is_empty() {
            return Ok(());
        }
        let is_gone = |change: &LayerChange| change.path.ancestors().any(|path| gone.contains(path));
        self.found
            .retain(|change| change.kind != ChangeKind::Deleted || !is_gone(change));
        let kept: BTreeSet<PathBuf> = self
            .found
            .iter()
            .filter(|change| is_gone(change))
            .flat_map(|change| change.path.ancestors().map(Path::to_owned))
            .collect();
        let others = std::mem::take(&mut self.found);
        let is_first = |path: &&PathBuf| !path.ancestors().skip(1).any(|above| gone.contains(above));
        for path in gone.iter().filter(is_first) {
            match self.trees.host.node(path) {
                Ok(Some(before)) => self.deleted(path, before)?,
                // The host has nothing there, or it is reached through a link or a mount and so is not ours.
                Ok(None) | Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::NAMETOOLONG) => {}
                Err(error) => return Err(at("examining", path)(error)),
            }
        }
        let deleted = std::mem::replace(&mut self.found, others);
        let deleted = deleted.into_iter().filter(|change| !kept.contains(&change.path));
        self.found.extend(deleted.map(|change| LayerChange {
            protected: change.protected.or_else(|| Some(UNFINISHED.to_owned())),
            ..change
        }));
        Ok(())
    }

    fn deleted(&mut self, path: &Path, before: TreeNode) -> Result<(), ChangeError> {
        if before.is_directory() {
            self.deleted_beneath(path)?;
        }
        self.push(path, ChangeKind::Deleted, Some(before), None, OverlayMarks::default());
        Ok(())
    }

    fn deleted_beneath(&mut self, path: &Path) -> Result<(), ChangeError> {
        let mut directories = vec![path.to_owned()];
        while let Some(directory) = directories.pop() {
            let Some(place) = self.host_directory(&directory)? else {
                continue;
            };
            for name in self.host_names(&directory)? {
                let child = directory.join(&name);
                let Some(before) = node_at(&place, name.as_os_str()).map_err(at("examining", &child))? else {
                    continue;
                };
                if before.is_directory() {
                    directories.push(child.clone());
                }
                self.push(&child, ChangeKind::Deleted, Some(before), None, OverlayMarks::default());
            }
        }
        Ok(())
    }

    /// What the host has in a directory; nothing where we may not look, and then it cannot be deleted either.
    fn host_names(&self, path: &Path) -> Result<Vec<PathBuf>, ChangeError> {
        match self.trees.host.names(path) {
            Err(Errno::ACCESS | Errno::XDEV) => Ok(Vec::new()),
            other => other.map_err(at("listing", path)),
        }
    }

    fn push(
        &mut self,
        path: &Path,
        kind: ChangeKind,
        before: Option<TreeNode>,
        after: Option<TreeNode>,
        marks: OverlayMarks,
    ) {
        if self.applied.contains(&(self.layer, path.to_owned())) {
            return;
        }
        let target = after.as_ref().and_then(|node| node.target.as_ref());
        let leads_out = target.is_some_and(|target| leads_out(&self.trees.root, path, target, self.seen));
        let becomes_directory = after.as_ref().is_some_and(TreeNode::is_directory);
        self.found.push(LayerChange {
            layer: self.layer,
            path: path.to_owned(),
            kind,
            before,
            after,
            protected: self
                .protection
                .rule(self.layer, &self.trees.root, path, becomes_directory),
            leads_out,
            copied_up: marks.copied_up,
        });
    }
}

fn is_opaque(directory: &OwnedFd, path: &Path) -> Result<bool, ChangeError> {
    let marks = overlay::marks(directory).map_err(at("reading the attributes of", path))?;
    overlay::is_opaque(directory, marks).map_err(at("reading the attributes of", path))
}

fn same_files(path: &Path, upper: &OwnedFd, host: &OwnedFd, name: &OsStr) -> Result<bool, ChangeError> {
    let changed = open_file(upper, name, ModeHandling::Override).map_err(at("opening", path))?;
    let original = match open_file(host, name, ModeHandling::Respect) {
        // The sandbox could not read it either, so it wrote what is there now.
        Err(Errno::ACCESS) => return Ok(false),
        other => other.map_err(at("opening the host's", path))?,
    };
    same_contents(changed, original).map_err(|source| ChangeError::File {
        path: path.to_owned(),
        source: FileError::new("reading", path, source),
    })
}
