//! Templates that keys built, in the native REST. What the machine has is not among them.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use offleash_daemon::{BuiltTemplateView, TemplateBuildView};
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::{query, time};

/// A template that a key built.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BuiltTemplate")]
pub(crate) struct BuiltTemplateAnswer {
    /// Its id.
    id: String,
    /// Whose it is: the id of a key.
    key: String,
    /// What its owner calls it.
    name: String,
    /// Whether other keys may make sandboxes of it.
    public: bool,
    /// The build that each tag means.
    tags: BTreeMap<String, String>,
    /// Its builds, the newest first.
    builds: Vec<TemplateBuildAnswer>,
    /// When it was first asked for.
    created_at: String,
    /// When something of it changed last.
    updated_at: String,
}

/// A build of a template.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TemplateBuild")]
pub(crate) struct TemplateBuildAnswer {
    /// Its id.
    id: String,
    /// `waiting`, `building`, `ready` or `error`.
    status: String,
    /// Why it came to nothing.
    reason: Option<String>,
    /// What it is called among the templates of the state directory, if it is ready.
    stored_as: Option<String>,
    /// What it takes on disk.
    bytes: u64,
    /// When it was asked for.
    created_at: String,
    /// When it ended.
    finished_at: Option<String>,
}

/// Templates that keys built, by name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuiltTemplateList {
    templates: Vec<BuiltTemplateAnswer>,
}

impl From<BuiltTemplateView> for BuiltTemplateAnswer {
    fn from(view: BuiltTemplateView) -> Self {
        Self {
            id: view.id,
            key: view.key_id,
            name: view.name,
            public: view.public,
            tags: view.tags,
            builds: view.builds.into_iter().map(TemplateBuildAnswer::from).collect(),
            created_at: time::text(view.created_at),
            updated_at: time::text(view.updated_at),
        }
    }
}

impl From<TemplateBuildView> for TemplateBuildAnswer {
    fn from(view: TemplateBuildView) -> Self {
        Self {
            stored_as: view.stored_as(),
            id: view.id,
            status: view.status.to_owned(),
            reason: view.reason.map(|reason| reason.message),
            bytes: view.bytes,
            created_at: time::text(view.created_at),
            finished_at: view.finished_at.map(time::text),
        }
    }
}

pub(crate) fn list(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let listed = asked.daemon().visible_templates(&asked.caller);
    let listed = listed.map_err(|error| asked.refused(&error))?;
    let shown = BuiltTemplateList {
        templates: listed.into_iter().map(BuiltTemplateAnswer::from).collect(),
    };
    Ok(answer::json(StatusCode::OK, &shown))
}

pub(crate) fn get(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let view = asked.daemon().built_template(&asked.caller, &query::decoded(template));
    let view = view.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &BuiltTemplateAnswer::from(view)))
}

pub(crate) async fn remove(asked: &ApiRequest<'_>, template: &str) -> Result<Response<Body>, ApiRefusal> {
    let template = query::decoded(template);
    let removed = asked.whole(|daemon, caller| async move { daemon.remove_built_template(&caller, &template).await });
    removed.await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
