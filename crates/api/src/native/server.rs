//! What the server is, what happened on it, and how much the caller has.

use http::{Response, StatusCode};
use offleash_daemon::ENVD_VERSION;
use schemars::JsonSchema;
use serde::Serialize;

use super::shapes::{AuditAnswer, UsageAnswer, VersionAnswer};
use crate::control::ApiRequest;
use crate::control::listing::list_filter;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::query;

pub(crate) fn version(asked: &ApiRequest<'_>) -> Response<Body> {
    let version = VersionAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        url: asked.control.address().url.clone(),
    };
    answer::json(StatusCode::OK, &version)
}

/// Whether the audit log of the machine is as it was written.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditVerification")]
pub(crate) struct AuditVerificationAnswer {
    /// Whether no line is bad.
    unbroken: bool,
    /// Lines in it.
    lines: u64,
    /// Lines that a crash cut short, each vouched for by a later one.
    torn: u64,
    /// The first line that cannot be trusted, from 1; nothing after it can. `null` if there is none.
    first_bad: Option<u64>,
    /// What is wrong with that.
    why: Option<String>,
}

pub(crate) async fn verify_audit(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let verified = asked.daemon().verify_audit(&asked.caller).await;
    let verified = verified.map_err(|error| asked.refused(&error))?;
    let told = AuditVerificationAnswer {
        unbroken: verified.first_bad.is_none(),
        lines: verified.lines,
        torn: verified.torn,
        first_bad: verified.first_bad.as_ref().map(|(line, _)| *line),
        why: verified.first_bad.map(|(_, why)| why),
    };
    Ok(answer::json(StatusCode::OK, &told))
}

/// How many events a page has at most, and usually.
const MAX_EVENTS: u32 = 1000;
const EVENTS: u32 = 100;

pub(crate) async fn audit(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(asked.query());
    let sandbox = match query::value(&pairs, "sandbox") {
        Some(sandbox) => Some(asked.sandbox_id(sandbox)?),
        None => None,
    };
    let limit = query::number(&pairs, "limit", 1..=MAX_EVENTS)?.unwrap_or(EVENTS);
    let after = query::number(&pairs, "after", 0..=i64::MAX)?;
    // From the beginning of what is new to whoever has seen some, or from the end.
    let (after, descending) = (after.unwrap_or(0), after.is_none());
    let events = asked
        .daemon()
        .events(&asked.caller, sandbox, after, descending, limit)
        .await;
    let events = events.map_err(|error| asked.refused(&error))?;
    let events = events.into_iter().map(Into::into).collect();
    Ok(answer::json(StatusCode::OK, &AuditAnswer { events }))
}

pub(crate) fn usage(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let page = asked.daemon().list(&asked.caller, &list_filter(asked.query())?);
    let page = page.map_err(|error| asked.refused(&error))?;
    let usage = UsageAnswer {
        key: asked.caller.key_id.clone(),
        scopes: asked.caller.scopes.0.iter().map(ToString::to_string).collect(),
        running: u64::try_from(page.total_running).unwrap_or(u64::MAX),
        quota: asked.caller.quota.into(),
    };
    Ok(answer::json(StatusCode::OK, &usage))
}
