//! An image that is used: nothing of it is removed meanwhile.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::{IdNamespace, ImageStore, lock};
use crate::digest::{ImageDigest, chain_ids};
use crate::error::ImageError;
use crate::manifest::ImageConfig;
use crate::progress::ImageProgress;
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

impl ImageStore {
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
        let (manifest, config) = self.documents(&record.digest)?;
        self.unpack_layers(&manifest, &config, ownership, ids, progress)?;
        let gone = |what, digest| ImageError::MissingBlob { what, digest };
        let held = lock::hold(&self.blob_path(&record.digest))?;
        let mut locks = vec![held.ok_or_else(|| gone("the manifest", record.digest))?];
        let mut layers = Vec::new();
        let mut report = LayerReport::default();
        for chain in chain_ids(&config.diff_ids).into_iter().rev() {
            let held = lock::hold(&self.layer_path(ownership, &chain))?;
            locks.push(held.ok_or_else(|| gone("the layer", chain))?);
            layers.push(self.upper_path(ownership, &chain));
            report = report.plus(self.layer_report(ownership, &chain).unwrap_or_default());
        }
        let name = record.name.as_ref().map(ToString::to_string);
        Ok(ImageRoot {
            directory: self.layers_path(ownership),
            layers,
            config,
            digest: record.digest,
            name: name.unwrap_or_else(|| record.digest.to_string()),
            report,
            lease: ImageLease { _locks: locks },
        })
    }
}
