//! Templates that keys build by the API: whose they are, what they are built from, and how their builds go on.
//!
//! A build is a process of our own program, as any build is (`templates::build`); what comes of it is a template of the
//! store, called by template and build, and found by the tags that mean it. What goes on is in memory, what is to be known
//! afterwards in the registry: a daemon that comes after one that was killed says so of the builds that went on. Deliberately
//! not here: what instructions mean (`planner`), and carrying them out (`supervisor`).

mod collecting;
mod counting;
mod ordering;
mod running;
mod tags;
mod uploads;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::build::instruction::{BuildInstruction, UploadHash};
use offleash_core::template::{StartCommand, TemplateName};
use offleash_supervisor::clock::{now_ms, own_ms};
use tokio::sync::{Semaphore, watch};

use self::uploads::UploadStore;
pub use self::uploads::{MAX_UPLOAD_BYTES, MAX_UPLOADS_OF_KEY, UploadWriter};
pub use self::view::{
    BuildLogLine, BuildReason, BuiltTemplateView, RequestedBuild, TemplateBuildView, TemplateTagView,
};
use crate::admission::AdmissionControl;
use crate::built_templates::BuiltTemplates;
use crate::caller::Caller;
use crate::config::DaemonConfig;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::images::ImageService;
use crate::random;
use crate::registry::{BuildState, BuiltTemplateRow, Change, TemplateBuildRow};
use crate::request::LimitsRequest;
use crate::specification;
use crate::template_names::{self, ID_DIGITS, ID_LETTER, TaggedName, tag_of};
use crate::template_removal::TemplateRemover;
use crate::volumes::VolumeService;

/// Templates of one key.
pub const MAX_TEMPLATES_OF_KEY: usize = 200;
/// Tags of one request, and of one template.
const MAX_TAGS_OF_REQUEST: usize = 20;
const MAX_TAGS: usize = 100;
/// Builds that go on at once, of all keys.
pub const MAX_BUILDING: usize = 4;
/// Builds of one key that go on at once.
pub const MAX_BUILDING_OF_KEY: usize = 2;
/// Builds of a key that go on or wait for that.
pub const MAX_QUEUED_OF_KEY: usize = 16;
/// The longest start or ready command.
const MAX_COMMAND: usize = 32 * 1024;
/// Lines of a log that are answered at once.
pub const MAX_LOG_PAGE: u32 = 100;

/// A build that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildRequest {
    /// `NAME` or `NAME:TAG`.
    pub name: String,
    /// More tags that the build gets.
    pub tags: Vec<String>,
    /// CPUs that sandboxes of it have.
    pub cpus: Option<u32>,
    /// Memory that they have, MiB.
    pub memory_mib: Option<u64>,
}

/// What a build is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildInstructions {
    /// The image or the template that it begins with.
    pub base: InstructionsBase,
    /// What is shown to the registry of the image: a name and a password.
    pub login: Option<(String, String)>,
    /// What is done.
    pub instructions: Vec<BuildInstruction>,
    /// Whether everything is carried out whatever is known of it.
    pub force: bool,
    /// What is started in sandboxes of it.
    pub start: StartCommand,
}

/// What instructions begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstructionsBase {
    /// An image, by its name.
    Image(String),
    /// A template, by its name or id, with a tag or without.
    Template(String),
}

/// What is known of an archive that a build copies from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadState {
    /// Whether the key has uploaded it.
    pub present: bool,
    /// Whoever shows this token may upload it, also in its place, once.
    pub token: String,
}

/// Builds templates for keys.
#[derive(Debug)]
pub(crate) struct BuildService {
    core: DaemonCore,
    config: Arc<DaemonConfig>,
    admission: Arc<AdmissionControl>,
    images: Arc<ImageService>,
    templates: Arc<BuiltTemplates>,
    remover: Arc<TemplateRemover>,
    volumes: Arc<VolumeService>,
    uploads: UploadStore,
    /// Held while one more is counted and noted, so that two do not both find room for the last one, or the same name free.
    noting: tokio::sync::Mutex<()>,
    going_on: Mutex<BuildTable>,
    places: Arc<Semaphore>,
}

