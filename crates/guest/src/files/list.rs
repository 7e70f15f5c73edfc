//! What is in a directory, and in those below it.

use alloc::vec::Vec;

use offleash_protocol::files::{ENTRIES_CHUNK, FileEntry, FileReply};
use rustix::fd::BorrowedFd;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::channel::HostChannel;
use super::entry;
use super::failure::{RequestStop, failed};
use super::names::AccountNames;
use super::path::{GuestPath, joined};
use super::walk::TreeCursor;

/// Names of files that are held at once, in bytes with what each takes besides; a directory with more is not listed.
const MAX_HELD: usize = 64 * 1024 * 1024;
const EACH: usize = 48;

/// Bytes of entries after which they are sent.
const BATCH: usize = 512 * 1024;

/// A directory on the way to where the walk is.
struct ListLevel {
    /// What is still to be told of, the next one last.
    names: Vec<Vec<u8>>,
    path: Vec<u8>,
}

/// Sends what is there, depth first and by name. What is gone when its turn comes is left out.
pub(super) fn list(channel: &mut HostChannel, path: &GuestPath, depth: u32) -> Result<(), RequestStop> {
    let depth = usize::try_from(depth.max(1)).unwrap_or(usize::MAX);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path.bytes(), flags, Mode::empty()).map_err(failed("open"))?;
    let mut place = TreeCursor::new(directory);
    let (mut names, mut batch) = (AccountNames::default(), EntryBatch::default());
    let mut held = 0;
    let mut levels = Vec::from([ListLevel {
        names: sorted_names(place.directory(), &mut held).map_err(failed("list"))?,
        path: path.bytes().to_vec(),
    }]);
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            if !levels.is_empty() {
                place.up().map_err(failed("list"))?;
            }
            continue;
        };
        held -= name.len() + EACH;
        let path = joined(&level.path, &name);
        let found = match entry::below(place.directory(), &name, path.clone(), &mut names) {
            Err(Errno::NOENT) => continue,
            found => found.map_err(failed("stat"))?,
        };
        let goes_down = entry::type_of(found.mode) == FileType::Directory && levels.len() < depth;
        batch.push(found, channel)?;
        if !goes_down {
            continue;
        }
        match place.down(&name) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => return Err(failed("open")(errno).into()),
        }
        let names = sorted_names(place.directory(), &mut held).map_err(failed("list"))?;
        levels.push(ListLevel { names, path });
    }
    batch.send(channel)?;
    channel.send(&FileReply::Done)
}

/// The names in a directory, the first one last.
fn sorted_names(directory: BorrowedFd<'_>, held: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    let mut entries = Dir::read_from(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        *held += name.len() + EACH;
        if *held > MAX_HELD {
            return Err(Errno::OVERFLOW);
        }
        names.push(name.to_vec());
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Entries that were not sent yet.
#[derive(Default)]
struct EntryBatch {
    entries: Vec<FileEntry>,
    size: usize,
}

impl EntryBatch {
    fn push(&mut self, entry: FileEntry, channel: &mut HostChannel) -> Result<(), RequestStop> {
        self.size += entry::size(&entry);
        self.entries.push(entry);
        match self.entries.len() == ENTRIES_CHUNK || self.size >= BATCH {
            true => self.send(channel),
            false => Ok(()),
        }
    }

    fn send(&mut self, channel: &mut HostChannel) -> Result<(), RequestStop> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.size = 0;
        channel.send(&FileReply::Entries(core::mem::take(&mut self.entries)))
    }
}
