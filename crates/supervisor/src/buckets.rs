//! Volumes that have a bucket: brought to the same with that before a sandbox has them and after it had them.
//!
//! The credentials stay with who synchronises: this process, or for a daemon another one that does nothing else. No sandbox is
//! told of them.

use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::time::Duration;

use offleash_buckets::BucketError;
pub use offleash_buckets::{ObjectList, ObjectNote, SyncOutcome, SyncReport};
use offleash_core::bucket::{BucketCredentials, BucketSecret, SyncChoice};
use offleash_core::error::{ErrorKind, Explained, with_causes};
use offleash_core::network::secret::{SecretSource, SecretValue, ValueError};
use offleash_core::spec::{MountAccess, VolumeMount};
use offleash_core::text::Text;
use offleash_core::volume::{VolumeId, VolumeKey};
use offleash_images::RegistrySettings;
use offleash_protocol::Dialogue;
use offleash_store::{HeldVolume, HostIdentity, StateDirectory, VolumeError};
use serde::{Deserialize, Serialize};

use crate::lifecycle::read_file;
use crate::volumes;

/// The role of a process that brings a volume and its bucket to the same.
pub const SYNC_ROLE: &str = "sync-volume";

/// How long somebody is waited for who synchronises the same volume: the end of a sandbox goes before the next one.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(60);

/// What a process of that role is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct SyncVolumeOrder {
    /// The state directory.
    pub state: Text,
    /// The volume, which its owner has named.
    pub volume: VolumeId,
    /// Which way, and what of that loses what it has.
    pub choice: SyncChoice,
    /// The credentials, where the daemon has them.
    pub credentials: Option<SecretValue>,
    /// How servers are reached.
    pub settings: RegistrySettings,
}

impl Dialogue for SyncVolumeOrder {
    const MAX_FRAME: usize = 1024 * 1024;
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncVolumeAnswer {
    /// What was done, up to a failure.
    pub report: SyncReport,
    /// Why it ended early.
    pub failure: Option<SyncFailure>,
}

impl Dialogue for SyncVolumeAnswer {
    const MAX_FRAME: usize = 1024 * 1024;
}

/// Why synchronising ended early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFailure {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// What was tried, and why it failed, with its causes.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Why a volume cannot be brought to the same with its bucket.
#[derive(Debug, thiserror::Error)]
pub enum SyncVolumeError {
    /// The credentials are not where the volume says.
    #[error("the credentials of the bucket of volume `{name}` cannot be read from `{source_text}`: {reason}")]
    Credentials {
        /// The volume.
        name: String,
        /// Where they should be.
        source_text: SecretSource,
        /// What is wrong.
        reason: String,
    },
    /// The credentials are with a daemon.
    #[error("the credentials of the bucket of volume `{name}` are the secret `{secret}` of a server")]
    OfServer {
        /// The volume.
        name: String,
        /// What they are called there.
        secret: String,
    },
    /// What was found as credentials has no form that a value has.
    #[error("the credentials of the bucket of volume `{name}`: {reason}")]
    Value {
        /// The volume.
        name: String,
        /// What is wrong.
        reason: ValueError,
    },
    /// Volume and bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Explained for SyncVolumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials { .. } | Self::Value { .. } | Self::OfServer { .. } => ErrorKind::Invalid,
            Self::Bucket(error) => error.kind(),
            Self::Volume(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Credentials { .. } | Self::Value { .. } => {
                Some("put ACCESS_KEY_ID:SECRET_ACCESS_KEY there, in one line".to_owned())
            }
            Self::OfServer { .. } => {
                Some("synchronise it through the server: `POST /v1/volumes/{volume}/sync`".to_owned())
            }
            Self::Bucket(error) => error.hint(),
            Self::Volume(error) => error.hint(),
        }
    }
}

