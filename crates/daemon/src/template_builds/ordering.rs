//! Starts builds: what a client asked for is checked, and becomes what a builder is told.

use std::sync::Arc;

use offleash_core::build::BuildBase;
use offleash_core::template::{Recipe, TemplateLimits, TemplateName};
use offleash_images::RegistryLogin;
use offleash_supervisor::builds::{BuildOrder, BuildUsage, InstructionOrder};
use offleash_supervisor::clock::now_ms;
use offleash_supervisor::service::order::NetworkOrder;
use offleash_supervisor::templates;
use tokio::sync::watch;

use super::{BuildInstructions, BuildService, InstructionsBase, MAX_COMMAND, MAX_QUEUED_OF_KEY, RunningBuild};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::network;
use crate::origin::BASE_TEMPLATE;
use crate::registry::{BuildState, BuiltTemplateRow, Change, RegistryError, TemplateBuildRow};
use crate::request::NetworkSettings;
use crate::template_names::in_store;

impl BuildService {
    /// Starts a build that was asked for.
    ///
    /// # Errors
    /// `UnknownTemplate`, `UnknownBuild`, `BuildConflict`, `Invalid`, `Unsupported`, `ImageNotAllowed`, `QuotaExceeded`,
    /// `Overloaded`, `Draining`.
    pub(crate) async fn start(
        self: &Arc<Self>,
        caller: &Caller,
        template: &str,
        build: &str,
        asked: BuildInstructions,
    ) -> Result<(), DaemonError> {
        if self.core.jobs.is_draining() {
            return Err(DaemonError::Draining);
        }
        let (template, row) = self.own_build(caller, template, build)?;
        let started = || DaemonError::BuildConflict {
            id: row.id.clone(),
            why: "was started already",
        };
        if row.state != BuildState::Waiting {
            return Err(started());
        }
        self.admission.check()?;
        for (field, command) in [("startCmd", &asked.start.start), ("readyCmd", &asked.start.ready)] {
            let is_command = |text: &String| text.len() <= MAX_COMMAND && !text.contains('\0');
            if !command.as_ref().is_none_or(is_command) {
                let why = format!("may have {MAX_COMMAND} bytes, and no NUL");
                return Err(DaemonError::invalid(field, why));
            }
        }
        self.check_room(&template.key_id)?;
        if !self.builds_of(&template.key_id) {
            // What sandboxes leave no room for is told at once; for other builds it waits.
            drop(self.reserve(caller, &row.id).await?);
        }
        let in_store = in_store(&template.id, &row.id)?;
        let order = self.order(caller, &template, &row, &in_store, asked).await?;
        let stopped = self.enter(&template, &row, in_store)?;
        let queued = TemplateBuildRow {
            state: BuildState::Queued,
            updated_ms: now_ms(),
            ..row
        };
        let change = Change::SetBuild(Box::new(queued.clone()), &[BuildState::Waiting]);
        if let Err(error) = self.core.registry.apply(vec![change]).await {
            // Somebody else started it, or it is gone.
            self.going_on().builds.remove(&queued.id);
            return Err(match error {
                RegistryError::Stale { .. } => DaemonError::BuildConflict {
                    id: queued.id,
                    why: "was started already",
                },
                error => error.into(),
            });
        }
        let (service, caller) = (Arc::clone(self), caller.clone());
        self.core
            .jobs
            .spawn(async move { service.run(&caller, queued, order, stopped).await });
        Ok(())
    }

    /// Whether builds of a key go on or wait.
    fn builds_of(&self, key: &str) -> bool {
        self.going_on().builds.values().any(|build| build.key == key)
    }

