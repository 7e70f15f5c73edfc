//! The routes of secrets: names and what is said of them, never a value.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderValue, Response, StatusCode};
use offleash_daemon::SecretView;
use serde::{Deserialize, Serialize};

use super::done;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::http::query;
use crate::http::time;

/// How many a page has at most, and if nothing is said.
const MAX_LISTED: u32 = 100;

/// A secret that is to be made, or another value for one. `Debug` does not show the value.
#[derive(Deserialize)]
struct NewSecret {
    #[serde(default)]
    name: String,
    value: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewSecret({:?})", self.name)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSecret<'a> {
    #[serde(rename = "secretID")]
    id: &'a str,
    name: &'a str,
    current_version: i64,
    metadata: &'a BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
}

impl<'a> ShownSecret<'a> {
    fn of(view: &'a SecretView) -> Self {
        Self {
            id: &view.id,
            name: &view.name,
            current_version: view.version,
            metadata: &view.metadata,
            created_at: time::text(view.created_at),
            updated_at: time::text(view.updated_at),
        }
    }
}

pub(crate) async fn create(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewSecret = body.read().await?;
    let made = asked.whole(|daemon, caller| async move {
        let metadata = new.metadata.unwrap_or_default();
        daemon.create_secret(&caller, &new.name, new.value, metadata).await
    });
    Ok(answer::json(StatusCode::CREATED, &ShownSecret::of(&made.await?)))
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let limit = query::number(&pairs, "limit", 1..=MAX_LISTED)?.unwrap_or(MAX_LISTED);
    let after = query::value(&pairs, "nextToken").filter(|text| !text.is_empty());
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let listed = asked.daemon().list_secrets(&asked.caller, limit, after);
    let (page, next) = listed.map_err(|error| asked.refused(&error))?;
    let shown: Vec<ShownSecret<'_>> = page.iter().map(ShownSecret::of).collect();
    let mut response = answer::json(StatusCode::OK, &shown);
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

pub(crate) fn get(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().secret(&asked.caller, &query::decoded(which));
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ShownSecret::of(&found)))
}

pub(crate) async fn update(
    asked: &ApiRequest<'_>,
    which: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    let new: NewSecret = body.read().await?;
    let updated = asked
        .whole(|daemon, caller| async move { daemon.update_secret(&caller, &which, new.value, new.metadata).await });
    Ok(answer::json(StatusCode::OK, &ShownSecret::of(&updated.await?)))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, which: &str) -> Result<Response<Body>, ApiRefusal> {
    let which = query::decoded(which);
    let removed = |daemon: offleash_daemon::Daemon, caller| async move { daemon.remove_secret(&caller, &which).await };
    asked.whole(removed).await?;
    Ok(done())
}
