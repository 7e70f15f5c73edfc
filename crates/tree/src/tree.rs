//! The tree: how its files and directories are reached, whatever is asked of them.
//!
//! Nothing is reached by a path. Each step is one name below a directory's descriptor, without following a link, so that
//! nothing leads out of the root. A descriptor that only names a file becomes one to read or write through `/proc/self/fd`,
//! by the number of that descriptor, once it is known to be a file or a directory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::bounds::{MAX_DESCRIPTORS, MAX_HANDLES};
use crate::error::{TreeError, setup};
use crate::handles::HandleTable;
use crate::mounts::{self, MountFacts, MountTable};
use crate::nodes::{FoundNode, InodeKey, NodeFacts, NodeTable, ROOT};
use crate::options::{CacheTimes, TreeOptions};

/// Descriptors that are left to whoever serves beside the tree.
const OTHER_DESCRIPTORS: usize = 64;

/// What is asked of the kernel about a file.
const ASKED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID);

/// A tree that is served.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Mutex<NodeTable>,
    pub(crate) handles: HandleTable,
    mounts: Mutex<MountTable>,
    /// `/proc/self/fd`.
    own_descriptors: OwnedFd,
    cache: CacheTimes,
    shared_cache: CacheTimes,
    /// Where what others change too begins.
    shared: Vec<InodeKey>,
}

/// A file as the kernel describes it, and what is made of that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundFile {
    pub(crate) stat: Statx,
    pub(crate) facts: NodeFacts,
}

impl Tree {
    pub(crate) fn new(root: OwnedFd, options: &TreeOptions) -> Result<Self, TreeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own_descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())
            .map_err(|error| setup("opening /proc/self/fd")(error.into()))?;
        // Whatever it was opened as, it only names the root from here on.
        let root = rustix::fs::openat(&root, ".", flags, Mode::empty())
            .map_err(|error| setup("opening the root")(error.into()))?;
        let mut mounts = MountTable::default();
        let first = |error: Errno| setup("looking at the root")(error.into());
        let stat = stat(root.as_fd()).map_err(first)?;
        let at_root = mounts::examine(root.as_fd()).map_err(first)?;
        mounts.learn(stat.stx_mnt_id, at_root);
        mounts.number(mounts::device(&stat), 0);
        let mut facts = facts_of(&stat, at_root, false).map_err(first)?;
        let shared = shared_places(root.as_fd(), options)?;
        facts.shared = shared.contains(&facts.key);
        let most = most_descriptors(options);
        let most_held = (most / 3).min(MAX_DESCRIPTORS);
        Ok(Self {
            nodes: Mutex::new(NodeTable::new(root, facts, most_held)),
            handles: HandleTable::new((most - most_held).min(MAX_HANDLES)),
            mounts: Mutex::new(mounts),
            own_descriptors,
            cache: options.cache,
            shared_cache: options.shared_cache,
            shared,
        })
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, NodeTable> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mounts(&self) -> MutexGuard<'_, MountTable> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the other side may remember a node.
    pub(crate) fn cache(&self, facts: NodeFacts) -> CacheTimes {
        if facts.shared { self.shared_cache } else { self.cache }
    }

    /// A descriptor that names a node.
    pub(crate) fn descriptor(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        let route = self.nodes().route(node)?;
        let mut at = route.base;
        for step in route.steps {
            let next = Arc::new(self.open_name(at.as_fd(), &step.name)?);
            let found = self.examine(next.as_fd(), step.facts.shared)?;
            if found.facts.key != step.facts.key {
                if !is_same_directory(step.facts, found.facts) {
                    return Err(Errno::STALE);
                }
                self.nodes().rekey(step.node, found.facts.key);
            }
            let closed = self.nodes().keep(step.node, &next);
            drop(closed);
            at = next;
        }
        Ok(at)
    }

    /// As [`Self::descriptor`], of a directory.
    pub(crate) fn directory(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        if self.nodes().facts(node)?.file_type != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        self.descriptor(node)
    }

    /// A descriptor that names what is at `name` in a directory.
    pub(crate) fn open_name(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        self.with_room(|| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(directory, name, flags, Mode::empty())
        })
    }

    /// Does what opens a descriptor, a second time if there was none left and some of ours could be closed.
    pub(crate) fn with_room<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                let closed = self.nodes().make_room();
                drop(closed);
                open()
            }
            done => done,
        }
    }

    /// Opens what a descriptor names: a file or a directory, and nothing else.
    pub(crate) fn reopen(&self, named: BorrowedFd<'_>, file_type: FileType, flags: OFlags) -> Result<OwnedFd, Errno> {
        match file_type {
            FileType::RegularFile => {}
            FileType::Directory if flags.contains(OFlags::DIRECTORY) => {}
            FileType::Directory => return Err(Errno::ISDIR),
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        let path = own_name(named);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        self.with_room(|| rustix::fs::openat(&self.own_descriptors, &path, flags, Mode::empty()))
    }

    /// `/proc/self/fd` and the name there of what a descriptor names, for calls that take nothing else.
    pub(crate) fn by_path(&self, named: BorrowedFd<'_>) -> (BorrowedFd<'_>, String) {
        (self.own_descriptors.as_fd(), own_name(named))
    }

    /// What is at `name` in a directory, without opening it.
    pub(crate) fn find(&self, directory: BorrowedFd<'_>, name: &[u8], shared: bool) -> Result<FoundFile, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(directory, name, flags, ASKED)?;
        if self.mounts().known(stat.stx_mnt_id).is_none() {
            let named = self.open_name(directory, name)?;
            return self.examine(named.as_fd(), shared);
        }
        self.describe(stat, shared, |_| Err(Errno::STALE))
    }

    /// What a descriptor names.
    pub(crate) fn examine(&self, named: BorrowedFd<'_>, shared: bool) -> Result<FoundFile, Errno> {
        self.describe(stat(named)?, shared, |_| mounts::examine(named))
    }

    fn describe(
        &self,
        stat: Statx,
        shared: bool,
        look: impl FnOnce(&Statx) -> Result<MountFacts, Errno>,
    ) -> Result<FoundFile, Errno> {
        let known = self.mounts().known(stat.stx_mnt_id);
        let at = match known {
            Some(at) => at,
            None => {
                let at = look(&stat)?;
                self.mounts().learn(stat.stx_mnt_id, at);
                at
            }
        };
        let mut facts = facts_of(&stat, at, shared)?;
        facts.shared |= self.shared.contains(&facts.key);
        Ok(FoundFile { stat, facts })
    }

    /// Looks at a node anew after something was done to it, which may have given it another inode.
    pub(crate) fn refresh(&self, node: u64, named: BorrowedFd<'_>) -> Result<FoundFile, Errno> {
        let known = self.nodes().facts(node)?;
        let found = self.examine(named, known.shared)?;
        if found.facts.key != known.key {
            self.nodes().rekey(node, found.facts.key);
        }
        Ok(found)
    }

    /// The other side is told of what is at `name`.
    pub(crate) fn remember(&self, found: &FoundFile, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        self.nodes().remember(FoundNode {
            facts: found.facts,
            place: Some((parent, name)),
        })
    }
}