    /// What a builder is told.
    async fn order(
        &self,
        caller: &Caller,
        template: &BuiltTemplateRow,
        row: &TemplateBuildRow,
        in_store: &TemplateName,
        asked: BuildInstructions,
    ) -> Result<BuildOrder, DaemonError> {
        let mut pull = None;
        let base = match &asked.base {
            InstructionsBase::Image(name) => {
                let (reference, registries) = self.images.check(caller, name)?;
                pull = registries;
                if let Some((username, password)) = &asked.login {
                    let Some(settings) = &mut pull else {
                        return Err(DaemonError::NotAllowed {
                            what: "pulling images",
                            setting: "images.pull = \"missing\"",
                        });
                    };
                    settings.login = Some(RegistryLogin {
                        registry: reference.registry().to_owned(),
                        username: username.clone(),
                        password: password.clone(),
                    });
                }
                BuildBase::Image(reference.to_string())
            }
            InstructionsBase::Template(name) => BuildBase::Template(self.base_template(caller, name).await?),
        };
        for (index, instruction) in asked.instructions.iter().enumerate() {
            if let Some(hash) = &instruction.files
                && !self.uploads.has(&template.key_id, hash).await?
            {
                let why = format!("copies files that were not uploaded: {}", hash.as_str());
                return Err(DaemonError::invalid("steps", format!("step {} {why}", index + 1)));
            }
        }
        let network = network::order(&NetworkSettings::default())?;
        let order = InstructionOrder {
            key: template.key_id.clone(),
            base,
            pull,
            instructions: asked.instructions,
            uploads: self.uploads.of_key(&template.key_id).as_os_str().into(),
            network: NetworkOrder {
                internet: network.internet,
                allow: network.allow,
                deny: network.deny,
                ..NetworkOrder::default()
            },
            own_indexes: self.config.templates.own_indexes,
            force: asked.force,
            start: asked.start,
            limits: TemplateLimits {
                cpus: row.cpus,
                memory_mib: row.memory_mib,
            },
            usage: BuildUsage::default(),
        };
        Ok(BuildOrder {
            state: self.core.host.state_text(),
            name: in_store.clone(),
            recipe: Recipe::default(),
            instructions: Some(Box::new(order)),
            env: Vec::new(),
        })
    }

    async fn base_template(&self, caller: &Caller, name: &str) -> Result<TemplateName, DaemonError> {
        if let Some(built) = self.templates.resolve(caller, name)? {
            return Ok(built);
        }
        if name == BASE_TEMPLATE {
            return Err(DaemonError::Unsupported {
                what: "building from template `base`".to_owned(),
                why: "it lies over the machine's own system; begin with an image".to_owned(),
            });
        }
        let unknown = || DaemonError::UnknownTemplate { name: name.to_owned() };
        let found = TemplateName::meant_by(name).map_err(|_| unknown())?;
        let (state, wanted) = (self.core.host.state().clone(), found.clone());
        let is_there = blocking("find a template", move || templates::exists(&state, &wanted)).await??;
        is_there.then_some(found).ok_or_else(unknown)
    }

    /// Notes that a build goes on, and answers what tells it to end.
    fn enter(
        &self,
        template: &BuiltTemplateRow,
        row: &TemplateBuildRow,
        in_store: TemplateName,
    ) -> Result<watch::Receiver<bool>, DaemonError> {
        let mut table = self.going_on();
        let used = table
            .builds
            .values()
            .filter(|build| build.key == template.key_id)
            .count();
        if used >= MAX_QUEUED_OF_KEY {
            return Err(DaemonError::QuotaExceeded {
                what: "builds under way",
                quota: MAX_QUEUED_OF_KEY as u64,
                used: used as u64,
                asked: 1,
            });
        }
        if table.builds.contains_key(&row.id) {
            return Err(DaemonError::BuildConflict {
                id: row.id.clone(),
                why: "was started already",
            });
        }
        let (stop, stopped) = watch::channel(false);
        let running = RunningBuild {
            key: template.key_id.clone(),
            template: template.id.clone(),
            in_store,
            stop,
        };
        table.builds.insert(row.id.clone(), running);
        Ok(stopped)
    }
}
