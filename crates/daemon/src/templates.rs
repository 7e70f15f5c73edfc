//! Templates that callers ask for: found, listed, and built on first use.
//!
//! A build is another process of our own program, since sandboxes are made by processes with one thread; whoever asks for
//! the same template meanwhile waits for the same build. It ends with the daemon. Deliberately not here: removing one,
//! which concerns the sandboxes of it.

pub(crate) mod build;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::template::{CODE_INTERPRETER, MCP_GATEWAY, Recipe, TemplateName};
use offleash_core::text::Text;
use offleash_store::{HeldTemplate, TakeOutcome, remove_directory};
use offleash_supervisor::builds::BuildOrder;
use offleash_supervisor::service::order::Template;
use offleash_supervisor::templates::{self, BuildEvent, BuildWatcher, TemplateListing};
use tokio::sync::watch;

use crate::config::TemplatesConfig;
use crate::error::DaemonError;
use crate::host::SandboxHost;
use crate::jobs::blocking;
use crate::origin::{BASE_TEMPLATE, TemplateOrigin, image_name};

/// After how long a create that was answered so may be tried again. E2B's SDKs have a minute for all tries of a request: with less
/// than this left they tell what was answered, and not that time ran out.
const RETRY_AFTER: Duration = Duration::from_secs(20);
/// How long nothing is built after a failure: who asks again and again does not build again and again.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The templates of the state directory, and the builds that go on.
#[derive(Debug)]
pub(crate) struct TemplateStore {
    host: Arc<SandboxHost>,
    config: TemplatesConfig,
    /// Whoever is told how builds go on.
    watcher: Option<Arc<dyn BuildWatcher>>,
    builds: Mutex<BTreeMap<TemplateName, BuildState>>,
}

/// The build of one template that goes on, and the last one that failed.
#[derive(Debug, Default)]
struct BuildState {
    /// True once it has ended.
    going_on: Option<watch::Receiver<bool>>,
    failed: Option<Instant>,
}

impl TemplateStore {
    pub(crate) fn new(host: Arc<SandboxHost>, config: TemplatesConfig, watcher: Option<Arc<dyn BuildWatcher>>) -> Self {
        Self {
            host,
            config,
            watcher,
            builds: Mutex::default(),
        }
    }

    fn builds(&self) -> MutexGuard<'_, BTreeMap<TemplateName, BuildState>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The templates that were built, by name.
    ///
    /// # Errors
    /// `Templates`.
    pub(crate) async fn list(&self) -> Result<Vec<TemplateListing>, DaemonError> {
        let state = self.host.state().clone();
        Ok(blocking("list templates", move || templates::list(&state)).await??)
    }

    /// Whether a create with this template would find it: built, or built then.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Templates`.
    pub(crate) async fn has(&self, name: &str) -> Result<bool, DaemonError> {
        let Some(name) = named(name)? else { return Ok(true) };
        Ok(self.recipe_on_first_use(&name).is_some() || self.find(&name).await?.is_some())
    }

    /// The template that is there under a name that was a template's; `None` if it is there no more, and for the base.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Templates`.
    pub(crate) async fn current(&self, name: &str) -> Result<Option<HeldTemplate>, DaemonError> {
        match named(name)? {
            Some(name) => self.find(&name).await,
            None => Ok(None),
        }
    }

    /// Finds the template that `name` means, or has it built and waits for that. `None` is the base.
    ///
    /// # Errors
    /// `UnknownTemplate`, `TemplateBuilding`, `TemplateFailed`, `Templates`.
    pub(crate) async fn ready(self: &Arc<Self>, name: &str) -> Result<Option<HeldTemplate>, DaemonError> {
        let Some(wanted) = named(name)? else { return Ok(None) };
        let until = tokio::time::Instant::now() + self.config.wait;
        loop {
            if let Some(held) = self.find(&wanted).await? {
                return Ok(Some(held));
            }
            let Some(recipe) = self.recipe_on_first_use(&wanted) else {
                return Err(DaemonError::UnknownTemplate { name: name.to_owned() });
            };
            let installs = recipe.summary();
            let mut ended = self.build_of(&wanted, recipe)?;
            let waited = tokio::time::timeout_at(until, ended.wait_for(|ended| *ended)).await;
            if waited.is_err() {
                return Err(DaemonError::TemplateBuilding {
                    name: wanted.to_string(),
                    installs,
                    retry_after: RETRY_AFTER,
                });
            }
        }
    }

    /// The build of a template that is meant, if it is here; `None` for what is none.
    ///
    /// # Errors
    /// `Templates`.
    pub(crate) async fn held_build(&self, origin: &TemplateOrigin) -> Result<Option<HeldTemplate>, DaemonError> {
        let (Ok(Some(name)), Some(build)) = (named(&origin.template), origin.build.clone()) else {
            return Ok(None);
        };
        let state = self.host.state().clone();
        let held = blocking("find a template", move || {
            Ok::<_, templates::TemplateError>(state.templates()?.hold_build(&name, &build)?)
        });
        Ok(held.await??)
    }

