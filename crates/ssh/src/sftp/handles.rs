//! What a client has open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use offleash_api::client::{FileEntry, Kind, SandboxServices};

use super::SftpRefusal;
use super::attributes::Attributes;

const READ: u32 = 1;
const WRITE: u32 = 2;
const APPEND: u32 = 4;
const CREATE: u32 = 8;
const TRUNCATE: u32 = 16;
const EXCLUSIVE: u32 = 32;

/// What is asked for at once of a file that is read in order.
const PIECE: u64 = 4 << 20;
/// The most that one file may be that is written.
const MAX_SPOOL: u64 = 64 << 30;
/// The most that a file of the sandbox may be that is changed in part, and what of it may be something else than zeros: it is put
/// together here.
const MAX_FETCHED: u64 = 4 << 30;
const MAX_FETCHED_DATA: u64 = 1 << 30;
/// Zeros are left out as holes in pieces of this many bytes, a block of most file systems.
const BLOCK: usize = 4096;

/// A mode that a new file has anyway.
const USUAL_MODES: [u32; 3] = [0o644, 0o664, 0o666];

#[derive(Debug)]
pub(super) enum OpenHandle {
    File(OpenFile),
    Directory(OpenDirectory),
}

/// A directory whose entries are told one after another.
#[derive(Debug)]
pub(super) struct OpenDirectory(std::vec::IntoIter<FileEntry>);

impl OpenDirectory {
    pub(super) fn new(entries: Vec<FileEntry>) -> Self {
        Self(entries.into_iter())
    }

    pub(super) fn next(&mut self, most: usize) -> Vec<FileEntry> {
        self.0.by_ref().take(most).collect()
    }
}

/// A file: read from the sandbox, or put together here until it is closed.
#[derive(Debug)]
pub(super) struct OpenFile {
    path: String,
    entry: Option<FileEntry>,
    spool: Option<FileSpool>,
    /// What was read ahead, and where that begins.
    ahead: (u64, Vec<u8>),
    can_read: bool,
}

#[derive(Debug)]
struct FileSpool {
    file: File,
    appends: bool,
    attributes: Attributes,
}

impl OpenFile {
    pub(super) async fn open(
        services: &SandboxServices,
        path: String,
        flags: u32,
        attributes: Attributes,
    ) -> Result<Self, SftpRefusal> {
        let entry = services.entry(&path).await?;
        if entry.as_ref().is_some_and(|entry| entry.kind == Kind::Directory) {
            return Err(SftpRefusal::failure("Is a directory"));
        }
        let has = |flag: u32| flags & flag != 0;
        match &entry {
            None if !has(WRITE) || !has(CREATE) => return Err(SftpRefusal::no_such_file()),
            None => require_parent(services, &path).await?,
            Some(_) if has(CREATE) && has(EXCLUSIVE) => return Err(SftpRefusal::failure("File exists")),
            Some(_) => {}
        }
        let spool = match has(WRITE) {
            false => None,
            true => {
                let file = tempfile::tempfile()?;
                if let Some(entry) = entry.as_ref().filter(|_| !has(TRUNCATE)) {
                    if entry.size > MAX_FETCHED {
                        return Err(too_large());
                    }
                    fetch(services, &path, file.try_clone()?).await?;
                }
                let mode = attributes
                    .mode
                    .filter(|mode| entry.is_none() && !USUAL_MODES.contains(mode));
                Some(FileSpool {
                    file,
                    appends: has(APPEND),
                    attributes: Attributes {
                        mode,
                        ..Attributes::default()
                    },
                })
            }
        };
        Ok(Self {
            path,
            entry,
            spool,
            ahead: (0, Vec::new()),
            can_read: has(READ),
        })
    }

