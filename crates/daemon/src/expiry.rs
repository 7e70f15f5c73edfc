//! Ends or pauses sandboxes whose time is up.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::log_level::LogLevel;
use offleash_supervisor::clock::{UnixMs, now_ms};

use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::history::{EndCause, EventNote};
use crate::putting_away::PauseReason;
use crate::registry::{EventKind, SandboxState};
use crate::sandboxes::SandboxEntry;
use crate::transitions::SandboxChanger;

/// Why a sandbox ended whose time was up.
pub(crate) const TIME_WAS_UP: &str = "its time was up";

/// Ends or pauses sandboxes whose time is up.
#[derive(Debug)]
pub(crate) struct SandboxExpiry {
    core: DaemonCore,
    changer: Arc<SandboxChanger>,
    ender: Arc<SandboxEnder>,
}

impl SandboxExpiry {
    pub(crate) fn new(core: DaemonCore, changer: Arc<SandboxChanger>, ender: Arc<SandboxEnder>) -> Self {
        Self { core, changer, ender }
    }

    /// Begins to end what is due; answers how long nothing else is, `at_most` that.
    pub(crate) fn expire_due(self: &Arc<Self>, at_most: Duration) -> Duration {
        let now = now_ms();
        let mut next = at_most;
        for entry in self.core.sandboxes.all() {
            let Some(end) = end_of(&entry) else { continue };
            if end > now {
                let left = u64::try_from(end - now).unwrap_or(u64::MAX);
                next = next.min(Duration::from_millis(left));
            } else if entry.begin_expiring() {
                self.expire_in_background(entry);
            }
        }
        next
    }

    fn expire_in_background(self: &Arc<Self>, entry: Arc<SandboxEntry>) {
        let expiry = Arc::clone(self);
        self.core.jobs.spawn(async move {
            expiry.expire(&entry).await;
            entry.end_expiring();
        });
    }

    async fn expire(&self, entry: &Arc<SandboxEntry>) {
        let turn = entry.turn().await;
        // It may have been extended, paused or ended while we waited.
        if end_of(entry).is_none_or(|end| end > now_ms()) {
            return;
        }
        let row = entry.row();
        // An event that is lost on a full disk does not keep a sandbox alive.
        let timed_out = EventNote::new(EventKind::TimedOut, "its time was up");
        let _ = self.core.registry.apply(timed_out.told(&row).into()).await;
        if row.auto_pause {
            let reason = PauseReason::new("because its time was up");
            let mode = entry.specification().lifecycle.timeout_mode;
            match self.changer.pause(entry, mode, &reason, &turn).await {
                Ok(()) => return,
                Err(error) => {
                    let line = format!("its time is up, and it cannot be paused: {error}; it is killed");
                    self.core.registry.log(&row.id, LogLevel::Error, line);
                }
            }
        }
        self.ender.end(entry, EndCause::killed(TIME_WAS_UP), turn).await;
    }
}

/// When the time of a sandbox is up, if it runs and is somebody's.
fn end_of(entry: &SandboxEntry) -> Option<UnixMs> {
    entry.read(|facts| {
        let state = facts.row().state;
        let runs = facts.key_id().is_some() && matches!(state, SandboxState::Running | SandboxState::Restoring);
        runs.then_some(facts.row().end_ms)
    })
}
