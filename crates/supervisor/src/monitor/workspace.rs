//! What becomes of the files of a workspace: its overlay's layer is compared with what lies below.
//!
//! The layer is what code inside makes of it. So no path is resolved: every step is one name, opened relative to a
//! directory that is held, without following links; and what is looked at is bounded in entries, depth, bytes and time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use offleash_core::monitor::{MonitorFigure, entropy_millibits};
use offleash_core::plan::{Plan, PlanNode};
use offleash_core::protected::protected_non_directory_rule;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

/// How many entries of the layer are looked at.
const MAX_ENTRIES: usize = 4000;
/// How many directories in one another.
const MAX_DEPTH: usize = 32;
/// The longest path that is told, in bytes.
const MAX_PATH: usize = 1024;
/// How many examples of each figure are kept.
const MAX_EXAMPLES: usize = 3;
/// How much of a file is read.
const FIRST_BYTES: usize = 4096;
/// Fewer bytes say nothing of what they are.
const LEAST_BYTES: usize = 256;
/// How long it is between two looks at least.
const PERIOD: Duration = Duration::from_secs(1);
/// Looks take at most one part in this many of the time.
const PART: u32 = 100;

/// What was found so far; a number never goes down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WorkspaceCounts {
    /// Files that were there and are now what looks encrypted, or gone with such a one of a similar name beside them.
    pub(super) overwrites: u64,
    /// Files that were there and are gone.
    pub(super) removals: u64,
    /// Protected names that were made, changed or removed.
    pub(super) protected_names: u64,
}

/// Looks at a workspace now and then.
#[derive(Debug)]
pub(super) struct WorkspaceWatch {
    upper: OwnedFd,
    lower: OwnedFd,
    /// What the file system had free at the last look: bytes and inodes.
    free: Option<(u64, u64)>,
    due: Instant,
    counts: WorkspaceCounts,
    examples: HashMap<MonitorFigure, VecDeque<String>>,
    /// Files of the layer by inode that were looked into: what they were, and whether they are now encrypted.
    judged: HashMap<u64, (FileStamp, bool)>,
}

/// A file as it was when it was looked into: its size, and when it was changed.
type FileStamp = (i64, i64, u64);

/// A look that is under way.
struct WorkspaceLook<'w> {
    watch: &'w mut WorkspaceWatch,
    counts: WorkspaceCounts,
    entries: usize,
}

/// A name in a directory of the layer.
struct LayerName {
    name: std::ffi::CString,
    stat: Stat,
}

