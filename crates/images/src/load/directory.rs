//! A layout of OCI in a directory; no link in it is followed.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::LayoutParts;
use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::Descriptor;
use crate::store::ImageStore;

pub(super) struct LayoutDirectory(OwnedFd);

impl LayoutDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        opened.map(Self).map_err(ImageError::file("opening", path))
    }

    fn file(&self, name: &str) -> Result<Option<File>, ImageError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(&self.0, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => File::from(opened.map_err(ImageError::file("opening", name))?),
        };
        let found = file.metadata().map_err(ImageError::file("examining", name))?;
        match found.is_file() {
            true => Ok(Some(file)),
            false => Err(ImageError::malformed("the layout", format!("`{name}` is no file"))),
        }
    }

    fn needed(&self, name: &str) -> Result<File, ImageError> {
        let missing = || ImageError::malformed("the layout", format!("`{}` is missing", name.escape_debug()));
        self.file(name)?.ok_or_else(missing)
    }
}

impl LayoutParts for LayoutDirectory {
    fn has(&self, name: &str) -> bool {
        self.file(name).is_ok_and(|file| file.is_some())
    }

    fn read(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let read = self.needed(name)?.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(ImageError::file("reading", name))?;
        match bytes.len() as u64 > limit {
            true => Err(ImageError::TooLarge {
                what: "a document of the layout",
                found: bytes.len() as u64,
                limit,
            }),
            false => Ok(bytes),
        }
    }

    fn keep(
        &mut self,
        store: &ImageStore,
        what: &'static str,
        name: &str,
        expected: Option<&Descriptor>,
    ) -> Result<(ImageDigest, u64), ImageError> {
        let expected = expected.ok_or_else(|| ImageError::malformed("the layout", "a part without a digest"))?;
        if store.has_blob(&expected.digest) {
            return Ok((expected.digest, expected.bytes()));
        }
        let mut file = match self.file(name)? {
            Some(file) => file,
            None => {
                return Err(ImageError::MissingBlob {
                    what,
                    digest: expected.digest,
                });
            }
        };
        let begun = store.begin_blob(&expected.digest)?;
        let mut partial = begun.ok_or(ImageError::Busy {
            doing: "fetches the same image",
        })?;
        partial.restart()?;
        let mut buffer = vec![0; 128 << 10];
        loop {
            let read = file.read(&mut buffer).map_err(ImageError::file("reading", name))?;
            if read == 0 || partial.length() > expected.bytes() {
                break;
            }
            partial.append(&buffer[..read])?;
        }
        partial.finish(what, &expected.digest, expected.bytes(), || Ok(()))?;
        Ok((expected.digest, expected.bytes()))
    }
}
