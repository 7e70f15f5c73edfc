//! What becomes of rules of monitoring that fire in sandboxes: events, and what their supervisors leave to the daemon.
//!
//! A supervisor acts by itself, whether a daemon is there or not: it slows its sandbox down, stops it or ends it. What is left
//! is that this is known: a stopped sandbox is paused in the registry, too, and its files are kept as a checkpoint if a rule
//! says so. A supervisor counts what it was told is done, so that nothing is missed by a daemon that begins anew.

use std::sync::Arc;

use offleash_core::log_level::LogLevel;
use offleash_core::monitor::MonitorAction;
use offleash_core::record::AlertRecord;

use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::history::alert_of;
use crate::lifecycle::PauseMode;
use crate::putting_away::PauseReason;
use crate::registry::SandboxState;
use crate::sandboxes::SandboxEntry;
use crate::snapshots::CheckpointStore;
use crate::transitions::SandboxChanger;

/// Heeds alerts.
#[derive(Debug)]
pub(crate) struct AlertKeeper {
    core: DaemonCore,
    changer: Arc<SandboxChanger>,
    checkpoints: Arc<CheckpointStore>,
}

impl AlertKeeper {
    pub(crate) fn new(core: DaemonCore, changer: Arc<SandboxChanger>, checkpoints: Arc<CheckpointStore>) -> Self {
        Self {
            core,
            changer,
            checkpoints,
        }
    }

    /// Begins to heed what fired in a sandbox.
    pub(crate) fn heed_in_background(self: &Arc<Self>, entry: Arc<SandboxEntry>) {
        if !entry.begin_heeding() {
            return;
        }
        let keeper = Arc::clone(self);
        self.core.jobs.spawn(async move {
            if let Err(error) = keeper.heed(&entry).await
                && entry.state() == SandboxState::Running
            {
                let line = format!("what a rule of monitoring asks for was not done: {error}");
                keeper.core.registry.log(entry.name(), LogLevel::Warn, line);
            }
            entry.end_heeding();
        });
    }

    async fn heed(&self, entry: &Arc<SandboxEntry>) -> Result<(), DaemonError> {
        let supervisor = self.core.host.supervisor(entry.id());
        let of_supervisor = |error| DaemonError::of_supervisor("hear of alerts", entry.name(), error);
        let fired = supervisor.alerts(None).await.map_err(of_supervisor)?;
        let events = entry.read(|facts| {
            let row = facts.row();
            fired.alerts.iter().map(|alert| alert_of(row, alert)).collect()
        });
        self.core.registry.apply(events).await?;
        if fired.paused
            && let Some(rule) = pausing(&fired.alerts)
        {
            self.pause(entry, rule).await?;
        }
        supervisor.alerts(Some(fired.count)).await.map_err(of_supervisor)?;
        Ok(())
    }

    /// Has it known that a sandbox is paused which its supervisor has stopped.
    async fn pause(&self, entry: &Arc<SandboxEntry>, alert: &AlertRecord) -> Result<(), DaemonError> {
        let turn = entry.turn().await;
        if entry.state() == SandboxState::Running {
            let reason = PauseReason::new(format!("by rule `{}` of monitoring", alert.rule));
            self.changer.pause(entry, PauseMode::Full, &reason, &turn).await?;
        }
        drop(turn);
        if alert.action == MonitorAction::SnapshotAndPause {
            let why = format!("when rule `{}` of monitoring fired", alert.rule);
            self.checkpoints.create_automatic(entry, why).await?;
        }
        Ok(())
    }
}

/// The alert for which a sandbox was stopped: the one that asks for most.
fn pausing(alerts: &[AlertRecord]) -> Option<&AlertRecord> {
    let pausing = alerts
        .iter()
        .filter(|alert| alert.action.pauses() && alert.not_done.is_none());
    pausing.max_by_key(|alert| alert.action)
}
