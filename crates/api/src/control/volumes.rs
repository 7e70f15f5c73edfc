//! Volumes of a sandbox, as the native REST and the tools read them.

use offleash_daemon::VolumeMountRequest;
use schemars::JsonSchema;
use serde::Deserialize;

/// A volume that a sandbox is to have.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewVolumeMount")]
pub(crate) struct NewVolumeMount {
    /// The volume, by name or id.
    pub(crate) volume: String,
    /// Where it is in the sandbox: an absolute path.
    pub(crate) path: String,
    /// Whether it is only read; it is written to if absent.
    pub(crate) read_only: Option<bool>,
}

/// What the daemon is asked for.
pub(crate) fn mounts(asked: Option<Vec<NewVolumeMount>>) -> Vec<VolumeMountRequest> {
    let mount = |mount: NewVolumeMount| VolumeMountRequest {
        volume: mount.volume,
        path: mount.path,
        read_only: mount.read_only.unwrap_or(false),
    };
    asked.unwrap_or_default().into_iter().map(mount).collect()
}
