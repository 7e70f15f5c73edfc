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
                if entry.is_some() && !has(TRUNCATE) {
                    fetch(services, &path, &file).await?;
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

async fn fetch(services: &SandboxServices, path: &str, to: &File) -> Result<(), SftpRefusal> {
    let mut offset = 0;
    loop {
        let bytes = services.read(path, offset, PIECE).await?;
        to.write_all_at(&bytes, offset)?;
        offset += bytes.len() as u64;
        // Less than was asked for is the end of it.
        if (bytes.len() as u64) < PIECE {
            return Ok(());
        }
        if offset > MAX_SPOOL {
            return Err(SftpRefusal::failure("File too large"));
        }
    }
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
