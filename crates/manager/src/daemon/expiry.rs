//! Ends or pauses sandboxes whose time is up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use offleash_store::registry::{Change, EventKind, LogLevel, SandboxState, UnixMs};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::history::{Cause, Happened};
use super::inner::{Inner, Job};
use super::table::Entry;
use super::{ending, secrets, transitions, withdrawal};
use crate::clock::{before, now_ms};

/// Looked at so often at least: somebody may have set the machine's clock.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// How often sandboxes of removed keys are looked for, at most.
const WITHDRAWS_EVERY: Duration = Duration::from_secs(1);

/// How often lines are looked for that nobody needs any more.
const FORGETS_EVERY: Duration = Duration::from_secs(600);

/// Begins to watch the time, until the daemon is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    let (weak, changed) = (Arc::downgrade(inner), Arc::clone(&inner.end_changed));
    tokio::spawn(async move {
        let mut removed_again = Instant::now();
        let mut forgot: Option<Instant> = None;
        let mut withdrawal: Option<(Instant, JoinHandle<()>)> = None;
        loop {
            let Some(inner) = weak.upgrade() else { return };
            let next = expire_due(&inner);
            // Beside this, because it asks the registry, which may take its time: that of sandboxes does not wait for it.
            let is_due = withdrawal
                .as_ref()
                .is_none_or(|(begun, work)| work.is_finished() && begun.elapsed() > WITHDRAWS_EVERY);
            if is_due && !inner.is_draining() {
                withdrawal = Some((Instant::now(), withdraw_in_background(&inner)));
            }
            if removed_again.elapsed() > ending::REMOVED_AGAIN {
                removed_again = Instant::now();
                ending::remove_again(&inner).await;
            }
            if forgot.is_none_or(|forgot| forgot.elapsed() > FORGETS_EVERY) {
                forgot = Some(Instant::now());
                inner.submit_droppable(Change::ForgetLogs {
                    ended_ms: before(now_ms(), inner.config.keep_logs),
                });
            }
            drop(inner);
            // Either is a reason to look again.
            let _ = timeout(next, changed.notified()).await;
            // Many changes together are one reason.
            sleep(Duration::from_millis(1)).await;
        }
    });
}

/// The end of the daemon waits for it: what it holds is not given back before.
fn withdraw_in_background(inner: &Arc<Inner>) -> JoinHandle<()> {
    let job = Job::begin(inner);
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        withdrawal::end_due(&inner).await;
        secrets::renew(&inner, None).await;
        drop(inner);
        drop(job);
    })
}

/// Begins to end what is due; answers how long nothing else is.
fn expire_due(inner: &Arc<Inner>) -> Duration {
    let now = now_ms();
    let mut next = AT_LEAST_EVERY;
    for entry in inner.table.all() {
        let Some(end) = end_of(&entry) else { continue };
        if end > now {
            let left = u64::try_from(end - now).unwrap_or(u64::MAX);
            next = next.min(Duration::from_millis(left));
        } else if !entry.expiring.swap(true, Ordering::AcqRel) {
            expire_in_background(inner, entry);
        }
    }
    next
}

/// When the time of a sandbox is up, if it runs and is somebody's.
fn end_of(entry: &Entry) -> Option<UnixMs> {
    let facts = entry.lock();
    let runs = facts.row.key_id.is_some() && facts.row.state == SandboxState::Running;
    runs.then_some(facts.row.end_ms)
}

fn expire_in_background(inner: &Arc<Inner>, entry: Arc<Entry>) {
    let job = Job::begin(inner);
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let _job = job;
        expire(&inner, &entry).await;
        entry.expiring.store(false, Ordering::Release);
    });
}

async fn expire(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let turn = entry.transition.lock().await;
    // It may have been extended, paused or ended while we waited.
    if end_of(entry).is_none_or(|end| end > now_ms()) {
        return;
    }
    let row = entry.lock().row.clone();
    // An event that is lost on a full disk does not keep a sandbox alive.
    let timed_out = Happened::new(EventKind::TimedOut, "its time was up");
    let _ = inner.apply(timed_out.told(&row).into()).await;
    if row.auto_pause {
        match transitions::pause(inner, entry, "because its time was up", &turn).await {
            Ok(()) => return,
            Err(error) => {
                let line = format!("its time is up, and it cannot be paused: {error}; it is killed");
                inner.log(&row.id, LogLevel::Error, line);
            }
        }
    }
    ending::end(inner, entry, Cause::killed("its time was up"), turn).await;
}
