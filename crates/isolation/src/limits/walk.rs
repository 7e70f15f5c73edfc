//! Counts what is below a directory that untrusted code changes at the same time, a slice of time after the other.
//!
//! No path is ever resolved: every step is one name, opened relative to a directory that is held, without following
//! links. So nothing that the code renames or links can lead the walk out of the directory.

use std::collections::HashSet;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use offleash_core::limits::MAX_DEPTH;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

/// How many directories are held open; those further up are opened again on the way back.
const OPEN_LEVELS: usize = 64;
/// How many names of directories are remembered at each level before they are entered.
const NAMES_PER_LEVEL: usize = 64;
/// An empty directory takes this much on common file systems; a layer that holds nothing counts as nothing.
const EMPTY_DIRECTORY_BYTES: u64 = 4096;
/// How often a directory is made readable again when somebody takes the permission away meanwhile.
const PERMISSION_TRIES: usize = 16;

/// What was found so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct WalkCounts {
    /// Bytes on disk, each file once.
    pub(super) bytes: u64,
    /// Files, directories, links and others, each once; the root is not one of them.
    pub(super) inodes: u64,
    /// Names that were looked at: more than inodes where there are hard links.
    pub(super) names: u64,
    /// The largest number of directories in one another. Those below [`MAX_DEPTH`] others were not entered.
    pub(super) depth: u64,
    /// A directory could not be read although it is ours: somebody takes away the permission again and again.
    pub(super) hidden: bool,
    /// A directory belongs to another user, such as one of a range of subordinate ids, and is closed to us.
    pub(super) foreign: bool,
}

/// A walk under way.
#[derive(Debug)]
pub(super) struct LayerWalk {
    root: OwnedFd,
    device: u64,
    levels: Vec<WalkLevel>,
    /// Inodes that were counted: a hard link, or a file that was moved during the walk, must not count again.
    seen: HashSet<u64>,
    counts: WalkCounts,
}

/// A directory that was entered and not left yet.
#[derive(Debug)]
struct WalkLevel {
    name: CString,
    inode: u64,
    directory: Option<OpenDirectory>,
    /// Where in the directory to read on.
    position: u64,
    /// No more entries after `position`.
    read_to_end: bool,
    /// Directories in it that are still to be entered.
    pending: Vec<CString>,
}

/// A directory that can be read, and the permission bits to give back to it.
#[derive(Debug)]
struct OpenDirectory {
    fd: OwnedFd,
    restore: Option<Mode>,
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        if let Some(mode) = self.restore {
            // The directory may be gone; there is nothing to give back to then.
            let _ = rustix::fs::fchmod(&self.fd, mode);
        }
    }
}

/// Why a directory was not opened.
enum UnopenedReason {
    /// It is not there any more, or is no directory any more.
    Gone,
    Foreign,
    Hidden,
}

impl LayerWalk {
    /// A walk over what is below `root`, which is open for reading.
    pub(super) fn new(root: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(root)?;
        // A descriptor of its own, since the position in the directory belongs to it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(root, ".", flags, Mode::empty())?;
        let root = rustix::io::fcntl_dupfd_cloexec(&fd, 3)?;
        let level = WalkLevel::new(CString::default(), stat.st_ino, OpenDirectory { fd, restore: None });
        let bytes = disk_bytes(&stat).saturating_sub(EMPTY_DIRECTORY_BYTES);
        let counts = WalkCounts {
            bytes,
            ..WalkCounts::default()
        };
        Ok(Self {
            root,
            device: stat.st_dev,
            levels: vec![level],
            seen: HashSet::new(),
            counts,
        })
    }

    pub(super) fn counts(&self) -> WalkCounts {
        self.counts
    }