/// Carries out an order, in a process of its own.
pub fn sync_for_daemon(order: &SyncVolumeOrder) -> SyncVolumeAnswer {
    let done = || {
        let state = order.state.as_path();
        let state = existing(Some(state))?;
        let missing = || VolumeError::Missing {
            which: order.volume.to_string(),
        };
        let store = state.ok_or_else(missing)?.volumes().map_err(VolumeError::from)?;
        let volume = store.hold(&VolumeKey::Id(order.volume.clone()), MountAccess::Ro)?;
        sync(&volume, order.credentials.as_ref(), &order.settings, order.choice)
    };
    match done() {
        Ok(SyncOutcome { report, failure }) => SyncVolumeAnswer {
            report,
            failure: failure.map(|error| SyncFailure::of(&error)),
        },
        Err(error) => SyncVolumeAnswer {
            report: SyncReport::default(),
            failure: Some(SyncFailure::of(&error)),
        },
    }
}

/// Brings a volume and its bucket to the same. Credentials that nobody hands in are read where the volume says.
///
/// # Errors
/// When it cannot begin; what ended it early is in the answer.
pub fn sync(
    volume: &HeldVolume,
    credentials: Option<&SecretValue>,
    settings: &RegistrySettings,
    choice: SyncChoice,
) -> Result<SyncOutcome, SyncVolumeError> {
    let record = volume.record();
    let name = || record.name.to_string();
    let spec = record.bucket.as_ref();
    let spec = spec.ok_or_else(|| BucketError::NoBucket { name: name() })?;
    let own = match (credentials, &spec.credentials) {
        (Some(_), _) | (None, None) => None,
        (None, Some(BucketSecret::Named(secret))) => {
            return Err(SyncVolumeError::OfServer {
                name: name(),
                secret: secret.clone(),
            });
        }
        (None, Some(BucketSecret::Source(source))) => Some(read(source, &name())?),
    };
    let credentials = credentials.or(own.as_ref());
    let text = credentials.map(|value| String::from_utf8_lossy(value.expose()));
    let credentials = text.map(|text| text.parse::<BucketCredentials>()).transpose();
    Ok(offleash_buckets::sync(offleash_buckets::SyncOrder {
        volume,
        credentials: credentials.map_err(BucketError::from)?,
        settings,
        choice,
        room: volumes::room(volume)?,
        wait: OTHERS_TIMEOUT,
    }))
}

fn read(source: &SecretSource, name: &str) -> Result<SecretValue, SyncVolumeError> {
    let wrong = |reason: String| SyncVolumeError::Credentials {
        name: name.to_owned(),
        source_text: source.clone(),
        reason,
    };
    let bytes = read_source(source).map_err(|error| wrong(error.to_string()))?;
    SecretValue::new(bytes).map_err(|reason| SyncVolumeError::Value {
        name: name.to_owned(),
        reason,
    })
}

/// What is written where a volume says that its credentials are; a path is absolute.
fn read_source(source: &SecretSource) -> io::Result<Vec<u8>> {
    match source {
        SecretSource::Variable(variable) => {
            let value = std::env::var_os(variable).ok_or_else(|| io::Error::other("it is not set"))?;
            Ok(value.into_vec())
        }
        SecretSource::File(path) => read_file(Path::new(path)),
    }
}

fn existing(state: Option<&Path>) -> Result<Option<StateDirectory>, VolumeError> {
    Ok(StateDirectory::open_existing(state, &HostIdentity::of_this_process())?)
}

/// The volumes with a bucket among those that a sandbox asks for, with whether it may write to them.
///
/// # Errors
/// As [`offleash_store::VolumeStore::find`].
pub fn with_buckets(
    state: Option<&Path>,
    mounts: &[VolumeMount],
) -> Result<Vec<(HeldVolume, MountAccess)>, VolumeError> {
    let mut found = Vec::new();
    if mounts.is_empty() {
        return Ok(found);
    }
    let Some(state) = existing(state)? else {
        return Ok(found);
    };
    let store = state.volumes()?;
    for mount in mounts {
        let held = store.hold(&mount.volume, MountAccess::Ro)?;
        if held.record().bucket.is_some() {
            found.push((held, mount.access));
        }
    }
    Ok(found)
}

impl SyncFailure {
    fn of(error: &(impl Explained + 'static)) -> Self {
        Self {
            kind: error.kind(),
            message: with_causes(error),
            hint: error.hint(),
        }
    }
}
