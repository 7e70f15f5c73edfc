//! Ending sandboxes, and removing what is left of those that ended.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use offleash_core::log_level::LogLevel;
use tokio::time::timeout;

use crate::caller::Caller;
use crate::contexts::ContextTable;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::history::{EndCause, SupervisorRemains, who};
use crate::jobs::blocking;
use crate::launch::Process;
use crate::leftovers::LeftoverRemover;
use crate::pool::ReadyPool;
use crate::registry::{Change, SandboxState};
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::volumes::VolumeService;

/// How long what is going on with a sandbox is waited for before it is ended.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a supervisor may take to end its sandbox before the kernel is asked to; and how long that may take.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(10);
const KERNEL_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxEnder {
    core: DaemonCore,
    pool: Arc<ReadyPool>,
    contexts: Arc<ContextTable>,
    leftovers: Arc<LeftoverRemover>,
    volumes: Arc<VolumeService>,
}

impl SandboxEnder {
    pub(crate) fn new(
        core: DaemonCore,
        pool: Arc<ReadyPool>,
        contexts: Arc<ContextTable>,
        leftovers: Arc<LeftoverRemover>,
        volumes: Arc<VolumeService>,
    ) -> Self {
        Self {
            core,
            pool,
            contexts,
            leftovers,
            volumes,
        }
    }

    /// Ends a sandbox of the caller's. When this returns no process of it is left, and its log is whole.
    ///
    /// # Errors
    /// `NotFound`, also when it ended meanwhile; `Conflict` if it cannot be had for a minute.
    pub(crate) async fn kill(self: &Arc<Self>, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let cause = EndCause::killed(format!("by {}", who(caller)));
        let ender = Arc::clone(self);
        let work = async move {
            let busy = || DaemonError::conflict(entry.name(), "is being changed for very long");
            let turn = entry.turn_within(TURN_TIMEOUT).await.ok_or_else(busy)?;
            if entry.state() == SandboxState::Killing {
                return Err(DaemonError::not_found(entry.name()));
            }
            ender.end(&entry, cause, turn).await;
            Ok(())
        };
        self.core.jobs.detached(work).await
    }

    /// Ends the sandbox of `entry`; what is left of it is removed in the background.
    pub(crate) async fn end(self: &Arc<Self>, entry: &Arc<SandboxEntry>, cause: EndCause, turn: SandboxTurn<'_>) {
        entry.set_cause(cause);
        let killing = self.core.registry.write(entry, None, |row| {
            row.state = SandboxState::Killing;
            // The same request makes another one from now on.
            row.idempotency_key = None;
        });
        // On a full disk it is ended all the same; that is what frees it. The next daemon finds its supervisor gone.
        if killing.await.is_err() {
            entry.set_state(SandboxState::Killing);
        }
        self.end_supervisor(entry).await;
        // On a full disk it is told once its files are gone.
        let account = self.account(entry).await;
        if !account.is_empty() {
            let _told = self.core.registry.apply(account).await;
        }
        drop(turn);
        self.volumes.send_in_background(entry);
        self.forget_in_background(entry);
    }

    /// As [`Self::end`], without waiting for it, unless it is being ended already.
    pub(crate) fn end_in_background(self: &Arc<Self>, entry: &Arc<SandboxEntry>, cause: EndCause) {
        let (ender, entry) = (Arc::clone(self), Arc::clone(entry));
        self.core
            .jobs
            .spawn(async move { ender.end_unless_ending(&entry, cause).await });
    }

    /// As [`Self::end`], unless it is being ended already.
    pub(crate) async fn end_unless_ending(self: &Arc<Self>, entry: &Arc<SandboxEntry>, cause: EndCause) {
        let turn = entry.turn().await;
        if entry.state() != SandboxState::Killing {
            self.end(entry, cause, turn).await;
        }
    }

    /// The changes that tell how a sandbox ended and keep what its supervisor wrote; nothing where that was done, also by an
    /// earlier daemon, or where nobody had the sandbox.
    async fn account(&self, entry: &SandboxEntry) -> Vec<Change> {
        let (row, cause) = entry.read(|facts| (facts.row().clone(), facts.cause().cloned()));
        if row.key_id.is_none() {
            return Vec::new();
        }
        let id = row.id.clone();
        let told = self
            .core
            .registry
            .read("read the end of a sandbox", move |registry| registry.end_of(&id));
        // A registry that cannot be read cannot be written either.
        if told.await.is_ok_and(|end| end.is_some()) {
            return Vec::new();
        }
        let (host, id) = (Arc::clone(&self.core.host), entry.id().clone());
        let read = blocking("read a supervisor's account", move || host.supervisor_remains(&id)).await;
        let cause = cause.unwrap_or_else(|| EndCause::died("its supervisor died"));
        read.unwrap_or_else(|_| SupervisorRemains::default()).told(&row, cause)
    }

