//! Emptying a directory of which there is a copy: what is there as it was copied goes, and what came to it meanwhile, or
//! was replaced, goes over to the copy. So nothing is lost that others wrote to the old name while it had it.

use alloc::ffi::CString;
use core::ffi::CStr;

use offleash_sys::rename;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, Stat};
use rustix::io::Errno;

use super::copy::{DEEPEST, is_same};
use super::place::{self, is_self};

const WRITE_AND_SEARCH: u32 = 0o300;

/// Removes everything in a directory; without a copy nothing is saved.
pub(super) fn empty(source: &OwnedFd, target: Option<&OwnedFd>) -> Result<(), Errno> {
    let target = target.map(place::again).transpose()?;
    let mut levels = alloc::vec![RemovalLevel::new(place::again(source)?, target, None)?];
    while let Some(level) = levels.last_mut() {
        match level.next()? {
            Some(entry) => {
                if let Some(below) = level.entry(entry)? {
                    // A little more than what is copied, for what appears meanwhile.
                    if levels.len() > DEEPEST {
                        return Err(Errno::NAMETOOLONG);
                    }
                    levels.push(below);
                }
            }
            None => {
                let name = level.name.take();
                levels.pop();
                if let (Some(name), Some(above)) = (name, levels.last()) {
                    match rustix::fs::unlinkat(&above.source, &name, AtFlags::REMOVEDIR) {
                        // What appeared in it is for the next round.
                        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }
    Ok(())
}

/// A directory on the way.
struct RemovalLevel {
    source: OwnedFd,
    target: Option<OwnedFd>,
    /// In the one above.
    name: Option<CString>,
    entries: Dir,
}

impl RemovalLevel {
    fn new(source: OwnedFd, target: Option<OwnedFd>, name: Option<CString>) -> Result<Self, Errno> {
        let mode = rustix::fs::fstat(&source)?.st_mode & 0o1777;
        if mode & WRITE_AND_SEARCH != WRITE_AND_SEARCH {
            // Whoever may not is told when it comes to removing.
            let _ = rustix::fs::fchmod(&source, Mode::from_raw_mode(mode | WRITE_AND_SEARCH));
        }
        Ok(Self {
            entries: Dir::read_from(&source)?,
            source,
            target,
            name,
        })
    }

    fn next(&mut self) -> Result<Option<CString>, Errno> {
        while let Some(entry) = self.entries.read() {
            let entry = entry?;
            if !is_self(entry.file_name()) {
                return Ok(Some(entry.file_name().into()));
            }
        }
        Ok(None)
    }

    /// Removes one entry; answers a directory that is to be emptied first.
    fn entry(&self, name: CString) -> Result<Option<Self>, Errno> {
        let Some(stat) = stat_at(&self.source, &name)? else {
            return Ok(None);
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if let Some(target) = &self.target {
            let copied = stat_at(target, &name)?;
            let stays = copied.is_some_and(|copied| is_directory || !is_newer(&stat, &copied));
            // What lies in the overlay's lower layer was copied, and cannot be moved: if there is no copy of it any more,
            // that was removed under the new name.
            if !stays && rename::by_kernel(self.source.as_fd(), &name, target.as_fd(), &name, true).is_ok() {
                return Ok(None);
            }
        }
        if !is_directory {
            return match rustix::fs::unlinkat(&self.source, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(None),
                // It became a directory; the next round finds it.
                Err(Errno::ISDIR) => Ok(None),
                Err(errno) => Err(errno),
            };
        }
        let source = match place::open_directory(self.source.as_fd(), &name) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            opened => opened?,
        };
        let target = self.target.as_ref();
        let target = target.and_then(|target| place::open_directory(target.as_fd(), &name).ok());
        Self::new(source, target, Some(name)).map(Some)
    }
}

/// Whether a file came, or was changed, after it was copied. One that is replaced under the new name is the newer one.
fn is_newer(source: &Stat, copied: &Stat) -> bool {
    let what = |stat: &Stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        (kind, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
    };
    // Who loses its name to another file is changed by that, too, and in the same moment.
    let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec, stat.st_mtime, stat.st_mtime_nsec);
    !is_same(source, copied) && what(source) != what(copied) && changed(source) >= changed(copied)
}

fn stat_at(directory: &OwnedFd, name: &CStr) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
