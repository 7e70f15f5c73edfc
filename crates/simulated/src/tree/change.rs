//! What goes into the layer.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::read::{OWNER_READS, names_in, open_file};
use super::{DIRECTORY, DirectoryPair, Found, InnerPath, ServedTree, is_directory, names, stat_at};

/// What is copied at once.
const COPIED_AT_ONCE: usize = 64 * 1024;
const OWNER_WRITES: u32 = 0o200;
/// What permissions can be given: nothing that has a program run as somebody else.
const GIVEN_MODES: u32 = 0o1777;
const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// What is in the layer at a name, for writing.
struct Writable {
    file: OwnedFd,
    size: u64,
}

impl ServedTree {
    /// Makes the file `total` bytes long, of which these are the first.
    pub(super) fn replace(&mut self, path: &InnerPath, total: u64, bytes: &[u8]) -> Result<(), Errno> {
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > total {
            return Err(Errno::INVAL);
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let found = self.find(path)?;
        let (mode, before) = match &found {
            Found::Directory(_) => return Err(Errno::ISDIR),
            Found::Upper(stat) | Found::Lower(stat) => {
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(Errno::LOOP);
                }
                let is_upper = matches!(found, Found::Upper(_));
                if !self.lets(stat, is_upper, OWNER_WRITES) {
                    return Err(Errno::ACCESS);
                }
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                (Mode::from_raw_mode(stat.st_mode & 0o777), is_upper.then_some(size))
            }
            Found::Nothing => (NEW_FILE, None),
        };
        if matches!(found, Found::Nothing) {
            self.check_writable(&parent)?;
        }
        // The rest comes in further pieces, which count as they come.
        self.quota.would_fit(before.unwrap_or(0), total)?;
        self.quota
            .resize(before.unwrap_or(0), u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        let file = match before {
            Some(_) => {
                let directory = self.upper_directory(&parent)?;
                let file = open_file(directory.as_fd(), name, OFlags::WRONLY)?;
                rustix::fs::ftruncate(&file, 0)?;
                file
            }
            None => self.create(&parent, name, mode)?,
        };
        write_all(&file, bytes, 0)
    }

    pub(super) fn append(&mut self, path: &InnerPath, bytes: &[u8]) -> Result<(), Errno> {
        if matches!(self.find(path)?, Found::Nothing) {
            let total = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            return self.replace(path, total, bytes);
        }
        let Writable { file, size } = self.writable(path)?;
        let added = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.quota.resize(size, size.saturating_add(added))?;
        write_all(&file, bytes, size)
    }

    /// Writes into a file that is there.
    pub(super) fn write(&mut self, path: &InnerPath, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let Writable { file, size } = self.writable(path)?;
        let added = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(added).ok_or(Errno::FBIG)?;
        self.quota.resize(size, size.max(end))?;
        write_all(&file, bytes, offset)
    }

    /// Cuts a file that is there, or fills it up with zeroes.
    pub(super) fn resize(&mut self, path: &InnerPath, after: u64) -> Result<(), Errno> {
        let Writable { file, size } = self.writable(path)?;
        self.quota.resize(size, after)?;
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
        self.quota.add_entry(path.depth())?;
        let is_over = self.directory(&parent)?.has_below(name)?;
        let directory = self.upper_directory(&parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        self.last = None;
        rustix::fs::mkdirat(&directory, name, NEW_DIRECTORY)?;
        let made = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
        // Whatever the mask of this process is.
        rustix::fs::fchmod(&made, NEW_DIRECTORY)?;
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
        self.quota.add_entry(path.depth())?;
        let directory = self.upper_directory(&parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        rustix::fs::symlinkat(target, &directory, name)
    }

    /// Removes a file, a link or an empty directory.
    pub(super) fn remove(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        let found = self.find(path)?;
        if matches!(found, Found::Nothing) {
            return Err(Errno::NOENT);
        }
        self.check_writable(&parent)?;
        if matches!(found, Found::Directory(_)) && !self.is_empty(path)? {
            return Err(Errno::NOTEMPTY);
        }
        let is_over = self.directory(&parent)?.has_below(name)?;
        self.last = None;
        match found {
            Found::Directory(DirectoryPair { upper: Some(upper), .. }) => {
                for mark in names_in(&upper)? {
                    rustix::fs::unlinkat(&upper, mark.as_slice(), AtFlags::empty())?;
                }
                let directory = self.upper_directory(&parent)?;
                rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?;
                self.quota.remove_entry();
            }
            Found::Upper(stat) => {
                let directory = self.upper_directory(&parent)?;
                rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
                // Of a link no bytes were counted.
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    self.quota.resize(u64::try_from(stat.st_size).unwrap_or(0), 0)?;
                }
                self.quota.remove_entry();
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
        self.quota.check_depth(to.depth())?;
        let moves_directory = match self.find(from)? {
            Found::Nothing => return Err(Errno::NOENT),
            Found::Directory(DirectoryPair { lower: Some(_), .. }) => return Err(Errno::XDEV),
            // What is in it would lie deeper, which is looked at when it is copied.
            Found::Directory(_) if to.depth() > from.depth() => return Err(Errno::XDEV),
            Found::Directory(_) => true,
            Found::Upper(_) => false,
            Found::Lower(_) => {
                self.copy_up(from)?;
                false
            }
        };
        match (self.find(to)?, moves_directory) {
            (Found::Nothing, _) => {}
            (Found::Directory(_), false) => return Err(Errno::ISDIR),
            (Found::Upper(_) | Found::Lower(_), true) => return Err(Errno::NOTDIR),
            (Found::Directory(_) | Found::Upper(_) | Found::Lower(_), _) => self.remove(to)?,
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

    pub(super) fn touch(&mut self, path: &InnerPath, seconds: i64, nanoseconds: u32) -> Result<(), Errno> {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(nanoseconds.min(999_999_999)),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
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
        match self.find(path)? {
            Found::Directory(_) => return Err(Errno::ISDIR),
            Found::Nothing => return Err(Errno::NOENT),
            Found::Upper(stat) if !self.lets(&stat, true, OWNER_WRITES) => return Err(Errno::ACCESS),
            Found::Lower(stat) if !self.lets(&stat, false, OWNER_WRITES) => return Err(Errno::ACCESS),
            Found::Upper(_) => {}
            Found::Lower(_) => self.copy_up(path)?,
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let directory = self.upper_directory(&parent)?;
        let file = open_file(directory.as_fd(), name, OFlags::WRONLY)?;
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        Ok(Writable { file, size })
    }

    /// Directory and name in the layer of something that is no directory.
    fn copy_up_file(&mut self, path: &InnerPath) -> Result<(OwnedFd, Vec<u8>), Errno> {
        match self.find(path)? {
            Found::Nothing => return Err(Errno::NOENT),
            Found::Lower(_) => self.copy_up(path)?,
            Found::Upper(_) | Found::Directory(_) => {}
        }
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        Ok((self.upper_directory(&parent)?, name.to_vec()))
    }

    /// Copies a file or a link of the host into the layer.
    fn copy_up(&mut self, path: &InnerPath) -> Result<(), Errno> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let lower = match &self.directory(&parent)?.lower {
            Some(lower) => lower.try_clone().map_err(|_| Errno::MFILE)?,
            None => return Err(Errno::NOENT),
        };
        let stat = stat_at(lower.as_fd(), name)?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if !is_link && !self.lets(&stat, false, OWNER_READS) {
            return Err(Errno::ACCESS);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&lower, name, Vec::new())?;
                self.quota.add_entry(path.depth())?;
                let directory = self.upper_directory(&parent)?;
                rustix::fs::symlinkat(target.as_c_str(), &directory, name)
            }
            FileType::RegularFile => {
                let from = open_file(lower.as_fd(), name, OFlags::RDONLY)?;
                self.quota.resize(0, u64::try_from(stat.st_size).unwrap_or(0))?;
                let to = self.create(&parent, name, Mode::from_raw_mode(stat.st_mode & 0o777))?;
                copy_contents(&from, &to)?;
                let time = Timespec {
                    tv_sec: stat.st_mtime,
                    tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::futimens(&to, &times)
            }
            _ => Err(Errno::NXIO),
        }
    }

    /// Makes an empty file in the layer, where there is none or only the mark of one that is gone.
    fn create(&mut self, parent: &InnerPath, name: &[u8], mode: Mode) -> Result<OwnedFd, Errno> {
        self.quota.add_entry(parent.depth() + 1)?;
        let directory = self.upper_directory(parent)?;
        names::remove_whiteout(directory.as_fd(), name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, name, flags, mode)?;
        rustix::fs::fchmod(&file, mode)?;
        Ok(file)
    }

    fn check_writable(&mut self, directory: &InnerPath) -> Result<(), Errno> {
        let pair = self.directory(directory)?;
        let (stat, is_upper) = (pair.stat()?, pair.upper.is_some());
        match self.lets(&stat, is_upper, OWNER_WRITES) {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }

    /// The directory in the layer, which is made, with those that lead to it, if only the host has it.
    fn upper_directory(&mut self, path: &InnerPath) -> Result<OwnedFd, Errno> {
        if let Some(upper) = &self.directory(path)?.upper {
            return upper.try_clone().map_err(|_| Errno::MFILE);
        }
        let root = self.upper.as_ref().ok_or(Errno::ROFS)?;
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
                let mode = Mode::from_raw_mode(self.directory(&here)?.stat()?.st_mode & 0o7777);
                self.quota.add_entry(here.depth())?;
                rustix::fs::mkdirat(&upper, name, Mode::RWXU)?;
                upper = rustix::fs::openat(&upper, name, DIRECTORY, Mode::empty())?;
                rustix::fs::fchmod(&upper, mode)?;
            } else {
                upper = rustix::fs::openat(&upper, name, DIRECTORY, Mode::empty())?;
            }
        }
        self.last = None;
        Ok(upper)
    }
}

/// Opens a file whatever its permissions are, to change them; no link.
fn open_any(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_file(directory.as_fd(), name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => open_file(directory.as_fd(), name, OFlags::WRONLY),
        opened => opened,
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
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
