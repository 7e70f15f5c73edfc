//! Unpacked layers, each by the digest of its chain.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_store::remove_directory;
use rustix::fs::FlockOperation;

use super::{IdNamespace, ImageStore, LAYERS, lock, make_private, read_up_to, sync_directory_of};
use crate::digest::{ImageDigest, chain_ids};
use crate::error::ImageError;
use crate::manifest::{ImageConfig, ImageManifest};
use crate::progress::{ImageProgress, ProgressStep};
use crate::unpack::{self, LayerError, LayerOwnership, LayerReport, UnpackLimits, UnpackOrder};

/// The directory of a layer that overlays are made of.
const UPPER: &str = "upper";
const REPORT: &str = "layer.json";
/// What the name of a layer begins with that is not whole.
pub(super) const NEW: &str = ".new-";
/// Who unpacks one is alone in it.
const UNPACKING: &str = ".unpacking";
const UNPACKING_TIMEOUT: Duration = Duration::from_secs(600);
const MAX_REPORT: u64 = 64 << 10;

impl ImageStore {
    pub(super) fn layers_path(&self, ownership: LayerOwnership) -> PathBuf {
        self.path.join(LAYERS).join(ownership.name())
    }

    pub(super) fn layer_path(&self, ownership: LayerOwnership, chain: &ImageDigest) -> PathBuf {
        self.layers_path(ownership).join(chain.hex())
    }

    pub(super) fn upper_path(&self, ownership: LayerOwnership, chain: &ImageDigest) -> PathBuf {
        self.layer_path(ownership, chain).join(UPPER)
    }

    /// What was left out of a layer, if it is unpacked.
    pub(super) fn layer_report(&self, ownership: LayerOwnership, chain: &ImageDigest) -> Option<LayerReport> {
        let bytes = read_up_to(&self.layer_path(ownership, chain).join(REPORT), MAX_REPORT).ok()?;
        serde_json::from_slice::<Unpacked>(&bytes).ok()?.ok()
    }

    /// Unpacks the layers of an image that are not unpacked yet. Who calls it has the lock for adding.
    pub(crate) fn unpack_layers(
        &self,
        manifest: &ImageManifest,
        config: &ImageConfig,
        ownership: LayerOwnership,
        ids: &dyn IdNamespace,
        progress: &dyn ImageProgress,
    ) -> Result<(), ImageError> {
        let chains = chain_ids(&config.diff_ids);
        for (number, layer) in manifest.layers.iter().enumerate() {
            let (chain, below) = (&chains[number], &chains[..number]);
            if self.layer_path(ownership, chain).exists() {
                continue;
            }
            let alone = self.layers_path(ownership).join(UNPACKING);
            let operation = FlockOperation::NonBlockingLockExclusive;
            let _alone = lock::lock_file(&alone, operation, UNPACKING_TIMEOUT, "unpacks a layer")?;
            if self.layer_path(ownership, chain).exists() {
                continue;
            }
            progress.step(ProgressStep::Unpacking {
                number: number + 1,
                of: manifest.layers.len(),
            });
            let order = UnpackOrder {
                archive: self.blob_path(&layer.digest),
                diff_id: config.diff_ids[number],
                target: self.new_path(ownership, chain).join(UPPER),
                lowers: below
                    .iter()
                    .rev()
                    .map(|lower| self.upper_path(ownership, lower))
                    .collect(),
                ownership,
                limits: UnpackLimits::default(),
            };
            if !self.has_blob(&layer.digest) {
                return Err(ImageError::MissingBlob {
                    what: "layer",
                    digest: layer.digest,
                });
            }
            self.unpack_layer(&order, chain, ids)?;
            self.note_diff_id(&layer.digest, order.diff_id)?;
        }
        Ok(())
    }

    fn new_path(&self, ownership: LayerOwnership, chain: &ImageDigest) -> PathBuf {
        self.layers_path(ownership).join(format!("{NEW}{}", chain.hex()))
    }

    fn unpack_layer(&self, order: &UnpackOrder, chain: &ImageDigest, ids: &dyn IdNamespace) -> Result<(), ImageError> {
        let new = self.new_path(order.ownership, chain);
        // What somebody left who was ended.
        remove_layer(&new, ids)?;
        make_private(&new)?;
        make_private(&order.target)?;
        let unpacked = self.unpack_into(order, &new, ids);
        if unpacked.is_err() {
            // The first failure is what is told; what stays goes with the next one that is unpacked.
            let _removed = remove_layer(&new, ids);
        }
        unpacked
    }

    fn unpack_into(&self, order: &UnpackOrder, new: &Path, ids: &dyn IdNamespace) -> Result<(), ImageError> {
        let report = new.join(REPORT);
        let mut body = || {
            let unpacked: Unpacked = unpack::unpack(order);
            fs::write(&report, serde_json::to_vec(&unpacked).map_err(io::Error::other)?)
        };
        if order.ownership == LayerOwnership::Owned && !offleash_sys::process::is_root() {
            ids.run(&mut body).map_err(|source| ImageError::Ids { source })?;
        } else {
            body().map_err(ImageError::file("writing", &report))?;
        }
        let bytes = read_up_to(&report, MAX_REPORT).map_err(ImageError::file("reading", &report))?;
        let unpacked: Unpacked =
            serde_json::from_slice(&bytes).map_err(|error| ImageError::malformed("the layer's report", error))?;
        unpacked.map_err(|source| ImageError::Layer {
            digest: order.diff_id,
            source,
        })?;
        let place = self.layers_path(order.ownership).join(
            new.file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(NEW))
                .unwrap_or_default(),
        );
        // All of its files at once, which is far less than one after another.
        File::open(new)
            .and_then(|opened| Ok(rustix::fs::syncfs(&opened)?))
            .and_then(|()| fs::rename(new, &place))
            .and_then(|()| sync_directory_of(&place))
            .map_err(ImageError::file("keeping", &place))
    }
}

/// How unpacking ended, as it is written down.
type Unpacked = Result<LayerReport, LayerError>;

/// Removes a layer, with files of subordinate ids if need be; nothing happens if there is none.
pub(super) fn remove_layer(path: &Path, ids: &dyn IdNamespace) -> Result<(), ImageError> {
    let Err(error) = remove_directory(path) else {
        return Ok(());
    };
    if offleash_sys::process::is_root() || error.source.kind() != io::ErrorKind::PermissionDenied {
        return Err(error.into());
    }
    ids.run(&mut || remove_directory(path).map_err(|error| error.source))
        .map_err(|source| ImageError::Ids { source })
}