impl WorkspaceWatch {
    /// A watch over the workspace of `plan`; `None` where that has no overlay, or it cannot be opened.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let overlay = plan.entries.iter().find_map(|entry| match &entry.node {
            PlanNode::Overlay { lower, layer } => Some((lower, layer)),
            _ => None,
        });
        let (lower, layer) = overlay?;
        Self::between(&layer.join("upper"), lower)
    }

    fn between(upper: &Path, lower: &Path) -> Option<Self> {
        Some(Self {
            upper: rustix::fs::open(upper, DIRECTORY, Mode::empty()).ok()?,
            lower: rustix::fs::open(lower, DIRECTORY, Mode::empty()).ok()?,
            free: None,
            due: Instant::now(),
            counts: WorkspaceCounts::default(),
            examples: HashMap::new(),
            judged: HashMap::new(),
        })
    }

    pub(super) fn counts(&self) -> WorkspaceCounts {
        self.counts
    }

    /// What was found last of that kind, paths in the workspace.
    pub(super) fn examples(&self, figure: MonitorFigure) -> Vec<String> {
        self.examples.get(&figure).into_iter().flatten().cloned().collect()
    }

    /// Looks, if it is time and anything was written since.
    pub(super) fn look(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        if self.look_at_once() {
            self.due = now + PERIOD.max(now.elapsed() * PART);
        }
    }

    /// Looks, if anything was written since; whether it was.
    pub(super) fn look_at_once(&mut self) -> bool {
        let free = rustix::fs::fstatvfs(&self.upper)
            .ok()
            .map(|free| (free.f_bfree, free.f_ffree));
        if free.is_some() && free == self.free {
            return false;
        }
        self.free = free;
        self.scan();
        true
    }

    fn scan(&mut self) {
        let again = |directory: &OwnedFd| rustix::fs::openat(directory, c".", DIRECTORY, Mode::empty());
        let (Ok(upper), Ok(lower)) = (again(&self.upper), again(&self.lower)) else {
            return;
        };
        let mut look = WorkspaceLook {
            watch: self,
            counts: WorkspaceCounts::default(),
            entries: 0,
        };
        look.directory(&upper, Some(&lower), &mut Vec::new(), 0);
        let found = look.counts;
        let counts = &mut self.counts;
        counts.overwrites = counts.overwrites.max(found.overwrites);
        counts.removals = counts.removals.max(found.removals);
        counts.protected_names = counts.protected_names.max(found.protected_names);
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl WorkspaceLook<'_> {
    fn directory(&mut self, upper: &OwnedFd, lower: Option<&OwnedFd>, path: &mut Vec<u8>, depth: usize) {
        let names = self.names(upper);
        let made: HashSet<&[u8]> = names
            .iter()
            .filter(|one| FileType::from_raw_mode(one.stat.st_mode) == FileType::RegularFile)
            .map(|one| one.name.to_bytes())
            .collect();
        for one in &names {
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(one.name.to_bytes());
            match FileType::from_raw_mode(one.stat.st_mode) {
                FileType::Directory if depth < MAX_DEPTH && path.len() < MAX_PATH => {
                    self.below(upper, lower, &one.name, path, depth);
                }
                FileType::Directory => {}
                kind => self.file(upper, lower, one, kind, &made, path),
            }
            path.truncate(length);
        }
    }

    fn below(&mut self, upper: &OwnedFd, lower: Option<&OwnedFd>, name: &CStr, path: &mut Vec<u8>, depth: usize) {
        let open = |directory: &OwnedFd| rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()).ok();
        if let Some(upper) = open(upper) {
            self.directory(&upper, lower.and_then(open).as_ref(), path, depth + 1);
        }
    }

    /// The names in a directory of the layer, as many as are looked at.
    fn names(&mut self, upper: &OwnedFd) -> Vec<LayerName> {
        let mut names = Vec::new();
        let Ok(listed) = Dir::read_from(upper) else {
            return names;
        };
        for entry in listed.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.entries >= MAX_ENTRIES {
                break;
            }
            self.entries += 1;
            names.extend(stat(upper.as_fd(), name).map(|stat| LayerName {
                name: name.to_owned(),
                stat,
            }));
        }
        names
    }

    fn file(
        &mut self,
        upper: &OwnedFd,
        lower: Option<&OwnedFd>,
        one: &LayerName,
        kind: FileType,
        made: &HashSet<&[u8]>,
        path: &[u8],
    ) {
        if protected_non_directory_rule(path).is_some() {
            self.counts.protected_names += 1;
            self.example(MonitorFigure::ProtectedNames, path);
        }
        let Some(was) = lower.and_then(|lower| stat(lower.as_fd(), &one.name)) else {
            return;
        };
        if FileType::from_raw_mode(was.st_mode) != FileType::RegularFile {
            return;
        }
        let is_gone = kind == FileType::CharacterDevice && one.stat.st_rdev == 0;
        if is_gone {
            self.counts.removals += 1;
            self.example(MonitorFigure::Removals, path);
        }
        let is_replaced = is_gone && has_successor(one.name.to_bytes(), made);
        let is_encrypted = kind == FileType::RegularFile && self.is_encrypted(upper, lower, one);
        if is_replaced || is_encrypted {
            self.counts.overwrites += 1;
            self.example(MonitorFigure::Overwrites, path);
        }
    }

    /// Whether a file looks encrypted that did not before.
    fn is_encrypted(&mut self, upper: &OwnedFd, lower: Option<&OwnedFd>, one: &LayerName) -> bool {
        let Stat {
            st_ino,
            st_size,
            st_mtime,
            st_mtime_nsec,
            ..
        } = one.stat;
        let stamp: FileStamp = (st_size, st_mtime, st_mtime_nsec);
        if let Some((known, verdict)) = self.watch.judged.get(&st_ino)
            && *known == stamp
        {
            return *verdict;
        }
        let looks = |directory: &OwnedFd| first_bytes(directory, &one.name).is_some_and(|first| is_scrambled(&first));
        let verdict = looks(upper) && !lower.is_some_and(looks);
        if self.watch.judged.len() < MAX_ENTRIES {
            self.watch.judged.insert(st_ino, (stamp, verdict));
        }
        verdict
    }

    fn example(&mut self, figure: MonitorFigure, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        let examples = self.watch.examples.entry(figure).or_default();
        if examples.contains(&path) {
            return;
        }
        if examples.len() == MAX_EXAMPLES {
            examples.pop_front();
        }
        examples.push_back(path);
    }
}

fn stat(directory: BorrowedFd<'_>, name: &CStr) -> Option<Stat> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT).ok()
}

/// Whether a file that is gone has one beside it that is called like it with something behind: `a.txt.locked` for `a.txt`.
fn has_successor(name: &[u8], made: &HashSet<&[u8]>) -> bool {
    made.iter()
        .any(|one| one.len() > name.len() && one.starts_with(name) && one.get(name.len()) == Some(&b'.'))
}

/// The first bytes of a regular file; `None` for anything else, and where it cannot be read.
fn first_bytes(directory: &OwnedFd, name: &CStr) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
    if kind != FileType::RegularFile {
        return None;
    }
    let mut first = vec![0; FIRST_BYTES];
    let length = rustix::io::pread(&file, &mut first, 0).ok()?;
    first.truncate(length);
    Some(first)
}

/// Whether bytes are as even as encrypted ones: fewer bytes cannot be as even as many.
fn is_scrambled(first: &[u8]) -> bool {
    let least = match first.len() {
        0..LEAST_BYTES => return false,
        LEAST_BYTES..1024 => 6800,
        _ => 7500,
    };
    entropy_millibits(first) >= least
}

#[cfg(test)]
mod tests;
