//! What is known of blobs beside their bytes: who sent them, and what they are without compression.
//!
//! ```text
//! images/proofs/HEX.json
//! ```
//!
//! That a blob is here says nothing of who may have it: a manifest can name any digest. Who pulls one gets what its own
//! registry gives. A record that is lost costs a request, or reading a layer once more.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{ImageStore, PROOFS, read_up_to, write_whole};
use crate::digest::ImageDigest;
use crate::error::ImageError;
use crate::manifest::{ImageConfig, ImageManifest};
use crate::unpack::{self, LayerRefusal, UnpackLimits};

const VERSION: u32 = 1;
const MAX_RECORD: u64 = 64 << 10;
/// How many repositories are remembered of one blob; others are asked each time.
const MAX_SOURCES: usize = 32;

/// What is known of a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BlobProof {
    version: u32,
    /// Repositories, `HOST[:PORT]/PATH`, that have sent all of it.
    pub(crate) sources: BTreeSet<String>,
    /// The repository that what there is of it comes from, while it is not whole.
    pub(crate) partial_source: Option<String>,
    /// The digest of the archive without compression, if it is one that was unpacked or read.
    diff_id: Option<ImageDigest>,
}

impl ImageStore {
    fn proof_path(&self, digest: &ImageDigest) -> PathBuf {
        self.path.join(PROOFS).join(format!("{}.json", digest.hex()))
    }

    /// What is known of a blob; nothing if that cannot be read.
    pub(crate) fn proof(&self, digest: &ImageDigest) -> BlobProof {
        let read = read_up_to(&self.proof_path(digest), MAX_RECORD).ok();
        let proof = read.and_then(|bytes| serde_json::from_slice::<BlobProof>(&bytes).ok());
        proof.filter(|proof| proof.version == VERSION).unwrap_or_default()
    }

    fn change_proof(&self, digest: &ImageDigest, change: impl FnOnce(&mut BlobProof)) -> Result<(), ImageError> {
        let before = self.proof(digest);
        let mut proof = BlobProof {
            version: VERSION,
            ..before.clone()
        };
        change(&mut proof);
        if proof == before {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&proof).map_err(|error| ImageError::malformed("the record", error))?;
        write_whole(&self.proof_path(digest), &bytes)
    }

    /// Notes that a repository has sent all of a blob.
    pub(crate) fn note_source(&self, digest: &ImageDigest, source: &str) -> Result<(), ImageError> {
        self.change_proof(digest, |proof| {
            proof.partial_source = None;
            if proof.sources.len() < MAX_SOURCES {
                proof.sources.insert(source.to_owned());
            }
        })
    }

    /// Notes where what comes of a blob comes from.
    pub(crate) fn note_partial_source(&self, digest: &ImageDigest, source: &str) -> Result<(), ImageError> {
        self.change_proof(digest, |proof| proof.partial_source = Some(source.to_owned()))
    }

    /// Notes what a layer is without compression.
    pub(crate) fn note_diff_id(&self, digest: &ImageDigest, diff_id: ImageDigest) -> Result<(), ImageError> {
        self.change_proof(digest, |proof| proof.diff_id = Some(diff_id))
    }

    /// Refuses an image whose configuration names layers that are unpacked here and that its own layers are not: they would be
    /// another's, whose files it has never had.
    ///
    /// # Errors
    /// [`ImageError::Layer`]; when a layer cannot be read.
    pub(crate) fn verify_layers(&self, manifest: &ImageManifest, config: &ImageConfig) -> Result<(), ImageError> {
        for (layer, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            if self.proof(&layer.digest).diff_id == Some(*diff_id) {
                continue;
            }
            let refused = |source| ImageError::Layer {
                digest: *diff_id,
                source,
            };
            let found = unpack::diff_id_of(&self.blob_path(&layer.digest), UnpackLimits::default());
            if found.map_err(refused)? != *diff_id {
                return Err(refused(LayerRefusal::OtherContents.whole()));
            }
            self.note_diff_id(&layer.digest, *diff_id)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::NoIds;
    use super::*;
    use crate::manifest::{Descriptor, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
    use crate::progress::NoProgress;
    use crate::tar::testing::TarBuilder;
    use crate::unpack::LayerOwnership;

    fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
        Descriptor {
            media_type: media_type.to_owned(),
            digest: ImageDigest::of(bytes),
            size: i64::try_from(bytes.len()).unwrap(),
            platform: None,
            annotations: None,
        }
    }

    /// Keeps `layer` as the one of an image whose configuration says that it is `diff_id`.
    fn image(store: &ImageStore, layer: &[u8], diff_id: ImageDigest) -> (ImageManifest, ImageConfig) {
        store.write_blob(&ImageDigest::of(layer), layer).unwrap();
        let manifest = ImageManifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config: descriptor(OCI_CONFIG, b"{}"),
            layers: vec![descriptor(OCI_LAYER, layer)],
        };
        let config = ImageConfig {
            diff_ids: vec![diff_id],
            ..ImageConfig::default()
        };
        (manifest, config)
    }

    #[test]
    fn a_configuration_that_names_another_images_layer_does_not_get_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        let secret = TarBuilder::default().file("secret", b"of somebody else").end();
        let (manifest, config) = image(&store, &secret, ImageDigest::of(&secret));
        let flat = LayerOwnership::Flat;
        store
            .unpack_layers(&manifest, &config, flat, &NoIds, &NoProgress)
            .unwrap();
        store.verify_layers(&manifest, &config).unwrap();
        let own = TarBuilder::default().file("own", b"of mine").end();
        let (manifest, config) = image(&store, &own, ImageDigest::of(&secret));
        store
            .unpack_layers(&manifest, &config, flat, &NoIds, &NoProgress)
            .unwrap();
        let error = store.verify_layers(&manifest, &config).unwrap_err();
        let ImageError::Layer { source, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.reason, LayerRefusal::OtherContents);
    }

    #[test]
    fn what_is_noted_is_found_and_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::at(&directory.path().join("images")).unwrap();
        let digest = ImageDigest::of(b"x");
        assert_eq!(store.proof(&digest), BlobProof::default());
        store.note_partial_source(&digest, "one/a").unwrap();
        assert_eq!(store.proof(&digest).partial_source.as_deref(), Some("one/a"));
        for number in 0..=MAX_SOURCES {
            store.note_source(&digest, &format!("host{number}/a")).unwrap();
        }
        let proof = store.proof(&digest);
        assert_eq!((proof.sources.len(), proof.partial_source), (MAX_SOURCES, None));
        assert!(proof.sources.contains("host0/a"));
    }
}
