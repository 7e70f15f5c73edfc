//! Checkpoints that are made by themselves: from time to time, and before commands that were named. Of those some are kept, and
//! the oldest go; those that somebody made stay.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::log_level::LogLevel;
use offleash_supervisor::service::message::StartExec;
use tokio::time::timeout;

use super::{CheckpointStore, from_json};
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::registry::{SandboxState, SnapshotRow};
use crate::sandboxes::SandboxEntry;

/// How long a command waits for the checkpoint before it.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(120);

/// Makes checkpoints by itself.
#[derive(Debug)]
pub(crate) struct AutomaticCheckpoints {
    core: DaemonCore,
    checkpoints: Arc<CheckpointStore>,
}

impl AutomaticCheckpoints {
    pub(crate) fn new(core: DaemonCore, checkpoints: Arc<CheckpointStore>) -> Self {
        Self { core, checkpoints }
    }

    /// Begins those that are due; answers how long nothing else is, `at_most` that.
    pub(crate) fn make_due(self: &Arc<Self>, at_most: Duration) -> Duration {
        let mut next = at_most;
        for entry in self.core.sandboxes.all() {
            let every = entry.read(|facts| {
                let runs = facts.key_id().is_some() && facts.row().state == SandboxState::Running;
                facts.specification().lifecycle.checkpoint_every.filter(|_| runs)
            });
            let Some(every) = every else { continue };
            match every.checked_sub(entry.checkpointed().elapsed()) {
                Some(left) if !left.is_zero() => next = next.min(left),
                _ => {
                    next = next.min(every);
                    self.make_in_background(entry, every);
                }
            }
        }
        next
    }

    fn make_in_background(self: &Arc<Self>, entry: Arc<SandboxEntry>, every: Duration) {
        let before = entry.checkpointed();
        // The next one is due that much later, however long this one takes.
        entry.note_checkpointed();
        let automatic = Arc::clone(self);
        self.core.jobs.spawn(async move {
            // What nobody has touched is as it was.
            if entry.activity().last() < before && !automatic.core.host.runs_commands(entry.id()).await {
                return;
            }
            if !automatic.make(&entry, format!("every {} s", every.as_secs())).await {
                // It is due still, whether or not anybody touches the sandbox again.
                entry.note_checkpointed_at(before);
            }
        });
    }

    /// Makes one before a command that is such, which is run at any rate.
    pub(crate) async fn before_start(&self, entry: &Arc<SandboxEntry>, start: &StartExec) {
        let specification = entry.specification();
        let Some(trigger) = specification.lifecycle.trigger_of(&start.argv) else {
            return;
        };
        let made = self.make(entry, format!("before `{trigger}`"));
        if timeout(BEFORE_TIMEOUT, made).await.is_err() {
            let line = format!("the checkpoint before `{trigger}` takes long; the command does not wait for it");
            self.core.registry.log(entry.name(), LogLevel::Warn, line);
        }
    }

    /// Makes one, and removes the oldest; whether it was made. Why it was not is in the sandbox's log.
    async fn make(&self, entry: &Arc<SandboxEntry>, why: String) -> bool {
        let keep = usize::try_from(entry.specification().lifecycle.checkpoint_keep).unwrap_or(usize::MAX);
        let made = async {
            let mut made = self.checkpoints.create_automatic(entry, why.clone()).await;
            if matches!(made, Err(DaemonError::QuotaExceeded { .. })) && self.remove_oldest(entry, 0).await? {
                made = self.checkpoints.create_automatic(entry, why.clone()).await;
            }
            made?;
            while self.remove_oldest(entry, keep).await? {}
            Ok::<_, DaemonError>(())
        };
        match made.await {
            Ok(()) => true,
            Err(error) => {
                if entry.state() == SandboxState::Running {
                    let line = format!("no checkpoint was made {why}: {error}");
                    self.core.registry.log(entry.name(), LogLevel::Warn, line);
                }
                false
            }
        }
    }

    /// Removes the oldest of those that were made by themselves, if there are more than `keep`; whether it did.
    async fn remove_oldest(&self, entry: &SandboxEntry, keep: usize) -> Result<bool, DaemonError> {
        let all = self.checkpoints.of(entry)?;
        let is_automatic = |row: &&SnapshotRow| from_json(&row.spec).is_some_and(|spec| spec.automatic.is_some());
        let automatic: Vec<&SnapshotRow> = all.iter().filter(is_automatic).collect();
        match automatic.first() {
            Some(oldest) if automatic.len() > keep => {
                self.checkpoints.release(&oldest.id).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
