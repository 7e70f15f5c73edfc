//! What the daemon is in the middle of, whether it takes new sandboxes, and whether it is to end.
//!
//! Work that somebody asked for runs to its end even if he is gone, and the end of the daemon waits for it. Deliberately
//! not here: what the work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::error::DaemonError;

/// How often it is looked at again whether all work is done: a wake-up may be missed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Counts what goes on, and knows whether more may begin.
#[derive(Debug, Default)]
pub(crate) struct JobTracker {
    /// True once the daemon is to end.
    draining: watch::Sender<bool>,
    /// True as long as the owner wants no new sandboxes.
    drained: AtomicBool,
    /// How many jobs go on that the end of the daemon should wait for.
    running: AtomicUsize,
    done: Notify,
}

/// Something that the end of the daemon waits for, until this is dropped.
#[derive(Debug)]
pub(crate) struct JobGuard {
    jobs: Arc<JobTracker>,
}

impl JobTracker {
    /// Begins a job.
    pub(crate) fn begin(self: &Arc<Self>) -> JobGuard {
        self.running.fetch_add(1, Ordering::AcqRel);
        JobGuard { jobs: Arc::clone(self) }
    }

    /// Does `work` to its end even if who asked for it is gone: a caller that hangs up must not leave half of it.
    pub(crate) async fn detached<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, DaemonError>> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let job = self.begin();
        let task = tokio::spawn(async move {
            let outcome = work.await;
            drop(job);
            outcome
        });
        task.await.map_err(|error| DaemonError::Host {
            tried: "finish what was asked",
            source: Box::new(error),
        })?
    }

    /// Does `work` as a job of which nobody waits for the outcome.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let job = self.begin();
        tokio::spawn(async move {
            work.await;
            drop(job);
        });
    }

    /// Whether the daemon is to end.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Whether the owner wants no new sandboxes.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// From now on there are to be no new sandboxes, or there may be again.
    pub(crate) fn set_drained(&self, is_drained: bool) {
        self.drained.store(is_drained, Ordering::Release);
    }

    /// Whether sandboxes that nobody asked for are made.
    pub(crate) fn makes_ahead(&self) -> bool {
        !self.is_draining() && !self.is_drained()
    }

    /// Fails if no sandbox may be made that somebody asks for.
    ///
    /// # Errors
    /// `Draining`, `Drained`.
    pub(crate) fn check_new(&self) -> Result<(), DaemonError> {
        match (self.is_draining(), self.is_drained()) {
            (true, _) => Err(DaemonError::Draining),
            (false, true) => Err(DaemonError::Drained),
            (false, false) => Ok(()),
        }
    }

    /// From now on the daemon is to end.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Does `work` as long as the daemon is not about to end: for what nobody has asked for.
    ///
    /// # Errors
    /// `Draining`, at once, also when it was begun; what there is of it is the caller's to take back.
    pub(crate) async fn unless_draining<T>(&self, work: impl Future<Output = T>) -> Result<T, DaemonError> {
        let mut draining = self.draining.subscribe();
        tokio::select! {
            biased;
            _ = draining.wait_for(|is_draining| *is_draining) => Err(DaemonError::Draining),
            done = work => Ok(done),
        }
    }

    /// Waits until no job goes on.
    pub(crate) async fn all_done(&self) {
        loop {
            let done = self.done.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            // A wake-up between the two lines above is not missed for long.
            let _ = tokio::time::timeout(LOOK_AGAIN, done).await;
        }
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.jobs.running.fetch_sub(1, Ordering::AcqRel);
        self.jobs.done.notify_waiters();
    }
}

/// Somebody waits for an answer, until this is dropped.
#[derive(Debug)]
pub(crate) struct CallerPresence(Arc<AtomicBool>);

impl Default for CallerPresence {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl CallerPresence {
    /// Whether somebody waits, to be looked at later.
    pub(crate) fn is_there(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for CallerPresence {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Does what blocks on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(
    tried: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DaemonError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| DaemonError::Host {
            tried,
            source: Box::new(error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_waits_for_what_was_begun_and_not_for_who_asked() {
        let jobs = Arc::new(JobTracker::default());
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let work = jobs.detached(async move {
            let _finished = finished.await;
            Ok(())
        });
        // Whoever asked hangs up.
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert!(
            tokio::time::timeout(Duration::from_millis(1), jobs.all_done())
                .await
                .is_err()
        );
        finish.send(()).unwrap();
        jobs.all_done().await;
    }

    #[tokio::test]
    async fn what_nobody_asked_for_is_cut_when_the_daemon_is_to_end() {
        let jobs = JobTracker::default();
        jobs.set_drained(true);
        assert!(matches!(jobs.check_new(), Err(DaemonError::Drained)) && !jobs.makes_ahead());
        jobs.set_drained(false);
        assert!(jobs.check_new().is_ok() && jobs.makes_ahead());
        assert_eq!(jobs.unless_draining(async { 1 }).await.unwrap(), 1);
        jobs.drain();
        let cut = jobs.unless_draining(std::future::pending::<()>()).await;
        assert!(jobs.is_draining() && matches!(cut, Err(DaemonError::Draining)));
    }
}
