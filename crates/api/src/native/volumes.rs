//! Volumes in the native REST.

use http::{Response, StatusCode};
use offleash_core::spec::MountAccess;
use offleash_daemon::{Daemon, SandboxVolume, VolumeRequest, VolumeView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

/// A volume that is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewVolume {
    /// What it is called; the key has no other of that name.
    name: String,
    /// How much its files may take on disk, MiB; 1024 if absent.
    size_mib: Option<u64>,
    /// How many files, directories and links it may have; 500000 if absent.
    inodes: Option<u64>,
    /// Whether many sandboxes may write to it at the same time; one if absent.
    shared: Option<bool>,
}

/// A volume: a directory that outlives sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Volume")]
pub(crate) struct VolumeAnswer {
    /// Its id.
    id: String,
    /// What it is called.
    name: String,
    /// How much its files may take on disk, MiB.
    size_mib: u64,
    /// How many files, directories and links it may have.
    inodes: u64,
    /// Whether many sandboxes may write to it at the same time.
    shared: bool,
    /// Whether sandboxes have it.
    in_use: bool,
    /// When it was made.
    created_at: String,
}

/// Several volumes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct VolumeList {
    /// The volumes, by name.
    volumes: Vec<VolumeAnswer>,
}

/// A volume of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "VolumeMount")]
pub(crate) struct VolumeMountAnswer {
    /// The volume's id.
    id: String,
    /// What it is called.
    volume: String,
    /// Where it is in the sandbox.
    path: String,
    /// Whether it is only read.
    read_only: bool,
}

impl From<SandboxVolume> for VolumeMountAnswer {
    fn from(volume: SandboxVolume) -> Self {
        Self {
            id: volume.id.into(),
            volume: volume.name.into(),
            path: volume.path,
            read_only: volume.access == MountAccess::Ro,
        }
    }
}

impl From<VolumeView> for VolumeAnswer {
    fn from(VolumeView { record, in_use }: VolumeView) -> Self {
        Self {
            id: record.id.into(),
            name: record.name.into(),
            size_mib: record.quota.bytes.0.div_ceil(1 << 20),
            inodes: record.quota.inodes,
            shared: record.shared,
            in_use,
            created_at: record.created_at,
        }
    }
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewVolume = body.read().await?;
    let request = VolumeRequest {
        name: new.name,
        size_mib: new.size_mib,
        inodes: new.inodes,
        shared: new.shared.unwrap_or(false),
    };
    let made = asked.whole(|daemon, caller| async move { daemon.create_volume(&caller, request).await });
    Ok(answer::json(StatusCode::CREATED, &VolumeAnswer::from(made.await?)))
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().list_volumes(&asked.caller).await;
    let listed = listed.map_err(|error| asked.refused(&error))?;
    let list = VolumeList {
        volumes: listed.into_iter().map(VolumeAnswer::from).collect(),
    };
    Ok(answer::json(StatusCode::OK, &list))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().volume(&asked.caller, &query::decoded(which)).await;
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &VolumeAnswer::from(found)))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    asked
        .whole(|daemon: Daemon, caller| async move { daemon.remove_volume(&caller, &which).await })
        .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
