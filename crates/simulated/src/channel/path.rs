//! Paths as the host sends them, and where they lead among the trees.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::served::ServedTrees;
use crate::tree::{FileCaller, InnerPath, OwnedFacts};
use crate::wire::{FileAnswer, FileFacts, FileKind, FileOperation};

/// Longest path that the kernel takes, with the zero byte at its end (limits.h).
const PATH_MAX: usize = 4096;
/// Links on one way (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Names that are opened on one way once a link was followed: forty links of eight hundred names, each deep below the root, would
/// hold up everything else in the sandbox for minutes.
const MAX_OPENED_BEHIND_LINKS: usize = 50_000;

/// The number of no tree.
const NO_TREE: usize = usize::MAX;

/// What becomes of a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Followed,
    Kept,
}

/// An absolute path without empty parts, `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CleanPath(PathBuf);

/// Where a path leads.
#[derive(Debug, Clone)]
pub(super) struct ReachedPath {
    /// Without a link.
    pub(super) path: PathBuf,
    pub(super) tree: usize,
    pub(super) inner: InnerPath,
    /// What is there, if something is.
    pub(super) facts: Option<OwnedFacts>,
}

impl ReachedPath {
    /// Whether it lies in a tree.
    pub(super) fn is_served(&self) -> bool {
        self.tree != NO_TREE
    }
}

impl CleanPath {
    /// Cleans a path by its words alone: `..` takes the part before it away, wherever a link there would have led.
    ///
    /// # Errors
    /// `EINVAL`, `ENAMETOOLONG`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, Errno> {
        if text.first() != Some(&b'/') || text.contains(&0) {
            return Err(Errno::INVAL);
        }
        if text.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut path = PathBuf::from("/");
        for part in text.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    path.pop();
                }
                part => path.push(OsStr::from_bytes(part)),
            }
        }
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        bytes_of(&self.0)
    }

    /// A name below it.
    pub(super) fn join(&self, name: &[u8]) -> Self {
        Self(self.0.join(OsStr::from_bytes(name)))
    }

    /// The directories that lead to it, the outermost first.
    fn parents(&self) -> Vec<&Path> {
        let mut parents: Vec<&Path> = self.0.ancestors().skip(1).collect();
        parents.reverse();
        parents
    }

    /// Makes the directories that lead here.
    ///
    /// # Errors
    /// As the kernel numbers them.
    pub(super) fn make_parents(&self, trees: &mut ServedTrees, caller: FileCaller) -> Result<(), Errno> {
        for parent in self.parents() {
            let reached = reach(trees, caller, parent, LastLink::Followed)?;
            match reached.facts.map(|found| found.facts.kind) {
                Some(FileKind::Directory) => {}
                Some(_) => return Err(Errno::NOTDIR),
                None => {
                    let tree = trees.numbered(reached.tree)?;
                    tree.carry_out_for(caller, &reached.inner, FileOperation::MakeDirectory)?;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Finds where a path leads, through links of every tree.
///
/// # Errors
/// `ENOENT` where a directory on the way is not there, `ELOOP` where links lead too far; as the kernel numbers others.
pub(super) fn reach(
    trees: &mut ServedTrees,
    caller: FileCaller,
    path: &Path,
    last: LastLink,
) -> Result<ReachedPath, Errno> {
    let mut left: VecDeque<Vec<u8>> = names_of(path.as_os_str().as_bytes()).collect();
    let mut here = PathBuf::from("/");
    let mut links = 0;
    let mut opened = 0;
    let mut reached = look(trees, caller, &here)?;
    while let Some(name) = left.pop_front() {
        if links > 0 {
            opened += here.components().count();
        }
        if opened > MAX_OPENED_BEHIND_LINKS {
            return Err(Errno::LOOP);
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                here.pop();
                reached = look(trees, caller, &here)?;
                continue;
            }
            name => here.push(OsStr::from_bytes(name)),
        }
        if here.as_os_str().len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        reached = look(trees, caller, &here)?;
        let kind = reached.facts.map(|found| found.facts.kind);
        let is_end = left.is_empty();
        match kind {
            Some(FileKind::Symlink) if !is_end || last == LastLink::Followed => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = target_of(trees, caller, &reached)?;
                here.pop();
                if target.first() == Some(&b'/') {
                    here = PathBuf::from("/");
                }
                for name in names_of(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(name);
                }
                if left.is_empty() {
                    reached = look(trees, caller, &here)?;
                }
            }
            None if !is_end => return Err(Errno::NOENT),
            Some(FileKind::File | FileKind::Special) if !is_end => return Err(Errno::NOTDIR),
            _ => {}
        }
    }
    Ok(reached)
}

/// What a link says.
///
/// # Errors
/// As the kernel numbers them.
pub(super) fn target_of(trees: &mut ServedTrees, caller: FileCaller, link: &ReachedPath) -> Result<Vec<u8>, Errno> {
    let tree = trees.numbered(link.tree)?;
    match tree.carry_out_for(caller, &link.inner, FileOperation::ReadLink)? {
        FileAnswer::Target(target) => Ok(target),
        _ => Err(Errno::PROTO),
    }
}

fn look(trees: &mut ServedTrees, caller: FileCaller, path: &Path) -> Result<ReachedPath, Errno> {
    let Some((tree, inner)) = trees.locate(path) else {
        return on_the_way(trees, path);
    };
    let facts = match trees.numbered(tree)?.owned_facts_for(caller, &inner) {
        Ok(facts) => Some(facts),
        // Another tree begins below, for which nothing was made here.
        Err(Errno::NOENT) if trees.has_tree_at_or_below(path) => return on_the_way(trees, path),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno),
    };
    let path = path.to_owned();
    Ok(ReachedPath {
        path,
        tree,
        inner,
        facts,
    })
}

/// A directory that only leads to trees.
fn on_the_way(trees: &ServedTrees, path: &Path) -> Result<ReachedPath, Errno> {
    if !trees.has_tree_at_or_below(path) {
        return Err(Errno::NOENT);
    }
    let facts = FileFacts {
        kind: FileKind::Directory,
        mode: 0o755,
        size: 0,
        seconds: 0,
        nanoseconds: 0,
    };
    Ok(ReachedPath {
        path: path.to_owned(),
        tree: NO_TREE,
        inner: InnerPath::default(),
        facts: Some(OwnedFacts { facts, owner: (0, 0) }),
    })
}

fn names_of(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_by_their_words() {
        for (text, clean) in [
            (&b"/"[..], "/"),
            (b"//", "/"),
            (b"/a//b/./c/", "/a/b/c"),
            (b"/a/../b", "/b"),
            (b"/a/b/../../..", "/"),
            (b"/..a/.b", "/..a/.b"),
        ] {
            assert_eq!(CleanPath::parse(text).unwrap().path(), Path::new(clean));
        }
        let long = [b"/".as_slice(), &[b'x'; PATH_MAX]].concat();
        for (text, errno) in [
            (&b""[..], Errno::INVAL),
            (b"a", Errno::INVAL),
            (b"/a\0b", Errno::INVAL),
            (&long, Errno::NAMETOOLONG),
        ] {
            assert_eq!(CleanPath::parse(text).unwrap_err(), errno);
        }
    }
}
