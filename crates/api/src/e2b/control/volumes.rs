//! The routes of volumes in E2B's control plane. What is in them is at [`crate::e2b::volume_content`].

use http::{Response, StatusCode};
use offleash_daemon::{VolumeRequest, VolumeView};
use serde::{Deserialize, Serialize};

use super::done;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

#[derive(Debug, Deserialize)]
struct NewVolume {
    name: String,
}

#[derive(Debug, Serialize)]
struct ListedVolume<'a> {
    #[serde(rename = "volumeID")]
    id: &'a str,
    name: &'a str,
}

/// With what opens it.
#[derive(Serialize)]
struct VolumeAndToken<'a> {
    #[serde(flatten)]
    listed: ListedVolume<'a>,
    token: &'a str,
}

impl<'a> ListedVolume<'a> {
    fn of(view: &'a VolumeView) -> Self {
        Self {
            id: view.record.id.as_str(),
            name: view.record.name.as_str(),
        }
    }
}

fn shown(status: StatusCode, view: &VolumeView) -> Response<Body> {
    let shown = VolumeAndToken {
        listed: ListedVolume::of(view),
        token: view.record.token.reveal(),
    };
    answer::json(status, &shown)
}

/// E2B's are for many sandboxes at a time.
pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let NewVolume { name } = body.read().await?;
    let request = VolumeRequest {
        name,
        size_mib: None,
        inodes: None,
        shared: true,
        bucket: None,
    };
    let made = asked.whole(|daemon, caller| async move { daemon.create_volume(&caller, request).await });
    Ok(shown(StatusCode::CREATED, &made.await?))
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().list_volumes(&asked.caller).await;
    let listed = listed.map_err(|error| asked.refused(&error))?;
    let listed: Vec<ListedVolume<'_>> = listed.iter().map(ListedVolume::of).collect();
    Ok(answer::json(StatusCode::OK, &listed))
}

pub(crate) async fn get(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().volume(&asked.caller, &query::decoded(which)).await;
    Ok(shown(StatusCode::OK, &found.map_err(|error| asked.refused(&error))?))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    let removed = |daemon: offleash_daemon::Daemon, caller| async move { daemon.remove_volume(&caller, &which).await };
    asked.whole(removed).await?;
    Ok(done())
}
