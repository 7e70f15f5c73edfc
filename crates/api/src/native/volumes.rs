//! Volumes in the native REST.

use http::{Response, StatusCode};
use offleash_core::bucket::{BucketSpec, SyncChoice, SyncDirection};
use offleash_core::spec::MountAccess;
use offleash_daemon::{BucketRequest, Daemon, SandboxVolume, VolumeRequest, VolumeView};
use offleash_supervisor::buckets::{ObjectList, ObjectNote, SyncReport};
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
    /// The bucket whose objects are its files; none if absent.
    bucket: Option<NewBucket>,
}

/// A bucket of S3 that a volume is synchronised with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBucket {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    url: String,
    /// Who has it, `https://HOST[:PORT]`, one of those that the server allows; Amazon in the region if absent.
    endpoint: Option<String>,
    /// Its region; `us-east-1` if absent.
    region: Option<String>,
    /// The secret of the key that holds `ACCESS_KEY_ID:SECRET_ACCESS_KEY`; if absent, everybody may read the bucket.
    secret: Option<String>,
    /// Whether nothing is written to it; it is if absent.
    read_only: Option<bool>,
}

/// How a volume and its bucket are brought to the same.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SyncBody {
    /// Which way; both if absent.
    direction: Option<SyncWay>,
    /// Whether what is gone on one side is removed on the other; it stays if absent.
    delete: Option<bool>,
    /// Whether of what has changed on both sides that is replaced to which the direction leads; both stay if absent.
    overwrite: Option<bool>,
}

/// Which way objects and files go.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SyncWay {
    /// Into the volume.
    Pull,
    /// Into the bucket.
    Push,
    /// What has changed on one side goes to the other.
    Both,
}

/// What became of the objects and the files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SyncAnswer {
    /// Objects that went into the volume.
    fetched: u64,
    /// Their bytes.
    fetched_bytes: u64,
    /// Files that went into the bucket.
    sent: u64,
    /// Their bytes.
    sent_bytes: u64,
    /// Files that were removed, since their objects are gone.
    removed_here: u64,
    /// Objects that were removed, since their files are gone.
    removed_there: u64,
    /// What is the same on both sides.
    same: u64,
    /// What has changed on the side that nothing is taken from.
    waiting: u64,
    /// What is gone on one side and stays on the other.
    kept: u64,
    /// What has changed on both sides. Each side keeps its own.
    conflicts: SyncNotes,
    /// What cannot be on the other side: objects whose names are no paths, and what is no file.
    left_out: SyncNotes,
    /// What could not be fetched or sent this time.
    failed: SyncNotes,
}

/// Objects or files, some of them by name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SyncNotes {
    /// How many there are.
    count: u64,
    /// Some of them.
    named: Vec<SyncNote>,
}

/// An object or a file, and what there is to say of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SyncNote {
    /// Its path in the volume.
    name: String,
    /// As in `a part of its name is empty`.
    why: String,
}

/// The bucket of a volume.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "VolumeBucket")]
pub(crate) struct BucketAnswer {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    url: String,
    /// Who has it.
    endpoint: String,
    /// Its region.
    region: String,
    /// Whether nothing is written to it.
    read_only: bool,
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
    /// The bucket that it is synchronised with.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<BucketAnswer>,
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
            bucket: record.bucket.map(BucketAnswer::from),
        }
    }
}

impl From<BucketSpec> for BucketAnswer {
    fn from(bucket: BucketSpec) -> Self {
        Self {
            url: bucket.location.into(),
            endpoint: bucket.endpoint.into(),
            region: bucket.region,
            read_only: bucket.read_only,
        }
    }
}

impl From<NewBucket> for BucketRequest {
    fn from(bucket: NewBucket) -> Self {
        Self {
            url: bucket.url,
            endpoint: bucket.endpoint,
            region: bucket.region,
            secret: bucket.secret,
            read_only: bucket.read_only.unwrap_or(false),
        }
    }
}

impl From<SyncReport> for SyncAnswer {
    fn from(report: SyncReport) -> Self {
        Self {
            fetched: report.fetched,
            fetched_bytes: report.fetched_bytes,
            sent: report.sent,
            sent_bytes: report.sent_bytes,
            removed_here: report.removed_here,
            removed_there: report.removed_there,
            same: report.same,
            waiting: report.waiting,
            kept: report.kept,
            conflicts: report.conflicts.into(),
            left_out: report.left_out.into(),
            failed: report.failed.into(),
        }
    }
}

impl From<ObjectList> for SyncNotes {
    fn from(list: ObjectList) -> Self {
        let note = |note: ObjectNote| SyncNote {
            name: note.name.to_string(),
            why: note.why,
        };
        Self {
            count: list.count,
            named: list.named.into_iter().map(note).collect(),
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
        bucket: new.bucket.map(BucketRequest::from),
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

pub(crate) async fn sync(asked: &ApiRequest<'_>, which: &str, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let SyncBody {
        direction,
        delete,
        overwrite,
    } = body.read().await?;
    let choice = SyncChoice {
        direction: match direction {
            Some(SyncWay::Pull) => SyncDirection::Pull,
            Some(SyncWay::Push) => SyncDirection::Push,
            Some(SyncWay::Both) | None => SyncDirection::Both,
        },
        delete: delete.unwrap_or(false),
        overwrite: overwrite.unwrap_or(false),
    };
    let which = query::decoded(which);
    let synced = asked
        .whole(|daemon: Daemon, caller| async move { daemon.sync_volume(&caller, &which, choice).await })
        .await?;
    Ok(answer::json(StatusCode::OK, &SyncAnswer::from(synced)))
}
