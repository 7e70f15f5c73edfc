//! The routes of snapshots.

use http::{HeaderValue, Response, StatusCode};
use offleash_core::id::{SandboxName, SandboxNameError};
use offleash_daemon::{CarriedContexts, SnapshotRequest, SnapshotView};
use serde::{Deserialize, Serialize};

use crate::control::{ApiRequest, snapshot_filter};
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;

/// The tag that every name has; there is no other.
const TAG: &str = ":default";

/// `POST …/snapshots`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SnapshotBody {
    name: Option<String>,
    /// Whether what cells of code left is kept, too; yes if absent.
    memory: Option<bool>,
}

/// A snapshot as SDKs know it.
#[derive(Debug, Serialize)]
pub(super) struct ShownSnapshot {
    #[serde(rename = "snapshotID")]
    id: String,
    names: Vec<String>,
}

impl From<SnapshotView> for ShownSnapshot {
    fn from(view: SnapshotView) -> Self {
        Self {
            id: view.id,
            names: view.name.into_iter().map(|name| format!("{name}{TAG}")).collect(),
        }
    }
}

pub(crate) async fn create(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let SnapshotBody { name, memory } = body.read().await?;
    let named = |name: &str| name.strip_suffix(TAG).unwrap_or(name).parse::<SandboxName>();
    let name = name.as_deref().map(named).transpose();
    let request = SnapshotRequest {
        name: name.map_err(|error: SandboxNameError| ApiRefusal::bad_request(format!("name: {error}")))?,
        contexts: match memory {
            Some(false) => CarriedContexts::Nothing,
            _ => CarriedContexts::All,
        },
    };
    let made = asked.whole(|daemon, caller| async move { daemon.create_snapshot(&caller, &id, request).await });
    Ok(answer::json(StatusCode::CREATED, &ShownSnapshot::from(made.await?)))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let filter = snapshot_filter(asked.query(), "sandboxID")?;
    let page = asked.daemon().list_snapshots(&asked.caller, &filter);
    let page = page.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownSnapshot> = page.snapshots.into_iter().map(ShownSnapshot::from).collect();
    let mut response = answer::json(StatusCode::OK, &shown);
    if let Some(next) = page.next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}