/// What the kernel says of what a descriptor names.
fn stat(named: BorrowedFd<'_>) -> Result<Statx, Errno> {
    rustix::fs::statx(named, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, ASKED)
}

fn facts_of(stat: &Statx, mount: MountFacts, shared: bool) -> Result<NodeFacts, Errno> {
    if !mount.is_served {
        return Err(Errno::ACCESS);
    }
    let born = if mount.is_overlay {
        (0, 0)
    } else {
        (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
    };
    Ok(NodeFacts {
        file_type: FileType::from_raw_mode(u32::from(stat.stx_mode)),
        shared,
        key: InodeKey {
            mount: stat.stx_mnt_id,
            device: mounts::device(stat),
            inode: stat.stx_ino,
            born,
        },
    })
}

/// Whether a directory of an overlay is the one that was there before: while nobody uses it, the kernel may give it another
/// number. Nobody but the other side renames it, and each renaming is known here.
fn is_same_directory(before: NodeFacts, now: NodeFacts) -> bool {
    let is_directory = before.file_type == FileType::Directory && now.file_type == FileType::Directory;
    let is_same_mount = before.key.mount == now.key.mount && before.key.device == now.key.device;
    is_directory && is_same_mount && !before.shared && before.key.born == (0, 0) && now.key.born == (0, 0)
}

fn own_name(named: BorrowedFd<'_>) -> String {
    named.as_raw_fd().to_string()
}

fn shared_places(root: BorrowedFd<'_>, options: &TreeOptions) -> Result<Vec<InodeKey>, TreeError> {
    use rustix::fs::ResolveFlags;
    let mut places = Vec::new();
    for path in &options.shared {
        let path = if path.as_os_str().is_empty() {
            ".".as_ref()
        } else {
            path.as_path()
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve).and_then(|named| {
            let at = mounts::examine(named.as_fd())?;
            facts_of(&stat(named.as_fd())?, at, true)
        });
        match found {
            Ok(facts) => places.push(facts.key),
            Err(error) => return Err(setup("opening what others change too")(error.into())),
        }
    }
    Ok(places)
}

fn most_descriptors(options: &TreeOptions) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let own = options.max_descriptors.unwrap_or(limit / 4 * 3);
    own.min(limit.saturating_sub(OTHER_DESCRIPTORS)).max(OTHER_DESCRIPTORS)
}

/// The number of the root, as nobody forgets it.
pub(crate) const fn is_root(node: u64) -> bool {
    node == ROOT
}
