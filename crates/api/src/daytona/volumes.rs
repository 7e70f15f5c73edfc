//! Volumes: directories that outlive sandboxes, in Daytona's words.

use http::{Response, StatusCode};
use offleash_daemon::{VolumeRequest, VolumeView};
use serde::{Deserialize, Serialize};

use super::done;
use super::shapes::TARGET;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

#[derive(Debug, Default, Deserialize)]
struct NewVolume {
    name: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeAnswer {
    id: String,
    name: String,
    organization_id: &'static str,
    state: &'static str,
    created_at: String,
    updated_at: String,
    error_reason: Option<String>,
}

impl VolumeAnswer {
    fn of(view: &VolumeView) -> Self {
        let created_at = view.record.created_at.clone();
        Self {
            id: view.record.id.to_string(),
            name: view.record.name.to_string(),
            organization_id: TARGET,
            // It is there at once, or not at all.
            state: "ready",
            updated_at: created_at.clone(),
            created_at,
            error_reason: None,
        }
    }
}

/// Daytona's are for many sandboxes at a time.
pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let NewVolume { name } = body.read().await?;
    let request = VolumeRequest {
        name: name.ok_or_else(|| ApiRefusal::bad_request("name: a volume must have one"))?,
        size_mib: None,
        inodes: None,
        shared: true,
        bucket: None,
    };
    let made = asked.whole(|daemon, caller| async move { daemon.create_volume(&caller, request).await });
    Ok(answer::json(StatusCode::OK, &VolumeAnswer::of(&made.await?)))
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().list_volumes(&asked.caller).await;
    let listed = listed.map_err(|error| asked.refused(&error))?;
    let listed: Vec<VolumeAnswer> = listed.iter().map(VolumeAnswer::of).collect();
    Ok(answer::json(StatusCode::OK, &listed))
}

/// One, by its id or name.
pub(crate) async fn get(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().volume(&asked.caller, &query::decoded(which)).await;
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &VolumeAnswer::of(&found)))
}

pub(crate) async fn delete(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    asked
        .whole(|daemon, caller| async move { daemon.remove_volume(&caller, &which).await })
        .await?;
    Ok(done(StatusCode::OK))
}
