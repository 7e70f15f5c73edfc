//! How far an open directory was read.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;

/// How much is read of a directory at once, bytes.
const CHUNK: usize = 32 * 1024;

/// How far a directory was read.
#[derive(Debug, Default)]
pub(crate) struct DirectoryPosition {
    /// Where the first of `ahead` begins, as the kernel counts.
    at: u64,
    /// Entries that were read and not told yet.
    ahead: VecDeque<DirectoryEntry>,
    /// Whether nothing follows `ahead`.
    ended: bool,
}

/// One entry.
#[derive(Debug)]
pub(crate) struct DirectoryEntry {
    pub(crate) name: Box<[u8]>,
    pub(crate) inode: u64,
    /// As in `getdents64`.
    pub(crate) file_type: u32,
    /// Where the next one begins.
    pub(crate) next: u64,
}

impl DirectoryPosition {
    pub(crate) fn go_to(&mut self, directory: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        if offset != self.at || (offset == 0 && self.ended) {
            rustix::fs::seek(directory, SeekFrom::Start(offset))?;
            *self = Self {
                at: offset,
                ..Self::default()
            };
        }
        Ok(())
    }

    pub(crate) fn peek(&mut self, directory: BorrowedFd<'_>) -> Result<Option<&DirectoryEntry>, Errno> {
        if self.ahead.is_empty() && !self.ended {
            self.fill(directory)?;
        }
        Ok(self.ahead.front())
    }

    pub(crate) fn advance(&mut self) {
        if let Some(entry) = self.ahead.pop_front() {
            self.at = entry.next;
        }
    }

    fn fill(&mut self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut buffer = Vec::with_capacity(CHUNK);
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        loop {
            let Some(entry) = entries.next() else {
                self.ended = true;
                return Ok(());
            };
            let entry = match entry {
                Ok(entry) => entry,
                // Removed while it is open.
                Err(Errno::NOENT) => {
                    self.ended = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            self.ahead.push_back(DirectoryEntry {
                name: entry.file_name().to_bytes().into(),
                inode: entry.ino(),
                file_type: type_number(entry.file_type()),
                next: entry.next_entry_cookie(),
            });
            if entries.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}

fn type_number(file_type: FileType) -> u32 {
    match file_type {
        FileType::Unknown => 0,
        known => known.as_raw_mode() >> 12,
    }
}
