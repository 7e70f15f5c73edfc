//! What a copy of a layer saw of its files: by what each can be told to be the same later.

use std::collections::HashMap;

use rustix::fs::Stat;

/// A directory of an index.
pub(super) type DirectoryNumber = u32;

/// The directory at the top.
pub(super) const ROOT: DirectoryNumber = 0;

/// The first bytes of an index, with its form.
const MAGIC: &[u8; 8] = b"offlidx1";
/// Largest index that is read, bytes.
pub const MAX_INDEX: u64 = 1 << 30;

/// By what a file is told to be the same: nobody but the kernel sets the time of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryStamp {
    pub(super) inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl EntryStamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
        }
    }

    /// Whether it was changed before a time.
    pub(super) fn is_before(&self, time: (i64, i64)) -> bool {
        self.changed < time
    }
}

/// What was seen of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) stamp: EntryStamp,
    /// Its own number if it is a directory.
    pub(super) directory: Option<DirectoryNumber>,
    /// Whether the stamp tells everything.
    pub(super) is_settled: bool,
}

/// What was seen of all entries, by directory and name.
#[derive(Debug, Default)]
pub struct LayerIndex {
    directories: Vec<HashMap<Box<[u8]>, IndexEntry>>,
}

impl LayerIndex {
    pub(super) fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    pub(super) fn entry(&self, directory: DirectoryNumber, name: &[u8]) -> Option<IndexEntry> {
        let entries = self.directories.get(usize::try_from(directory).ok()?)?;
        entries.get(name).copied()
    }

    pub(super) fn names_in(&self, directory: DirectoryNumber) -> impl Iterator<Item = &[u8]> {
        let entries = usize::try_from(directory)
            .ok()
            .and_then(|number| self.directories.get(number));
        entries
            .into_iter()
            .flat_map(|entries| entries.keys().map(AsRef::as_ref))
    }

    pub(super) fn add(&mut self, directory: DirectoryNumber, name: &[u8], entry: IndexEntry) {
        let number = usize::try_from(directory).unwrap_or(usize::MAX);
        while self.directories.len() <= number {
            self.directories.push(HashMap::new());
        }
        self.directories[number].insert(name.into(), entry);
    }

    /// Adds a directory; answers its number.
    pub(super) fn add_directory(
        &mut self,
        parent: DirectoryNumber,
        name: &[u8],
        stamp: EntryStamp,
        is_settled: bool,
    ) -> DirectoryNumber {
        if self.directories.is_empty() {
            self.directories.push(HashMap::new());
        }
        let own = u32::try_from(self.directories.len()).unwrap_or(u32::MAX);
        self.directories.push(HashMap::new());
        let entry = IndexEntry {
            stamp,
            directory: Some(own),
            is_settled,
        };
        self.add(parent, name, entry);
        own
    }

    /// As bytes, of which [`Self::from_bytes`] makes it again.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (number, entries) in (0_u32..).zip(&self.directories) {
            for (name, entry) in entries {
                bytes.extend(number.to_le_bytes());
                bytes.extend(entry.directory.unwrap_or(0).to_le_bytes());
                bytes.push(u8::from(entry.is_settled));
                bytes.extend(entry.stamp.inode.to_le_bytes());
                for number in [entry.stamp.size, entry.stamp.changed.0, entry.stamp.changed.1] {
                    bytes.extend(number.to_le_bytes());
                }
                bytes.extend(u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
                bytes.extend(name.iter());
            }
        }
        bytes
    }

    /// The index of which these are the bytes; `None` if they are of none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut index = Self::default();
        while !rest.is_empty() {
            let parent = u32::from_le_bytes(take(&mut rest)?);
            let directory = u32::from_le_bytes(take(&mut rest)?);
            let [is_settled] = take(&mut rest)?;
            let inode = u64::from_le_bytes(take(&mut rest)?);
            let size = i64::from_le_bytes(take(&mut rest)?);
            let changed = (
                i64::from_le_bytes(take(&mut rest)?),
                i64::from_le_bytes(take(&mut rest)?),
            );
            let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
            let (name, after) = rest.split_at_checked(length)?;
            rest = after;
            // No index has more directories than bytes.
            if usize::try_from(parent.max(directory)).ok()? > bytes.len() {
                return None;
            }
            let stamp = EntryStamp { inode, size, changed };
            index.add(
                parent,
                name,
                IndexEntry {
                    stamp,
                    directory: Some(directory).filter(|number| *number != ROOT),
                    is_settled: is_settled == 1,
                },
            );
        }
        Some(index)
    }
}

fn take<const LENGTH: usize>(bytes: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}
