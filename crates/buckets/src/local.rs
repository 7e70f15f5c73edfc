//! Files of a volume, as they are read and compared.

use std::io::Read as _;

use offleash_store::{FileStamp, VolumeContent, VolumeError, VolumePath};

use crate::digests::{Digester, Digests};
use crate::error::ObjectFault;

/// How much of a file is read at once.
const PIECE: usize = 256 * 1024;

/// A file that is read from its beginning to its end, and is known to be the same all the time.
#[derive(Debug)]
pub(crate) struct LocalFile {
    file: std::fs::File,
    content: VolumeContent,
    stamp: FileStamp,
}

impl LocalFile {
    /// Opens a file that is what `stamp` says.
    pub(crate) fn open(content: VolumeContent, path: &VolumePath, stamp: FileStamp) -> Result<Self, ObjectFault> {
        let (file, _) = content.read(path).map_err(|error| fault(&error))?;
        let local = Self { file, content, stamp };
        local.check()?;
        Ok(local)
    }

    /// That it is still what it was.
    pub(crate) fn check(&self) -> Result<(), ObjectFault> {
        let now = self.content.stamp_of(&self.file).map_err(|error| fault(&error))?;
        match now == self.stamp {
            true => Ok(()),
            false => Err(ObjectFault::ChangedHere),
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.stamp.size
    }

    /// The next `most` bytes; fewer at the end.
    pub(crate) fn next(&mut self, most: usize) -> Result<Vec<u8>, ObjectFault> {
        let mut bytes = Vec::new();
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let read = (&self.file).take(most).read_to_end(&mut bytes);
        read.map_err(|error| ObjectFault::Volume(format!("the file cannot be read: {error}")))?;
        Ok(bytes)
    }

    /// What all of it comes to.
    pub(crate) fn digests(mut self) -> Result<Digests, ObjectFault> {
        let mut digester = Digester::default();
        loop {
            let piece = self.next(PIECE)?;
            if piece.is_empty() {
                self.check()?;
                return Ok(digester.finish());
            }
            digester.update(&piece);
        }
    }
}

/// What stands in the way in a volume is about one file, and not about others.
pub(crate) fn fault(error: &VolumeError) -> ObjectFault {
    match error {
        VolumeError::Changed { .. } | VolumeError::NoEntry { .. } => ObjectFault::ChangedHere,
        error => ObjectFault::Volume(error.to_string()),
    }
}
