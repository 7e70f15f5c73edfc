//! What is left of sandboxes on the host, and is removed: at once, or later where it cannot be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offleash_core::id::RunId;
use offleash_core::log_level::LogLevel;

use crate::host::SandboxHost;
use crate::registry_handle::RegistryHandle;

/// Removes what is left of sandboxes.
#[derive(Debug)]
pub(crate) struct LeftoverRemover {
    host: Arc<SandboxHost>,
    registry: Arc<RegistryHandle>,
    /// Sandboxes that were never made, of which something could not be removed so far.
    unmade: Mutex<Vec<RunId>>,
}

impl LeftoverRemover {
    pub(crate) fn new(host: Arc<SandboxHost>, registry: Arc<RegistryHandle>) -> Self {
        Self {
            host,
            registry,
            unmade: Mutex::default(),
        }
    }

    /// Removes the directory of a sandbox and what its supervisor may have left elsewhere. Answers whether all of it is gone.
    pub(crate) async fn remove(&self, id: &RunId) -> bool {
        match self.host.remove(id).await {
            Ok(()) => {
                self.host.remove_tool_ledger(id);
                true
            }
            Err(why) => {
                let line = format!("it cannot be removed: {why}");
                self.registry.log(id.as_str(), LogLevel::Error, line);
                false
            }
        }
    }

    /// The same of a sandbox that was not made; what cannot be removed now, as when descriptors are short, is later.
    pub(crate) async fn remove_unmade(&self, id: &RunId) {
        if !self.remove(id).await {
            self.unmade().push(id.clone());
        }
    }

    /// Tries again to remove what could not be removed of those that were not made.
    pub(crate) async fn remove_again(&self) {
        let unmade = std::mem::take(&mut *self.unmade());
        for id in unmade {
            self.remove_unmade(&id).await;
        }
    }

    fn unmade(&self) -> MutexGuard<'_, Vec<RunId>> {
        self.unmade.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