    /// Removes a template that nobody holds. What is left of its files goes with the next build.
    ///
    /// # Errors
    /// `UnknownTemplate`, `TemplateInUse`, `Templates`.
    pub(crate) async fn remove(&self, wanted: TemplateName, name: &str) -> Result<(), DaemonError> {
        let state = self.host.state().clone();
        let taken = blocking("remove a template", move || {
            let taken = state.templates()?.take(&wanted)?;
            if let TakeOutcome::Taken(abandoned) = &taken {
                // What belongs to subordinate ids a process with more than one thread cannot remove.
                let _removed = remove_directory(abandoned.path());
            }
            Ok::<_, templates::TemplateError>(taken)
        });
        match taken.await?? {
            TakeOutcome::Taken(_) => Ok(()),
            TakeOutcome::InUse => Err(DaemonError::TemplateInUse { name: name.to_owned() }),
            TakeOutcome::Missing => Err(DaemonError::UnknownTemplate { name: name.to_owned() }),
        }
    }

    /// What a template is built from that is built when it is first asked for.
    fn recipe_on_first_use(&self, name: &TemplateName) -> Option<Recipe> {
        match name.as_str() {
            _ if !self.config.build_on_first_use => None,
            CODE_INTERPRETER => Some(self.config.code_interpreter.clone()),
            MCP_GATEWAY => Some(Recipe::mcp_gateway()),
            _ => None,
        }
    }

    async fn find(&self, name: &TemplateName) -> Result<Option<HeldTemplate>, DaemonError> {
        let (state, name) = (self.host.state().clone(), name.clone());
        let held = blocking("find a template", move || {
            Ok::<_, templates::TemplateError>(state.templates()?.hold(&name)?)
        });
        Ok(held.await??)
    }

    /// The build that goes on, to be told of its end; begins one unless one has failed lately.
    fn build_of(self: &Arc<Self>, name: &TemplateName, recipe: Recipe) -> Result<watch::Receiver<bool>, DaemonError> {
        let mut builds = self.builds();
        let state = builds.entry(name.clone()).or_default();
        if let Some(ended) = state.going_on.as_ref().filter(|ended| !*ended.borrow()) {
            return Ok(ended.clone());
        }
        if state.failed.is_some_and(|failed| failed.elapsed() < AFTER_FAILURE) {
            return Err(DaemonError::TemplateFailed { name: name.to_string() });
        }
        let (ending, ended) = watch::channel(false);
        state.going_on = Some(ended.clone());
        drop(builds);
        self.begin_build(name, recipe, ending);
        Ok(ended)
    }

    fn begin_build(self: &Arc<Self>, name: &TemplateName, recipe: Recipe, ending: watch::Sender<bool>) {
        let (weak, name) = (Arc::downgrade(self), name.clone());
        let order = BuildOrder {
            state: self.host.state_text(),
            name: name.clone(),
            recipe,
            instructions: None,
            env: self.config.build_env.iter().map(text_pair).collect(),
        };
        let (program, watcher) = (self.host.program().map(ToOwned::to_owned), self.watcher.clone());
        tokio::spawn(async move {
            let tell = |event: &BuildEvent| {
                if let Some(watcher) = &watcher {
                    watcher.tell(&order.name, event);
                }
            };
            let installs = order.recipe.summary();
            tell(&BuildEvent::Begins { installs });
            if let Err(error) = build::build(program.as_deref(), &order, tell, std::future::pending()).await {
                tell(&BuildEvent::Failed {
                    last_lines: Vec::new(),
                    told: format!("the builder came to nothing: {error}"),
                    shown: None,
                });
            }
            if let Some(store) = weak.upgrade() {
                let is_there = store.find(&name).await.is_ok_and(|found| found.is_some());
                store.builds().entry(name).or_default().failed = (!is_there).then(Instant::now);
            }
            ending.send_replace(true);
        });
    }
}

/// The template that a caller means; `None` is the base.
///
/// # Errors
/// `UnknownTemplate`.
pub(crate) fn named(name: &str) -> Result<Option<TemplateName>, DaemonError> {
    if name == BASE_TEMPLATE {
        return Ok(None);
    }
    let meant = TemplateName::meant_by(name);
    meant
        .map(Some)
        .map_err(|_| DaemonError::UnknownTemplate { name: name.to_owned() })
}

/// What a supervisor is told of a sandbox with this origin.
pub(crate) fn of_origin(origin: &TemplateOrigin) -> Template {
    match (image_name(&origin.template), &origin.build) {
        (Some(name), Some(digest)) => Template::Image {
            name: name.to_owned(),
            digest: digest.clone(),
        },
        _ => origin.template.parse().map_or(Template::Base, Template::Built),
    }
}

/// What is to be noted of a sandbox whose template was built on other packages than the host has.
pub(crate) fn note(template: &HeldTemplate) -> Option<String> {
    templates::outdated(template.record())
}

fn text_pair((name, value): &(OsString, OsString)) -> (Text, Text) {
    (name.into(), value.into())
}
