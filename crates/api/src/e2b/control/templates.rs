//! The routes of templates: those that the caller built, and those of the machine, are listed, shown and removed.

use http::{Response, StatusCode};
use offleash_daemon::{BASE_TEMPLATE, BuiltTemplateView, DaemonError, ENVD_VERSION, SandboxLimits, TemplateBuildView};
use offleash_supervisor::templates::TemplateListing;
use serde::Serialize;
use serde_json::json;

use super::done;
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::{query, time};

/// A template in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedTemplate {
    #[serde(rename = "templateID")]
    id: String,
    #[serde(rename = "buildID")]
    build: String,
    #[serde(rename = "cpuCount")]
    cpus: u32,
    #[serde(rename = "memoryMB")]
    memory_mib: u64,
    #[serde(rename = "diskSizeMB")]
    disk_mib: u64,
    public: bool,
    aliases: [String; 1],
    names: [String; 1],
    created_at: String,
    updated_at: String,
    /// Nobody counts these.
    created_by: Option<()>,
    last_spawned_at: Option<()>,
    spawn_count: u32,
    build_count: usize,
    envd_version: &'static str,
    build_status: &'static str,
}

/// A build of a template.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedBuild {
    #[serde(rename = "buildID")]
    id: String,
    status: &'static str,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    #[serde(rename = "cpuCount")]
    cpus: u32,
    #[serde(rename = "memoryMB")]
    memory_mib: u64,
    #[serde(rename = "diskSizeMB")]
    disk_mib: u64,
    envd_version: &'static str,
}

#[derive(Debug, Serialize)]
struct TemplateAndBuilds {
    #[serde(flatten)]
    template: ListedTemplate,
    builds: Vec<ListedBuild>,
}

impl ListedTemplate {
    /// One of the machine.
    fn of(listing: &TemplateListing, limits: &SandboxLimits) -> Self {
        let record = &listing.record;
        let name = record.name.to_string();
        Self {
            id: name.clone(),
            build: record.build.clone(),
            cpus: limits.cpus,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            public: true,
            aliases: [name.clone()],
            names: [name],
            created_at: record.built_at.clone(),
            updated_at: record.built_at.clone(),
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: 1,
            envd_version: ENVD_VERSION,
            build_status: "ready",
        }
    }

    /// One that the caller built.
    fn built(view: BuiltTemplateView, limits: &SandboxLimits) -> Self {
        let current = view.current.as_ref();
        Self {
            build: current.map(|build| build.id.clone()).unwrap_or_default(),
            cpus: current.map_or(limits.cpus, |build| build.cpus),
            memory_mib: current.map_or(limits.memory_mib, |build| build.memory_mib),
            disk_mib: limits.disk_mib,
            public: view.public,
            aliases: [view.name.clone()],
            names: [view.name],
            created_at: time::text(view.created_at),
            updated_at: time::text(view.updated_at),
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: view.builds.len(),
            envd_version: ENVD_VERSION,
            build_status: current.map_or("waiting", |build| build.status),
            id: view.id,
        }
    }
}

impl ListedBuild {
    fn of(build: &TemplateBuildView, limits: &SandboxLimits) -> Self {
        Self {
            id: build.id.clone(),
            status: build.status,
            created_at: time::text(build.created_at),
            updated_at: time::text(build.updated_at),
            finished_at: build.finished_at.map(time::text),
            cpus: build.cpus,
            memory_mib: build.memory_mib,
            disk_mib: limits.disk_mib,
            envd_version: ENVD_VERSION,
        }
    }
}

/// Those of the caller, then those of the machine.
pub(crate) async fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let daemon = asked.daemon();
    let limits = &daemon.config().default_limits;
    let built = daemon
        .built_templates(&asked.caller)
        .map_err(|error| asked.refused(&error))?;
    let mut shown: Vec<ListedTemplate> = built
        .into_iter()
        .map(|view| ListedTemplate::built(view, limits))
        .collect();
    let listed = daemon.templates(&asked.caller).await;
    let listed = listed.map_err(|error| asked.refused(&error))?;
    shown.extend(listed.iter().map(|listing| ListedTemplate::of(listing, limits)));
    Ok(answer::json(StatusCode::OK, &shown))
}

/// One that the caller built, with its builds.
pub(crate) fn get(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let daemon = asked.daemon();
    let limits = &daemon.config().default_limits;
    let view = daemon.built_template(&asked.caller, &query::decoded(template));
    let view = view.map_err(|error| asked.refused(&error))?;
    let builds = view.builds.iter().map(|build| ListedBuild::of(build, limits)).collect();
    let shown = TemplateAndBuilds {
        template: ListedTemplate::built(view, limits),
        builds,
    };
    Ok(answer::json(StatusCode::OK, &shown))
}

/// Says whether a template of this name is there, or is built when it is asked for.
pub(crate) async fn alias(asked: &ApiRequest<'_>, alias: &str) -> Result<Response<Body>, ApiRefusal> {
    let name = query::decoded(alias);
    match asked.daemon().built_template(&asked.caller, &name) {
        Ok(view) => {
            let body = json!({ "templateID": view.id, "public": view.public });
            return Ok(answer::json(StatusCode::OK, &body));
        }
        Err(DaemonError::UnknownTemplate { .. }) => {}
        Err(error) => return Err(asked.refused(&error)),
    }
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
    let built = name.clone();
    let removed = asked.whole(|daemon, caller| async move {
        match daemon.remove_built_template(&caller, &built).await {
            Err(DaemonError::UnknownTemplate { .. }) => Ok(false),
            removed => removed.map(|()| true),
        }
    });
    if removed.await? {
        return Ok(done());
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
