//! What the data plane asks, which has checked itself who may.

use std::sync::Arc;

use offleash_supervisor::service::client::SupervisorClient;

use super::Daemon;
use crate::contexts::SandboxContexts;
use crate::error::DaemonError;
use crate::listing;
use crate::transitions::WhenPaused;
use crate::view::AccessRules;

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
    /// if traffic resumes it.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Supervisor`; `QuotaExceeded` and `Overloaded` where it cannot be resumed now.
    pub async fn supervisor(&self, id: &str) -> Result<SupervisorClient, DaemonError> {
        let found = self.services.changer.supervisor(id, WhenPaused::Resume).await;
        found.map(|(_, supervisor)| supervisor)
    }

    /// As [`Self::supervisor`], for what no sandbox is resumed for.
    ///
    /// # Errors
    /// As [`Self::supervisor`].
    pub async fn supervisor_unless_paused(&self, id: &str) -> Result<SupervisorClient, DaemonError> {
        let found = self.services.changer.supervisor(id, WhenPaused::Leave).await;
        found.map(|(_, supervisor)| supervisor)
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
        let (entry, _supervisor) = self.services.changer.supervisor(id, when_paused).await?;
        // One that ended meanwhile has none any more.
        if !self.services.core.sandboxes.has(&entry) {
            return Err(DaemonError::not_found(id));
        }
        self.services.zygotes.want(&entry.template());
        Ok(self.services.contexts.of(&entry))
    }
}
