//! What is at a path, as the host is told.

use std::path::Path;

use offleash_core::plan::SandboxUser;
use offleash_protocol::files::{FileEntry, LinkTarget};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::path::{CleanPath, LastLink, ReachedPath, bytes_of, reach, target_of};
use crate::served::ServedTrees;
use crate::tree::{FileCaller, OwnedFacts};
use crate::wire::{FileFacts, FileKind};

/// The names of a sandbox's users.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserNames(Vec<(u32, u32, String)>);

impl UserNames {
    pub(crate) fn of(users: &[SandboxUser]) -> Self {
        Self(
            users
                .iter()
                .map(|user| (user.uid, user.gid, user.name.clone()))
                .collect(),
        )
    }

    fn user(&self, uid: u32) -> Vec<u8> {
        let found = self.0.iter().find(|user| user.0 == uid);
        found
            .map_or_else(|| uid.to_string(), |user| user.2.clone())
            .into_bytes()
    }

    fn group(&self, gid: u32) -> Vec<u8> {
        let found = self.0.iter().find(|user| user.1 == gid);
        found
            .map_or_else(|| gid.to_string(), |user| user.2.clone())
            .into_bytes()
    }
}

/// What is at a path, the last link not followed.
///
/// # Errors
/// As the kernel numbers them.
pub(super) fn at(
    trees: &mut ServedTrees,
    caller: FileCaller,
    path: &CleanPath,
    names: &UserNames,
) -> Result<FileEntry, Errno> {
    let reached = reach(trees, caller, path.path(), LastLink::Kept)?;
    let found = reached.facts.ok_or(Errno::NOENT)?;
    Ok(of_reached(trees, caller, path, &reached, found, names))
}

/// The same, of what was found.
pub(super) fn of_reached(
    trees: &mut ServedTrees,
    caller: FileCaller,
    path: &CleanPath,
    reached: &ReachedPath,
    found: OwnedFacts,
    names: &UserNames,
) -> FileEntry {
    let OwnedFacts { facts, owner } = found;
    let metadata = match (facts.kind, trees.numbered(reached.tree)) {
        (FileKind::File | FileKind::Directory, Ok(tree)) => tree.annotations(caller, &reached.inner),
        _ => Vec::new(),
    };
    FileEntry {
        path: path.bytes(),
        mode: mode_of(&facts),
        size: facts.size,
        uid: owner.0,
        gid: owner.1,
        owner: names.user(owner.0),
        group: names.group(owner.1),
        modified_s: facts.seconds,
        modified_ns: facts.nanoseconds,
        target: match facts.kind {
            FileKind::Symlink => target(trees, caller, path.path(), reached),
            _ => None,
        },
        metadata,
    }
}

/// Where a link leads in the end; what it says if nothing is there.
fn target(trees: &mut ServedTrees, caller: FileCaller, path: &Path, link: &ReachedPath) -> Option<LinkTarget> {
    if let Ok(reached) = reach(trees, caller, path, LastLink::Followed)
        && let Some(found) = reached.facts
    {
        return Some(LinkTarget {
            path: bytes_of(&reached.path),
            mode: Some(mode_of(&found.facts)),
        });
    }
    let path = target_of(trees, caller, link).ok()?;
    Some(LinkTarget { path, mode: None })
}

/// As `st_mode` has it (inode(7)).
fn mode_of(facts: &FileFacts) -> u32 {
    let kind = match facts.kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Special => FileType::Fifo,
    };
    kind.as_raw_mode() | facts.mode
}
