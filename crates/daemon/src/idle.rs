//! Puts sandboxes to sleep that nobody uses.
//!
//! A use is a request to what is inside, as long as it or what it opened lasts: a command and its streams, a file, a cell, a
//! connection to a port; and a command that goes on, and a cell that runs, although nobody listens. What is asked about a sandbox
//! is none.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::log_level::LogLevel;
use offleash_interpreter::contexts::ContextState;

use crate::contexts::ContextTable;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::putting_away::PauseReason;
use crate::registry::SandboxState;
use crate::sandboxes::SandboxEntry;
use crate::transitions::SandboxChanger;

/// Puts sandboxes to sleep.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    core: DaemonCore,
    contexts: Arc<ContextTable>,
    changer: Arc<SandboxChanger>,
}

impl IdleWatch {
    pub(crate) fn new(core: DaemonCore, contexts: Arc<ContextTable>, changer: Arc<SandboxChanger>) -> Self {
        Self {
            core,
            contexts,
            changer,
        }
    }

    /// Begins to put to sleep what nobody uses; answers how long nothing else is to be, `at_most` that.
    pub(crate) fn sleep_due(self: &Arc<Self>, at_most: Duration) -> Duration {
        let mut next = at_most;
        for entry in self.core.sandboxes.all() {
            let Some(idle) = idle_of(&entry) else { continue };
            match idle.checked_sub(entry.activity().idle()) {
                Some(left) if !left.is_zero() => next = next.min(left),
                _ if entry.begin_expiring() => self.sleep_in_background(entry, idle),
                _ => {}
            }
        }
        next
    }

    fn sleep_in_background(self: &Arc<Self>, entry: Arc<SandboxEntry>, idle: Duration) {
        let watch = Arc::clone(self);
        self.core.jobs.spawn(async move {
            watch.fall_asleep(&entry, idle).await;
            entry.end_expiring();
            watch.core.sandboxes.note_end_changed();
        });
    }

    async fn fall_asleep(&self, entry: &Arc<SandboxEntry>, idle: Duration) {
        let turn = entry.turn().await;
        // It may have been used, paused or ended while we waited.
        if idle_of(entry).is_none() || entry.activity().idle() < idle {
            return;
        }
        if self.is_busy(entry).await {
            return entry.activity().note();
        }
        let mode = entry.specification().lifecycle.idle_mode;
        let slept = self.changer.pause(entry, mode, &PauseReason::idle(idle), &turn).await;
        // Somebody came; or it is tried again when it was idle for as long once more.
        entry.activity().note();
        match slept {
            Ok(()) | Err(DaemonError::Conflict { .. }) => {}
            Err(error) => {
                let line = format!("nobody uses it, and it cannot sleep: {error}");
                self.core.registry.log(entry.name(), LogLevel::Warn, line);
            }
        }
    }

    /// Whether something goes on in a sandbox that somebody asked for.
    async fn is_busy(&self, entry: &SandboxEntry) -> bool {
        if self.core.host.runs_commands(entry.id()).await {
            return true;
        }
        let contexts = self.contexts.of(entry).list().await;
        let goes_on = |state| matches!(state, ContextState::Busy | ContextState::Starting);
        contexts.map_or(true, |all| all.iter().any(|context| goes_on(context.state)))
    }
}

/// After how long a sandbox sleeps, if it runs and is somebody's.
fn idle_of(entry: &SandboxEntry) -> Option<Duration> {
    entry.read(|facts| {
        let runs = facts.key_id().is_some() && facts.row().state == SandboxState::Running;
        facts.specification().lifecycle.idle.filter(|_| runs)
    })
}
