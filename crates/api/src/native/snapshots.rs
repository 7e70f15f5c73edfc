//! Snapshots and checkpoints in the native REST.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use offleash_daemon::{CarriedContexts, DaemonError, SnapshotFilter, SnapshotRequest, SnapshotView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sandboxes::named;
use super::shapes::{LimitsAnswer, SandboxAnswer};
use crate::control::{ApiRequest, snapshot_filter};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::driven::driven;
use crate::http::json::RequestBody;
use crate::http::source::{PackedUpload, UploadSource as _};
use crate::http::{failure, query, time};

/// What an archive of a snapshot is.
pub(crate) const TAR: &str = "application/x-tar";
/// What is read on of an archive that was refused.
const DRAINED: usize = 4 << 20;

/// A snapshot that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSnapshot {
    /// What it is called; the snapshot that the key had under that name has none any more.
    name: Option<String>,
    /// What sandboxes made of it have of contexts of code: `all`, and there is no snapshot where something cannot be carried;
    /// what is `possible`; `none`. `all` if absent.
    contexts: Option<String>,
}

/// A checkpoint that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCheckpoint {
    /// What it is called; the checkpoint that the sandbox had under that name has none any more.
    name: Option<String>,
}

/// What a sandbox is put back to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Restore")]
pub(crate) struct RestoreBody {
    /// The checkpoint, by its id or its name.
    checkpoint: String,
}

/// A snapshot or a checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Snapshot")]
pub(crate) struct SnapshotAnswer {
    /// Its id.
    id: String,
    /// Whose it is: the id of a key.
    key: String,
    /// What it is called.
    name: Option<String>,
    /// The sandbox that it was made of, which may be gone; `null` if it was imported.
    sandbox: Option<String>,
    /// The template that it lies over.
    template: String,
    /// Which build of that, or the digest of the image; `null` for the base.
    build: Option<String>,
    /// Variables for every command in sandboxes made of it.
    env: BTreeMap<String, String>,
    /// What they may use if nobody says.
    limits: Option<LimitsAnswer>,
    /// Ids of the contexts of code that they begin with.
    contexts: Vec<String>,
    /// The checkpoint that the sandbox was at before; `null` for snapshots and for the first.
    parent: Option<String>,
    /// Why it was made, if by itself, as in `every 600 s`; `null` if somebody made it.
    automatic: Option<String>,
    /// Bytes on disk that its files take, also those that it shares with others.
    bytes: u64,
    /// Files, directories and links.
    files: u64,
    /// How long the sandbox stood still for it, milliseconds.
    held_ms: f64,
    /// When it was made.
    created_at: String,
}

/// A page of snapshots, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SnapshotList {
    snapshots: Vec<SnapshotAnswer>,
    /// What `nextToken` must be for those that follow; `null` when these are the last.
    next: Option<String>,
}

/// The checkpoints of a sandbox, the oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckpointList {
    checkpoints: Vec<SnapshotAnswer>,
    /// The one that the sandbox was put back to, or that was made last.
    current: Option<String>,
}

impl From<SnapshotView> for SnapshotAnswer {
    fn from(view: SnapshotView) -> Self {
        Self {
            id: view.id,
            key: view.key,
            name: view.name,
            sandbox: view.sandbox,
            template: view.template,
            build: view.build,
            env: view.env,
            limits: view.limits.map(LimitsAnswer::from),
            contexts: view.contexts,
            parent: view.parent,
            automatic: view.automatic,
            bytes: view.bytes,
            files: view.files,
            held_ms: view.held.as_secs_f64() * 1000.0,
            created_at: time::text(view.created_at),
        }
    }
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let NewSnapshot { name, contexts } = body.read().await?;
    let contexts = contexts.as_deref().map(CarriedContexts::parse).transpose();
    let request = SnapshotRequest {
        name: name.as_deref().map(named).transpose()?,
        contexts: contexts.map_err(|error| asked.refused(&error))?.unwrap_or_default(),
    };
    let made = asked.whole(|daemon, caller| async move { daemon.create_snapshot(&caller, &id, request).await });
    Ok(answer::json(StatusCode::CREATED, &SnapshotAnswer::from(made.await?)))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let filter: SnapshotFilter = snapshot_filter(asked.query(), "sandbox")?;
    let page = asked.daemon().list_snapshots(&asked.caller, &filter);
    let page = page.map_err(|error| asked.refused(&error))?;
    let list = SnapshotList {
        snapshots: page.snapshots.into_iter().map(SnapshotAnswer::from).collect(),
        next: page.next,
    };
    Ok(answer::json(StatusCode::OK, &list))
}