    /// Walks on until `deadline`, or to the end without one; true when all was seen.
    ///
    /// At least one directory's buffer of entries is read, so repeated calls make progress however short they are.
    pub(super) fn advance(&mut self, deadline: Option<Instant>) -> bool {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.pending.pop() {
                self.enter(name);
            } else if level.read_to_end {
                self.levels.pop();
            } else {
                self.read_entries();
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return self.levels.is_empty();
            }
        }
        true
    }

    fn enter(&mut self, name: CString) {
        // The root is the first of the levels and none of those that count.
        let depth = u64::try_from(self.levels.len()).unwrap_or(u64::MAX);
        self.counts.depth = self.counts.depth.max(depth);
        if depth > MAX_DEPTH {
            return;
        }
        let device = self.device;
        let Some(parent) = self.current_directory() else { return };
        let opened = open_directory(parent, &name, device);
        if let Some((directory, inode)) = self.accept(opened) {
            self.levels.push(WalkLevel::new(name, inode, directory));
            // The root of the walk is held apart, so the first level may be closed too.
            if let Some(above) = self.levels.len().checked_sub(OPEN_LEVELS + 1) {
                self.levels[above].directory = None;
            }
        }
    }

    fn accept(&mut self, opened: Result<(OpenDirectory, u64), UnopenedReason>) -> Option<(OpenDirectory, u64)> {
        match opened {
            Ok(opened) => return Some(opened),
            Err(UnopenedReason::Gone) => {}
            Err(UnopenedReason::Foreign) => self.counts.foreign = true,
            Err(UnopenedReason::Hidden) => self.counts.hidden = true,
        }
        None
    }

    /// The directory of the deepest level, opened again if it was closed to save descriptors.
    ///
    /// When it is not found again, because it was moved or removed, the rest of it is given up; the next walk sees it
    /// where it is then.
    fn current_directory(&mut self) -> Option<BorrowedFd<'_>> {
        if self.levels.last()?.directory.is_none() {
            let reopened = self.reopen();
            let level = self.levels.last_mut()?;
            match reopened {
                Some((directory, inode)) if inode == level.inode => level.directory = Some(directory),
                _ => {
                    level.pending.clear();
                    level.read_to_end = true;
                    return None;
                }
            }
        }
        Some(self.levels.last()?.directory.as_ref()?.fd.as_fd())
    }

    /// Opens the deepest level again, name by name from the root.
    fn reopen(&mut self) -> Option<(OpenDirectory, u64)> {
        let names: Vec<&CString> = self.levels.iter().skip(1).map(|level| &level.name).collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.root, ".", flags, Mode::empty()).ok()?;
        let inode = rustix::fs::fstat(&fd).ok()?.st_ino;
        let mut opened = (OpenDirectory { fd, restore: None }, inode);
        for name in names {
            opened = match open_directory(opened.0.fd.as_fd(), name, self.device) {
                Ok(opened) => opened,
                Err(closed) => return self.accept(Err(closed)),
            };
        }
        Some(opened)
    }

    /// Counts one buffer of entries of the deepest level.
    fn read_entries(&mut self) {
        let Some(directory) = self.current_directory().and_then(|fd| fd.try_clone_to_owned().ok()) else {
            self.give_up_level();
            return;
        };
        let Some(position) = self.levels.last().map(|level| level.position) else {
            return;
        };
        if rustix::fs::seek(&directory, SeekFrom::Start(position)).is_err() {
            self.give_up_level();
            return;
        }
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut entries = RawDir::new(&directory, &mut buffer);
        let mut pending = Vec::new();
        let mut reached = None;
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            let next = entry.next_entry_cookie();
            if name != c"." && name != c".." && self.count(directory.as_fd(), name) {
                pending.push(name.to_owned());
            }
            if entries.is_buffer_empty() || pending.len() >= NAMES_PER_LEVEL {
                reached = Some(next);
                break;
            }
        }
        if let Some(level) = self.levels.last_mut() {
            level.pending = pending;
            level.position = reached.unwrap_or(position);
            level.read_to_end = reached.is_none();
        }
    }

    fn give_up_level(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.read_to_end = true;
        }
    }

    /// Counts one entry; true when it is a directory to be entered.
    fn count(&mut self, directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> bool {
        self.counts.names = self.counts.names.saturating_add(1);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = match rustix::fs::statat(directory, name, flags) {
            Ok(stat) => stat,
            Err(Errno::ACCESS) => {
                // The name can be read and the rest cannot: at least it exists.
                self.counts.hidden = true;
                self.counts.inodes = self.counts.inodes.saturating_add(1);
                return false;
            }
            Err(_) => return false,
        };
        if stat.st_dev != self.device || !self.seen.insert(stat.st_ino) {
            return false;
        }
        self.counts.inodes = self.counts.inodes.saturating_add(1);
        self.counts.bytes = self.counts.bytes.saturating_add(disk_bytes(&stat));
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
    }
}

