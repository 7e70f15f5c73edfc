//! Blobs: what a registry sends, by its digest.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{BLOBS, ImageStore, PARTIAL, lock, read_up_to, sync_directory_of};
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;

impl ImageStore {
    pub(crate) fn blob_path(&self, digest: &ImageDigest) -> PathBuf {
        self.path.join(BLOBS).join(digest.hex())
    }

    /// Whether a blob is here.
    pub(crate) fn has_blob(&self, digest: &ImageDigest) -> bool {
        fs::symlink_metadata(self.blob_path(digest)).is_ok_and(|found| found.is_file())
    }

    /// Reads a small blob, and whether it still is what it was.
    pub(crate) fn read_blob(
        &self,
        what: &'static str,
        digest: &ImageDigest,
        limit: u64,
    ) -> Result<Vec<u8>, ImageError> {
        let path = self.blob_path(digest);
        let bytes = match read_up_to(&path, limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::MissingBlob { what, digest: *digest });
            }
            read => read.map_err(ImageError::file("reading", &path))?,
        };
        check_digest(what, digest, &bytes)?;
        Ok(bytes)
    }

    /// Keeps a small blob.
    pub(crate) fn write_blob(&self, digest: &ImageDigest, bytes: &[u8]) -> Result<(), ImageError> {
        match self.has_blob(digest) {
            true => Ok(()),
            false => super::write_whole(&self.blob_path(digest), bytes),
        }
    }

    /// A blob that is to come; `None` if another process fetches it just now.
    pub(crate) fn begin_blob(&self, digest: &ImageDigest) -> Result<Option<PartialBlob>, ImageError> {
        let path = self.partial_path(digest);
        loop {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)
                .map_err(ImageError::file("opening", &path))?;
            if !lock::try_lock(&file).map_err(ImageError::file("locking", &path))? {
                return Ok(None);
            }
            // It may have got its own name, or was removed, between the two.
            if is_at(&file, &path).map_err(ImageError::file("examining", &path))? {
                return PartialBlob::resume(self.blob_path(digest), path, file).map(Some);
            }
        }
    }

    /// How much there is of a blob that another process fetches.
    pub(crate) fn partial_length(&self, digest: &ImageDigest) -> u64 {
        fs::symlink_metadata(self.partial_path(digest)).map_or(0, |found| found.len())
    }

    pub(super) fn partial_path(&self, digest: &ImageDigest) -> PathBuf {
        self.path.join(PARTIAL).join(digest.hex())
    }
}

/// Refuses bytes that are not what was named.
pub(crate) fn check_digest(what: &'static str, expected: &ImageDigest, bytes: &[u8]) -> Result<(), ImageError> {
    let found = ImageDigest::of(bytes);
    match found == *expected {
        true => Ok(()),
        false => Err(ImageError::OtherDigest {
            what,
            expected: *expected,
            found,
        }),
    }
}

pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A blob that comes. What came is kept should we end before it is whole, and the next one goes on from there.
#[derive(Debug)]
pub(crate) struct PartialBlob {
    place: PathBuf,
    path: PathBuf,
    file: File,
    length: u64,
    hasher: DigestHasher,
}

impl PartialBlob {
    fn resume(place: PathBuf, path: PathBuf, mut file: File) -> Result<Self, ImageError> {
        let mut hasher = DigestHasher::default();
        let mut length = 0;
        let mut buffer = vec![0; 128 << 10];
        loop {
            match file.read(&mut buffer).map_err(ImageError::file("reading", &path))? {
                0 => break,
                read => {
                    hasher.update(&buffer[..read]);
                    length += read as u64;
                }
            }
        }
        Ok(Self {
            place,
            path,
            file,
            length,
            hasher,
        })
    }

    /// How much there is of it.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// It is not needed.
    pub(crate) fn abandon(self) {
        // What stays is removed when others are.
        let _removed = fs::remove_file(&self.path);
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.file
            .write_all(bytes)
            .map_err(ImageError::file("writing", &self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew.
    pub(crate) fn restart(&mut self) -> Result<(), ImageError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(ImageError::file("writing", &self.path))?;
        self.hasher = DigestHasher::default();
        self.length = 0;
        Ok(())
    }

    /// Gives it its own name if it is what it should be, once `note` has noted that it is; else it is gone.
    pub(crate) fn finish(
        self,
        what: &'static str,
        digest: &ImageDigest,
        size: u64,
        note: impl FnOnce() -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let found = self.hasher.finish();
        if found != *digest || self.length != size {
            let _removed = fs::remove_file(&self.path);
            return Err(match self.length == size {
                true => ImageError::OtherDigest {
                    what,
                    expected: *digest,
                    found,
                },
                false => ImageError::OtherSize {
                    what,
                    digest: *digest,
                    expected: size,
                    found: self.length,
                },
            });
        }
        note()?;
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.path, &self.place))
            .and_then(|()| sync_directory_of(&self.place))
            .map_err(ImageError::file("keeping", &self.place))
    }
}
