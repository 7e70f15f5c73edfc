//! Copies a directory of the host into a layer.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::contents::ContentCopier;
use super::{CopiedNode, CopyManifest, DIRECTORY, MAX_LEVELS, names, open_root, stat_at};

/// How much may be copied; `None` is without limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CopyRoom {
    pub(crate) bytes: Option<u64>,
    pub(crate) inodes: Option<u64>,
}

/// Why a workspace could not be copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// It takes more bytes than the limit.
    Bytes,
    /// It consists of more entries than the limit.
    Inodes,
    /// It has directories in directories beyond what is copied.
    TooDeep(PathBuf),
    /// A call failed.
    Io(PathBuf, io::Error),
}

/// Copies what `lower` holds into `upper`, except what is `hidden` (relative paths).
///
/// Kept: contents, permissions (set-user-id and set-group-id of files excepted), times, symbolic links as they are,
/// holes. Hard links become files of their own. Left out: sockets, pipes and devices, what this user cannot read, what
/// is on another file system.
///
/// Also returns what was copied when it fails, so that it can be removed.
pub(crate) fn copy(
    lower: &Path,
    upper: &Path,
    hidden: &[PathBuf],
    room: CopyRoom,
) -> (CopyManifest, Result<(), CopyError>) {
    let mut work = CopyWork {
        manifest: CopyManifest::default(),
        hidden: hidden.iter().map(PathBuf::as_path).collect(),
        room,
        copier: ContentCopier::new(),
        latest: (0, 0),
    };
    let copied = work.copy(lower, upper);
    if copied.is_ok() {
        wait_until_later_than(work.latest);
    }
    (work.manifest, copied)
}

struct CopyWork<'a> {
    manifest: CopyManifest,
    hidden: HashSet<&'a Path>,
    room: CopyRoom,
    copier: ContentCopier,
    /// The latest change time of a copy.
    latest: (i64, u64),
}

/// A directory that is being copied.
struct CopyLevel {
    path: PathBuf,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
    left: Vec<OsString>,
}

fn at(path: &Path) -> impl Fn(Errno) -> CopyError + '_ {
    |error| CopyError::Io(path.to_owned(), error.into())
}