    pub(super) async fn read(
        &mut self,
        services: &SandboxServices,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, SftpRefusal> {
        if !self.can_read {
            return Err(SftpRefusal::failure("it is not open for reading"));
        }
        if let Some(spool) = &self.spool {
            let mut bytes = vec![0; length];
            let read = spool.file.read_at(&mut bytes, offset)?;
            bytes.truncate(read);
            return Ok(bytes);
        }
        if let Some(bytes) = self.read_ahead(offset, length) {
            return Ok(bytes);
        }
        self.ahead = (offset, services.read(&self.path, offset, PIECE).await?);
        Ok(self.read_ahead(offset, length).unwrap_or_default())
    }

    /// What is there of a piece; `None` if nothing is.
    fn read_ahead(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let (begin, bytes) = &self.ahead;
        let from = usize::try_from(offset.checked_sub(*begin)?).ok()?;
        let there = bytes.get(from..).filter(|there| !there.is_empty())?;
        there.get(..length.min(there.len())).map(<[u8]>::to_vec)
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), SftpRefusal> {
        let spool = self.spool.as_ref();
        let spool = spool.ok_or_else(|| SftpRefusal::failure("it is not open for writing"))?;
        let offset = match spool.appends {
            true => spool.file.metadata()?.len(),
            false => offset,
        };
        if offset.saturating_add(data.len() as u64) > MAX_SPOOL {
            return Err(SftpRefusal::failure("File too large"));
        }
        Ok(spool.file.write_all_at(data, offset)?)
    }

    /// Sets what is set of a file that is put together here; what the sandbox is to set of one that is only read.
    pub(super) fn set(&mut self, attributes: Attributes) -> Result<Option<(String, Attributes)>, SftpRefusal> {
        let Some(spool) = &mut self.spool else {
            return Ok(Some((self.path.clone(), attributes)));
        };
        if let Some(size) = attributes.size {
            if size > MAX_SPOOL {
                return Err(SftpRefusal::failure("File too large"));
            }
            spool.file.set_len(size)?;
        }
        let attributes = Attributes {
            size: None,
            ..attributes
        };
        spool.attributes = std::mem::take(&mut spool.attributes).and(attributes);
        Ok(None)
    }

    /// What it is as it stands.
    pub(super) fn entry(&self) -> Result<FileEntry, SftpRefusal> {
        let known = self.entry.clone();
        match (&self.spool, known) {
            (None, Some(entry)) => Ok(entry),
            (None, None) => Err(SftpRefusal::no_such_file()),
            (Some(spool), known) => Ok(FileEntry {
                size: spool.file.metadata()?.len(),
                ..known.unwrap_or_else(|| FileEntry {
                    name: self.path.clone(),
                    path: self.path.clone(),
                    kind: Kind::File,
                    is_link: false,
                    target: None,
                    size: 0,
                    mode: 0o644,
                    modified_s: 0,
                })
            }),
        }
    }

    /// Gives the sandbox what was put together here; answers what is to be set of it.
    pub(super) async fn close(self, services: &SandboxServices) -> Result<Option<(String, Attributes)>, SftpRefusal> {
        let Some(spool) = self.spool else { return Ok(None) };
        let mut file = spool.file;
        std::io::Seek::rewind(&mut file)?;
        services.upload(file, &self.path).await?;
        let is_set = spool.attributes != Attributes::default();
        Ok(is_set.then_some((self.path, spool.attributes)))
    }
}

async fn fetch(services: &SandboxServices, path: &str, to: File) -> Result<(), SftpRefusal> {
    let mut fetched = FetchedFile::new(to);
    loop {
        let bytes = services.read(path, fetched.length, PIECE).await?;
        fetched.add(&bytes)?;
        // Less than was asked for is the end of it.
        if (bytes.len() as u64) < PIECE {
            return fetched.end();
        }
    }
}

/// A file of the sandbox as far as it is here; its zeros take no room.
struct FetchedFile {
    file: File,
    length: u64,
    data: u64,
}

impl FetchedFile {
    fn new(file: File) -> Self {
        Self {
            file,
            length: 0,
            data: 0,
        }
    }

    /// Adds what comes next.
    fn add(&mut self, bytes: &[u8]) -> Result<(), SftpRefusal> {
        for block in bytes.chunks(BLOCK) {
            if block.iter().any(|byte| *byte != 0) {
                self.data += block.len() as u64;
                if self.data > MAX_FETCHED_DATA {
                    return Err(too_large());
                }
                self.file.write_all_at(block, self.length)?;
            }
            self.length += block.len() as u64;
        }
        match self.length > MAX_FETCHED {
            true => Err(too_large()),
            false => Ok(()),
        }
    }

    /// That nothing comes any more: zeros at the end were not written.
    fn end(self) -> Result<(), SftpRefusal> {
        Ok(self.file.set_len(self.length)?)
    }
}

fn too_large() -> SftpRefusal {
    SftpRefusal::failure("File too large to be changed in part; write it anew")
}

/// Fails unless the directory above a path is there.
pub(super) async fn require_parent(services: &SandboxServices, path: &str) -> Result<(), SftpRefusal> {
    let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
    let parent = if parent.is_empty() { "/" } else { parent };
    match services.entry(parent).await? {
        Some(entry) if entry.kind == Kind::Directory => Ok(()),
        _ => Err(SftpRefusal::no_such_file()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn zeros_of_a_file_of_the_sandbox_take_no_room_here() {
        let file = tempfile::tempfile().unwrap();
        let mut fetched = FetchedFile::new(file.try_clone().unwrap());
        let zeros = vec![0; 4 << 20];
        let mut some = zeros.clone();
        some[5000] = 1;
        for piece in [&zeros, &some, &zeros] {
            fetched.add(piece).unwrap();
        }
        fetched.add(&[0; 100]).unwrap();
        fetched.end().unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 3 * (4 << 20) + 100);
        assert!(metadata.blocks() * 512 <= 64 << 10, "{}", metadata.blocks());
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, (4 << 20) + 4999).unwrap();
        assert_eq!(bytes, [0, 1]);
    }

    #[test]
    fn a_file_of_the_sandbox_is_no_longer_here_than_bounds_say() {
        let bounded = |length, data| FetchedFile {
            length,
            data,
            ..FetchedFile::new(tempfile::tempfile().unwrap())
        };
        bounded(MAX_FETCHED - 1, MAX_FETCHED_DATA).add(&[0]).unwrap();
        assert!(bounded(MAX_FETCHED, 0).add(&[0]).is_err());
        assert!(bounded(0, MAX_FETCHED_DATA).add(&[1]).is_err());
    }
}