/// The builds that go on or wait for that, by their ids.
#[derive(Debug, Default)]
struct BuildTable {
    builds: BTreeMap<String, RunningBuild>,
    places: BTreeMap<String, Arc<Semaphore>>,
}

#[derive(Debug)]
struct RunningBuild {
    key: String,
    template: String,
    in_store: TemplateName,
    /// True once it is to end.
    stop: watch::Sender<bool>,
}

impl BuildService {
    pub(crate) fn new(
        core: DaemonCore,
        config: Arc<DaemonConfig>,
        admission: Arc<AdmissionControl>,
        images: Arc<ImageService>,
        templates: Arc<BuiltTemplates>,
        remover: Arc<TemplateRemover>,
        volumes: Arc<VolumeService>,
    ) -> Self {
        Self {
            uploads: UploadStore::new(core.host.state().path()),
            core,
            config,
            admission,
            images,
            templates,
            remover,
            volumes,
            noting: tokio::sync::Mutex::default(),
            going_on: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_BUILDING)),
        }
    }

    fn going_on(&self) -> MutexGuard<'_, BuildTable> {
        self.going_on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says of builds that went on when a daemon died that they came to nothing, and removes what is left of them.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn clean_up(&self) -> Result<(), DaemonError> {
        for state in [BuildState::Queued, BuildState::Building] {
            for row in self.templates.look_up(|registry| registry.builds_in(state))? {
                let ended = TemplateBuildRow {
                    state: BuildState::Failed,
                    reason: Some("the server ended while it was built; build it again".to_owned()),
                    updated_ms: now_ms(),
                    finished_ms: Some(now_ms()),
                    ..row
                };
                let change = Change::SetBuild(Box::new(ended), running::UNDER_WAY);
                self.core.registry.apply(vec![change]).await?;
            }
        }
        self.uploads.clean_up().await;
        self.collect().await;
        Ok(())
    }

    /// Notes a build of a template of the caller's, which is made if there is none of that name.
    ///
    /// # Errors
    /// `Invalid`, `QuotaExceeded`, `Store`.
    pub(crate) async fn request(&self, caller: &Caller, request: BuildRequest) -> Result<RequestedBuild, DaemonError> {
        if self.core.jobs.is_draining() {
            return Err(DaemonError::Draining);
        }
        let TaggedName { name, tag } = TaggedName::parse_new(&request.name)?;
        if request.tags.len() > MAX_TAGS_OF_REQUEST {
            return Err(DaemonError::invalid(
                "tags",
                format!("there may be {MAX_TAGS_OF_REQUEST}"),
            ));
        }
        let mut tags: Vec<String> = tag.into_iter().collect();
        for tag in &request.tags {
            let tag = tag_of(tag)?;
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        if tags.is_empty() {
            tags.push(template_names::DEFAULT_TAG.to_owned());
        }
        let asked = LimitsRequest {
            cpus: request.cpus,
            memory_mib: request.memory_mib,
            ..LimitsRequest::default()
        };
        specification::limits(&asked, &self.config)?;
        let _noting = self.noting.lock().await;
        let known = self
            .templates
            .look_up(|registry| registry.built_template(&caller.key_id, &name))?;
        let known = known.filter(|row| row.key_id == caller.key_id);
        let mut batch = Vec::new();
        let template = match known {
            Some(row) => row,
            None => {
                let snapshots = self.templates.look_up(|registry| registry.snapshots_called(&name))?;
                if snapshots.iter().any(|row| row.key_id == caller.key_id) {
                    return Err(DaemonError::invalid("name", "is that of a snapshot"));
                }
                let row = self.new_template(caller, &name)?;
                batch.push(Change::AddTemplate(Box::new(row.clone())));
                row
            }
        };
        let row = TemplateBuildRow {
            id: random::uuid()?,
            template: template.id.clone(),
            state: BuildState::Waiting,
            tags: tags.join(" "),
            cpus: request.cpus,
            memory_mib: request.memory_mib,
            bytes: 0,
            reason: None,
            failed_step: None,
            created_ms: own_ms(),
            updated_ms: now_ms(),
            finished_ms: None,
        };
        let build = row.id.clone();
        batch.push(Change::AddBuild(Box::new(row)));
        self.core.registry.apply(batch).await?;
        Ok(RequestedBuild {
            template: template.id,
            build,
            name: template.name,
            public: template.public,
            tags,
        })
    }

    fn new_template(&self, caller: &Caller, name: &str) -> Result<BuiltTemplateRow, DaemonError> {
        let all = self.templates.look_up(crate::registry::Registry::built_templates)?;
        let used = all.iter().filter(|row| row.key_id == caller.key_id).count();
        if used >= MAX_TEMPLATES_OF_KEY {
            return Err(DaemonError::QuotaExceeded {
                what: "templates",
                quota: MAX_TEMPLATES_OF_KEY as u64,
                used: used as u64,
                asked: 1,
            });
        }
        Ok(BuiltTemplateRow {
            id: random::name(ID_LETTER, ID_DIGITS)?,
            key_id: caller.key_id.clone(),
            name: name.to_owned(),
            public: false,
            created_ms: now_ms(),
            updated_ms: now_ms(),
        })
    }

    /// The caller's build of a template.
    fn own_build(
        &self,
        caller: &Caller,
        template: &str,
        build: &str,
    ) -> Result<(BuiltTemplateRow, TemplateBuildRow), DaemonError> {
        let template = self.templates.own(caller, template)?;
        let found = self.templates.look_up(|registry| registry.template_build(build))?;
        let found = found.filter(|row| row.template == template.id);
        let found = found.ok_or_else(|| DaemonError::UnknownBuild { id: build.to_owned() })?;
        Ok((template, found))
    }

    /// Whether an archive is here that a build of the caller's copies from, or how it is uploaded.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Invalid`, `Store`.
    pub(crate) async fn upload_of(
        &self,
        caller: &Caller,
        template: &str,
        hash: &str,
    ) -> Result<UploadState, DaemonError> {
        let template = self.templates.own(caller, template)?;
        let hash = hash_of(hash)?;
        let present = self.uploads.has(&template.key_id, &hash).await?;
        let token = self.uploads.grant(&template.key_id, &hash, present)?;
        Ok(UploadState { present, token })
    }

    /// Takes an archive of whoever shows a token for it.
    ///
    /// # Errors
    /// `Unauthorized`, `Invalid`, `TooLarge`, `QuotaExceeded`, `Overloaded`.
    pub(crate) async fn receive(&self, token: &str, hash: &str, announced: u64) -> Result<UploadWriter, DaemonError> {
        self.admission.check()?;
        // Whoever has no token is told nothing else.
        let hash = hash.parse().map_err(|_| DaemonError::Unauthorized)?;
        self.uploads.receive(token, &hash, announced).await
    }

    /// The caller's templates, by name.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn list(&self, caller: &Caller) -> Result<Vec<BuiltTemplateView>, DaemonError> {
        let all = self.templates.look_up(crate::registry::Registry::built_templates)?;
        let own = all.into_iter().filter(|row| row.key_id == caller.key_id);
        own.map(|row| self.view(row)).collect()
    }

    /// Those of which the caller may know: its own, and for who may do everything those of all keys.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn list_visible(&self, caller: &Caller) -> Result<Vec<BuiltTemplateView>, DaemonError> {
        let all = self.templates.look_up(crate::registry::Registry::built_templates)?;
        let visible = all.into_iter().filter(|row| caller.sees(Some(&row.key_id)));
        visible.map(|row| self.view(row)).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Store`.
    pub(crate) fn get(&self, caller: &Caller, which: &str) -> Result<BuiltTemplateView, DaemonError> {
        self.view(self.templates.own(caller, which)?)
    }

    fn view(&self, row: BuiltTemplateRow) -> Result<BuiltTemplateView, DaemonError> {
        let builds = self.templates.look_up(|registry| registry.builds_of(&row.id))?;
        let tags = self.templates.look_up(|registry| registry.tags_of(&row.id))?;
        Ok(BuiltTemplateView::of(row, builds, &tags, &self.config.default_limits))
    }

    /// How a build goes on.
    ///
    /// # Errors
    /// `UnknownTemplate`, `UnknownBuild`, `Store`.
    pub(crate) fn status(
        &self,
        caller: &Caller,
        template: &str,
        build: &str,
    ) -> Result<TemplateBuildView, DaemonError> {
        let (_, row) = self.own_build(caller, template, build)?;
        Ok(TemplateBuildView::of(row, &self.config.default_limits))
    }

    /// What a build said, from a line on, at most [`MAX_LOG_PAGE`] lines.
    ///
    /// # Errors
    /// `UnknownTemplate`, `UnknownBuild`, `Store`.
    pub(crate) async fn log(
        &self,
        caller: &Caller,
        template: &str,
        build: &str,
        from: u64,
        limit: u32,
    ) -> Result<Vec<BuildLogLine>, DaemonError> {
        let (_, row) = self.own_build(caller, template, build)?;
        let limit = limit.min(MAX_LOG_PAGE);
        let read = self.core.registry.read("read the log of a build", move |registry| {
            registry.build_log(&row.id, from, limit)
        });
        Ok(read.await?.into_iter().map(BuildLogLine::from).collect())
    }

    /// Says whether other keys may make sandboxes of a template of the caller's; answers its name.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Store`.
    pub(crate) async fn set_public(&self, caller: &Caller, which: &str, public: bool) -> Result<String, DaemonError> {
        let row = self.templates.own(caller, which)?;
        let change = Change::SetTemplatePublic {
            id: row.id,
            public,
            at_ms: now_ms(),
        };
        self.core.registry.apply(vec![change]).await?;
        Ok(row.name)
    }

    /// Removes a template of the caller's that no sandbox uses, with all its builds; those that go on are ended.
    ///
    /// # Errors
    /// `UnknownTemplate`, `TemplateInUse`, `Store`.
    pub(crate) async fn remove(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        let row = self.templates.own(caller, which)?;
        let is_of_it = |name: &str| template_names::of_store(name) == Some(&row.id);
        let is_used = self
            .core
            .sandboxes
            .all()
            .iter()
            .any(|entry| entry.read(|facts| facts.owner().is_some() && is_of_it(&facts.row().template)));
        if is_used {
            return Err(DaemonError::TemplateInUse { name: row.name });
        }
        let snapshots = self.templates.look_up(crate::registry::Registry::all_snapshots)?;
        if snapshots.iter().any(|snapshot| is_of_it(&snapshot.template)) {
            return Err(DaemonError::TemplateHasSnapshots { name: row.name });
        }
        self.core
            .registry
            .apply(vec![Change::RemoveTemplate(row.id.clone())])
            .await?;
        for build in self.going_on().builds.values() {
            if build.template == row.id {
                build.stop.send_replace(true);
            }
        }
        self.collect().await;
        Ok(())
    }

    /// Ends every build: the daemon is to end.
    pub(crate) fn stop_all(&self) {
        for build in self.going_on().builds.values() {
            build.stop.send_replace(true);
        }
    }
}

fn hash_of(text: &str) -> Result<UploadHash, DaemonError> {
    text.parse()
        .map_err(|error: offleash_core::build::instruction::BadUploadHash| {
            DaemonError::invalid("hash", error.to_string())
        })
}
