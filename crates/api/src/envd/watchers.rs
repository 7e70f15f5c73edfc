//! Watchers that are asked for what happened, instead of telling it.
//!
//! A queue for each, bounded, and so many for each sandbox. One that nobody asks for a long time is removed, like all
//! of a sandbox that is gone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use offleash_manager::keeper::files::FileWatch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::entry::event;
use super::filesystem_messages::FilesystemEvent;
use crate::connect::{Code, ConnectError};

/// Watchers that a sandbox may have.
const MOST: usize = 64;
/// Events that wait to be asked for; what happens then is not recorded any more, and the caller is told so.
const LONGEST_QUEUE: usize = 10_000;
/// How long a watcher may be left alone.
const UNUSED: Duration = Duration::from_secs(3600);

/// The watchers of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    sandboxes: Mutex<HashMap<String, Sandbox>>,
}

#[derive(Debug, Default)]
struct Sandbox {
    watchers: HashMap<String, Watcher>,
    /// Watchers that are being made.
    reserved: usize,
}

#[derive(Debug)]
struct Watcher {
    queue: Arc<Mutex<Queue>>,
    task: AbortHandle,
    asked: Instant,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<FilesystemEvent>,
    /// Some of what happened is missing.
    lost: bool,
    /// Nothing follows.
    ended: bool,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Room for one more watcher.
#[derive(Debug)]
pub(super) struct Room {
    watchers: Arc<Watchers>,
    sandbox: String,
}

impl Watchers {
    /// Makes sure that a sandbox may have one more.
    ///
    /// # Errors
    /// `resource_exhausted` if it may not.
    pub(super) fn room(self: &Arc<Self>, sandbox: &str) -> Result<Room, ConnectError> {
        let mut sandboxes = self.lock();
        let now = Instant::now();
        sandboxes.retain(|_, sandbox| {
            sandbox
                .watchers
                .retain(|_, watcher| now - watcher.asked < UNUSED && !watcher.has_ended());
            sandbox.reserved > 0 || !sandbox.watchers.is_empty()
        });
        let entry = sandboxes.entry(sandbox.to_owned()).or_default();
        if entry.watchers.len() + entry.reserved >= MOST {
            let text = format!("a sandbox may have {MOST} watchers; remove one first");
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
        entry.reserved += 1;
        Ok(Room {
            watchers: Arc::clone(self),
            sandbox: sandbox.to_owned(),
        })
    }

    /// What happened since the last time.
    ///
    /// # Errors
    /// `not_found` without such a watcher, `resource_exhausted` once after some of what happened was lost.
    pub(super) fn take(&self, sandbox: &str, id: &str) -> Result<Vec<FilesystemEvent>, ConnectError> {
        let mut sandboxes = self.lock();
        let watcher = sandboxes
            .get_mut(sandbox)
            .and_then(|sandbox| sandbox.watchers.get_mut(id));
        let watcher = watcher.ok_or_else(|| not_found(id))?;
        watcher.asked = Instant::now();
        let mut queue = lock(&watcher.queue);
        if queue.lost {
            queue.lost = false;
            queue.events.clear();
            let text = "more happened than a watcher remembers; look at the directory itself";
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
        Ok(std::mem::take(&mut queue.events).into())
    }

    /// Ends a watcher.
    ///
    /// # Errors
    /// `not_found` without such a watcher.
    pub(super) fn remove(&self, sandbox: &str, id: &str) -> Result<(), ConnectError> {
        let mut sandboxes = self.lock();
        let removed = sandboxes
            .get_mut(sandbox)
            .and_then(|sandbox| sandbox.watchers.remove(id));
        removed.map(drop).ok_or_else(|| not_found(id))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Sandbox>> {
        lock(&self.sandboxes)
    }
}

impl Watcher {
    /// Whether the directory or the sandbox is gone, and all that happened was asked for.
    fn has_ended(&self) -> bool {
        let queue = lock(&self.queue);
        queue.ended && queue.events.is_empty()
    }
}

impl Room {
    /// Begins to record what a watch sees; the answer is the name of the watcher.
    ///
    /// # Errors
    /// `internal` if the machine gives no random bytes.
    pub(super) fn fill(self, watch: FileWatch) -> Result<String, ConnectError> {
        let id = new_id()?;
        let queue = Arc::new(Mutex::new(Queue::default()));
        let task = tokio::spawn(record(watch, Arc::clone(&queue))).abort_handle();
        let watcher = Watcher {
            queue,
            task,
            asked: Instant::now(),
        };
        let mut sandboxes = self.watchers.lock();
        let sandbox = sandboxes.entry(self.sandbox.clone()).or_default();
        sandbox.watchers.insert(id.clone(), watcher);
        Ok(id)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(sandbox) = self.watchers.lock().get_mut(&self.sandbox) {
            sandbox.reserved -= 1;
        }
    }
}

async fn record(mut watch: FileWatch, queue: Arc<Mutex<Queue>>) {
    while let Ok(changes) = watch.next().await {
        let mut queue = lock(&queue);
        for change in &changes {
            match event(change) {
                Some(event) if queue.events.len() < LONGEST_QUEUE => queue.events.push_back(event),
                _ => queue.lost = true,
            }
        }
    }
    lock(&queue).ended = true;
}

fn new_id() -> Result<String, ConnectError> {
    let mut bytes = [0; 10];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(format!("w{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())),
        _ => Err(ConnectError::new(
            Code::Internal,
            "no random bytes for the watcher's name",
        )),
    }
}

fn not_found(id: &str) -> ConnectError {
    ConnectError::new(
        Code::NotFound,
        format!("watcher with id {} not found", id.escape_debug()),
    )
}

/// What is guarded is whole after every step, so a thread that panicked left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
