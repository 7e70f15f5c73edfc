//! The served files, as a command reaches them: from a directory that it has, and nowhere above it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use offleash_simulated::engine::{
    FileAnswer, FileFacts, FileKind, FileOperation, FileRequest, MAX_PIECE, MountPoint, ScriptHost,
};
use rustix::io::Errno;

/// How many links may lead to one another (as the kernel's).
const MAX_LINKS: usize = 40;
/// The longest path (limits.h).
const MAX_PATH: usize = 4096;

/// A path in a served tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreePath {
    mount: u32,
    names: Vec<Vec<u8>>,
}

impl TreePath {
    /// The root of the tree that is mounted at this path.
    pub(super) fn root(mounts: &[MountPoint], path: &[u8]) -> Option<Self> {
        let number = mounts.iter().position(|mount| mount.path == path)?;
        let (mount, names) = (u32::try_from(number).ok()?, Vec::new());
        Some(Self { mount, names })
    }

    /// As the supervisor is asked about it.
    pub(super) fn as_request(&self) -> (u32, Vec<u8>) {
        (self.mount, self.names.join(&b'/'))
    }

    /// A number of it, for programs that compare files by theirs.
    pub(super) fn number(&self) -> u64 {
        let (mount, path) = self.as_request();
        let bytes = mount.to_le_bytes().into_iter().chain(path);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// A path that was followed to its end.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) path: TreePath,
    /// What is there; none if nothing is.
    pub(super) facts: Option<FileFacts>,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OpenWish {
    pub(super) follow: bool,
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) truncate: bool,
    pub(super) directory: bool,
    pub(super) write: bool,
}

/// What was opened.
#[derive(Debug)]
pub(super) enum Opened {
    Directory(TreePath),
    File(TreePath),
}

/// A piece of a file that was read, and at which change of files.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    change: u64,
    offset: u64,
    bytes: Vec<u8>,
    is_filled: bool,
}

/// The served trees.
pub(super) struct Files {
    host: Arc<dyn ScriptHost>,
    mounts: Vec<Vec<u8>>,
    /// How often something was changed.
    changes: AtomicU64,
    /// Where everything is below one root: its tree, and the names that lead to each tree.
    whole: Option<WholeTree>,
}

/// All trees as one.
struct WholeTree {
    root: u32,
    places: Vec<Vec<Vec<u8>>>,
}

impl Files {
    pub(super) fn new(host: Arc<dyn ScriptHost>, mounts: &[MountPoint]) -> Self {
        Self {
            host,
            mounts: mounts.iter().map(|mount| mount.path.clone()).collect(),
            changes: AtomicU64::new(0),
            whole: None,
        }
    }

    /// The same, reached from the tree that is mounted at `/` as from the root of a machine: paths lead into the others.
    pub(super) fn whole(host: Arc<dyn ScriptHost>, mounts: &[MountPoint]) -> Self {
        let root = TreePath::root(mounts, b"/").map_or(u32::MAX, |root| root.mount);
        let places = mounts.iter().map(|mount| normal(&mount.path).unwrap_or_default());
        let places = places.collect();
        Self {
            whole: Some(WholeTree { root, places }),
            ..Self::new(host, mounts)
        }
    }

    /// The root, where everything is below one.
    pub(super) fn root(&self) -> Option<TreePath> {
        let (mount, names) = (self.whole.as_ref()?.root, Vec::new());
        Some(TreePath { mount, names })
    }