impl CopyWork<'_> {
    fn copy(&mut self, lower: &Path, upper: &Path) -> Result<(), CopyError> {
        let here = Path::new(".");
        let io = |error| CopyError::Io(here.to_owned(), error);
        let from = open_root(lower).map_err(io)?;
        let to = open_root(upper).map_err(io)?;
        let stat = rustix::fs::fstat(&from).map_err(at(here))?;
        let device = stat.st_dev;
        let left = names(from.as_fd()).map_err(at(here))?;
        self.manifest.directories.insert(PathBuf::new(), Default::default());
        let mut levels = vec![CopyLevel {
            path: PathBuf::new(),
            from,
            to,
            stat,
            left,
        }];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.left.pop() else {
                if let (Some(done), Some(parent)) = (levels.pop(), levels.last()) {
                    self.close(&done, parent)?;
                }
                continue;
            };
            if let Some(deeper) = self.entry(level, &name, device)? {
                if levels.len() >= MAX_LEVELS {
                    return Err(CopyError::TooDeep(deeper.path));
                }
                levels.push(deeper);
            }
        }
        Ok(())
    }

    /// Copies one entry; a directory is only made, and returned to be filled.
    fn entry(&mut self, level: &CopyLevel, name: &OsStr, device: u64) -> Result<Option<CopyLevel>, CopyError> {
        let path = level.path.join(name);
        if self.hidden.contains(path.as_path()) {
            return Ok(None);
        }
        let stat = match stat_at(level.from.as_fd(), name) {
            Ok(stat) => stat,
            // Removed meanwhile.
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        if stat.st_dev != device {
            return Ok(None);
        }
        let copied = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.directory(level, name, path, stat),
            FileType::RegularFile => self.file(level, name, &path, &stat)?,
            FileType::Symlink => symlink(level, name, &stat).map_err(at(&path))?,
            _ => false,
        };
        if copied {
            self.remember(&level.path, name, level.to.as_fd()).map_err(at(&path))?;
        }
        Ok(None)
    }

    fn directory(
        &mut self,
        level: &CopyLevel,
        name: &OsStr,
        path: PathBuf,
        stat: Stat,
    ) -> Result<Option<CopyLevel>, CopyError> {
        self.take_room(&stat)?;
        let from = match rustix::fs::openat(&level.from, name, OFlags::RDONLY | DIRECTORY, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        rustix::fs::mkdirat(&level.to, name, Mode::RWXU).map_err(at(&path))?;
        let to = rustix::fs::openat(&level.to, name, OFlags::RDONLY | DIRECTORY, Mode::empty()).map_err(at(&path))?;
        let left = names(from.as_fd()).map_err(at(&path))?;
        self.manifest.directories.insert(path.clone(), Default::default());
        // Now and again when it is full, so that it is known even if the copy fails in between.
        self.remember(&level.path, name, level.to.as_fd()).map_err(at(&path))?;
        Ok(Some(CopyLevel {
            path,
            from,
            to,
            stat,
            left,
        }))
    }

    /// Gives a directory that is full its permissions and times.
    fn close(&mut self, done: &CopyLevel, parent: &CopyLevel) -> Result<(), CopyError> {
        let name = done.path.file_name().unwrap_or_default();
        let finished = rustix::fs::fchmod(&done.to, Mode::from_raw_mode(done.stat.st_mode & 0o7777))
            .and_then(|()| rustix::fs::futimens(&done.to, &times(&done.stat)))
            .and_then(|()| self.remember(&parent.path, name, parent.to.as_fd()));
        finished.map_err(at(&done.path))
    }

    fn file(&mut self, level: &CopyLevel, name: &OsStr, path: &Path, stat: &Stat) -> Result<bool, CopyError> {
        // The wait for a pipe that somebody put in place of the file meanwhile would have no end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = match rustix::fs::openat(&level.from, name, flags, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::ACCESS | Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(false),
            Err(error) => return Err(at(path)(error)),
        };
        let found = rustix::fs::fstat(&from).map_err(at(path))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(false);
        }
        self.take_room(stat)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(&level.to, name, flags, Mode::RUSR | Mode::WUSR).map_err(at(path))?;
        let (mut from, mut to) = (File::from(from), File::from(to));
        self.copier
            .copy(&mut from, &mut to)
            .map_err(|error| CopyError::Io(path.to_owned(), error))?;
        // What overlayfs notes on a copy, so that it is noticed when the host removes the original. Where attributes
        // are not supported, that is not noticed.
        let _noted = rustix::fs::fsetxattr(&to, "user.overlay.origin", b"", XattrFlags::empty());
        rustix::fs::fchmod(&to, Mode::from_raw_mode(found.st_mode & 0o1777)).map_err(at(path))?;
        rustix::fs::futimens(&to, &times(&found)).map_err(at(path))?;
        Ok(true)
    }

    fn remember(&mut self, directory: &Path, name: &OsStr, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let copied = CopiedNode::of(&stat_at(to, name)?);
        self.latest = self.latest.max(copied.changed);
        let names = self.manifest.directories.entry(directory.to_owned()).or_default();
        names.insert(name.to_owned(), copied);
        Ok(())
    }

    fn take_room(&mut self, stat: &Stat) -> Result<(), CopyError> {
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if let Some(room) = &mut self.room.bytes {
            *room = room.checked_sub(bytes).ok_or(CopyError::Bytes)?;
        }
        if let Some(room) = &mut self.room.inodes {
            *room = room.checked_sub(1).ok_or(CopyError::Inodes)?;
        }
        Ok(())
    }
}

fn symlink(level: &CopyLevel, name: &OsStr, stat: &Stat) -> rustix::io::Result<bool> {
    let target = match rustix::fs::readlinkat(&level.from, name, Vec::new()) {
        Ok(target) => target,
        Err(Errno::NOENT | Errno::INVAL) => return Ok(false),
        Err(error) => return Err(error),
    };
    rustix::fs::symlinkat(target, &level.to, name)?;
    rustix::fs::utimensat(&level.to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(true)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Waits until a change would get a later time than the copies have, which takes a tick of the kernel's clock.
fn wait_until_later_than(latest: (i64, u64)) {
    for _ in 0..100 {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, u64::try_from(now.tv_nsec).unwrap_or(0)) > latest {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
