//! What goes through a whole directory: a piece at each turn, so that nobody else waits.

use offleash_protocol::files::{ENTRIES_CHUNK, FileEntry, FileReply};
use rustix::io::Errno;

use super::entry::{self, UserNames};
use super::path::{CleanPath, LastLink, reach};
use crate::served::ServedTrees;
use crate::tree::FileCaller;
use crate::wire::{FileAnswer, FileKind, FileOperation};

/// Names of files that are held at once, in bytes with what each takes besides.
const MAX_HELD: usize = 64 * 1024 * 1024;
const EACH: usize = 48;
/// Bytes of entries after which they are sent.
const BATCH: usize = 512 * 1024;

/// A directory on the way to where a walk is.
#[derive(Debug)]
struct WalkLevel {
    path: CleanPath,
    /// What is still to be looked at, the next one last.
    names: Vec<Vec<u8>>,
}

/// The directories that are open in a walk.
#[derive(Debug, Default)]
struct WalkLevels {
    levels: Vec<WalkLevel>,
    held: usize,
}

impl WalkLevels {
    fn go_down(&mut self, trees: &mut ServedTrees, caller: FileCaller, path: CleanPath) -> Result<(), Errno> {
        let names = names_in(trees, caller, &path)?;
        self.held += names.iter().map(|name| name.len() + EACH).sum::<usize>();
        if self.held > MAX_HELD {
            return Err(Errno::OVERFLOW);
        }
        self.levels.push(WalkLevel { path, names });
        Ok(())
    }

    /// The next path, or a directory of which all was looked at; none at the end.
    fn next(&mut self) -> Option<WalkStep> {
        let level = self.levels.last_mut()?;
        match level.names.pop() {
            Some(name) => {
                self.held = self.held.saturating_sub(name.len() + EACH);
                Some(WalkStep::Entry(level.path.join(&name)))
            }
            None => self.levels.pop().map(|level| WalkStep::Left(level.path)),
        }
    }
}

enum WalkStep {
    Entry(CleanPath),
    Left(CleanPath),
}

/// The names in a directory, the first one last.
fn names_in(trees: &mut ServedTrees, caller: FileCaller, path: &CleanPath) -> Result<Vec<Vec<u8>>, Errno> {
    let reached = reach(trees, caller, path.path(), LastLink::Followed)?;
    match reached.facts.map(|found| found.facts.kind) {
        Some(FileKind::Directory) => {}
        Some(_) => return Err(Errno::NOTDIR),
        None => return Err(Errno::NOENT),
    }
    let mut names = trees.names_to_trees(&reached.path);
    if reached.is_served() {
        let tree = trees.numbered(reached.tree)?;
        let FileAnswer::Entries(entries) = tree.carry_out_for(caller, &reached.inner, FileOperation::List)? else {
            return Err(Errno::PROTO);
        };
        names.extend(entries.into_iter().map(|entry| entry.name));
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.dedup();
    Ok(names)
}

/// A listing on its way, depth first and by name.
#[derive(Debug)]
pub(super) struct TreeListing {
    levels: WalkLevels,
    depth: usize,
    batch: Vec<FileEntry>,
    size: usize,
}

impl TreeListing {
    pub(super) fn begin(
        trees: &mut ServedTrees,
        caller: FileCaller,
        path: CleanPath,
        depth: u32,
    ) -> Result<Self, Errno> {
        let mut levels = WalkLevels::default();
        levels.go_down(trees, caller, path)?;
        Ok(Self {
            levels,
            depth: usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
            batch: Vec::new(),
            size: 0,
        })
    }

    /// Takes one step; answers what is to be sent, and whether that is all. What is gone when its turn comes is left out.
    pub(super) fn step(
        &mut self,
        trees: &mut ServedTrees,
        caller: FileCaller,
        names: &UserNames,
    ) -> Result<(Option<FileReply>, bool), Errno> {
        let path = match self.levels.next() {
            None => return Ok((self.take_batch(), true)),
            Some(WalkStep::Left(_)) => return Ok((None, false)),
            Some(WalkStep::Entry(path)) => path,
        };
        let found = match entry::at(trees, caller, &path, names) {
            Err(Errno::NOENT) => return Ok((None, false)),
            found => found?,
        };
        let is_directory = rustix::fs::FileType::from_raw_mode(found.mode) == rustix::fs::FileType::Directory;
        let goes_down = is_directory && self.levels.levels.len() < self.depth;
        self.size += size_of(&found);
        self.batch.push(found);
        if goes_down {
            match self.levels.go_down(trees, caller, path) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let is_full = self.batch.len() == ENTRIES_CHUNK || self.size >= BATCH;
        Ok((if is_full { self.take_batch() } else { None }, false))
    }

    fn take_batch(&mut self) -> Option<FileReply> {
        self.size = 0;
        let batch = std::mem::take(&mut self.batch);
        (!batch.is_empty()).then_some(FileReply::Entries(batch))
    }
}

/// About how many bytes an entry takes on the way.
pub(super) fn size_of(entry: &FileEntry) -> usize {
    let metadata = entry.metadata.iter().map(|(name, value)| name.len() + value.len());
    let target = entry.target.as_ref().map_or(0, |target| target.path.len());
    entry.path.len() + target + metadata.sum::<usize>()
}

/// A removal on its way.
#[derive(Debug)]
pub(super) struct TreeRemoval {
    levels: WalkLevels,
    /// What is to be removed itself.
    first: Option<CleanPath>,
}

impl TreeRemoval {
    pub(super) fn begin(path: CleanPath) -> Self {
        Self {
            levels: WalkLevels::default(),
            first: Some(path),
        }
    }

    /// Takes one step; whether all is removed. What is not there is removed.
    pub(super) fn step(&mut self, trees: &mut ServedTrees, caller: FileCaller) -> Result<bool, Errno> {
        let path = match self.first.take() {
            Some(path) => path,
            None => match self.levels.next() {
                None => return Ok(true),
                Some(WalkStep::Left(path)) => {
                    remove(trees, caller, &path)?;
                    return Ok(false);
                }
                Some(WalkStep::Entry(path)) => path,
            },
        };
        if trees.has_tree_at_or_below(path.path()) {
            return Err(Errno::BUSY);
        }
        match remove(trees, caller, &path) {
            Err(Errno::NOTEMPTY) => self.levels.go_down(trees, caller, path)?,
            removed => removed?,
        }
        Ok(false)
    }
}

fn remove(trees: &mut ServedTrees, caller: FileCaller, path: &CleanPath) -> Result<(), Errno> {
    let reached = match reach(trees, caller, path.path(), LastLink::Kept) {
        Err(Errno::NOENT) => return Ok(()),
        reached => reached?,
    };
    let tree = trees.numbered(reached.tree)?;
    match tree.carry_out_for(caller, &reached.inner, FileOperation::Remove) {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
