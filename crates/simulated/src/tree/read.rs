//! What is only looked at.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{
    FileCaller, Found, InnerPath, LayerOwners, ServedTree, facts_of, hidden_facts, is_directory, names, stat_at,
};
use crate::wire::{FileAnswer, FileEntry, FileFacts, MAX_FRAME, MAX_PIECE};

/// What a name in an answer takes beside its bytes, at most.
const ENTRY_SIZE: usize = 48;
pub(super) const OWNER_READS: u32 = 0o400;

/// What is at a path, with whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnedFacts {
    pub(crate) facts: FileFacts,
    /// Ids inside.
    pub(crate) owner: (u32, u32),
}

impl ServedTree {
    pub(super) fn stat(&mut self, path: &InnerPath) -> Result<FileFacts, Errno> {
        self.owned_facts(path).map(|found| found.facts)
    }

    /// What is at a path, and whose it is.
    ///
    /// # Errors
    /// As the kernel numbers them.
    pub(crate) fn owned_facts_for(&mut self, caller: FileCaller, path: &InnerPath) -> Result<OwnedFacts, Errno> {
        self.caller = caller;
        self.owned_facts(path)
    }

    fn owned_facts(&mut self, path: &InnerPath) -> Result<OwnedFacts, Errno> {
        if let Some(is_directory) = self.hidden_at(path) {
            let facts = hidden_facts(is_directory);
            return Ok(OwnedFacts { facts, owner: (0, 0) });
        }
        self.refuse_hidden(path)?;
        let (stat, owners) = self.examine(path)?;
        Ok(OwnedFacts {
            facts: facts_of(&stat),
            owner: owners.shown(&stat, self.user),
        })
    }

    /// What is at a path that nothing hides, and whose files are where it lies.
    pub(super) fn examine(&mut self, path: &InnerPath) -> Result<(Stat, LayerOwners), Errno> {
        let upper = self.upper_owners;
        let Some((parent, name)) = path.split() else {
            return self.directory(path)?.shown(upper);
        };
        let place = self.directory(&parent)?;
        match place.find(name)? {
            Found::Directory(found) => found.shown(upper),
            Found::Upper(stat) => Ok((stat, upper)),
            Found::Lower(stat, number) => Ok((stat, place.owners_of(number, upper))),
            Found::Nothing => Err(Errno::NOENT),
        }
    }

    pub(super) fn list(&mut self, path: &InnerPath) -> Result<Vec<FileEntry>, Errno> {
        if !self.lets_in(path, OWNER_READS)? {
            return Err(Errno::ACCESS);
        }
        let place = self.directory(path)?;
        let mut found: BTreeMap<Vec<u8>, Option<Stat>> = BTreeMap::new();
        let mut size = 0;
        for (directory, is_layer) in place.places() {
            for name in names_in(directory)? {
                if found.contains_key(&name) {
                    continue;
                }
                let stat = match stat_at(directory.as_fd(), &name) {
                    Ok(stat) => stat,
                    // It was removed meanwhile.
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error),
                };
                let is_gone = is_layer && names::is_whiteout(directory.as_fd(), &name, &stat)?;
                size += name.len() + ENTRY_SIZE;
                if size > MAX_FRAME / 2 {
                    return Err(Errno::OVERFLOW);
                }
                found.insert(name, Some(stat).filter(|_| !is_gone));
            }
        }
        let shown = found.into_iter().filter_map(|(name, stat)| Some((name, stat?)));
        let entry = |(name, stat): (Vec<u8>, Stat)| {
            let hidden = self.hidden_at(&path.join(&name));
            let facts = hidden.map_or_else(|| facts_of(&stat), hidden_facts);
            FileEntry { name, facts }
        };
        Ok(shown.map(entry).collect())
    }

    pub(super) fn read(&mut self, path: &InnerPath, offset: u64) -> Result<FileAnswer, Errno> {
        let file = self.open_to_read(path)?;
        let total = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(MAX_PIECE)];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&file, rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(FileAnswer::Piece { bytes, total })
    }

    /// A regular file, for reading: what it holds from now on, whatever becomes of its name.
    ///
    /// # Errors
    /// As the kernel numbers them.
    pub(crate) fn open_for(&mut self, caller: FileCaller, path: &InnerPath) -> Result<OwnedFd, Errno> {
        self.caller = caller;
        self.open_to_read(path)
    }

    pub(super) fn open_to_read(&mut self, path: &InnerPath) -> Result<OwnedFd, Errno> {
        self.refuse_hidden(path)?;
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let (caller, upper) = (self.caller, self.upper_owners);
        let place = self.directory(&parent)?;
        let (directory, owners, stat) = match place.find(name)? {
            Found::Directory(_) => return Err(Errno::ISDIR),
            Found::Upper(stat) => (place.upper.as_ref(), upper, stat),
            Found::Lower(stat, number) => (place.lower(number), place.owners_of(number, upper), stat),
            Found::Nothing => return Err(Errno::NOENT),
        };
        if !owners.lets(caller, &stat, OWNER_READS) {
            return Err(Errno::ACCESS);
        }
        open_file(directory.ok_or(Errno::NOENT)?.as_fd(), name, OFlags::RDONLY)
    }

    pub(super) fn read_link(&mut self, path: &InnerPath) -> Result<Vec<u8>, Errno> {
        self.refuse_hidden(path)?;
        let (parent, name) = path.split().ok_or(Errno::INVAL)?;
        let place = self.directory(&parent)?;
        let (directory, stat) = match place.find(name)? {
            Found::Directory(_) => return Err(Errno::INVAL),
            Found::Upper(stat) => (place.upper.as_ref(), stat),
            Found::Lower(stat, number) => (place.lower(number), stat),
            Found::Nothing => return Err(Errno::NOENT),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        let target = rustix::fs::readlinkat(directory.ok_or(Errno::NOENT)?, name, Vec::new())?;
        Ok(target.into_bytes())
    }

    /// Whether the directory has nothing that is shown.
    pub(super) fn is_empty(&mut self, path: &InnerPath) -> Result<bool, Errno> {
        self.list(path).map(|entries| entries.is_empty())
    }
}

/// Opens a regular file; nothing else, and waits for nobody.
pub(super) fn open_file(directory: BorrowedFd<'_>, name: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let stat = stat_at(directory, name)?;
    if is_directory(&stat) {
        return Err(Errno::ISDIR);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::NXIO);
    }
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Errno::NXIO),
    }
}

/// The names in a directory.
pub(super) fn names_in(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(name.as_slice(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}
