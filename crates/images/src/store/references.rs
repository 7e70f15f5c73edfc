//! Names, and which manifests they mean.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::{ImageStore, REFERENCES, lock, read_up_to, write_whole};
use crate::digest::{ImageDigest, chain_ids};
use crate::error::ImageError;
use crate::manifest::{ImageConfig, ImageManifest, MAX_CONFIG, MAX_MANIFEST, ManifestDocument};
use crate::reference::ImageReference;
use crate::unpack::{LayerOwnership, LayerReport};

const VERSION: u32 = 1;
const MAX_RECORD: u64 = 64 << 10;
/// How much of a digest tells an image from others.
const MIN_PREFIX: usize = 6;

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageRecord {
    version: u32,
    /// The whole name; `None` for an image that was loaded and has none.
    pub name: Option<ImageReference>,
    /// The digest of its manifest.
    pub digest: ImageDigest,
    /// The digest of the list of several that it was taken from.
    pub index: Option<ImageDigest>,
    /// The digest of its configuration.
    pub config: ImageDigest,
    /// Bytes of configuration and layers, as they were sent.
    pub bytes: u64,
    /// When it was pulled or loaded, RFC 3339.
    pub added_at: String,
}

/// An image as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageListing {
    /// What its name means.
    pub record: ImageRecord,
    /// Whether a run uses it.
    pub in_use: bool,
    /// What its configuration says.
    pub config: ImageConfig,
    /// The digests of its layers as they were sent, the lowest first.
    pub layers: Vec<ImageDigest>,
    /// What was left out of it, by the form in which it is unpacked.
    pub unpacked: Vec<(LayerOwnership, LayerReport)>,
}

impl ImageRecord {
    pub(crate) fn new(
        name: Option<ImageReference>,
        digest: ImageDigest,
        index: Option<ImageDigest>,
        manifest: &ImageManifest,
    ) -> Self {
        Self {
            version: VERSION,
            name,
            digest,
            index,
            config: manifest.config.digest,
            bytes: manifest.bytes(),
            added_at: offleash_store::rfc3339_now(),
        }
    }

    /// What it is called where there is room for a line: its name, or its id.
    pub fn shown_name(&self) -> String {
        match &self.name {
            Some(name) => name.familiar(),
            None => self.digest.to_string(),
        }
    }
}

impl ImageStore {
    /// Makes a name mean an image, whose parts are all here.
    pub(crate) fn name_image(&self, record: &ImageRecord) -> Result<(), ImageError> {
        let path = self.record_path(record);
        let bytes = serde_json::to_vec(record).map_err(|error| ImageError::malformed("the record", error))?;
        write_whole(&path, &bytes)
    }

    /// Gives an image another name, which means nothing else from then on.
    ///
    /// # Errors
    /// As [`Self::find`]; when the name cannot be written.
    pub fn tag(&self, source: &str, name: &ImageReference) -> Result<ImageRecord, ImageError> {
        if name.digest().is_some() {
            return Err(ImageError::malformed(
                "the name",
                "one with a digest is that image's alone",
            ));
        }
        let _adding = self.lock_for_adding()?;
        let record = ImageRecord {
            name: Some(name.clone()),
            added_at: offleash_store::rfc3339_now(),
            ..self.find(source)?
        };
        self.name_image(&record)?;
        Ok(record)
    }

    pub(super) fn record_path(&self, record: &ImageRecord) -> PathBuf {
        let name = record.name.as_ref().map(ToString::to_string);
        self.path_of_name(&name.unwrap_or_else(|| record.digest.to_string()))
    }

    fn path_of_name(&self, name: &str) -> PathBuf {
        let digest = ImageDigest::of(name.as_bytes());
        self.path.join(REFERENCES).join(format!("{}.json", digest.hex()))
    }