impl WalkLevel {
    fn new(name: CString, inode: u64, directory: OpenDirectory) -> Self {
        Self {
            name,
            inode,
            directory: Some(directory),
            position: 0,
            read_to_end: false,
            pending: Vec::new(),
        }
    }
}

/// Opens the directory `name` for reading and searching, on the same device, without following a link.
///
/// An ordinary user is refused in a directory of mode 000 even if it is his. He may change the mode of what he owns,
/// so it gets the owner's bits until it is closed. `chmod` by name would follow a link that is put there meanwhile, and
/// `fchmodat2` needs Linux 6.6, so the mode is changed through `/proc/self/fd`, which means precisely the directory
/// that is held, whatever the name means by then.
fn open_directory(parent: BorrowedFd<'_>, name: &CString, device: u64) -> Result<(OpenDirectory, u64), UnopenedReason> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..PERMISSION_TRIES {
        let opened = match rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => readable(fd, None)?,
            Err(Errno::ACCESS) => match make_readable(parent, name, flags)? {
                Some(directory) => readable(
                    directory.fd.try_clone().map_err(|_| UnopenedReason::Hidden)?,
                    Some(directory),
                )?,
                None => continue,
            },
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(UnopenedReason::Gone),
            Err(_) => return Err(UnopenedReason::Hidden),
        };
        let (directory, stat) = opened;
        return if stat.st_dev == device {
            Ok((directory, stat.st_ino))
        } else {
            Err(UnopenedReason::Gone)
        };
    }
    Err(UnopenedReason::Hidden)
}

/// Gives the owner's bits to a directory that can be read but not searched.
fn readable(fd: OwnedFd, made_readable: Option<OpenDirectory>) -> Result<(OpenDirectory, Stat), UnopenedReason> {
    let stat = rustix::fs::fstat(&fd).map_err(|_| UnopenedReason::Hidden)?;
    if let Some(directory) = made_readable {
        return Ok((directory, stat));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let euid = rustix::process::geteuid();
    let restore = if mode.contains(Mode::XUSR) || euid.is_root() || stat.st_uid != euid.as_raw() {
        None
    } else {
        rustix::fs::fchmod(&fd, mode | Mode::RWXU).map_err(|_| UnopenedReason::Hidden)?;
        Some(mode)
    };
    Ok((OpenDirectory { fd, restore }, stat))
}

/// Opens a directory of ours that we may not read; `None` when the permission was taken away again meanwhile.
fn make_readable(
    parent: BorrowedFd<'_>,
    name: &CString,
    flags: OFlags,
) -> Result<Option<OpenDirectory>, UnopenedReason> {
    let held = match rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty()) {
        Ok(held) => held,
        // We may not even search the directory that it is in.
        Err(Errno::ACCESS) => return Err(UnopenedReason::Hidden),
        Err(_) => return Err(UnopenedReason::Gone),
    };
    let stat = rustix::fs::fstat(&held).map_err(|_| UnopenedReason::Gone)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(UnopenedReason::Foreign);
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let itself = format!("/proc/self/fd/{}", held.as_raw_fd());
    rustix::fs::chmod(&itself, mode | Mode::RWXU).map_err(|_| UnopenedReason::Hidden)?;
    let opened = rustix::fs::open(
        &itself,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    Ok(opened.ok().map(|fd| OpenDirectory {
        fd,
        restore: Some(mode),
    }))
}

fn disk_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
