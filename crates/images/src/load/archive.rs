//! An archive with images. It comes in any order and only once, so its files are laid aside.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use super::LayoutParts;
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;
use crate::manifest::{Descriptor, MAX_LAYER};
use crate::store::ImageStore;
use crate::tar::{Archive, EntryKind, TarEntry};
use crate::unpack::{LayerError, LayerRefusal, decompressed};

const MAX_FILES: usize = 10_000;
const MAX_ALIASES: usize = 8;

/// A file of the archive.
#[derive(Debug)]
struct StagedFile {
    path: PathBuf,
    file: File,
    digest: ImageDigest,
    size: u64,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // It may have its own name by now; what stays is removed when others are.
        let _removed = fs::remove_file(&self.path);
    }
}

pub(super) struct StagedArchive {
    files: HashMap<Vec<u8>, StagedFile>,
    /// Links in the archive: older Dockers write a layer once that several images have.
    aliases: HashMap<Vec<u8>, Vec<u8>>,
}

impl StagedArchive {
    pub(super) fn read(store: &ImageStore, source: Box<dyn Read>) -> Result<Self, ImageError> {
        let wrong = |error: LayerError| ImageError::malformed("the file", error);
        let source = decompressed(source).map_err(|error| wrong(LayerRefusal::of_reading(error).whole()))?;
        let mut archive = Archive::new(source);
        let mut staged = Self {
            files: HashMap::new(),
            aliases: HashMap::new(),
        };
        while let Some(entry) = archive.next().map_err(wrong)? {
            if staged.files.len() + staged.aliases.len() >= MAX_FILES {
                return Err(ImageError::malformed(
                    "the file",
                    format!("it has more than {MAX_FILES} parts"),
                ));
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

fn stage(store: &ImageStore, entry: &TarEntry, archive: &mut Archive<Box<dyn Read>>) -> Result<StagedFile, ImageError> {
    if entry.stored > MAX_LAYER || entry.sparse.is_some() {
        return Err(ImageError::TooLarge {
            what: "a part of the file",
            found: entry.stored,
            limit: MAX_LAYER,
        });
    }
    let (path, mut file) = store.stage()?;
    let mut hasher = DigestHasher::default();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let read = archive.read_contents(&mut buffer);
        match read.map_err(|error| ImageError::malformed("the file", LayerRefusal::of_reading(error)))? {
            0 => break,
            read => {
                hasher.update(&buffer[..read]);
                file.write_all(&buffer[..read]).map_err(|error| {
                    let _removed = fs::remove_file(&path);
                    ImageError::file("writing", &path)(error)
                })?;
            }
        }
    }
    Ok(StagedFile {
        path,
        file,
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
        let read = staged
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| staged.file.read_to_end(&mut bytes));
        read.map_err(ImageError::file("reading", &staged.path))?;
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
        store.keep_staged(&staged.path, &staged.file, &staged.digest)?;
        Ok((staged.digest, staged.size))
    }
}
