//! The services that every other one stands on.

use std::sync::Arc;

use crate::caller::Caller;
use crate::error::DaemonError;
use crate::host::SandboxHost;
use crate::jobs::JobTracker;
use crate::questions::DaemonQuestions;
use crate::registry::Quota;
use crate::registry_handle::RegistryHandle;
use crate::sandboxes::{SandboxEntry, SandboxTable};

/// What goes on, what is on record, where sandboxes are on the host, and which there are. Clones share all of it.
#[derive(Debug, Clone)]
pub(crate) struct DaemonCore {
    pub(crate) jobs: Arc<JobTracker>,
    pub(crate) registry: Arc<RegistryHandle>,
    pub(crate) host: Arc<SandboxHost>,
    pub(crate) sandboxes: Arc<SandboxTable>,
    pub(crate) questions: Arc<DaemonQuestions>,
}

impl DaemonCore {
    /// What the owner of `entry` may have. Whoever asks, it is the owner's that is used.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn quota_of(&self, entry: &SandboxEntry, caller: Option<&Caller>) -> Result<Quota, DaemonError> {
        let Some(owner) = entry.owner() else {
            return Ok(Quota::default());
        };
        if let Some(caller) = caller.filter(|caller| caller.key_id == owner) {
            return Ok(caller.quota);
        }
        // The owner of the daemon has no key, and no quota.
        let key = self.registry.look_up(|registry| registry.key(&owner))?;
        Ok(key.map_or_else(Quota::default, |key| key.quota))
    }
}
