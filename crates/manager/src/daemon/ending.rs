//! Ending sandboxes, and removing what is left of those that ended.

use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use offleash_store::registry::{Change, LogLevel, SandboxState, Scope};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use super::error::DaemonError;
use super::history::{Cause, KeeperRemains, who};
use super::inner::{Inner, Job, blocking};
use super::launch::Process;
use super::table::Entry;
use super::view::Caller;
use super::{Daemon, remains};

/// How long what is going on with a sandbox is waited for before it is ended.
const TURN: Duration = Duration::from_secs(60);
/// How long a keeper may take to end its sandbox before the kernel is asked to; and how long that may take.
const KEEPER: Duration = Duration::from_secs(10);
const KERNEL: Duration = Duration::from_secs(30);
/// How often what could not be removed is tried again.
pub(super) const REMOVED_AGAIN: Duration = Duration::from_secs(30);

impl Daemon {
    /// Ends a sandbox, running or paused. When this returns no process of it is left, and its log is whole; its files are
    /// being removed.
    ///
    /// # Errors
    /// `NotFound`, also when it ended meanwhile; `Forbidden`; `Conflict` if it cannot be had for a minute.
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        let entry = self.inner.table.find(caller, id)?;
        let inner = Arc::clone(&self.inner);
        let cause = Cause::killed(format!("by {}", who(caller)));
        self.inner
            .detached(async move {
                let turn = turn(&entry).await?;
                if entry.state() == SandboxState::Killing {
                    return Err(DaemonError::not_found(entry.id.as_str()));
                }
                end(&inner, &entry, cause, turn).await;
                Ok(())
            })
            .await
    }
}

/// The right to change `entry`, once whoever has it is done.
pub(super) async fn turn(entry: &Entry) -> Result<MutexGuard<'_, ()>, DaemonError> {
    timeout(TURN, entry.transition.lock())
        .await
        .map_err(|_| DaemonError::conflict(entry.id.as_str(), "is being changed for very long"))
}

/// Ends the sandbox of `entry`; what is left of it is removed in the background.
pub(super) async fn end(inner: &Arc<Inner>, entry: &Arc<Entry>, cause: Cause, turn: MutexGuard<'_, ()>) {
    entry.lock().cause = Some(cause);
    // On a full disk it is ended all the same; that is what frees it. The next daemon finds its keeper gone.
    if inner
        .write(entry, None, |row| {
            row.state = SandboxState::Killing;
            // The same request makes another one from now on.
            row.idempotency_key = None;
        })
        .await
        .is_err()
    {
        entry.lock().row.state = SandboxState::Killing;
    }
    end_keeper(inner, entry).await;
    // On a full disk it is told once its files are gone.
    let account = account(inner, entry).await;
    if !account.is_empty() {
        let _told = inner.apply(account).await;
    }
    drop(turn);
    forget_in_background(inner, entry);
}

/// The changes that tell how a sandbox ended and keep what its keeper wrote; nothing where that was done, also by an earlier
/// daemon, or where nobody had the sandbox.
async fn account(inner: &Arc<Inner>, entry: &Entry) -> Vec<Change> {
    let (row, cause) = {
        let facts = entry.lock();
        (facts.row.clone(), facts.cause.clone())
    };
    if row.key_id.is_none() {
        return Vec::new();
    }
    let (work, id) = (Arc::clone(inner), entry.id.clone());
    let read = blocking("read a keeper's account", move || {
        // A registry that cannot be read cannot be written either.
        let is_told = work.registry.end_of(id.as_str()).is_ok_and(|end| end.is_some());
        (!is_told).then(|| KeeperRemains::read(&work.directories, &id))
    });
    let cause = cause.unwrap_or_else(|| Cause::died("its keeper died"));
    match read.await {
        Ok(Some(remains)) => remains.told(&row, cause),
        Ok(None) => Vec::new(),
        Err(_) => KeeperRemains::default().told(&row, cause),
    }
}

/// As [`end`], without waiting for it.
pub(super) fn end_in_background(inner: &Arc<Inner>, entry: &Arc<Entry>, cause: Cause) {
    let job = Job::begin(inner);
    let (inner, entry) = (Arc::clone(inner), Arc::clone(entry));
    tokio::spawn(async move {
        let _job = job;
        let turn = entry.transition.lock().await;
        if entry.state() != SandboxState::Killing {
            end(&inner, &entry, cause, turn).await;
        }
    });
}

