//! What is to be done from time to time: sandboxes whose time is up, revoked keys, secrets, what could not be removed, old
//! log lines.

use std::sync::Arc;
use std::time::Duration;

use offleash_supervisor::clock::{before, now_ms};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::daemon_core::DaemonCore;
use crate::ending::SandboxEnder;
use crate::expiry::SandboxExpiry;
use crate::idle::IdleWatch;
use crate::key_revocation::KeyRevocation;
use crate::registry::Change;
use crate::secrets::SecretStore;
use crate::snapshots::{AutomaticCheckpoints, SnapshotStore};
use crate::template_builds::BuildService;

/// Looked at so often at least: somebody may have set the machine's clock.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// How often sandboxes of removed keys are looked for, at most.
const REVOKES_EVERY: Duration = Duration::from_secs(1);
/// How often lines are looked for that nobody needs any more.
const FORGETS_EVERY: Duration = Duration::from_secs(600);
/// How often what could not be removed is tried again.
const REMOVES_EVERY: Duration = Duration::from_secs(30);

/// Does what is to be done from time to time.
#[derive(Debug)]
pub(crate) struct MaintenanceLoop {
    core: DaemonCore,
    /// How long lines of sandboxes that ended are kept.
    keep_logs: Duration,
    expiry: Arc<SandboxExpiry>,
    revocation: Arc<KeyRevocation>,
    secrets: Arc<SecretStore>,
    removers: Removers,
    idle: Arc<IdleWatch>,
    automatic: Arc<AutomaticCheckpoints>,
}

/// Those that try again what could not be removed.
#[derive(Debug)]
pub(crate) struct Removers {
    pub(crate) ender: Arc<SandboxEnder>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) builds: Arc<BuildService>,
}

/// What was done when.
#[derive(Debug)]
struct LastRounds {
    removed: Instant,
    forgot: Option<Instant>,
    revoked: Option<(Instant, JoinHandle<()>)>,
}

impl MaintenanceLoop {
    #[expect(
        clippy::too_many_arguments,
        reason = "the services that it stands on, each by its type"
    )]
    pub(crate) fn new(
        core: DaemonCore,
        keep_logs: Duration,
        expiry: Arc<SandboxExpiry>,
        revocation: Arc<KeyRevocation>,
        secrets: Arc<SecretStore>,
        removers: Removers,
        idle: Arc<IdleWatch>,
        automatic: Arc<AutomaticCheckpoints>,
    ) -> Self {
        Self {
            core,
            keep_logs,
            expiry,
            revocation,
            secrets,
            removers,
            idle,
            automatic,
        }
    }

    /// Begins, and goes on until the daemon is gone.
    pub(crate) fn start(self: &Arc<Self>) {
        let (weak, sandboxes) = (Arc::downgrade(self), Arc::clone(&self.core.sandboxes));
        tokio::spawn(async move {
            let mut last = LastRounds {
                removed: Instant::now(),
                forgot: None,
                revoked: None,
            };
            loop {
                let Some(maintenance) = weak.upgrade() else { return };
                let next = maintenance.go_round(&mut last).await;
                drop(maintenance);
                // Either is a reason to look again.
                let _ = timeout(next, sandboxes.end_changed()).await;
                // Many changes together are one reason.
                sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// Does what is due; answers when something may be next.
    async fn go_round(&self, last: &mut LastRounds) -> Duration {
        let next = self.expiry.expire_due(AT_LEAST_EVERY);
        let next = match self.core.jobs.is_draining() {
            // Nothing is begun that nobody asked for.
            true => next,
            false => self.automatic.make_due(self.idle.sleep_due(next)),
        };
        // Beside this, because it asks the registry, which may take its time: that of sandboxes does not wait for it.
        let is_due = last
            .revoked
            .as_ref()
            .is_none_or(|(begun, work)| work.is_finished() && begun.elapsed() > REVOKES_EVERY);
        if is_due && !self.core.jobs.is_draining() {
            last.revoked = Some((Instant::now(), self.revoke_in_background()));
        }
        if last.removed.elapsed() > REMOVES_EVERY {
            last.removed = Instant::now();
            self.removers.ender.remove_again().await;
            self.removers.snapshots.remove_released().await;
            self.removers.builds.collect_all().await;
        }
        if last.forgot.is_none_or(|forgot| forgot.elapsed() > FORGETS_EVERY) {
            last.forgot = Some(Instant::now());
            self.core.registry.submit_droppable(Change::ForgetLogs {
                ended_ms: before(now_ms(), self.keep_logs),
            });
        }
        next
    }

    /// The end of the daemon waits for it: what it holds is not given back before.
    fn revoke_in_background(&self) -> JoinHandle<()> {
        let job = self.core.jobs.begin();
        let (revocation, secrets) = (Arc::clone(&self.revocation), Arc::clone(&self.secrets));
        tokio::spawn(async move {
            revocation.end_due().await;
            secrets.renew(None).await;
            drop((revocation, secrets));
            drop(job);
        })
    }
}
