//! What comes into the layer for the first time: new, or copied from below.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::change::{GIVEN_MODES, write_all};
use super::read::{OWNER_READS, open_file};
use super::{DIRECTORY, Found, InnerPath, ServedTree, annotations, is_directory, names, stat_at};

/// What is copied at once.
const COPIED_AT_ONCE: usize = 64 * 1024;

/// Something new in the layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewEntry {
    pub(super) mode: Mode,
    /// Ids inside.
    pub(super) owner: (u32, u32),
}

impl ServedTree {
    /// Directory and name in the layer of something that is no directory.
    pub(super) fn copy_up_file(&mut self, path: &InnerPath) -> Result<(OwnedFd, Vec<u8>), Errno> {
        match self.find(path)? {
            Found::Nothing => return Err(Errno::NOENT),
            Found::Lower(..) => self.copy_up(path)?,
            Found::Upper(_) | Found::Directory(_) => {}
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        Ok((self.upper_directory(&parent)?, name.to_vec()))
    }

    /// Copies a file or a link from below into the layer.
    pub(super) fn copy_up(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let upper = self.upper_owners;
        let place = self.directory(&parent)?;
        let Found::Lower(stat, number) = place.find(name)? else {
            return Err(Errno::NOENT);
        };
        let owners = place.owners_of(number, upper);
        let lower = place.lower(number).ok_or(Errno::NOENT)?;
        let lower = lower.try_clone().map_err(|_| Errno::MFILE)?;
        let owner = owners.shown(&stat, self.user);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&lower, name, Vec::new())?;
                self.quota.lock().add_entry(path.depth())?;
                let directory = self.upper_directory(&parent)?;
                rustix::fs::symlinkat(target.as_c_str(), &directory, name)?;
                self.give_link(&directory, name, owner)
            }
            FileType::RegularFile => {
                if !self.lets(&stat, owners, OWNER_READS) && !owners.is_owner(self.caller, &stat) {
                    return Err(Errno::ACCESS);
                }
                let from = open_file(lower.as_fd(), name, OFlags::RDONLY)?;
                self.quota.lock().resize(0, u64::try_from(stat.st_size).unwrap_or(0))?;
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
                let to = self.create(&parent, name, NewEntry { mode, owner })?;
                copy_contents(&from, &to)?;
                annotations::copy(&from, &to)?;
                rustix::fs::futimens(&to, &times_of(&stat))
            }
            _ => Err(Errno::NXIO),
        }
    }

    /// Makes an empty file in the layer, where there is none or only the mark of one that is gone.
    pub(super) fn create(&mut self, parent: &InnerPath, name: &[u8], made: NewEntry) -> Result<OwnedFd, Errno> {
        self.quota.lock().add_entry(parent.depth() + 1)?;
        let directory = self.upper_directory(parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.settle(&file, made)?;
        Ok(file)
    }

    /// Something new of whoever asks.
    pub(super) fn own(&self, mode: Mode) -> NewEntry {
        NewEntry {
            mode,
            owner: (self.caller.uid, self.caller.gid),
        }
    }

    /// Gives something new its owner and its mode, whatever the mask of this process is.
    pub(super) fn settle(&self, made: &OwnedFd, entry: NewEntry) -> Result<(), Errno> {
        if let Some((uid, gid)) = self.upper_owners.outside(entry.owner) {
            rustix::fs::fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        rustix::fs::fchmod(made, entry.mode)
    }

    pub(super) fn give_link(&self, directory: &OwnedFd, name: &[u8], owner: (u32, u32)) -> Result<(), Errno> {
        let Some((uid, gid)) = self.upper_owners.outside(owner) else {
            return Ok(());
        };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The directory in the layer, which is made, with those that lead to it, if only what lies below has it.
    pub(super) fn upper_directory(&mut self, path: &InnerPath) -> Result<OwnedFd, Errno> {
        if let Some(upper) = &self.directory(path)?.upper {
            return upper.try_clone().map_err(|_| Errno::MFILE);
        }
        let root = self.root.upper.as_ref().ok_or(Errno::ROFS)?;
        let mut upper = root.try_clone().map_err(|_| Errno::MFILE)?;
        let mut here = InnerPath::default();
        for name in path.names() {
            here = here.join(name);
            let made = match stat_at(upper.as_fd(), name) {
                Ok(stat) if is_directory(&stat) => false,
                Ok(_) => return Err(Errno::NOTDIR),
                Err(Errno::NOENT) => true,
                Err(error) => return Err(error),
            };
            if made {
                let owners = self.upper_owners;
                let (stat, owners) = self.directory(&here)?.shown(owners)?;
                let entry = NewEntry {
                    mode: Mode::from_raw_mode(stat.st_mode & GIVEN_MODES),
                    owner: owners.shown(&stat, self.user),
                };
                self.quota.lock().add_entry(here.depth())?;
                rustix::fs::mkdirat(&upper, name, Mode::RWXU)?;
                upper = rustix::fs::openat(&upper, name, DIRECTORY, Mode::empty())?;
                self.settle(&upper, entry)?;
            } else {
                upper = rustix::fs::openat(&upper, name, DIRECTORY, Mode::empty())?;
            }
        }
        self.last = None;
        Ok(upper)
    }
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = Timespec {
        tv_sec: stat.st_mtime,
        tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn copy_contents(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut buffer = vec![0; COPIED_AT_ONCE];
    let mut offset = 0;
    loop {
        match rustix::io::pread(from, buffer.as_mut_slice(), offset) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                write_all(to, buffer.get(..count).unwrap_or_default(), offset)?;
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
