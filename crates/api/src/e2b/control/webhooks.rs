//! The routes of webhooks: where a key's own events go. Their secrets are never told.

use std::fmt;

use http::{Response, StatusCode};
use offleash_daemon::{WebhookRequest, WebhookUpdate, WebhookView};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::http::time;

/// A webhook that is to be registered. `Debug` shows neither address nor secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewWebhook {
    name: String,
    url: String,
    #[serde(default = "enabled")]
    enabled: bool,
    events: Vec<String>,
    signature_secret: String,
}

/// As long as nothing else is said.
fn enabled() -> bool {
    true
}

/// What is to be different.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangedWebhook {
    name: Option<String>,
    url: Option<String>,
    enabled: Option<bool>,
    events: Option<Vec<String>>,
    signature_secret: Option<String>,
}

impl fmt::Debug for NewWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewWebhook({:?})", self.name)
    }
}

impl fmt::Debug for ChangedWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChangedWebhook({:?})", self.name)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownWebhook<'a> {
    id: &'a str,
    #[serde(rename = "teamID")]
    team: &'a str,
    name: &'a str,
    url: &'a str,
    enabled: bool,
    events: &'a [String],
    created_at: String,
}

impl<'a> ShownWebhook<'a> {
    fn of(view: &'a WebhookView) -> Self {
        Self {
            id: &view.id,
            team: &view.key,
            name: &view.name,
            url: &view.url,
            enabled: view.enabled,
            events: &view.types,
            created_at: time::text(view.created_at),
        }
    }
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewWebhook = body.read().await?;
    let request = WebhookRequest {
        name: new.name,
        url: new.url,
        enabled: new.enabled,
        types: new.events,
        secret: new.signature_secret,
    };
    let made = asked.whole(|daemon, caller| async move { daemon.register_webhook(&caller, request).await });
    Ok(answer::json(StatusCode::CREATED, &ShownWebhook::of(&made.await?)))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().webhooks(&asked.caller);
    let views = listed.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownWebhook<'_>> = views.iter().map(ShownWebhook::of).collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) fn get(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().webhook(&asked.caller, &query::decoded(which));
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ShownWebhook::of(&found)))
}

pub(crate) async fn update(
    asked: &ApiRequest<'_>,
    which: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    let new: ChangedWebhook = body.read().await?;
    let update = WebhookUpdate {
        name: new.name,
        url: new.url,
        enabled: new.enabled,
        types: new.events,
        secret: new.signature_secret,
    };
    let updated = asked.whole(|daemon, caller| async move { daemon.update_webhook(&caller, &which, update).await });
    Ok(answer::json(StatusCode::OK, &ShownWebhook::of(&updated.await?)))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    let removed = |daemon: offleash_daemon::Daemon, caller| async move { daemon.remove_webhook(&caller, &which).await };
    asked.whole(removed).await?;
    // E2B's answer is a 200.
    Ok(answer::json(StatusCode::OK, &json!({})))
}
