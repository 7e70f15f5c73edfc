//! What is kept of images, below the state directory.
//!
//! ```text
//! images/lock                    held by who adds or opens something, and alone by who removes
//! images/blobs/HEX               manifests, configurations and layers as they were sent, by SHA-256
//! images/partial/HEX             a blob that comes, or came until something broke; locked by who fetches it
//! images/proofs/HEX.json         who sent a blob, and what it is without compression
//! images/references/HEX.json     a name and the manifest that it means
//! images/kept/NAME.json         what steps of builds and templates made, which has no name of an image
//! images/layers/FORM/HEX         a layer, unpacked, by the digest of its chain: `upper` and `layer.json`
//! ```
//!
//! Whatever has its own name is whole: it was made under another, written back, and renamed. A run that uses an image has
//! locks on its manifest and its layers.

mod blobs;
mod garbage;
mod kept;
mod layers;
mod lease;
mod lock;
mod proofs;
mod references;
mod staged;

use std::fs::{self, DirBuilder};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use offleash_store::StateDirectory;

pub(crate) use self::blobs::{PartialBlob, check_digest};
pub use self::garbage::{PruneReport, RemovedImage};
pub use self::kept::KeptName;
pub use self::lease::{HeldImage, ImageLease, ImageRoot};
pub use self::references::{ImageListing, ImageRecord};
pub(crate) use self::staged::StagedBlob;
use crate::error::ImageError;
use crate::unpack::LayerOwnership;

const BLOBS: &str = "blobs";
const PARTIAL: &str = "partial";
const REFERENCES: &str = "references";
const LAYERS: &str = "layers";
const KEPT: &str = "kept";
const PROOFS: &str = "proofs";

/// The images of a state directory.
#[derive(Debug, Clone)]
pub struct ImageStore {
    pub(crate) path: PathBuf,
}

/// Does what takes ids that belong to the caller and that the calling process does not have.
pub trait IdNamespace {
    /// Runs `body` as the superuser of the caller's range of ids, in a process of its own.
    ///
    /// # Errors
    /// When there is no such range; what `body` answers.
    fn run(&self, body: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

impl ImageStore {
    /// Opens the images of `state`; makes the directories that are missing.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn open(state: &StateDirectory) -> Result<Self, ImageError> {
        Self::at(&state.path().join("images"))
    }

    /// Opens the images of the state directory at `state`, which was opened before.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn in_directory(state: &Path) -> Result<Self, ImageError> {
        Self::at(&state.join("images"))
    }

    pub(crate) fn at(path: &Path) -> Result<Self, ImageError> {
        make_private(path)?;
        // It may be a link to where there is more room; mounts are made of what it leads to.
        let path = fs::canonicalize(path).map_err(ImageError::file("finding", path))?;
        for name in [BLOBS, PARTIAL, PROOFS, REFERENCES, LAYERS, KEPT] {
            make_private(&path.join(name))?;
        }
        for ownership in [LayerOwnership::Flat, LayerOwnership::Owned] {
            make_private(&path.join(LAYERS).join(ownership.name()))?;
        }
        Ok(Self { path })
    }
}

fn make_private(directory: &Path) -> Result<(), ImageError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(ImageError::file("making", directory)(error)),
        _ => Ok(()),
    }
}

/// Writes a small file so that it is there as a whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    // Threads of one process write the same file too: two pulls of one name.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = path.with_extension(format!("new-{}-{number}", std::process::id()));
    let written = fs::File::create(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&new, path))
        .and_then(|()| sync_directory_of(path));
    written.map_err(|error| {
        // The first failure is what is told.
        let _removed = fs::remove_file(&new);
        ImageError::file("writing", path)(error)
    })
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Reads a file of ours that is not larger than `limit`.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests;
