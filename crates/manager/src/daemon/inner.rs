//! What all parts of the daemon share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use offleash_core::id::RunId;
use offleash_store::registry::{Change, LogLevel, Registry, RegistryError, SandboxRow};
use offleash_store::{DaemonLock, HostIdentity, SandboxDirectories, StateDirectory};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::admission::Admission;
use super::code::AllContexts;
use super::config::DaemonConfig;
use super::error::DaemonError;
use super::history::{Cause, Happened, line_of};
use super::pool::Pool;
use super::readiness::Readiness;
use super::spares::Spares;
use super::table::{Entry, Table};
use super::templates::Builds;
use super::view::Counts;
use super::zygotes::Zygotes;
use crate::clock::now_ms;
use crate::keeper::client::Keeper;

/// What all parts of the daemon share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) config: DaemonConfig,
    pub(super) state: StateDirectory,
    pub(super) directories: SandboxDirectories,
    pub(super) registry: Registry,
    pub(super) table: Table,
    pub(super) admission: Admission,
    pub(super) pool: Pool,
    pub(super) builds: Builds,
    /// Places for sandboxes that are being made.
    pub(super) creating: Semaphore,
    /// Places for forks whose files are being copied.
    pub(super) copying: Semaphore,
    /// Told when a sandbox may be the next whose time is up.
    pub(super) end_changed: Arc<Notify>,
    pub(super) tally: Tally,
    pub(super) readiness: Readiness,
    pub(super) contexts: AllContexts,
    pub(super) zygotes: Zygotes,
    pub(super) spares: Spares,
    /// What is left of sandboxes that were never made, and could not be removed so far.
    leftovers: Mutex<Vec<RunId>>,
    /// True once the daemon is to end.
    draining: watch::Sender<bool>,
    /// How many jobs go on that the end of the daemon should wait for.
    jobs: AtomicUsize,
    job_done: Notify,
    /// Held until everything else is gone.
    _lock: DaemonLock,
}

/// What happened since the daemon was started.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) created: AtomicU64,
    pub(super) created_warm: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// How often, and for how long at most, a lock is asked for that the daemon before may be about to drop.
const LOCK_TRIES: u32 = 20;
const BETWEEN_LOCK_TRIES: Duration = Duration::from_millis(50);

/// How many forks have their files copied at a time: what is copied is read and written as fast as the disk can.
const MOST_COPYING: usize = 2;

/// Log lines and samples are dropped when so many batches wait for the registry.
const MOST_WAITING: usize = 1000;

impl Inner {
    pub(super) async fn open(config: DaemonConfig) -> Result<Arc<Self>, DaemonError> {
        let explicit = config.state.clone();
        let (state, lock) = Self::lock(explicit).await?;
        let directories = state.sandboxes()?;
        let opened = state.clone();
        let registry = blocking("open the registry", move || Registry::open(&opened)).await??;
        Ok(Arc::new(Self {
            admission: Admission::new(config.admission, state.path().to_owned()),
            pool: Pool::new(config.pool.clone()),
            zygotes: Zygotes::new(config.zygotes),
            spares: Spares::default(),
            builds: Builds::default(),
            creating: Semaphore::new(config.max_creating.max(1)),
            copying: Semaphore::new(MOST_COPYING),
            config,
            state,
            directories,
            registry,
            table: Table::default(),
            end_changed: Arc::default(),
            tally: Tally::default(),
            readiness: Readiness::default(),
            contexts: AllContexts::default(),
            leftovers: Mutex::default(),
            draining: watch::Sender::new(false),
            jobs: AtomicUsize::new(0),
            job_done: Notify::new(),
            _lock: lock,
        }))
    }

    async fn lock(explicit: Option<PathBuf>) -> Result<(StateDirectory, DaemonLock), DaemonError> {
        let state = blocking("open the state directory", move || {
            StateDirectory::open(explicit.as_deref(), &HostIdentity::of_this_process())
        })
        .await??;
        for _ in 0..LOCK_TRIES {
            if let Some(lock) = state.lock_for_daemon()? {
                return Ok((state, lock));
            }
            tokio::time::sleep(BETWEEN_LOCK_TRIES).await;
        }
        Err(DaemonError::AlreadyRunning)
    }

    /// What is left of sandboxes that were never made.
    pub(super) fn leftovers(&self) -> MutexGuard<'_, Vec<RunId>> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper of `entry`, whether or not it lives.
    pub(super) fn keeper(&self, entry: &Entry) -> Keeper {
        Keeper::in_directory(&self.directories.path_of(&entry.id))
    }

