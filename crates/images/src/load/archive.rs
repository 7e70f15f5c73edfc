//! An archive with images. It comes in any order and only once, so its files are laid aside.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::rc::Rc;

use super::LayoutParts;
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;
use crate::manifest::{Descriptor, MAX_LAYER};
use crate::store::{ImageStore, StagedBlob};
use crate::tar::{Archive, EntryKind, TarEntry};
use crate::unpack::{LayerError, LayerRefusal, decompressed};

/// How many entries it may have, whatever they are.
const MAX_ENTRIES: usize = 10_000;
/// Bytes of the names of all entries and of the targets of links.
const MAX_NAMES: usize = 4 << 20;
/// Bytes of all of it without compression.
const MAX_ARCHIVE: u64 = 128 << 30;
/// How many times larger than what was read it may be …
const MAX_RATIO: u64 = 100;
/// … once it is larger than this.
const MAX_OF_ANY_RATIO: u64 = 256 << 20;
const MAX_ALIASES: usize = 8;

/// A file of the archive.
#[derive(Debug)]
struct StagedFile {
    blob: StagedBlob,
    digest: ImageDigest,
    size: u64,
}

/// How much an archive may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArchiveLimits {
    pub(super) entries: usize,
    pub(super) names: usize,
    pub(super) bytes: u64,
    pub(super) bytes_of_any_ratio: u64,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self {
            entries: MAX_ENTRIES,
            names: MAX_NAMES,
            bytes: MAX_ARCHIVE,
            bytes_of_any_ratio: MAX_OF_ANY_RATIO,
        }
    }
}

/// Counts what is read, compressed as it is.
struct CountedSource {
    source: Box<dyn Read>,
    count: Rc<Cell<u64>>,
}

impl Read for CountedSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// An archive without compression, which ends with an error where it is larger than it may be.
struct BoundedArchive {
    source: Box<dyn Read>,
    sent: Rc<Cell<u64>>,
    read: u64,
    limits: ArchiveLimits,
}

impl BoundedArchive {
    fn new(source: Box<dyn Read>, limits: ArchiveLimits) -> io::Result<Self> {
        let sent = Rc::new(Cell::new(0));
        let count = Rc::clone(&sent);
        let source = decompressed(CountedSource { source, count })?;
        Ok(Self {
            source,
            sent,
            read: 0,
            limits,
        })
    }
}

impl Read for BoundedArchive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read += read as u64;
        let ArchiveLimits {
            bytes,
            bytes_of_any_ratio,
            ..
        } = self.limits;
        if self.read > bytes {
            return Err(io::Error::other(LayerRefusal::TooLarge { limit: bytes }));
        }
        if self.read > bytes_of_any_ratio.max(self.sent.get().saturating_mul(MAX_RATIO)) {
            return Err(io::Error::other(LayerRefusal::Bomb { ratio: MAX_RATIO }));
        }
        Ok(read)
    }
}

pub(super) struct StagedArchive {
    files: HashMap<Vec<u8>, StagedFile>,
    /// Links in the archive: older Dockers write a layer once that several images have.
    aliases: HashMap<Vec<u8>, Vec<u8>>,
}

