//! A directory tree that is walked by descriptor: nothing in it can lead out of it.
//!
//! Every path is resolved from the root with `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS |
//! RESOLVE_NO_XDEV)`, in pieces shorter than `PATH_MAX`, so that at most three descriptors are open at a time whatever
//! the depth. There is no recursion. Reading opens regular files only, without waiting.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::node::{NodeKind, NodeTime, TreeNode};

/// The longest piece of a path that one call resolves; `PATH_MAX` is 4096 with the closing NUL.
const PIECE: usize = 4000;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The root of a tree.
#[derive(Debug)]
pub(crate) struct TreeRoot {
    root: OwnedFd,
    modes: ModeHandling,
}

/// What to do about an entry of our own whose mode forbids us to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModeHandling {
    /// Leave it: changing the host's modes, even for a moment, would look like a change by somebody else.
    Respect,
    /// Add the permission for the moment of opening.
    Override,
}

/// What another open directory descriptor gives.
pub(crate) type OpenedWith = Result<OwnedFd, Errno>;

impl TreeRoot {
    /// Opens a directory of the host, none of whose components may be a symbolic link.
    pub(crate) fn host(path: &Path) -> Result<Self, Errno> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve)?;
        Ok(Self {
            root,
            modes: ModeHandling::Respect,
        })
    }

    /// A tree in the state directory.
    pub(crate) fn ours(root: OwnedFd) -> Self {
        Self {
            root,
            modes: ModeHandling::Override,
        }
    }

    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// The directory `relative`, for use as a starting point only.
    pub(crate) fn directory(&self, relative: &Path) -> OpenedWith {
        self.open(relative, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// The directory that holds `relative`, and the name in it.
    pub(crate) fn parent<'p>(&self, relative: &'p Path) -> Result<(OwnedFd, &'p OsStr), Errno> {
        let name = relative.file_name().ok_or(Errno::INVAL)?;
        Ok((self.directory(relative.parent().unwrap_or(Path::new("")))?, name))
    }

    /// What is at `relative`, with the target of a link; `None` if nothing is, or something above is no directory.
    ///
    /// A symbolic link or a mount on the way is an error (`ELOOP`, `EXDEV`).
    pub(crate) fn node(&self, relative: &Path) -> Result<Option<TreeNode>, Errno> {
        if relative.as_os_str().is_empty() {
            return Ok(Some(TreeNode::of(&rustix::fs::fstat(&self.root)?)));
        }
        match self.parent(relative) {
            Ok((parent, name)) => self.in_directory(&parent, || node_at(&parent, name)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When the entry at `relative` was made, where the file system notes that (statx(2), `stx_btime`).
    pub(crate) fn born(&self, relative: &Path) -> Result<Option<NodeTime>, Errno> {
        let (parent, name) = self.parent(relative)?;
        let found = rustix::fs::statx(&parent, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME)?;
        let is_noted = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(is_noted.then_some(NodeTime {
            seconds: found.stx_btime.tv_sec,
            nanoseconds: found.stx_btime.tv_nsec,
        }))
    }

    /// The entry `relative` itself, which may be anything but a symbolic link, as an `O_PATH` descriptor.
    pub(crate) fn place(&self, relative: &Path) -> OpenedWith {
        if matches!(relative.as_os_str().as_bytes(), b"" | b".") {
            // Looking up even `.` takes permission to search.
            return rustix::io::fcntl_dupfd_cloexec(&self.root, 0);
        }
        self.open(relative, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// A regular file for reading; anything else is `EINVAL`.
    pub(crate) fn file(&self, relative: &Path) -> Result<File, Errno> {
        let (parent, name) = self.parent(relative)?;
        self.in_directory(&parent, || open_file(&parent, name, self.modes))
    }

    /// The directory `relative`, for listing.
    pub(crate) fn readable(&self, relative: &Path) -> OpenedWith {
        match self.open(relative, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::ACCESS) if self.modes == ModeHandling::Override => {
                let place = self.directory(relative)?;
                with_owner_bits(&place, USABLE, || reopen(&place, OFlags::RDONLY | OFlags::DIRECTORY))
            }
            other => other,
        }
    }

    /// The names in the directory `relative`, sorted.
    pub(crate) fn names(&self, relative: &Path) -> Result<Vec<PathBuf>, Errno> {
        names_in(&self.readable(relative)?)
    }
}

impl TreeRoot {
    fn open(&self, relative: &Path, flags: OFlags) -> OpenedWith {
        let bytes = relative.as_os_str().as_bytes();
        match open_below(&self.root, bytes, flags) {
            Err(Errno::ACCESS) if self.modes == ModeHandling::Override => open_stepwise(&self.root, bytes, flags),
            other => other,
        }
    }

    /// Does something that needs search permission in a directory.
    fn in_directory<T>(&self, directory: &OwnedFd, action: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match self.modes {
            ModeHandling::Respect => action(),
            ModeHandling::Override => with_search(directory, action),
        }
    }
}

/// As [`open_below`], opening up directories of ours that may not be searched, each for a moment.
fn open_stepwise(root: &OwnedFd, path: &[u8], flags: OFlags) -> OpenedWith {
    let mut current: Option<OwnedFd> = None;
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        let through = if names.peek().is_some() {
            OFlags::PATH | OFlags::DIRECTORY
        } else {
            flags
        };
        let from = current.as_ref().unwrap_or(root);
        current = Some(with_search(from, || open_piece(from, name, through | OFlags::CLOEXEC))?);
    }
    current.ok_or(Errno::NOENT)
}

fn with_search<T>(directory: &OwnedFd, action: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match action() {
        Err(Errno::ACCESS) => with_owner_bits(directory, 0o100, action),
        other => other,
    }
}

/// What it takes to go through a directory: even its attributes may not be read without permission to read it.
const USABLE: u32 = 0o500;

/// Keeps a directory of ours searchable and readable until dropped.
#[derive(Debug)]
pub(crate) struct UsableDirectory<'fd> {
    directory: &'fd OwnedFd,
    mode: u32,
}

impl<'fd> UsableDirectory<'fd> {
    /// `None` if it is so anyway, or is not ours.
    pub(crate) fn hold(directory: &'fd OwnedFd) -> Result<Option<Self>, Errno> {
        let found = rustix::fs::fstat(directory)?;
        let mode = found.st_mode & 0o7777;
        let euid = rustix::process::geteuid();
        if mode & USABLE == USABLE || euid.is_root() || found.st_uid != euid.as_raw() {
            return Ok(None);
        }
        chmod(directory, mode | USABLE)?;
        Ok(Some(Self { directory, mode }))
    }
}

impl Drop for UsableDirectory<'_> {
    fn drop(&mut self) {
        // It was possible a moment ago; if not any more, the directory stays open to its owner, who is us.
        let _ = chmod(self.directory, self.mode);
    }
}

pub(crate) fn open_below(root: &OwnedFd, path: &[u8], flags: OFlags) -> OpenedWith {
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut rest = path;
    let mut current: Option<OwnedFd> = None;
    while rest.len() > PIECE {
        let cut = rest[..PIECE]
            .iter()
            .rposition(|byte| *byte == b'/')
            .ok_or(Errno::NAMETOOLONG)?;
        let next = open_piece(current.as_ref().unwrap_or(root), &rest[..cut], through)?;
        current = Some(next);
        rest = &rest[cut + 1..];
    }
    open_piece(current.as_ref().unwrap_or(root), rest, flags | OFlags::CLOEXEC)
}

fn open_piece(from: &OwnedFd, piece: &[u8], flags: OFlags) -> OpenedWith {
    let piece = if piece.is_empty() { b"." } else { piece };
    loop {
        match rustix::fs::openat2(from, piece, flags, Mode::empty(), BENEATH) {
            // A rename elsewhere disturbed the walk (openat2(2), EAGAIN).
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Opens the regular file `name` for reading.
pub(crate) fn open_file(parent: impl AsFd, name: &OsStr, modes: ModeHandling) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Looked at before it is opened: opening some devices does something.
    let place = rustix::fs::openat(
        &parent,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if TreeNode::of(&rustix::fs::fstat(&place)?).kind != crate::NodeKind::File {
        return Err(Errno::INVAL);
    }
    let opened = match reopen(&place, flags) {
        Err(Errno::ACCESS) if modes == ModeHandling::Override => {
            with_owner_bits(&place, 0o400, || reopen(&place, flags))
        }
        other => other,
    };
    opened.map(File::from)
}

/// Opens what an `O_PATH` descriptor stands for.
pub(crate) fn reopen(place: &OwnedFd, flags: OFlags) -> OpenedWith {
    rustix::fs::open(magic_link(place), flags | OFlags::CLOEXEC, Mode::empty())
}

/// `chmod` for an `O_PATH` descriptor, which `fchmod` refuses.
pub(crate) fn chmod(place: &OwnedFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(magic_link(place), Mode::from_raw_mode(mode))
}

pub(crate) fn magic_link(place: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// Adds permission bits while `action` runs; possible only for entries that we own.
fn with_owner_bits<T>(place: &OwnedFd, bits: u32, action: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let found = rustix::fs::fstat(place)?;
    let mode = found.st_mode & 0o7777;
    if found.st_uid != rustix::process::geteuid().as_raw() || mode & bits == bits {
        return Err(Errno::ACCESS);
    }
    chmod(place, mode | bits)?;
    let result = action();
    chmod(place, mode)?;
    result
}

/// What `name` in `parent` is, with the target of a link; `None` if there is no such name.
pub(crate) fn node_at(parent: &OwnedFd, name: &OsStr) -> Result<Option<TreeNode>, Errno> {
    let Some(stat) = stat_at(parent, name)? else {
        return Ok(None);
    };
    let mut node = TreeNode::of(&stat);
    if node.kind == crate::NodeKind::Symlink {
        let target = rustix::fs::readlinkat(parent, name, Vec::new())?;
        node.target = Some(std::ffi::OsString::from_vec(target.into_bytes()).into());
    }
    Ok(Some(node))
}

pub(crate) fn stat_at(parent: &OwnedFd, name: &OsStr) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in an open directory, in no order, and what has them; without what is gone again.
pub(crate) fn entries_in(directory: &OwnedFd) -> Result<Vec<(PathBuf, NodeKind)>, Errno> {
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => stat_at(directory, name)?.map(|stat| crate::node::kind_of(&stat)),
            known => Some(crate::node::kind_of_type(known)),
        };
        found.extend(kind.map(|kind| (PathBuf::from(name), kind)));
    }
    Ok(found)
}

/// The names in an open directory, sorted.
pub(crate) fn names_in(directory: &OwnedFd) -> Result<Vec<PathBuf>, Errno> {
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(PathBuf::from(OsStr::from_bytes(name)));
        }
    }
    names.sort_unstable();
    Ok(names)
}
