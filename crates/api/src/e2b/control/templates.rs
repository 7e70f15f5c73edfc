//! The routes of templates: those that were built here are listed and removed.

use http::{Response, StatusCode};
use offleash_daemon::{BASE_TEMPLATE, DaemonError, ENVD_VERSION, SandboxLimits};
use offleash_supervisor::templates::TemplateListing;
use serde::Serialize;
use serde_json::json;

use super::done;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::query;

/// A template in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedTemplate<'a> {
    #[serde(rename = "templateID")]
    id: &'a str,
    #[serde(rename = "buildID")]
    build: &'a str,
    #[serde(rename = "cpuCount")]
    cpus: u32,
    #[serde(rename = "memoryMB")]
    memory_mib: u64,
    #[serde(rename = "diskSizeMB")]
    disk_mib: u64,
    public: bool,
    aliases: [&'a str; 1],
    names: [&'a str; 1],
    created_at: &'a str,
    updated_at: &'a str,
    /// Nobody counts these.
    created_by: Option<()>,
    last_spawned_at: Option<()>,
    spawn_count: u32,
    build_count: u32,
    envd_version: &'static str,
    build_status: &'static str,
}

impl<'a> ListedTemplate<'a> {
    fn of(listing: &'a TemplateListing, limits: &SandboxLimits) -> Self {
        let record = &listing.record;
        Self {
            id: record.name.as_str(),
            build: &record.build,
            cpus: limits.cpus,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            public: true,
            aliases: [record.name.as_str()],
            names: [record.name.as_str()],
            created_at: &record.built_at,
            updated_at: &record.built_at,
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: 1,
            envd_version: ENVD_VERSION,
            build_status: "ready",
        }
    }
}

pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().templates(&asked.caller).await;
    let listed = listed.map_err(|error| asked.refused(&error))?;
    let limits = &asked.daemon().config().default_limits;
    let shown: Vec<ListedTemplate<'_>> = listed
        .iter()
        .map(|listing| ListedTemplate::of(listing, limits))
        .collect();
    Ok(answer::json(StatusCode::OK, &shown))
}

/// Says whether a template of this name is there, or is built when it is asked for.
pub(crate) async fn alias(asked: &ApiRequest<'_>, alias: &str) -> Result<Response<Body>, ApiRefusal> {
    let name = query::decoded(alias);
    let found = asked.daemon().has_template(&asked.caller, &name).await;
    if found.map_err(|error| asked.refused(&error))? {
        let body = json!({ "templateID": name, "public": true });
        return Ok(answer::json(StatusCode::OK, &body));
    }
    Err(asked.refused(&DaemonError::UnknownTemplate { name }))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, name: &str) -> Result<Response<Body>, ApiRefusal> {
    let name = query::decoded(name);
    if name == BASE_TEMPLATE {
        let message = "template `base` is the host's own, and cannot be removed";
        return Err(ApiRefusal::new(StatusCode::CONFLICT, message).final_answer());
    }
    match asked.daemon().remove_snapshot(&asked.caller, &name).await {
        Err(DaemonError::UnknownSnapshot { .. }) => {}
        removed => {
            removed.map_err(|error| asked.refused(&error))?;
            return Ok(done());
        }
    }
    let is_there = asked.daemon().has_template(&asked.caller, &name).await;
    if !is_there.map_err(|error| asked.refused(&error))? {
        // Whatever the caller may do with templates.
        return Err(asked.refused(&DaemonError::UnknownTemplate { name }));
    }
    let removed = asked.daemon().remove_template(&asked.caller, &name).await;
    removed.map_err(|error| asked.refused(&error))?;
    Ok(done())
}
