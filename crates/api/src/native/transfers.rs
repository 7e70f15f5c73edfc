//! Sandboxes that go from one server to another, for who carries them: a front, or an admin. The native REST.

use http::{Response, StatusCode};
use offleash_daemon::{SandboxTransfer, VisibleState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shapes::SandboxAnswer;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;

/// A sandbox that can go to another server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Transfer")]
pub(crate) struct TransferAnswer {
    /// Its id, which it keeps.
    id: String,
    /// `running` or `paused`.
    state: &'static str,
    /// How often it has changed; one that was resumed meanwhile has another number.
    changes: i64,
    /// What is left of its time, seconds, if that does not run.
    left_seconds: Option<u64>,
    /// All that the other server is told of it, beside its files. Its tokens are in it.
    description: String,
}

/// A sandbox that comes from another server.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTransfer {
    /// The snapshot with its files.
    snapshot: String,
    /// What the other server said of it.
    description: String,
    /// Whether it is to be paused, with its files alone; it runs if absent.
    #[serde(default)]
    paused: bool,
}

impl From<SandboxTransfer> for TransferAnswer {
    fn from(transfer: SandboxTransfer) -> Self {
        Self {
            id: transfer.id,
            state: match transfer.state {
                VisibleState::Running => "running",
                VisibleState::Paused => "paused",
            },
            changes: transfer.changes,
            left_seconds: transfer.left.map(|left| left.as_secs()),
            description: transfer.description,
        }
    }
}

pub(crate) fn describe(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let described = asked
        .daemon()
        .describe_transfer(&asked.caller, asked.sandbox_id(given)?);
    let described = described.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &TransferAnswer::from(described)))
}

pub(crate) async fn take(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let NewTransfer {
        snapshot,
        description,
        paused,
    } = body.read().await?;
    let taken = asked
        .whole(|daemon, caller| async move { daemon.take_transfer(&caller, &snapshot, &description, paused).await });
    Ok(answer::json(StatusCode::CREATED, &SandboxAnswer::from(taken.await?)))
}

pub(crate) async fn end(asked: &ApiRequest<'_>, given: &str) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?.to_owned();
    let pairs = query::pairs(asked.query());
    let changes = query::number(&pairs, "changes", 0..=i64::MAX)?;
    let changes = changes.ok_or_else(|| ApiRefusal::bad_request("`changes` must be there, as it was told"))?;
    let ended = asked.whole(|daemon, caller| async move { daemon.end_transfer(&caller, &id, changes).await });
    ended.await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