    /// Asks the supervisor to end its sandbox; kills it if it does not.
    pub(crate) async fn end_supervisor(&self, entry: &SandboxEntry) {
        if entry.has_supervisor_ended() {
            return;
        }
        let asked = timeout(SUPERVISOR_TIMEOUT, self.core.host.supervisor(entry.id()).kill()).await;
        if matches!(asked, Ok(Ok(_))) && timeout(SUPERVISOR_TIMEOUT, entry.supervisor_ended()).await.is_ok() {
            return;
        }
        if let Some(process) = entry.supervisor_process().and_then(Process::find) {
            // Not ours to signal is nobody whom we started.
            let _ = process.kill();
        }
        if timeout(KERNEL_TIMEOUT, entry.supervisor_ended()).await.is_err() {
            self.core
                .registry
                .log(entry.name(), LogLevel::Error, "its supervisor does not end");
        }
    }

    /// Waits for the end of a supervisor, and removes what is left of its sandbox unless somebody else ended it.
    pub(crate) fn watch(self: &Arc<Self>, entry: &Arc<SandboxEntry>, process: Process) {
        let (weak, entry) = (Arc::downgrade(self), Arc::clone(entry));
        tokio::spawn(async move {
            let watched = process.ended().await;
            entry.note_supervisor_ended();
            // The daemon may be gone by then; the next one finds out by itself.
            let Some(ender) = weak.upgrade() else { return };
            if let Err(error) = watched {
                let line = format!("its supervisor cannot be watched: {error}");
                ender.core.registry.log(entry.name(), LogLevel::Error, line);
            }
            ender.after_supervisor(&entry).await;
        });
    }

    /// A supervisor has ended: if nobody told it to, its sandbox died.
    async fn after_supervisor(self: &Arc<Self>, entry: &Arc<SandboxEntry>) {
        let turn = entry.turn().await;
        let is_anothers = matches!(
            entry.state(),
            SandboxState::Killing
                | SandboxState::Creating
                | SandboxState::Restoring
                | SandboxState::PuttingAway
                | SandboxState::PutAway
                | SandboxState::Waking
        );
        // It may have another one by now.
        if self.core.sandboxes.has(entry) && !is_anothers && entry.has_supervisor_ended() {
            self.pool.forget(entry);
            self.end(entry, EndCause::died("its supervisor died"), turn).await;
        }
    }

    /// Removes what is left of a sandbox whose supervisor has ended, and then its record.
    pub(crate) fn forget_in_background(self: &Arc<Self>, entry: &Arc<SandboxEntry>) {
        let (ender, entry) = (Arc::clone(self), Arc::clone(entry));
        self.core.jobs.spawn(async move { ender.forget(&entry).await });
    }

    /// As [`Self::forget_in_background`], and waits for it. What cannot be removed keeps its record, and is tried again.
    async fn forget(&self, entry: &Arc<SandboxEntry>) {
        let account = self.account(entry).await;
        if !self.leftovers.remove(entry.id()).await {
            return;
        }
        let row = entry.row();
        let mut batch = vec![Change::RemoveSandbox(row.id.clone())];
        batch.extend(account);
        if row.key_id.is_none() {
            // What was never handed out is of no interest to anybody.
            batch.push(Change::RemoveLogs(row.id));
        }
        if self.core.registry.apply(batch).await.is_ok() {
            self.core.sandboxes.remove(entry);
            self.core.questions.forget(entry.name());
            self.contexts.forget(entry.name());
        }
    }

    /// As [`Self::end_in_background`], for one whose creator has gone before he knew of it.
    pub(crate) fn end_unclaimed(self: &Arc<Self>, entry: &Arc<SandboxEntry>) {
        self.end_in_background(entry, EndCause::killed("its creator went away while it was made"));
    }

    /// Removes what is left of a sandbox that no record speaks of.
    pub(crate) async fn remove_leftovers(&self, id: &RunId) {
        // It is found again by the next daemon if something stays.
        let _removed = self.leftovers.remove(id).await;
    }

    /// Removes what there is of a sandbox that is not made, and its record.
    pub(crate) async fn discard(&self, entry: &Arc<SandboxEntry>) {
        self.leftovers.remove_unmade(entry.id()).await;
        self.contexts.forget(entry.name());
        // On a full disk this fails, too; the next daemon finds the row without a supervisor.
        let removed = Change::RemoveSandbox(entry.name().to_owned());
        let _removed = self.core.registry.apply(vec![removed]).await;
        self.core.sandboxes.remove(entry);
    }

    /// Tries again to remove what could not be removed.
    pub(crate) async fn remove_again(&self) {
        self.leftovers.remove_again().await;
        for entry in self.core.sandboxes.all() {
            if entry.state() != SandboxState::Killing || !entry.has_supervisor_ended() {
                continue;
            }
            if let Some(_turn) = entry.turn_now() {
                self.forget(&entry).await;
            }
        }
    }
}
