//! An image that is used: nothing of it is removed meanwhile.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::{IdNamespace, ImageStore, lock};
use crate::digest::{ImageDigest, chain_ids};
use crate::error::ImageError;
use crate::manifest::{ImageConfig, ImageManifest};
use crate::progress::ImageProgress;
use crate::reference::ImageReference;
use crate::unpack::{self, LayerOwnership, LayerReport};

/// Keeps an image from being removed as long as this lives.
#[derive(Debug)]
pub struct ImageLease {
    _locks: Vec<OwnedFd>,
}

/// An image, ready to be the lower layers of a root.
#[derive(Debug)]
pub struct ImageRoot {
    /// The directory that all its layers are in.
    pub directory: PathBuf,
    /// The directories of its layers, the topmost first.
    pub layers: Vec<PathBuf>,
    /// How its programs are started.
    pub config: ImageConfig,
    /// The digest of its manifest.
    pub digest: ImageDigest,
    /// Its whole name, or its id where it has none.
    pub name: String,
    /// What was left out of its layers.
    pub report: LayerReport,
    /// Keeps it.
    pub lease: ImageLease,
}

impl ImageRoot {
    /// What it has at `path`, if that is a file; no link is followed.
    ///
    /// # Errors
    /// When it cannot be read, or is larger than `limit`.
    pub fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
        unpack::read_stacked(&self.layers, path, limit).map_err(ImageError::file("reading of the image", path))
    }
}

/// An image that stays here, before anything is made of it.
#[derive(Debug)]
pub struct HeldImage {
    /// Its whole name; `None` where it has none.
    pub name: Option<ImageReference>,
    /// The digest of its manifest.
    pub digest: ImageDigest,
    /// Keeps it.
    pub lease: ImageLease,
}

impl HeldImage {
    /// Its whole name, or its id where it has none.
    pub fn shown(&self) -> String {
        shown(self.name.as_ref(), &self.digest)
    }
}

fn shown(name: Option<&ImageReference>, digest: &ImageDigest) -> String {
    name.map_or_else(|| digest.to_string(), ToString::to_string)
}

impl ImageStore {
    /// Keeps the image that `name` means: all that a sandbox of it needs, unpacked or not.
    ///
    /// # Errors
    /// [`ImageError::Missing`]; [`ImageError::MissingBlob`].
    pub fn hold_image(&self, name: &str) -> Result<HeldImage, ImageError> {
        let _adding = self.lock_for_adding()?;
        let record = self.find(name)?;
        self.hold(record.name, record.digest)
    }

    /// Keeps the image whose manifest has this digest, although its name may mean another one by now.
    ///
    /// # Errors
    /// [`ImageError::MissingBlob`] when it is not here any more.
    pub fn hold_digest(&self, digest: &str) -> Result<HeldImage, ImageError> {
        let _adding = self.lock_for_adding()?;
        self.hold(None, digest_of(digest)?)
    }

    fn hold(&self, name: Option<ImageReference>, digest: ImageDigest) -> Result<HeldImage, ImageError> {
        let (manifest, config) = self.documents(&digest)?;
        let mut locks = self.hold_documents(&digest, &manifest)?;
        for layer in &manifest.layers {
            locks.extend(lock::hold(&self.blob_path(&layer.digest))?);
        }
        for ownership in [LayerOwnership::Flat, LayerOwnership::Owned] {
            for chain in chain_ids(&config.diff_ids) {
                locks.extend(lock::hold(&self.layer_path(ownership, &chain))?);
            }
        }
        let lease = ImageLease { _locks: locks };
        Ok(HeldImage { name, digest, lease })
    }

    /// Keeps what says of an image what it is.
    fn hold_documents(&self, digest: &ImageDigest, manifest: &ImageManifest) -> Result<Vec<OwnedFd>, ImageError> {
        let parts = [("the manifest", *digest), ("the configuration", manifest.config.digest)];
        let held = parts.map(|(what, digest)| {
            let held = lock::hold(&self.blob_path(&digest))?;
            held.ok_or(ImageError::MissingBlob { what, digest })
        });
        held.into_iter().collect()
    }

    /// Opens the image that `name` means, for sandboxes whose files belong to such ids; layers that are not unpacked in that
    /// form are now.
    ///
    /// # Errors
    /// [`ImageError::Missing`]; [`ImageError::Layer`] when it cannot be unpacked.
    pub fn open_image(
        &self,
        name: &str,
        ownership: LayerOwnership,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<ImageRoot, ImageError> {
        let _adding = self.lock_for_adding()?;
        let record = self.find(name)?;
        let name = shown(record.name.as_ref(), &record.digest);
        self.open_parts(name, record.digest, ownership, ids, progress)
    }

    /// Opens the image whose manifest has this digest and which was called `name`, although that may mean another one by now.
    ///
    /// # Errors
    /// [`ImageError::MissingBlob`] when it is not here any more; [`ImageError::Layer`] when it cannot be unpacked.
    pub fn open_digest(
        &self,
        name: &str,
        digest: &str,
        ownership: LayerOwnership,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<ImageRoot, ImageError> {
        let _adding = self.lock_for_adding()?;
        self.open_parts(name.to_owned(), digest_of(digest)?, ownership, ids, progress)
    }

    fn open_parts(
        &self,
        name: String,
        digest: ImageDigest,
        ownership: LayerOwnership,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<ImageRoot, ImageError> {
        let (manifest, config) = self.documents(&digest)?;
        self.unpack_layers(&manifest, &config, ownership, ids, progress)?;
        let mut locks = self.hold_documents(&digest, &manifest)?;
        let mut layers = Vec::new();
        let mut report = LayerReport::default();
        for chain in chain_ids(&config.diff_ids).into_iter().rev() {
            let held = lock::hold(&self.layer_path(ownership, &chain))?;
            let what = "the layer";
            locks.push(held.ok_or(ImageError::MissingBlob { what, digest: chain })?);
            layers.push(self.upper_path(ownership, &chain));
            report = report.plus(self.layer_report(ownership, &chain).unwrap_or_default());
        }
        Ok(ImageRoot {
            directory: self.layers_path(ownership),
            layers,
            config,
            digest,
            name,
            report,
            lease: ImageLease { _locks: locks },
        })
    }
}

fn digest_of(text: &str) -> Result<ImageDigest, ImageError> {
    let digest = text.parse();
    digest.map_err(|_| ImageError::Missing { name: text.to_owned() })
}
