//! The tools over the daemon's sandboxes, for one caller.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use offleash_core::template::TemplateName;
use offleash_daemon::{
    Caller, CarriedContexts, CreateRequest, Daemon, ForkRequest, IMAGE_PREFIX, LEVEL_LABEL, LifecycleRequest,
    NetworkSettings, SandboxView, Scope,
};
use tokio::sync::OwnedSemaphorePermit;

use super::backing::{CreateArguments, OpenedSandbox, SandboxBacking};
use super::failure::ToolError;
use crate::control::volumes;
use crate::http::failure;
use crate::journal::Journal;

/// How long a sandbox lives that is not used, unless something else was asked for.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// How much of that is used up before it begins anew.
const RENEWAL: Duration = Duration::from_secs(60);
/// How long a command or a cell may take; a session that says nothing lives longer.
pub(super) const MAX_CALL_TIME: Duration = Duration::from_secs(20 * 60);

/// What was refused in a sandbox of the daemon is its owner's to allow.
const REMEDY: &str = "only the owner of the sandbox can allow it";

#[derive(Debug)]
pub(super) struct ServedSandboxes {
    pub(super) daemon: Daemon,
    pub(super) caller: Caller,
    pub(super) journal: Arc<dyn Journal>,
    /// Its places among all sessions, and among those of the caller.
    pub(super) _places: [OwnedSemaphorePermit; 2],
}

impl ServedSandboxes {
    fn lifetime(&self) -> u64 {
        LIFETIME.min(self.daemon.config().max_timeout).as_secs()
    }

    async fn opened(&self, view: SandboxView) -> Result<OpenedSandbox, ToolError> {
        let supervisor = self.daemon.supervisor(&view.id).await?;
        let contexts = self.daemon.contexts(&view.id).await?;
        let notes = view.not_enforced.iter();
        Ok(OpenedSandbox {
            notes: notes
                .map(|(what, why)| format!("not enforced: {what}: {why}"))
                .collect(),
            id: view.id,
            supervisor,
            contexts,
            env: view.env,
            cwd: view.cwd,
            remedy: REMEDY,
        })
    }

    /// What is usual: the template with the libraries where that is built.
    async fn usual_template(&self) -> String {
        let built = self.daemon.templates(&self.caller).await;
        let name = TemplateName::code_interpreter();
        match built {
            Ok(built) if built.iter().any(|template| template.record.name == name) => name.to_string(),
            _ => CreateRequest::default().template,
        }
    }
}

impl SandboxBacking for ServedSandboxes {
    const CAN_BE_TOLD: bool = true;
    const CAN_FORK: bool = true;

    async fn create(&self, new: CreateArguments) -> Result<OpenedSandbox, ToolError> {
        let template = match (new.image, new.template) {
            (Some(_), Some(_)) => return Err(ToolError::new("`image` and `template` exclude each other")),
            (Some(image), None) => format!("{IMAGE_PREFIX}{image}"),
            (None, Some(template)) => template,
            (None, None) => self.usual_template().await,
        };
        let request = CreateRequest {
            template,
            timeout_seconds: Some(new.timeout_seconds.unwrap_or_else(|| self.lifetime())),
            env: new.env.unwrap_or_default(),
            volumes: volumes::mounts(new.volumes),
            lifecycle: LifecycleRequest {
                idle: new.idle_seconds.map(Duration::from_secs),
                ..LifecycleRequest::default()
            },
            metadata: new
                .level
                .map(|level| (LEVEL_LABEL.to_owned(), level))
                .into_iter()
                .collect(),
            network: NetworkSettings {
                internet: new.internet,
                ..NetworkSettings::default()
            },
            ..CreateRequest::default()
        };
        let view = self.daemon.create(&self.caller, request).await?;
        self.opened(view).await
    }

    async fn open(&self, id: &str) -> Result<OpenedSandbox, ToolError> {
        self.caller.require(Scope::Create)?;
        let view = self.daemon.get(&self.caller, id)?;
        // One that sleeps is woken before its time is looked at, which stands still meanwhile.
        let _awake = self.daemon.supervisor(id).await?;
        let view = self.daemon.get(&self.caller, &view.id)?;
        let left = view.end_at.duration_since(SystemTime::now()).unwrap_or_default();
        // Each time is written down, so not with every one of many calls.
        if left + RENEWAL < Duration::from_secs(self.lifetime()) {
            self.daemon.refresh(&self.caller, id, Some(self.lifetime())).await?;
        }
        self.opened(view).await
    }

    async fn fork(
        &self,
        id: &str,
        count: u32,
        contexts: CarriedContexts,
    ) -> Result<Vec<Result<String, ToolError>>, ToolError> {
        let request = ForkRequest {
            count,
            timeout_seconds: Some(self.lifetime()),
            contexts,
            name: None,
        };
        let forks = self.daemon.fork(&self.caller, id, request).await?;
        let made = forks
            .into_iter()
            .map(|fork| fork.map(|view| view.id).map_err(ToolError::from));
        Ok(made.collect())
    }

    async fn kill(&self, id: &str) -> Result<(), ToolError> {
        Ok(self.daemon.kill(&self.caller, id).await?)
    }

    fn leave(&self, id: String) {
        let (daemon, caller) = (self.daemon.clone(), self.caller.clone());
        // Where there is no event loop any more, its time will be up.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // It may have ended by itself.
                let _killed = daemon.kill(&caller, &id).await;
            });
        }
    }

    async fn bury(&self, _: &str) -> Option<String> {
        // The daemon buries its own; `GET /v1/audit` says why each ended.
        None
    }

    fn longest(&self) -> Duration {
        MAX_CALL_TIME
    }

    fn internal(&self, told: &str, cause: &(dyn Error + 'static)) -> String {
        failure::record(&*self.journal, told, cause);
        "the server has failed to do it; its log says why".to_owned()
    }
}