impl StagedArchive {
    pub(super) fn read(store: &ImageStore, source: Box<dyn Read>, limits: ArchiveLimits) -> Result<Self, ImageError> {
        let of_reading = |error| wrong(LayerRefusal::of_reading(error).whole());
        let mut archive = Archive::new(BoundedArchive::new(source, limits).map_err(of_reading)?);
        let (mut entries, mut names) = (0, 0);
        let mut staged = Self {
            files: HashMap::new(),
            aliases: HashMap::new(),
        };
        loop {
            let entry = match archive.next() {
                Err(error) if entries == 0 && error.is_no_header() => {
                    return Err(ImageError::malformed("the file", "it is no tar archive"));
                }
                next => next.map_err(wrong)?,
            };
            let Some(entry) = entry else { break };
            entries += 1;
            names += entry.path.len() + entry.link.len();
            if entries > limits.entries {
                let limit = limits.entries as u64;
                return Err(wrong(LayerRefusal::TooManyEntries { limit }.whole()));
            }
            if names > limits.names {
                let limit = limits.names as u64;
                return Err(wrong(LayerRefusal::TooManyNames { limit }.whole()));
            }
            let Some(name) = normal(&[], &entry.path) else { continue };
            match entry.kind {
                EntryKind::File => {
                    let file = stage(store, &entry, &mut archive)?;
                    staged.files.insert(name, file);
                }
                EntryKind::Symlink | EntryKind::HardLink => {
                    let above = match entry.kind {
                        EntryKind::Symlink => name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash),
                        _ => 0,
                    };
                    if let Some(target) = normal(&name[..above], &entry.link) {
                        staged.aliases.insert(name, target);
                    }
                }
                _ => {}
            }
        }
        Ok(staged)
    }

    fn find(&mut self, name: &str) -> Option<&mut StagedFile> {
        let mut name = normal(&[], name.as_bytes())?;
        for _ in 0..MAX_ALIASES {
            match self.aliases.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        self.files.get_mut(&name)
    }
}

fn wrong(source: LayerError) -> ImageError {
    ImageError::Unloadable { source }
}

fn stage(
    store: &ImageStore,
    entry: &TarEntry,
    archive: &mut Archive<BoundedArchive>,
) -> Result<StagedFile, ImageError> {
    if entry.stored > MAX_LAYER || entry.sparse.is_some() {
        return Err(ImageError::TooLarge {
            what: "a part of the file",
            found: entry.stored,
            limit: MAX_LAYER,
        });
    }
    let mut blob = store.stage()?;
    let mut hasher = DigestHasher::default();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let read = archive.read_contents(&mut buffer);
        match read.map_err(|error| wrong(LayerRefusal::of_reading(error).whole()))? {
            0 => break,
            read => {
                hasher.update(&buffer[..read]);
                let written = blob.file.write_all(&buffer[..read]);
                written.map_err(ImageError::file("writing", blob.place()))?;
            }
        }
    }
    Ok(StagedFile {
        blob,
        digest: hasher.finish(),
        size: entry.stored,
    })
}

/// A name without `.` and `..`; `None` if it leads out.
fn normal(above: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = above
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .collect();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

impl LayoutParts for StagedArchive {
    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name.as_bytes())
    }

    fn read(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
        let missing = || ImageError::malformed("the file", format!("`{}` is missing in it", name.escape_debug()));
        let staged = self.find(name).ok_or_else(missing)?;
        if staged.size > limit {
            return Err(ImageError::TooLarge {
                what: "a document of the file",
                found: staged.size,
                limit,
            });
        }
        let mut bytes = Vec::new();
        let file = &mut staged.blob.file;
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
        read.map_err(ImageError::file("reading", staged.blob.place()))?;
        Ok(bytes)
    }

    fn keep(
        &mut self,
        store: &ImageStore,
        what: &'static str,
        name: &str,
        expected: Option<&Descriptor>,
    ) -> Result<(ImageDigest, u64), ImageError> {
        let staged = match (self.find(name), expected) {
            (Some(staged), _) => staged,
            (None, Some(expected)) => {
                return Err(ImageError::MissingBlob {
                    what,
                    digest: expected.digest,
                });
            }
            (None, None) => {
                let reason = format!("`{}` is missing in it", name.escape_debug());
                return Err(ImageError::malformed("the file", reason));
            }
        };
        if let Some(expected) = expected {
            if staged.digest != expected.digest {
                return Err(ImageError::OtherDigest {
                    what,
                    expected: expected.digest,
                    found: staged.digest,
                });
            }
            if staged.size != expected.bytes() {
                return Err(ImageError::OtherSize {
                    what,
                    digest: expected.digest,
                    expected: expected.bytes(),
                    found: staged.size,
                });
            }
        }
        store.keep_staged(&staged.blob, &staged.digest)?;
        Ok((staged.digest, staged.size))
    }
}