/// Asks the keeper to end its sandbox; kills it if it does not.
pub(super) async fn end_keeper(inner: &Inner, entry: &Entry) {
    if *entry.ended.borrow() {
        return;
    }
    let asked = timeout(KEEPER, inner.keeper(entry).kill()).await;
    if matches!(asked, Ok(Ok(_))) && timeout(KEEPER, keeper_gone(entry)).await.is_ok() {
        return;
    }
    let recorded = entry.lock().row.keeper;
    if let Some(process) = recorded.and_then(Process::find) {
        // Not ours to signal is nobody whom we started.
        let _ = process.kill();
    }
    if timeout(KERNEL, keeper_gone(entry)).await.is_err() {
        inner.log(entry.id.as_str(), LogLevel::Error, "its keeper does not end");
    }
}

/// Waits until the keeper of `entry` has ended.
pub(super) async fn keeper_gone(entry: &Entry) {
    // The sender is in the entry, so the channel is not closed.
    let _ = entry.ended.subscribe().wait_for(|ended| *ended).await;
}

/// A keeper has ended: if nobody told it to, its sandbox died.
pub(super) async fn after_keeper(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let turn = entry.transition.lock().await;
    let known = inner
        .table
        .get(entry.id.as_str())
        .is_some_and(|found| Arc::ptr_eq(&found, entry));
    if known && !matches!(entry.state(), SandboxState::Killing | SandboxState::Creating) {
        inner.pool.forget(entry);
        end(inner, entry, Cause::died("its keeper died"), turn).await;
    }
}

/// Removes what is left of a sandbox whose keeper has ended, and then its record.
pub(super) fn forget_in_background(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let job = Job::begin(inner);
    let (inner, entry) = (Arc::clone(inner), Arc::clone(entry));
    tokio::spawn(async move {
        let _job = job;
        forget(&inner, &entry).await;
    });
}

/// As [`forget_in_background`], and waits for it. What cannot be removed keeps its record, and is tried again.
pub(super) async fn forget(inner: &Arc<Inner>, entry: &Arc<Entry>) -> bool {
    let account = account(inner, entry).await;
    if !remove_remains(inner, &entry.id).await {
        return false;
    }
    let row = entry.lock().row.clone();
    let mut batch = vec![Change::RemoveSandbox(row.id.clone())];
    batch.extend(account);
    if row.key_id.is_none() {
        // What was never handed out is of no interest to anybody.
        batch.push(Change::RemoveLogs(row.id));
    }
    if inner.apply(batch).await.is_err() {
        return false;
    }
    inner.table.remove(entry);
    inner.contexts.forget(entry.id.as_str());
    true
}

/// Removes the directory of a sandbox and what its keeper may have left elsewhere. Answers whether all of it is gone.
pub(super) async fn remove_remains(inner: &Arc<Inner>, id: &RunId) -> bool {
    let (work, removed_id) = (Arc::clone(inner), id.clone());
    let removed = blocking("remove a sandbox", move || {
        let program = work.config.program.as_deref();
        remains::remove(&work.state, &work.directories, program, &removed_id)
    });
    let why = match removed.await {
        Ok(Ok(())) => return true,
        Ok(Err(why)) => why,
        Err(error) => error.to_string(),
    };
    inner.log(id.as_str(), LogLevel::Error, format!("it cannot be removed: {why}"));
    false
}

/// The same of a sandbox that was not made; what cannot be removed now, as when descriptors are short, is later.
pub(super) async fn remove_unmade(inner: &Arc<Inner>, id: &RunId) {
    if !remove_remains(inner, id).await {
        inner.leftovers().push(id.clone());
    }
}

/// Tries again to remove what could not be removed.
pub(super) async fn remove_again(inner: &Arc<Inner>) {
    let leftovers = std::mem::take(&mut *inner.leftovers());
    for id in leftovers {
        remove_unmade(inner, &id).await;
    }
    for entry in inner.table.all() {
        if entry.state() != SandboxState::Killing || !*entry.ended.borrow() {
            continue;
        }
        if let Ok(_turn) = entry.transition.try_lock() {
            forget(inner, &entry).await;
        }
    }
}
