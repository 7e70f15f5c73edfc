//! The one thread that changes the registry.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, TransactionBehavior};

use super::error::RegistryError;
use super::making::{Change, concerns_keys, make};

/// What is called with the outcome of a batch.
pub type BatchCallback = Box<dyn FnOnce(Result<(), RegistryError>) + Send>;

struct ChangeBatch {
    changes: Vec<Change>,
    done: BatchCallback,
}

/// The writer's end that everybody uses.
pub(super) struct RegistryWriter {
    /// Dropped to end the thread.
    batches: Option<Sender<ChangeBatch>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Most batches in one transaction, so that the first of them does not wait for long.
const MAX_TOGETHER: usize = 256;

impl RegistryWriter {
    pub(super) fn start(connection: Connection) -> Result<Self, RegistryError> {
        let (sender, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let thread = std::thread::Builder::new()
            .name("registry".into())
            .spawn(move || write_all(connection, &receiver, &counted))
            .map_err(|error| RegistryError::Failed {
                tried: "starting the registry's thread",
                source: Arc::new(error),
            })?;
        Ok(Self {
            batches: Some(sender),
            waiting,
            thread: Some(thread),
        })
    }

    pub(super) fn submit(&self, changes: Vec<Change>, done: BatchCallback) {
        let Some(batches) = &self.batches else {
            return done(Err(RegistryError::Closed));
        };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(refused) = batches.send(ChangeBatch { changes, done }) {
            (refused.0.done)(Err(RegistryError::Closed));
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Whatever was submitted is still written.
impl Drop for RegistryWriter {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take()
            // The last owner may be a callback on that very thread.
            && thread.thread().id() != std::thread::current().id()
        {
            // It panics only through a callback's defect, which was told on that thread.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for RegistryWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

fn write_all(mut connection: Connection, batches: &Receiver<ChangeBatch>, waiting: &AtomicUsize) {
    while let Ok(first) = batches.recv() {
        let mut together = vec![first];
        together.extend(batches.try_iter().take(MAX_TOGETHER - 1));
        waiting.fetch_sub(together.len(), Ordering::Relaxed);
        commit(&mut connection, together);
    }
}

/// Applies `batches` in one transaction; one that fails leaves no trace and does not disturb the others.
fn commit(connection: &mut Connection, batches: Vec<ChangeBatch>) {
    let flushed = batches.iter().flat_map(|batch| &batch.changes).any(concerns_keys);
    let outcomes = set_flushing(connection, flushed).and_then(|()| try_commit(connection, &batches));
    match outcomes {
        Ok(outcomes) => {
            for (batch, outcome) in batches.into_iter().zip(outcomes) {
                (batch.done)(outcome);
            }
        }
        Err(error) => {
            for batch in batches {
                (batch.done)(Err(error.clone()));
            }
        }
    }
}

fn set_flushing(connection: &Connection, flushed: bool) -> Result<(), RegistryError> {
    let level = if flushed { "FULL" } else { "NORMAL" };
    connection
        .pragma_update(None, "synchronous", level)
        .map_err(|error| RegistryError::of(TRIED, error))
}

const TRIED: &str = "writing to the registry";

type Outcomes = Vec<Result<(), RegistryError>>;

fn try_commit(connection: &mut Connection, batches: &[ChangeBatch]) -> Result<Outcomes, RegistryError> {
    let tried = |error| RegistryError::of(TRIED, error);
    let mut transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(tried)?;
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        let savepoint = transaction.savepoint().map_err(tried)?;
        let outcome = batch.changes.iter().try_for_each(|change| make(&savepoint, change));
        match &outcome {
            Ok(()) => savepoint.commit().map_err(tried)?,
            // SQLite rolls everything back by itself when the disk is full or fails: nothing of the others is left then.
            Err(error) if savepoint.is_autocommit() => return Err(error.clone()),
            Err(_) => drop(savepoint),
        }
        outcomes.push(outcome);
    }
    transaction.commit().map_err(tried)?;
    Ok(outcomes)
}
