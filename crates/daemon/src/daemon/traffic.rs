//! What the data plane asks, which has checked itself who may.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use offleash_supervisor::service::SandboxUse;
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::message::StartExec;

use super::Daemon;
use crate::contexts::SandboxContexts;
use crate::error::DaemonError;
use crate::listing;
use crate::sandboxes::SandboxUseGuard;
use crate::snapshots::AutomaticCheckpoints;
use crate::transitions::WhenPaused;
use crate::view::AccessRules;

/// A use of a sandbox, before whose commands checkpoints may be made.
#[derive(Debug)]
struct ObservedUse {
    used: SandboxUseGuard,
    /// It does not keep the daemon.
    automatic: Weak<AutomaticCheckpoints>,
}

impl SandboxUse for ObservedUse {
    fn before_start<'a>(&'a self, start: &'a StartExec) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Some(automatic) = self.automatic.upgrade() {
                automatic.before_start(self.used.entry(), start).await;
            }
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
        let supervisor = services.core.host.supervisor(used.entry().id());
        Ok(supervisor.used_by(Arc::new(ObservedUse {
            used,
            automatic: Arc::downgrade(&services.automatic),
        })))
    }

    /// As [`Self::supervisor`], for what no sandbox is resumed for.
    ///
    /// # Errors
    /// As [`Self::supervisor`].
    pub async fn supervisor_unless_paused(&self, id: &str) -> Result<SupervisorClient, DaemonError> {
        let services = &self.services;
        let looked_at = services.changer.running(id, WhenPaused::Leave).await?;
        let supervisor = services.core.host.supervisor(looked_at.entry().id());
        Ok(supervisor.used_by(Arc::new(ObservedUse {
            used: looked_at,
            automatic: Arc::downgrade(&services.automatic),
        })))
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