    /// What `name` means here: a name as it is pulled, or an id, or the beginning of one.
    ///
    /// # Errors
    /// [`ImageError::Missing`]; [`ImageError::Ambiguous`].
    pub fn find(&self, name: &str) -> Result<ImageRecord, ImageError> {
        let missing = || ImageError::Missing { name: name.to_owned() };
        if let Ok(reference) = name.parse::<ImageReference>()
            && let Some(record) = self.read_record(self.path_of_name(&reference.to_string()))?
        {
            return Ok(record);
        }
        let prefix = name.strip_prefix("sha256:").unwrap_or(name);
        let is_prefix = prefix.len() >= MIN_PREFIX && prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_prefix {
            name.parse::<ImageReference>()?;
            return Err(missing());
        }
        let is_meant = |record: &ImageRecord| {
            [Some(record.digest), Some(record.config), record.index]
                .into_iter()
                .flatten()
                .any(|digest| digest.hex().starts_with(prefix))
        };
        let mut found: Vec<ImageRecord> = self.records()?.into_iter().filter(is_meant).collect();
        found.sort_by_key(|record| record.digest);
        found.dedup_by_key(|record| record.digest);
        if found.is_empty()
            && let Ok(digest) = name.parse::<ImageDigest>()
            && self.kept()?.iter().any(|(_, kept)| *kept == digest)
            && let Ok((manifest, _)) = self.documents(&digest)
        {
            // One that a build made has no name. Any other blob is no image, whatever it says.
            return Ok(ImageRecord::new(None, digest, None, &manifest));
        }
        match found.len() {
            0 | 1 => found.pop().ok_or_else(missing),
            _ => Err(ImageError::Ambiguous {
                prefix: name.to_owned(),
            }),
        }
    }

    /// All names and what they mean, sorted by name. A record that cannot be read is left out.
    pub(crate) fn records(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let directory = self.path.join(REFERENCES);
        let found = fs::read_dir(&directory).map_err(ImageError::file("listing", &directory))?;
        let mut records = Vec::new();
        for entry in found {
            let path = entry.map_err(ImageError::file("listing", &directory))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                records.extend(self.read_record(path)?);
            }
        }
        records.sort_by(|one, other| (&one.name, one.digest).cmp(&(&other.name, other.digest)));
        Ok(records)
    }

    fn read_record(&self, path: PathBuf) -> Result<Option<ImageRecord>, ImageError> {
        let bytes = match read_up_to(&path, MAX_RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(ImageError::file("reading", &path))?,
        };
        let record = serde_json::from_slice::<ImageRecord>(&bytes);
        Ok(record.ok().filter(|record| record.version == VERSION))
    }

    /// The documents of an image.
    pub(crate) fn documents(&self, digest: &ImageDigest) -> Result<(ImageManifest, ImageConfig), ImageError> {
        let bytes = self.read_blob("the manifest", digest, MAX_MANIFEST)?;
        let ManifestDocument::Image(manifest) = ManifestDocument::read(&bytes, None)? else {
            return Err(ImageError::malformed("the manifest", "it is a list of several"));
        };
        let bytes = self.read_blob("the configuration", &manifest.config.digest, MAX_CONFIG)?;
        let config = ImageConfig::read(&bytes, manifest.layers.len())?;
        Ok((manifest, config))
    }

    /// All images.
    ///
    /// # Errors
    /// When something of the store cannot be read.
    pub fn list(&self) -> Result<Vec<ImageListing>, ImageError> {
        self.records()?.into_iter().map(|record| self.listing(record)).collect()
    }

    /// All that is known of an image.
    ///
    /// # Errors
    /// As [`Self::find`]; when something of it is missing.
    pub fn inspect(&self, name: &str) -> Result<ImageListing, ImageError> {
        self.listing(self.find(name)?)
    }

    fn listing(&self, record: ImageRecord) -> Result<ImageListing, ImageError> {
        let (manifest, config) = self.documents(&record.digest)?;
        let mut unpacked = Vec::new();
        for ownership in [LayerOwnership::Flat, LayerOwnership::Owned] {
            let reports = chain_ids(&config.diff_ids)
                .into_iter()
                .map(|chain| self.layer_report(ownership, &chain));
            if let Some(reports) = reports.collect::<Option<Vec<LayerReport>>>() {
                let all = reports.into_iter().fold(LayerReport::default(), LayerReport::plus);
                unpacked.push((ownership, all));
            }
        }
        Ok(ImageListing {
            in_use: !lock::is_free(&self.blob_path(&record.digest))?,
            layers: manifest.layers.iter().map(|layer| layer.digest).collect(),
            record,
            config,
            unpacked,
        })
    }
}
