//! Images that builds made: kept by the step or the template that they are of, as long as that is known.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use super::{ImageStore, KEPT, read_up_to, write_whole};
use crate::digest::ImageDigest;
use crate::error::ImageError;

const VERSION: u32 = 1;
const MAX_RECORD: u64 = 4 << 10;

/// What an image is kept by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptName {
    /// A step of builds, by the digest of all that it depends on.
    Step(ImageDigest),
    /// A build of a template, by its id of digits and a-f.
    Template(String),
}

#[derive(serde::Serialize, serde::Deserialize)]
struct KeptRecord {
    version: u32,
    digest: ImageDigest,
}

impl KeptName {
    fn file_name(&self) -> String {
        match self {
            Self::Step(key) => format!("step-{}.json", key.hex()),
            Self::Template(build) => format!("template-{build}.json"),
        }
    }

    fn of_file(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".json")?;
        if let Some(key) = name.strip_prefix("step-") {
            return ImageDigest::from_hex(key).map(Self::Step);
        }
        let build = name.strip_prefix("template-")?;
        let is_id = !build.is_empty() && build.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self::Template(build.to_owned()))
    }
}

impl ImageStore {
    fn kept_path(&self, name: &KeptName) -> PathBuf {
        self.path.join(KEPT).join(name.file_name())
    }

    /// Keeps an image whose parts are all here; who calls it has the lock for adding.
    pub(crate) fn keep(&self, name: &KeptName, digest: &ImageDigest) -> Result<(), ImageError> {
        let record = KeptRecord {
            version: VERSION,
            digest: *digest,
        };
        let bytes = serde_json::to_vec(&record).map_err(|error| ImageError::malformed("the record", error))?;
        write_whole(&self.kept_path(name), &bytes)
    }

    /// What a step or a template made, if it is here.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn find_kept(&self, name: &KeptName) -> Result<Option<ImageDigest>, ImageError> {
        let path = self.kept_path(name);
        let bytes = match read_up_to(&path, MAX_RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(ImageError::file("reading", &path))?,
        };
        let record = serde_json::from_slice::<KeptRecord>(&bytes).ok();
        let digest = record
            .filter(|record| record.version == VERSION)
            .map(|record| record.digest);
        Ok(digest.filter(|digest| self.has_blob(digest)))
    }

    /// All that builds made, but for what cannot be read.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn kept(&self) -> Result<Vec<(KeptName, ImageDigest)>, ImageError> {
        let directory = self.path.join(KEPT);
        let mut kept = Vec::new();
        for entry in fs::read_dir(&directory).map_err(ImageError::file("listing", &directory))? {
            let entry = entry.map_err(ImageError::file("listing", &directory))?;
            let Some(name) = entry.file_name().to_str().and_then(KeptName::of_file) else {
                continue;
            };
            if let Some(digest) = self.find_kept(&name)? {
                kept.push((name, digest));
            }
        }
        kept.sort();
        Ok(kept)
    }

    /// Keeps it no longer; what nothing else needs goes when others are removed.
    ///
    /// # Errors
    /// When its record cannot be removed.
    pub fn forget_kept(&self, name: &KeptName) -> Result<(), ImageError> {
        let path = self.kept_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ImageError::file("removing", &path)(error)),
            _ => File::open(self.path.join(KEPT))
                .and_then(|directory| directory.sync_all())
                .map_err(ImageError::file("writing", &path)),
        }
    }

    /// The digests of an image's layers without compression, the lowest first.
    ///
    /// # Errors
    /// When it is not here.
    pub fn layers_of(&self, digest: &ImageDigest) -> Result<Vec<ImageDigest>, ImageError> {
        Ok(self.documents(digest)?.1.diff_ids)
    }
}