    /// Whether a path is one from the root of all.
    fn is_whole(&self, path: &TreePath) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.root == path.mount)
    }

    /// The tree that a path leads into, and the path there.
    fn locate(&self, path: &TreePath) -> (u32, Vec<u8>) {
        let Some(whole) = self.whole.as_ref().filter(|whole| whole.root == path.mount) else {
            return path.as_request();
        };
        let within = |(number, place): (usize, &Vec<Vec<u8>>)| {
            let below = path.names.strip_prefix(place.as_slice())?;
            Some((place.len(), u32::try_from(number).ok()?, below))
        };
        let nearest = whole.places.iter().enumerate().filter_map(within);
        match nearest.max_by_key(|(length, ..)| *length) {
            Some((_, mount, below)) => (mount, below.join(&b'/')),
            None => path.as_request(),
        }
    }

    /// Names of trees that are mounted right below a path.
    fn mounted_in(&self, path: &TreePath) -> Vec<Vec<u8>> {
        let Some(whole) = self.whole.as_ref().filter(|_| self.is_whole(path)) else {
            return Vec::new();
        };
        let names = whole.places.iter().filter_map(|place| match place.split_last() {
            Some((name, above)) if above == path.names => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Where a path from the root is, in the tree that is mounted nearest.
    pub(super) fn at(&self, absolute: &[u8]) -> Option<TreePath> {
        let wanted = normal(absolute)?;
        let mounts = self.mounts.iter().enumerate().filter_map(|(number, mount)| {
            let mount = normal(mount)?;
            let below = wanted.strip_prefix(mount.as_slice())?;
            Some((mount.len(), u32::try_from(number).ok()?, below.to_vec()))
        });
        let (_, mount, names) = mounts.max_by_key(|(length, ..)| *length)?;
        Some(TreePath { mount, names })
    }

    fn request(&self, path: &TreePath, operation: FileOperation) -> Result<FileAnswer, i32> {
        let (mount, path) = self.locate(path);
        let request = FileRequest { mount, path, operation };
        match self.host.files(request) {
            FileAnswer::Failed { errno } => Err(errno),
            answer => Ok(answer),
        }
    }

    /// Changes something.
    pub(super) fn change(&self, path: &TreePath, operation: FileOperation) -> Result<(), i32> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.request(path, operation).map(drop)
    }

    /// What is at a path, which leads through no link.
    pub(super) fn facts(&self, path: &TreePath) -> Result<FileFacts, i32> {
        match self.request(path, FileOperation::Stat)? {
            FileAnswer::Facts(facts) => Ok(facts),
            _ => Err(Errno::PROTO.raw_os_error()),
        }
    }

    /// Names and types in a directory.
    pub(super) fn entries(&self, path: &TreePath) -> Result<Vec<(Vec<u8>, FileKind)>, i32> {
        let FileAnswer::Entries(listed) = self.request(path, FileOperation::List)? else {
            return Err(Errno::PROTO.raw_os_error());
        };
        let mut entries: Vec<_> = listed.into_iter().map(|entry| (entry.name, entry.facts.kind)).collect();
        for name in self.mounted_in(path) {
            if !entries.iter().any(|(there, _)| *there == name) {
                entries.push((name, FileKind::Directory));
            }
        }
        Ok(entries)
    }

    pub(super) fn link_target(&self, path: &TreePath) -> Result<Vec<u8>, i32> {
        match self.request(path, FileOperation::ReadLink)? {
            FileAnswer::Target(target) => Ok(target),
            _ => Err(Errno::PROTO.raw_os_error()),
        }
    }

    pub(super) fn check_directory(&self, path: &TreePath) -> Result<(), i32> {
        match self.facts(path)?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Errno::NOTDIR.raw_os_error()),
        }
    }

    /// The program of this name: a path from `cwd`, or from the root.
    pub(super) fn program(&self, cwd: &TreePath, name: &str) -> Result<TreePath, i32> {
        let mount = usize::try_from(cwd.mount)
            .ok()
            .and_then(|number| self.mounts.get(number));
        let mut absolute = mount.cloned().unwrap_or_default();
        for name in &cwd.names {
            absolute.push(b'/');
            absolute.extend_from_slice(name);
        }
        match name.starts_with('/') {
            true => absolute = name.as_bytes().to_vec(),
            false => {
                absolute.push(b'/');
                absolute.extend_from_slice(name.as_bytes());
            }
        }
        let absent = Errno::NOENT.raw_os_error();
        let whole = self.at(&absolute).ok_or(absent)?;
        let root = TreePath {
            mount: whole.mount,
            names: Vec::new(),
        };
        let resolved = self.resolve(&root, &whole.as_request().1, true)?;
        match resolved.facts {
            Some(_) => Ok(resolved.path),
            None => Err(absent),
        }
    }

    /// Follows a path from a directory, never above it and never from the root.
    pub(super) fn resolve(&self, directory: &TreePath, path: &[u8], follow: bool) -> Result<Resolved, i32> {
        check_path(path)?;
        let is_plain = !path.split(|byte| *byte == b'/').any(|name| name == b"..");
        if is_plain {
            let mut whole = directory.clone();
            whole.names.extend(names_of(path));
            match self.facts(&whole) {
                Ok(facts) if facts.kind == FileKind::Symlink && (follow || path.ends_with(b"/")) => {}
                Ok(facts) => return ended_well(path, whole, Some(facts)),
                // In memory, links on the way are not told apart from what is not there.
                Err(errno) if errno == Errno::NOENT.raw_os_error() && self.is_in_memory(&whole) => {}
                Err(errno) if errno == Errno::NOENT.raw_os_error() => return ended_well(path, whole, None),
                // A link on the way is no directory.
                Err(errno) if errno == Errno::NOTDIR.raw_os_error() => {}
                Err(errno) => return Err(errno),
            }
        }
        self.resolve_slowly(directory, path, follow)
    }

    fn is_in_memory(&self, path: &TreePath) -> bool {
        self.is_whole(path) && self.locate(path).0 == path.mount
    }

    fn resolve_slowly(&self, directory: &TreePath, path: &[u8], follow: bool) -> Result<Resolved, i32> {
        let follow = follow || path.ends_with(b"/");
        let mut rest: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect();
        let mut here = directory.clone();
        let mut facts = None;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            match name.as_slice() {
                b"" | b"." => {}
                b".." if here.names.len() == directory.names.len() && !self.is_whole(&here) => {
                    return Err(Errno::PERM.raw_os_error());
                }
                b".." => {
                    here.names.pop();
                    facts = None;
                }
                _ => {
                    here.names.push(name);
                    let is_last = rest.iter().all(|name| matches!(name.as_slice(), b"" | b"."));
                    let found = match self.facts(&here) {
                        Ok(found) => found,
                        Err(errno) if is_last && errno == Errno::NOENT.raw_os_error() => {
                            return ended_well(path, here, None);
                        }
                        Err(errno) => return Err(errno),
                    };
                    if found.kind == FileKind::Symlink && (follow || !is_last) {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(Errno::LOOP.raw_os_error());
                        }
                        let target = self.link_target(&here)?;
                        here.names.pop();
                        match target.strip_prefix(b"/") {
                            Some(_) if self.is_whole(&here) => here.names.clear(),
                            _ => check_path(&target)?,
                        }
                        rest.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                        continue;
                    }
                    facts = Some(found);
                }
            }
        }
        let facts = match facts {
            Some(facts) => facts,
            None => self.facts(&here)?,
        };
        ended_well(path, here, Some(facts))
    }

    /// Opens a file or a directory, and makes a file if that is wanted.
    pub(super) fn open(&self, directory: &TreePath, path: &[u8], wish: OpenWish) -> Result<Opened, i32> {
        self.open_found(self.resolve(directory, path, wish.follow)?, wish)
    }

    /// The same of a path that was followed.
    pub(super) fn open_found(&self, found: Resolved, wish: OpenWish) -> Result<Opened, i32> {
        let Resolved { path, facts } = found;
        let Some(facts) = facts else {
            if !wish.create || wish.directory {
                return Err(Errno::NOENT.raw_os_error());
            }
            let (total, bytes) = (0, Vec::new());
            self.change(&path, FileOperation::Replace { total, bytes })?;
            return Ok(Opened::File(path));
        };
        if wish.create && wish.exclusive {
            return Err(Errno::EXIST.raw_os_error());
        }
        match facts.kind {
            FileKind::Directory if wish.write || wish.truncate => Err(Errno::ISDIR.raw_os_error()),
            FileKind::Directory => Ok(Opened::Directory(path)),
            _ if wish.directory => Err(Errno::NOTDIR.raw_os_error()),
            FileKind::File => {
                if wish.truncate {
                    self.change(&path, FileOperation::Resize { size: 0 })?;
                }
                Ok(Opened::File(path))
            }
            FileKind::Symlink => Err(Errno::LOOP.raw_os_error()),
            FileKind::Special => Err(Errno::NXIO.raw_os_error()),
        }
    }

    /// Reads into the buffer at an offset; how much that was, zero at the end.
    pub(super) fn read(
        &self,
        path: &TreePath,
        ahead: &mut ReadAhead,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, i32> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let change = self.changes.load(Ordering::Relaxed);
        let is_there = |ahead: &ReadAhead| {
            let start = offset
                .checked_sub(ahead.offset)
                .and_then(|start| usize::try_from(start).ok());
            start.filter(|start| ahead.is_filled && ahead.change == change && *start < ahead.bytes.len())
        };
        let start = match is_there(ahead) {
            Some(start) => start,
            None => {
                let FileAnswer::Piece { bytes, .. } = self.request(path, FileOperation::Read { offset })? else {
                    return Err(Errno::PROTO.raw_os_error());
                };
                let is_filled = true;
                *ahead = ReadAhead {
                    change,
                    offset,
                    bytes,
                    is_filled,
                };
                0
            }
        };
        let there = ahead.bytes.get(start..).unwrap_or_default();
        let count = there.len().min(buffer.len());
        let (to, from) = (buffer.get_mut(..count), there.get(..count));
        if let (Some(to), Some(from)) = (to, from) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }

    /// Writes at an offset, or at the end; how much that was.
    pub(super) fn write(&self, path: &TreePath, offset: Option<u64>, bytes: &[u8]) -> Result<usize, i32> {
        let bytes = bytes.get(..MAX_PIECE).unwrap_or(bytes).to_vec();
        let count = bytes.len();
        if count > 0 {
            let operation = match offset {
                Some(offset) => FileOperation::Write { offset, bytes },
                None => FileOperation::Append(bytes),
            };
            self.change(path, operation)?;
        }
        Ok(count)
    }

    /// Gives something another name in the same tree.
    pub(super) fn rename(&self, from: &TreePath, to: &TreePath) -> Result<(), i32> {
        let (mount, to) = self.locate(to);
        if self.locate(from).0 != mount {
            return Err(Errno::XDEV.raw_os_error());
        }
        self.change(from, FileOperation::Rename { to })
    }

    /// Removes a directory, or something else.
    pub(super) fn remove(&self, path: &TreePath, is_directory: bool) -> Result<(), i32> {
        match (self.facts(path)?.kind, is_directory) {
            (FileKind::Directory, false) => Err(Errno::ISDIR.raw_os_error()),
            (FileKind::Directory, true) | (_, false) => self.change(path, FileOperation::Remove),
            (_, true) => Err(Errno::NOTDIR.raw_os_error()),
        }
    }
}

/// The names in a path without `..`.
fn names_of(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec)
}

/// The names of a path from the root, by words alone.
fn normal(absolute: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for name in absolute.strip_prefix(b"/")?.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name.to_vec()),
        }
    }
    Some(names)
}

fn check_path(path: &[u8]) -> Result<(), i32> {
    match path {
        b"" => Err(Errno::NOENT.raw_os_error()),
        path if path.len() > MAX_PATH => Err(Errno::NAMETOOLONG.raw_os_error()),
        path if path.contains(&0) => Err(Errno::INVAL.raw_os_error()),
        // From the root is not from the directory.
        [b'/', ..] => Err(Errno::PERM.raw_os_error()),
        _ => Ok(()),
    }
}

/// What ends with a slash is a directory.
fn ended_well(path: &[u8], at: TreePath, facts: Option<FileFacts>) -> Result<Resolved, i32> {
    if path.ends_with(b"/") && facts.is_some_and(|facts| facts.kind != FileKind::Directory) {
        return Err(Errno::NOTDIR.raw_os_error());
    }
    Ok(Resolved { path: at, facts })
}
