//! What the data plane asks, which has checked itself who may.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use offleash_supervisor::service::SandboxUse;
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::StartExec;

use super::Daemon;
use crate::contexts::SandboxContexts;
use crate::error::DaemonError;
use crate::listing;
use crate::questions::DaemonQuestions;
use crate::registry_handle::RegistryHandle;
use crate::sandboxes::SandboxUseGuard;
use crate::snapshots::AutomaticCheckpoints;
use crate::transitions::WhenPaused;
use crate::view::AccessRules;

/// A use of a sandbox, before whose commands somebody may be asked, and checkpoints may be made.
#[derive(Debug)]
struct ObservedUse {
    used: SandboxUseGuard,
    questions: Arc<DaemonQuestions>,
    /// It does not keep the daemon.
    registry: Weak<RegistryHandle>,
    automatic: Weak<AutomaticCheckpoints>,
}

impl SandboxUse for ObservedUse {
    fn before_start<'a>(
        &'a self,
        start: &'a StartExec,
    ) -> Pin<Box<dyn Future<Output = Result<(), SupervisorError>> + Send + 'a>> {
        Box::pin(async move {
            let entry = self.used.entry();
            let registry = self.registry.upgrade();
            self.questions
                .before_command(entry, registry.as_ref(), &start.argv)
                .await?;
            if let Some(automatic) = self.automatic.upgrade() {
                automatic.before_start(entry, start).await;
            }
            Ok(())
        })
    }
}

impl Daemon {
    /// What the data plane must know of a sandbox before it lets anybody in.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn access(&self, id: &str) -> Result<AccessRules, DaemonError> {
        let entry = self.services.core.sandboxes.get(id);
        entry
            .and_then(|entry| entry.access())
            .ok_or_else(|| DaemonError::not_found(id))
    }

    /// The sandbox whose services ask for a token that `is_right`, for requests that do not say which one they are for.
    pub fn find_by_access_token(&self, is_right: impl Fn(&str) -> bool) -> Option<String> {
        listing::find_by_access_token(&self.services.core.sandboxes, is_right)
    }

    /// The supervisor of a running sandbox, for the data plane, which has checked who asks. One that is paused is resumed
    /// if traffic resumes it. As long as the answer lives, or what comes from it, the sandbox is used and does not sleep.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Supervisor`; `QuotaExceeded` and `Overloaded` where it cannot be resumed now.
    pub async fn supervisor(&self, id: &str) -> Result<SupervisorClient, DaemonError> {
        let services = &self.services;
        let used = services.changer.running(id, WhenPaused::Resume).await?;
        Ok(self.observed(used))
    }

    /// As [`Self::supervisor`], for what no sandbox is resumed for.
    ///
    /// # Errors
    /// As [`Self::supervisor`].
    pub async fn supervisor_unless_paused(&self, id: &str) -> Result<SupervisorClient, DaemonError> {
        let services = &self.services;
        let looked_at = services.changer.running(id, WhenPaused::Leave).await?;
        Ok(self.observed(looked_at))
    }

    fn observed(&self, used: SandboxUseGuard) -> SupervisorClient {
        let (core, automatic) = (&self.services.core, &self.services.automatic);
        let supervisor = core.host.supervisor(used.entry().id());
        supervisor.used_by(Arc::new(ObservedUse {
            used,
            questions: Arc::clone(&core.questions),
            registry: Arc::downgrade(&core.registry),
            automatic: Arc::downgrade(automatic),
        }))
    }

    /// The contexts of a sandbox, which is resumed by this when traffic resumes it. Who asks was checked.
    ///
    /// Drivers that an earlier daemon started are found again. They outlive this daemon, too.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Supervisor`.
    pub async fn contexts(&self, id: &str) -> Result<Arc<SandboxContexts>, DaemonError> {
        self.contexts_when(id, WhenPaused::Resume).await
    }

    /// As [`Self::contexts`], for what no sandbox is resumed for.
    ///
    /// # Errors
    /// As [`Self::contexts`].
    pub async fn contexts_unless_paused(&self, id: &str) -> Result<Arc<SandboxContexts>, DaemonError> {
        self.contexts_when(id, WhenPaused::Leave).await
    }

    async fn contexts_when(&self, id: &str, when_paused: WhenPaused) -> Result<Arc<SandboxContexts>, DaemonError> {
        let used = self.services.changer.running(id, when_paused).await?;
        let entry = used.entry();
        // One that ended meanwhile has none any more.
        if !self.services.core.sandboxes.has(entry) {
            return Err(DaemonError::not_found(id));
        }
        self.services.zygotes.want(&entry.template());
        Ok(self.services.contexts.of(entry))
    }
}
