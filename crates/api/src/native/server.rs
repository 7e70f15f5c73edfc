//! What the server is, what happened on it, and how much the caller has.

use http::{Response, StatusCode};
use offleash_daemon::ENVD_VERSION;

use super::shapes::{Audit, Usage, Version};
use crate::answer::{self, Refusal};
use crate::body::Body;
use crate::control::{Asked, filter};
use crate::query;

pub(crate) fn version(asked: &Asked<'_>) -> Response<Body> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        url: asked.state.url.clone(),
    };
    answer::json(StatusCode::OK, &version)
}

/// How many events a page has at most, and usually.
const MOST_EVENTS: u32 = 1000;
const EVENTS: u32 = 100;

pub(crate) async fn audit(asked: &Asked<'_>) -> Result<Response<Body>, Refusal> {
    let pairs = query::pairs(asked.query());
    let sandbox = match query::value(&pairs, "sandbox") {
        Some(sandbox) => Some(crate::control::id(asked, sandbox)?),
        None => None,
    };
    let limit = query::number(&pairs, "limit", 1..=MOST_EVENTS)?.unwrap_or(EVENTS);
    let after = query::number(&pairs, "after", 0..=i64::MAX)?;
    // From the beginning of what is new to whoever has seen some, or from the end.
    let (after, descending) = (after.unwrap_or(0), after.is_none());
    let events = asked
        .state
        .daemon
        .events(&asked.caller, sandbox, after, descending, limit)
        .await;
    let events = events.map_err(|error| asked.refused(&error))?;
    let events = events.into_iter().map(Into::into).collect();
    Ok(answer::json(StatusCode::OK, &Audit { events }))
}

pub(crate) fn usage(asked: &Asked<'_>) -> Result<Response<Body>, Refusal> {
    let page = asked.state.daemon.list(&asked.caller, &filter(asked)?);
    let page = page.map_err(|error| asked.refused(&error))?;
    let usage = Usage {
        running: u64::try_from(page.total_running).unwrap_or(u64::MAX),
        quota: asked.caller.quota.into(),
    };
    Ok(answer::json(StatusCode::OK, &usage))
}
