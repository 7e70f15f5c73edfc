//! The registry, for those who must not block: writes are awaited, long reads have a thread of their own.
//!
//! A sandbox's row is changed here alone, first in the registry, then in memory.

use std::sync::Arc;

use offleash_core::log_level::LogLevel;
use offleash_store::{DaemonLock, StateDirectory};
use offleash_supervisor::clock::now_ms;
use tokio::sync::oneshot;

use crate::error::DaemonError;
use crate::event_feed::EventFeed;
use crate::history::{EventNote, line_of};
use crate::jobs::blocking;
use crate::registry::{Change, Registry, RegistryError, SandboxRow};
use crate::sandboxes::SandboxEntry;
use crate::specification::Specification;

/// Log lines and samples are dropped when so many batches wait for the registry.
const MAX_WAITING: usize = 1000;

/// The registry of the daemon.
#[derive(Debug)]
pub(crate) struct RegistryHandle {
    open: Arc<OpenRegistry>,
    feed: EventFeed,
}

#[derive(Debug)]
struct OpenRegistry {
    registry: Registry,
    /// Held until what was handed in is written.
    _lock: Arc<DaemonLock>,
}

impl RegistryHandle {
    /// Opens the registry of a state directory that is ours.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn open(state: &StateDirectory, lock: Arc<DaemonLock>) -> Result<Self, DaemonError> {
        let state = state.clone();
        let registry = blocking("open the registry", move || Registry::open(&state)).await??;
        Ok(Self {
            open: Arc::new(OpenRegistry { registry, _lock: lock }),
            feed: EventFeed::default(),
        })
    }

    /// Reads something that takes as long as there are rows.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        tried: &'static str,
        read: impl FnOnce(&Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, DaemonError> {
        let open = Arc::clone(&self.open);
        Ok(blocking(tried, move || read(&open.registry)).await??)
    }

    /// Looks up what is found at once.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn look_up<T>(
        &self,
        read: impl FnOnce(&Registry) -> Result<T, RegistryError>,
    ) -> Result<T, DaemonError> {
        Ok(read(&self.open.registry)?)
    }

    /// Applies `batch`, and waits until it is committed.
    ///
    /// # Errors
    /// As [`RegistryError`] says; nothing of the batch is applied then.
    pub(crate) async fn apply(&self, batch: Vec<Change>) -> Result<(), RegistryError> {
        let events = EventFeed::among(&batch);
        let (sender, receiver) = oneshot::channel();
        // Nobody may be there to hear of it: whoever asked is cancelled then.
        self.open.registry.submit(
            batch,
            Box::new(move |outcome| {
                let _ = sender.send(outcome);
            }),
        );
        receiver.await.unwrap_or(Err(RegistryError::Closed))?;
        self.feed.tell(events);
        Ok(())
    }

    /// What happens, as soon as it is on record.
    pub(crate) fn feed(&self) -> &EventFeed {
        &self.feed
    }

    /// Changes the row of `entry`, first in the registry, then in memory, and notes with it what happened.
    ///
    /// Must run to its end once begun ([`crate::jobs::JobTracker::detached`]), or memory and registry differ.
    ///
    /// # Errors
    /// As [`RegistryError`] says; nothing is changed then.
    pub(crate) async fn write(
        &self,
        entry: &SandboxEntry,
        happened: Option<EventNote>,
        change: impl FnOnce(&mut SandboxRow),
    ) -> Result<(), RegistryError> {
        let write = entry.begin_write().await;
        let mut row = entry.row();
        change(&mut row);
        row.generation += 1;
        let mut batch = vec![Change::SetSandbox(Box::new(row.clone()))];
        batch.extend(happened.into_iter().flat_map(|happened| happened.told(&row)));
        self.apply(batch).await?;
        write.finish(row);
        Ok(())
    }

    /// As [`Self::write`], for what was asked for of a sandbox.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn specify(
        &self,
        entry: &SandboxEntry,
        specification: Specification,
        happened: Option<EventNote>,
    ) -> Result<(), RegistryError> {
        let text = specification.to_json();
        self.write(entry, happened, |row| row.spec = text).await?;
        entry.set_specification(specification);
        Ok(())
    }

    /// Notes a line about a sandbox; lost when the registry is too busy.
    pub(crate) fn log(&self, sandbox: &str, level: LogLevel, line: impl Into<String>) {
        self.submit_droppable(line_of(sandbox, now_ms(), level, line));
    }

    /// Hands in what may be lost.
    pub(crate) fn submit_droppable(&self, change: Change) {
        if self.open.registry.waiting() < MAX_WAITING {
            self.open.registry.submit(vec![change], Box::new(|_| ()));
        }
    }
}
