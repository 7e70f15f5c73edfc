//! What goes into the layer.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::copy_up::NewEntry;
use super::owners::is_sticky;
use super::read::{names_in, open_file};
use super::{DIRECTORY, FileCaller, Found, InnerPath, LayerOwners, ServedTree, StackedDirectory, is_directory, names};

const OWNER_WRITES: u32 = 0o200;
/// What permissions can be given: nothing that has a program run as somebody else.
pub(super) const GIVEN_MODES: u32 = 0o1777;
const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// What is in the layer at a name, for writing.
struct Writable {
    file: OwnedFd,
    size: u64,
}

impl ServedTree {
    /// Makes the file `total` bytes long, of which these are the first; whether it was not there.
    pub(super) fn replace(&mut self, path: &InnerPath, total: u64, bytes: &[u8]) -> Result<bool, Errno> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > total {
            return Err(Errno::INVAL);
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let (upper, place) = (self.upper_owners, self.directory(&parent)?);
        let found = place.find(name)?;
        let owners = match &found {
            Found::Lower(_, number) => place.owners_of(*number, upper),
            _ => upper,
        };
        let (made, before) = match &found {
            Found::Directory(_) => return Err(Errno::ISDIR),
            Found::Upper(stat) | Found::Lower(stat, _) => {
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(Errno::LOOP);
                }
                if !self.lets(stat, owners, OWNER_WRITES) {
                    return Err(Errno::ACCESS);
                }
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
                let made = NewEntry {
                    mode,
                    owner: owners.shown(stat, self.user),
                };
                (made, matches!(found, Found::Upper(_)).then_some(size))
            }
            Found::Nothing => (self.own(NEW_FILE), None),
        };
        let is_new = matches!(found, Found::Nothing);
        if is_new {
            self.check_writable(&parent)?;
        }
        // The rest comes in further pieces, which count as they come.
        self.quota.lock().would_fit(before.unwrap_or(0), total)?;
        self.quota.lock().resize(before.unwrap_or(0), length)?;
        let file = match before {
            Some(_) => {
                let directory = self.upper_directory(&parent)?;
                let file = open_file(directory.as_fd(), name, OFlags::WRONLY)?;
                rustix::fs::ftruncate(&file, 0)?;
                file
            }
            None => self.create(&parent, name, made)?,
        };
        write_all(&file, bytes, 0)?;
        Ok(is_new)
    }

    /// Adds bytes to a file; whether it was not there.
    pub(super) fn append(&mut self, path: &InnerPath, bytes: &[u8]) -> Result<bool, Errno> {
        if matches!(self.find(path)?, Found::Nothing) {
            let total = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            return self.replace(path, total, bytes);
        }
        let Writable { file, size } = self.writable(path)?;
        let added = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.quota.lock().resize(size, size.saturating_add(added))?;
        write_all(&file, bytes, size)?;
        Ok(false)
    }

    /// Writes into a file that is there.
    pub(super) fn write(&mut self, path: &InnerPath, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let Writable { file, size } = self.writable(path)?;
        let added = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(added).ok_or(Errno::FBIG)?;
        self.quota.lock().resize(size, size.max(end))?;
        write_all(&file, bytes, offset)
    }

    /// Cuts a file that is there, or fills it up with zeroes.
    pub(super) fn resize(&mut self, path: &InnerPath, after: u64) -> Result<(), Errno> {
        let Writable { file, size } = self.writable(path)?;
        self.quota.lock().resize(size, after)?;
        rustix::fs::ftruncate(&file, after)
    }

    pub(super) fn make_directory(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let Some((parent, name)) = path.split() else {
            return Err(Errno::EXIST);
        };
        if !matches!(self.find(path)?, Found::Nothing) {
            return Err(Errno::EXIST);
        }
        self.check_writable(&parent)?;
        self.quota.lock().add_entry(path.depth())?;
        let is_over = self.directory(&parent)?.has_below(name)?;
        let directory = self.upper_directory(&parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        self.last = None;
        rustix::fs::mkdirat(&directory, name, NEW_DIRECTORY)?;
        let made = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
        self.settle(&made, self.own(NEW_DIRECTORY))?;
        match is_over {
            true => names::make_opaque(&made),
            false => Ok(()),
        }
    }

    pub(super) fn symlink(&mut self, path: &InnerPath, target: &[u8]) -> Result<(), Errno> {
        let (parent, name) = path.split().ok_or(Errno::EXIST)?;
        if !matches!(self.find(path)?, Found::Nothing) {
            return Err(Errno::EXIST);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Errno::NOENT);
        }
        self.check_writable(&parent)?;
        self.quota.lock().add_entry(path.depth())?;
        let directory = self.upper_directory(&parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        rustix::fs::symlinkat(target, &directory, name)?;
        self.give_link(&directory, name, (self.caller.uid, self.caller.gid))
    }

    /// Removes a file, a link or an empty directory.
    pub(super) fn remove(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        let found = self.find(path)?;
        if matches!(found, Found::Nothing) {
            return Err(Errno::NOENT);
        }
        self.check_writable(&parent)?;
        self.check_sticky(&parent, path)?;
        if matches!(found, Found::Directory(_)) && !self.is_empty(path)? {
            return Err(Errno::NOTEMPTY);
        }
        let is_over = self.directory(&parent)?.has_below(name)?;
        self.last = None;
        match found {
            Found::Directory(StackedDirectory { upper: Some(upper), .. }) => {
                for mark in names_in(&upper)? {
                    rustix::fs::unlinkat(&upper, mark.as_slice(), AtFlags::empty())?;
                }
                let directory = self.upper_directory(&parent)?;
                rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?;
                self.quota.lock().remove_entry();
            }
            Found::Upper(stat) => {
                let directory = self.upper_directory(&parent)?;
                rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
                // Of a link no bytes were counted.
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    self.quota.lock().resize(u64::try_from(stat.st_size).unwrap_or(0), 0)?;
                }
                self.quota.lock().remove_entry();
            }
            _ => {}
        }
        if is_over {
            let directory = self.upper_directory(&parent)?;
            names::make_whiteout(directory.as_fd(), name)?;
        }
        Ok(())
    }

    /// Renames a file or a link, or a directory that the host does not have; `EXDEV` for one of the host.
    pub(super) fn rename(&mut self, from: &InnerPath, to: &InnerPath) -> Result<(), Errno> {
        let (from_parent, from_name) = from.split().ok_or(Errno::BUSY)?;
        let (to_parent, to_name) = to.split().ok_or(Errno::BUSY)?;
        if from == to {
            return self.stat(from).map(drop);
        }
        if to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        self.check_writable(&from_parent)?;
        self.check_writable(&to_parent)?;
        self.check_sticky(&from_parent, from)?;
        self.quota.lock().check_depth(to.depth())?;
        let moves_directory = match self.find(from)? {
            Found::Nothing => return Err(Errno::NOENT),
            Found::Directory(found) if !found.lowers.is_empty() => return Err(Errno::XDEV),
            // What is in it would lie deeper, which is looked at when it is copied.
            Found::Directory(_) if to.depth() > from.depth() => return Err(Errno::XDEV),
            Found::Directory(_) => true,
            Found::Upper(_) => false,
            Found::Lower(..) => {
                self.copy_up(from)?;
                false
            }
        };
        match (self.find(to)?, moves_directory) {
            (Found::Nothing, _) => {}
            (Found::Directory(_), false) => return Err(Errno::ISDIR),
            (Found::Upper(_) | Found::Lower(..), true) => return Err(Errno::NOTDIR),
            (Found::Directory(_) | Found::Upper(_) | Found::Lower(..), _) => self.remove(to)?,
        }
        let is_over = self.directory(&to_parent)?.has_below(to_name)?;
        let was_over = self.directory(&from_parent)?.has_below(from_name)?;
        let from_directory = self.upper_directory(&from_parent)?;
        let to_directory = self.upper_directory(&to_parent)?;
        self.last = None;
        names::remove_whiteout(to_directory.as_fd(), to_name)?;
        rustix::fs::renameat(&from_directory, from_name, &to_directory, to_name)?;
        if moves_directory && is_over {
            let moved = rustix::fs::openat(&to_directory, to_name, DIRECTORY, Mode::empty())?;
            names::make_opaque(&moved)?;
        }
        if was_over {
            names::make_whiteout(from_directory.as_fd(), from_name)?;
        }
        Ok(())
    }

    pub(super) fn chmod(&mut self, path: &InnerPath, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode & GIVEN_MODES);
        self.check_owner(path)?;
        let is_root = path.depth() == 0;
        if is_root || matches!(self.find(path)?, Found::Directory(_)) {
            let directory = self.upper_directory(path)?;
            self.last = None;
            return rustix::fs::fchmod(&directory, mode);
        }
        let name = self.copy_up_file(path)?;
        let file = open_any(&name.0, &name.1)?;
        rustix::fs::fchmod(&file, mode)
    }

    /// Gives what is in the layer to somebody inside.
    ///
    /// # Errors
    /// As the kernel numbers them.
    pub(crate) fn give(&mut self, caller: FileCaller, path: &InnerPath, owner: (u32, u32)) -> Result<(), Errno> {
        self.caller = caller;
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        let directory = self.upper_directory(&parent)?;
        self.last = None;
        self.give_link(&directory, name, owner)
    }

    pub(super) fn touch(&mut self, path: &InnerPath, seconds: i64, nanoseconds: u32) -> Result<(), Errno> {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(nanoseconds.min(999_999_999)),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        self.check_owner(path)?;
        let is_root = path.depth() == 0;
        if is_root || matches!(self.find(path)?, Found::Directory(_)) {
            let directory = self.upper_directory(path)?;
            return rustix::fs::futimens(&directory, &times);
        }
        let (directory, name) = self.copy_up_file(path)?;
        rustix::fs::utimensat(&directory, name.as_slice(), &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The file in the layer, where it is copied if it is not there.
    fn writable(&mut self, path: &InnerPath) -> Result<Writable, Errno> {
        let (stat, owners) = self.examine(path)?;
        if is_directory(&stat) {
            return Err(Errno::ISDIR);
        }
        if !self.lets(&stat, owners, OWNER_WRITES) {
            return Err(Errno::ACCESS);
        }
        if let Found::Lower(..) = self.find(path)? {
            self.copy_up(path)?;
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let directory = self.upper_directory(&parent)?;
        let file = open_file(directory.as_fd(), name, OFlags::WRONLY)?;
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        Ok(Writable { file, size })
    }

    fn check_writable(&mut self, directory: &InnerPath) -> Result<(), Errno> {
        match self.lets_in(directory, OWNER_WRITES)? {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }

    /// Refuses to change the permissions of what belongs to somebody else.
    fn check_owner(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let (stat, owners) = self.examine(path)?;
        match owners.is_owner(self.caller, &stat) || matches!(owners, LayerOwners::Only(_)) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Refuses to take what belongs to somebody else out of a directory in which only owners do that.
    fn check_sticky(&mut self, parent: &InnerPath, path: &InnerPath) -> Result<(), Errno> {
        let (place, owners) = self.examine(parent)?;
        if !is_sticky(&place) || owners.is_owner(self.caller, &place) {
            return Ok(());
        }
        let (stat, owners) = self.examine(path)?;
        match owners.is_owner(self.caller, &stat) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }
}

/// Opens a file whatever its permissions are, to change them; no link.
fn open_any(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_file(directory.as_fd(), name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => open_file(directory.as_fd(), name, OFlags::WRONLY),
        opened => opened,
    }
}

pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
