//! The registry: what the daemon must not forget, in one SQLite database in the state directory.
//!
//! Sandboxes, API keys, templates of keys, events, log lines and samples of use. All that changes it in this process goes through one
//! thread ([`Registry::submit`]), which commits what has come together in one transaction; a batch is applied as a
//! whole or not at all. Reading goes on beside it (WAL).
//!
//! What was committed survives the end of the process at any moment. Commits are not flushed to the disk one by one
//! (`synchronous=NORMAL`): when the machine loses power its sandboxes are gone with it, and the database stays whole.
//! Only what is done to keys and to secrets is flushed, because a revoked key must not come back. What is removed is overwritten
//! in the database (`secure_delete`).
//!
//! Deliberately not here: what states mean and when they change. Nothing is async; callers wait where they see fit.

mod allowed_hosts;
mod error;
mod keys;
mod making;
mod reading;
#[macro_use]
mod rows;
mod builds;
mod schema;
mod secrets;
mod snapshots;
mod webhooks;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use allowed_hosts::AllowedHostRow;
pub use builds::{BuildLogRow, BuildState, BuiltTemplateRow, TemplateBuildRow, TemplateTagRow};
pub use error::RegistryError;
pub use keys::{ApiKey, BadApiKey, KEY_PREFIX_CHARS};
pub use making::Change;
use offleash_store::StateDirectory;
pub use reading::EventsQuery;
pub use rows::{
    BootId, EventKind, EventRow, KeyRow, LogRow, MetricRow, Quota, SandboxRow, SandboxState, Scope, Scopes,
    SupervisorProcess, UnknownWord,
};
use rusqlite::{Connection, OpenFlags};
pub use secrets::SecretRow;
pub use snapshots::{SnapshotKind, SnapshotRow, SnapshotState};
pub use webhooks::{EventFacts, WebhookRow};
pub use writer::BatchCallback;
use writer::RegistryWriter;

/// The database in the state directory.
const FILE: &str = "registry.sqlite3";

/// The open registry.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    reader: Mutex<Connection>,
    writer: RegistryWriter,
}

impl Registry {
    /// Opens the registry of `state`, and makes it if there is none.
    ///
    /// # Errors
    /// `Damaged` or `OtherSchema` if it is not one that we understand; it is left as it is then. `Full`, `ReadOnly`, `Busy`.
    pub fn open(state: &StateDirectory) -> Result<Self, RegistryError> {
        let path = state.path().join(FILE);
        let mut connection = schema::open_file(&path)?;
        schema::prepare(&mut connection)?;
        let reader = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        Ok(Self {
            reader: Mutex::new(reader),
            writer: RegistryWriter::start(connection)?,
            path,
        })
    }

    /// Whether there is one in the state directory at `path`; what cannot be looked at is taken for one.
    pub fn is_in(path: &Path) -> bool {
        path.join(FILE).try_exists().unwrap_or(true)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Applies `batch` as a whole, soon, and calls `done` with the outcome on the writer's thread.
    ///
    /// Batches are applied in the order in which they are handed in. `done` must not wait for anything.
    pub fn submit(&self, batch: Vec<Change>, done: BatchCallback) {
        self.writer.submit(batch, done);
    }

    /// Applies `batch` and waits until it is committed.
    ///
    /// # Errors
    /// As [`RegistryError`] says; nothing of the batch is applied then.
    pub fn apply(&self, batch: Vec<Change>) -> Result<(), RegistryError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.submit(
            batch,
            Box::new(move |outcome| {
                // The receiver waits below; it cannot be gone.
                let _ = sender.send(outcome);
            }),
        );
        receiver.recv().unwrap_or(Err(RegistryError::Closed))
    }

    /// How many batches wait to be applied; for those who can do without theirs when there are many.
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        // Nothing of the connection is broken by a panic in between: SQLite's statements are whole calls.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a connection with the settings that all of ours have.
fn connect(path: &Path, access: OpenFlags) -> Result<Connection, RegistryError> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let tried = |error| RegistryError::of("opening the registry", error);
    let connection = Connection::open_with_flags(path, flags).map_err(tried)?;
    connection.busy_timeout(schema::BUSY_TIMEOUT).map_err(tried)?;
    connection
        .execute_batch("PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF; PRAGMA secure_delete = ON;")
        .map_err(tried)?;
    Ok(connection)
}

#[cfg(test)]
mod tests;
