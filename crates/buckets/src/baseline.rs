//! What a volume and its bucket had in common when they were last brought to the same.
//!
//! It is written beside the volume's data, as a whole each time. One that is lost or too old costs time and no data: what is
//! the same on both sides is found out by comparing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use offleash_core::bucket::BucketSpec;
use offleash_store::FileStamp;
use serde::{Deserialize, Serialize};

/// The form of [`Written`]; another one is not understood.
const VERSION: u32 = 1;
/// Longest file, bytes: [`crate::bounds::MAX_OBJECTS`] with long names.
const MAX_BYTES: u64 = 256 << 20;

/// An object that is a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Common {
    /// The object's version, as its server calls it.
    pub(crate) tag: String,
    /// What tells whether the file was written since.
    pub(crate) stamp: FileStamp,
    /// SHA-256 of both.
    pub(crate) sha256: String,
}

/// What is in common, by keys without the prefix.
#[derive(Debug)]
pub(crate) struct Baseline {
    path: PathBuf,
    bucket: String,
    pub(crate) objects: BTreeMap<String, Common>,
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    version: u32,
    /// Which bucket: another one has nothing in common yet.
    bucket: std::borrow::Cow<'a, str>,
    objects: std::borrow::Cow<'a, BTreeMap<String, Common>>,
}

impl Baseline {
    /// What is written at `path` of this bucket; nothing, where nothing of it is.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub(crate) fn read(path: PathBuf, spec: &BucketSpec) -> io::Result<Self> {
        let bucket = format!("{} {}", spec.endpoint, spec.location);
        let objects = match read(&path)? {
            Some(written) if written.version == VERSION && written.bucket == bucket => written.objects.into_owned(),
            _ => BTreeMap::new(),
        };
        Ok(Self { path, bucket, objects })
    }

    /// Writes it down, in place of what was written before.
    ///
    /// # Errors
    /// When it cannot be written; what was written before stays.
    pub(crate) fn write(&self) -> io::Result<()> {
        let written = Written {
            version: VERSION,
            bucket: self.bucket.as_str().into(),
            objects: std::borrow::Cow::Borrowed(&self.objects),
        };
        // Who synchronises is alone.
        let new = self.path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&written)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }
}

fn read(path: &Path) -> io::Result<Option<Written<'static>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    // What was cut is as good as none.
    Ok(serde_json::from_slice(&text).ok())
}
