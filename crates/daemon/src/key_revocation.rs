//! Ends the sandboxes of keys that were removed together with them, by whoever manages keys beside the daemon.

use std::collections::HashSet;
use std::sync::Arc;

use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::history::EndCause;
use crate::registry::{Registry, SandboxState};
use crate::sandboxes::SandboxEntry;

/// Ends the sandboxes of revoked keys.
#[derive(Debug)]
pub(crate) struct KeyRevocation {
    core: DaemonCore,
    ender: Arc<SandboxEnder>,
}

impl KeyRevocation {
    pub(crate) fn new(core: DaemonCore, ender: Arc<SandboxEnder>) -> Self {
        Self { core, ender }
    }

    /// Begins to end every sandbox of such a key. A request that was under way when the key was removed may still have made
    /// one afterwards; so it is looked at again and again.
    pub(crate) async fn end_due(&self) {
        let keys = self
            .core
            .registry
            .read("read the registry", Registry::keys_without_sandboxes);
        // It is tried again soon. That the registry cannot be read is told by every request, which looks its key up there.
        let keys: HashSet<String> = keys.await.unwrap_or_default().into_iter().collect();
        if keys.is_empty() {
            return;
        }
        for entry in self.core.sandboxes.all() {
            let is_due = entry.read(|facts| {
                let is_of_key = facts.key_id().is_some_and(|key| keys.contains(key));
                is_of_key && facts.row().state != SandboxState::Killing
            });
            if is_due && entry.begin_expiring() {
                self.end_in_background(entry);
            }
        }
    }

    fn end_in_background(&self, entry: Arc<SandboxEntry>) {
        let ender = Arc::clone(&self.ender);
        self.core.jobs.spawn(async move {
            let cause = EndCause::killed("as its key was removed");
            ender.end_unless_ending(&entry, cause).await;
            entry.end_expiring();
        });
    }
}