pub(crate) fn get(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().snapshot(&asked.caller, &query::decoded(given));
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &SnapshotAnswer::from(found)))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(given);
    asked
        .whole(|daemon, caller| async move { daemon.remove_snapshot(&caller, &which).await })
        .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// Sends a snapshot as it is packed.
pub(crate) async fn export(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let export = asked
        .daemon()
        .export_snapshot(&asked.caller, &query::decoded(given))
        .await;
    let mut export = export.map_err(|error| asked.refused(&error))?;
    let name = format!("attachment; filename=\"{}.tar\"", export.id());
    let control = Arc::clone(asked.control);
    let body = driven(move |feed| async move {
        loop {
            match export.piece().await {
                Ok(Some(piece)) => feed.send(Ok(piece)).await,
                Ok(None) => return,
                Err(error) => {
                    failure::record(control.journal(), "a snapshot that is sent was cut", &error);
                    feed.send(Err(error.into())).await;
                    return;
                }
            }
        }
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(TAR));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// Takes in a snapshot as it comes.
pub(crate) async fn import(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let name = query::value(&pairs, "name").map(named).transpose()?;
    let Some(incoming) = body.into_incoming() else {
        return Err(ApiRefusal::bad_request("the body was read already"));
    };
    // Nothing is read of what is refused: the connection is closed.
    let refused = |error: &DaemonError| asked.refused(error).closing();
    let import = asked.daemon().import_snapshot(&asked.caller, name).await;
    let mut import = import.map_err(|error| refused(&error))?;
    let mut source = PackedUpload::plain(incoming);
    loop {
        let piece = source.piece().await;
        let piece = piece.map_err(|error| ApiRefusal::bad_request(error.to_string()).closing())?;
        let Some(piece) = piece else { break };
        if let Err(error) = import.write(&piece).await {
            // A client that still sends is to read the answer.
            source.drain(DRAINED).await;
            return Err(refused(&error));
        }
    }
    let made = import.finish().await.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::CREATED, &SnapshotAnswer::from(made)))
}

pub(crate) async fn create_checkpoint(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let NewCheckpoint { name } = body.read().await?;
    let name = name.as_deref().map(named).transpose()?;
    let made = asked.whole(|daemon, caller| async move { daemon.create_checkpoint(&caller, &id, name).await });
    Ok(answer::json(StatusCode::CREATED, &SnapshotAnswer::from(made.await?)))
}

pub(crate) fn list_checkpoints(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().list_checkpoints(&asked.caller, asked.sandbox_id(given)?);
    let (checkpoints, current) = found.map_err(|error| asked.refused(&error))?;
    let list = CheckpointList {
        checkpoints: checkpoints.into_iter().map(SnapshotAnswer::from).collect(),
        current,
    };
    Ok(answer::json(StatusCode::OK, &list))
}

pub(crate) async fn remove_checkpoint(
    asked: &ApiRequest<'_>,
    [given, checkpoint, _]: PathSegments<'_>,
) -> Result<Response<Body>, ApiRefusal> {
    let (id, which) = (asked.sandbox_id(given)?.to_owned(), query::decoded(checkpoint));
    asked
        .whole(|daemon, caller| async move { daemon.remove_checkpoint(&caller, &id, &which).await })
        .await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn restore(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let RestoreBody { checkpoint } = body.read().await?;
    let restored = asked.whole(|daemon, caller| async move { daemon.restore(&caller, &id, &checkpoint).await });
    Ok(answer::json(StatusCode::OK, &SandboxAnswer::from(restored.await?)))
}
