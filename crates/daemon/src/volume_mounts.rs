//! What callers ask of volumes and are told of them.

use offleash_core::spec::{MountAccess, VolumeMount};
use offleash_core::volume::{VolumeId, VolumeKey, VolumeName};
use offleash_store::VolumeRecord;
use serde::{Deserialize, Serialize};

/// A volume that is asked for; what is absent is the usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRequest {
    /// What it is to be called.
    pub name: String,
    /// How much its files may take on disk, MiB.
    pub size_mib: Option<u64>,
    /// How many files, directories and links it may have.
    pub inodes: Option<u64>,
    /// Whether many sandboxes may write to it at the same time.
    pub shared: bool,
    /// The bucket that it is to be synchronised with.
    pub bucket: Option<BucketRequest>,
}

/// A bucket that a volume is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRequest {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    pub url: String,
    /// Who has it; Amazon if absent.
    pub endpoint: Option<String>,
    /// The region of it.
    pub region: Option<String>,
    /// The secret of the caller with its credentials; everybody may read it if absent.
    pub secret: Option<String>,
    /// Whether nothing is written to it.
    pub read_only: bool,
}

/// A volume that a sandbox is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMountRequest {
    /// Its name or its id.
    pub volume: String,
    /// The absolute path inside.
    pub path: String,
    /// Whether it is only read.
    pub read_only: bool,
}

/// A volume that a sandbox has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxVolume {
    /// Its id.
    pub id: VolumeId,
    /// What it is called.
    pub name: VolumeName,
    /// The absolute path inside.
    pub path: String,
    /// Read-only or read-write.
    pub access: MountAccess,
}

impl SandboxVolume {
    /// What a supervisor is told of it.
    pub(crate) fn mount(&self) -> VolumeMount {
        VolumeMount {
            volume: VolumeKey::Id(self.id.clone()),
            target: self.path.clone().into(),
            access: self.access,
        }
    }
}

/// A volume, as its owner sees it.
#[derive(Debug, Clone)]
pub struct VolumeView {
    /// What is known of it.
    pub record: VolumeRecord,
    /// Whether sandboxes have it.
    pub in_use: bool,
}