    /// The keeper of a sandbox that has no entry.
    pub(super) fn keeper_of(&self, id: &RunId) -> Keeper {
        Keeper::in_directory(&self.directories.path_of(id))
    }

    /// Applies `batch` to the registry.
    pub(super) async fn apply(&self, batch: Vec<Change>) -> Result<(), RegistryError> {
        let (sender, receiver) = oneshot::channel();
        // Nobody may be there to hear of it: whoever asked is cancelled then.
        self.registry.submit(
            batch,
            Box::new(move |outcome| {
                let _ = sender.send(outcome);
            }),
        );
        receiver.await.unwrap_or(Err(RegistryError::Closed))
    }

    /// Changes the row of `entry`, first in the registry, then in memory, and notes with it what happened.
    ///
    /// Must run to its end once begun ([`Inner::detached`]), or memory and registry differ.
    pub(super) async fn write(
        &self,
        entry: &Entry,
        happened: Option<Happened>,
        change: impl FnOnce(&mut SandboxRow),
    ) -> Result<(), RegistryError> {
        let _writing = entry.writing.lock().await;
        let mut row = entry.lock().row.clone();
        change(&mut row);
        row.generation += 1;
        let mut batch = vec![Change::SetSandbox(Box::new(row.clone()))];
        batch.extend(happened.into_iter().flat_map(|happened| happened.told(&row)));
        self.apply(batch).await?;
        entry.lock().row = row;
        Ok(())
    }

    /// Notes a line about a sandbox; lost when the registry is too busy.
    pub(super) fn log(&self, sandbox: &str, level: LogLevel, line: impl Into<String>) {
        self.submit_droppable(line_of(sandbox, now_ms(), level, line));
    }

    /// Hands in what may be lost.
    pub(super) fn submit_droppable(&self, change: Change) {
        if self.registry.waiting() < MOST_WAITING {
            self.registry.submit(vec![change], Box::new(|_| ()));
        }
    }

    /// Does `work` to its end even if who asked for it is gone: a caller that hangs up must not leave half of it.
    pub(super) async fn detached<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, DaemonError>> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let job = Job::begin(self);
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

    pub(super) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Does `work` as long as the daemon is not about to end: for what nobody has asked for.
    ///
    /// # Errors
    /// `Draining`, at once, also when it was begun; what there is of it is the caller's to take back.
    pub(super) async fn unless_draining<T>(&self, work: impl Future<Output = T>) -> Result<T, DaemonError> {
        let mut draining = self.draining.subscribe();
        tokio::select! {
            biased;
            _ = draining.wait_for(|is_draining| *is_draining) => Err(DaemonError::Draining),
            done = work => Ok(done),
        }
    }

    pub(super) async fn drain(self: &Arc<Self>) {
        self.draining.send_replace(true);
        self.jobs_done().await;
        // Nobody's sandboxes would wait for a daemon that may never come.
        for entry in self.pool.take_all() {
            super::ending::end_in_background(self, &entry, Cause::killed("the daemon ended"));
        }
        self.jobs_done().await;
        self.zygotes.let_go();
        self.spares.close();
        // Whatever was handed in before is written when this is.
        let _ = self.apply(Vec::new()).await;
    }

    async fn jobs_done(&self) {
        loop {
            let done = self.job_done.notified();
            if self.jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            // Looked at again now and then: a wake-up between the two lines above is not missed for long.
            let _ = tokio::time::timeout(Duration::from_millis(100), done).await;
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let counts = self.table.counts();
        // What is nobody's and runs is not yet, or no longer, to be handed out, if it is not in the pool.
        let waiting = self.pool.waiting().into_iter().map(|(_, count)| count).sum();
        Counts {
            pooled: counts.pooled.min(waiting),
            changing: counts.changing + counts.pooled.saturating_sub(waiting),
            created: read(&self.tally.created),
            created_warm: read(&self.tally.created_warm),
            failed: read(&self.tally.failed),
            ..counts
        }
    }
}

/// Something that the end of the daemon waits for.
pub(super) struct Job {
    inner: Arc<Inner>,
}

impl Job {
    pub(super) fn begin(inner: &Arc<Inner>) -> Self {
        inner.jobs.fetch_add(1, Ordering::AcqRel);
        Self {
            inner: Arc::clone(inner),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.inner.jobs.fetch_sub(1, Ordering::AcqRel);
        self.inner.job_done.notify_waiters();
    }
}

/// Does what blocks on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(
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
