//! Makes layers and images here: of what a sandbox wrote, and of files that are copied.
//!
//! A layer is an archive before it is anything else, as if it had been pulled: what is in it has the ids of the image, and it
//! is unpacked in whichever form a sandbox needs. Images and layers that steps of builds made are kept by names of their
//! own (`store::kept`). Deliberately not here: which steps there are, and running them.

mod capture;
mod copy;
mod tree;

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom};

pub use self::capture::{CaptureOrder, CapturedOwner, ExcludedFile};
pub use self::copy::{CopyOrder, CopySelection, CopyTarget};
pub use self::tree::LayerTree;
use crate::digest::{DigestHasher, ImageDigest};
use crate::error::ImageError;
use crate::manifest::{Descriptor, ImageConfig, ImageManifest, MAX_LAYERS, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use crate::progress::NoProgress;
use crate::store::{IdNamespace, ImageStore, KeptName, StagedBlob};
use crate::tar::TarWriter;
use crate::unpack::LayerOwnership;

/// An archive that is to become a layer; its file goes with it unless it does.
#[derive(Debug)]
pub struct LayerArchive {
    staged: StagedBlob,
    limit: u64,
}

impl LayerArchive {
    fn writer(&self) -> io::Result<TarWriter<BufWriter<File>>> {
        let file = self.staged.file.try_clone()?;
        Ok(TarWriter::new(BufWriter::with_capacity(1 << 20, file), self.limit))
    }

    /// An archive without entries.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn fill_empty(&self) -> Result<(), ImageError> {
        let written = self.writer().and_then(TarWriter::finish);
        written
            .map(drop)
            .map_err(ImageError::file("writing", self.staged.place()))
    }

    /// How many bytes it has.
    ///
    /// # Errors
    /// When it cannot be examined.
    pub fn length(&self) -> Result<u64, ImageError> {
        let found = self.staged.file.metadata();
        let found = found.map_err(ImageError::file("examining", self.staged.place()))?;
        Ok(found.len())
    }

    /// Its digest and size.
    fn measure(&self) -> io::Result<(ImageDigest, u64)> {
        let mut file = &self.staged.file;
        file.seek(SeekFrom::Start(0))?;
        let mut hasher = DigestHasher::default();
        let (mut size, mut buffer) = (0, vec![0; 256 << 10]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok((hasher.finish(), size)),
                read => {
                    hasher.update(&buffer[..read]);
                    size += read as u64;
                }
            }
        }
    }
}

/// An image that is to be made of another.
#[derive(Debug)]
pub struct ComposeOrder<'a> {
    /// The image below, if there is one.
    pub base: Option<ImageDigest>,
    /// What lies above it, if anything.
    pub layer: Option<LayerArchive>,
    /// How its programs are started; the digests of its layers are not looked at.
    pub config: &'a ImageConfig,
    /// The form in which it is unpacked at once.
    pub ownership: LayerOwnership,
    /// What it is kept by.
    pub kept: &'a KeptName,
}

impl ImageStore {
    /// An archive that is to be filled, of `limit` bytes at most.
    ///
    /// # Errors
    /// When no file can be made.
    pub fn new_layer(&self, limit: u64) -> Result<LayerArchive, ImageError> {
        let staged = self.stage()?;
        Ok(LayerArchive { staged, limit })
    }

    /// Makes an image, and keeps it; answers the digest of its manifest.
    ///
    /// # Errors
    /// [`ImageError::TooManyLayers`]; [`ImageError::Layer`]; when the base is gone, or files cannot be written.
    pub fn compose(&self, order: ComposeOrder<'_>, ids: &dyn IdNamespace) -> Result<ImageDigest, ImageError> {
        let _adding = self.lock_for_adding()?;
        let (mut layers, mut diff_ids) = match &order.base {
            None => (Vec::new(), Vec::new()),
            Some(base) => {
                let (manifest, config) = self.documents(base)?;
                (manifest.layers, config.diff_ids)
            }
        };
        if let Some(layer) = &order.layer {
            if layers.len() >= MAX_LAYERS {
                return Err(ImageError::TooManyLayers {
                    found: layers.len() + 1,
                    limit: MAX_LAYERS,
                });
            }
            let (digest, size) = layer
                .measure()
                .map_err(ImageError::file("reading", layer.staged.place()))?;
            self.keep_staged(&layer.staged, &digest)?;
            layers.push(descriptor(OCI_LAYER, digest, size)?);
            diff_ids.push(digest);
        }
        let config = ImageConfig {
            diff_ids,
            ..order.config.clone()
        };
        let document = config.document()?;
        let config_digest = ImageDigest::of(&document);
        self.write_blob(&config_digest, &document)?;
        let manifest = ImageManifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config: descriptor(OCI_CONFIG, config_digest, document.len() as u64)?,
            layers,
        };
        let bytes = serde_json::to_vec(&manifest).map_err(|error| ImageError::malformed("the manifest", error))?;
        let digest = ImageDigest::of(&bytes);
        self.write_blob(&digest, &bytes)?;
        self.unpack_layers(&manifest, &config, order.ownership, ids, &NoProgress)?;
        self.keep(order.kept, &digest)?;
        Ok(digest)
    }
}

fn descriptor(media_type: &str, digest: ImageDigest, size: u64) -> Result<Descriptor, ImageError> {
    let size = i64::try_from(size).map_err(|error| ImageError::malformed("a layer's size", error))?;
    Ok(Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size,
        platform: None,
        annotations: None,
    })
}

#[cfg(test)]
mod tests;
