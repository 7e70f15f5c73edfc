//! Watchers that are asked for what happened, instead of telling it.
//!
//! A queue for each, bounded in events and, with all others of its sandbox and of the server, in bytes; and so many for
//! each sandbox. One that nobody asks for a long time is removed, like all
//! of a sandbox that is gone.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::FileWatch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::entry::{bytes_of, event};
use super::messages::filesystem::FilesystemEvent;
use crate::e2b::connect::{ConnectCode, ConnectError};

/// Watchers that a sandbox may have. Each takes one of the 32 inotify instances of a sandbox, and the code in it has its own.
const MAX_WATCHERS: usize = 24;
/// Events that wait to be asked for; what happens then is not recorded any more, and the caller is told so.
const MAX_QUEUE_LENGTH: usize = 10_000;
/// The bytes that wait in all queues of one sandbox, and of all sandboxes.
const MAX_BYTES: usize = 4 * 1024 * 1024;
const MAX_BYTES_IN_ALL: usize = 128 * 1024 * 1024;
/// How long a watcher may be left alone.
const UNUSED: Duration = Duration::from_secs(3600);

/// The watchers of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct SandboxWatchers {
    sandboxes: Mutex<HashMap<String, Sandbox>>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Sandbox {
    watchers: HashMap<String, FileWatcher>,
    bytes: Arc<AtomicUsize>,
    /// Watchers that are being made.
    reserved: usize,
}

#[derive(Debug)]
struct FileWatcher {
    queue: Arc<Mutex<EventQueue>>,
    task: AbortHandle,
    asked: Instant,
}

#[derive(Debug)]
struct EventQueue {
    events: VecDeque<FilesystemEvent>,
    /// What they take.
    bytes: usize,
    budget: QueueBudget,
    /// Some of what happened is missing.
    lost: bool,
    /// Nothing follows.
    ended: bool,
}

/// The bytes that wait in all queues of a sandbox, and of all sandboxes.
#[derive(Debug)]
struct QueueBudget {
    of_sandbox: Arc<AtomicUsize>,
    in_all: Arc<AtomicUsize>,
}

impl QueueBudget {
    /// Takes so many, if there are.
    fn take(&self, bytes: usize) -> bool {
        if !add_up_to(&self.of_sandbox, bytes, MAX_BYTES) {
            return false;
        }
        let taken = add_up_to(&self.in_all, bytes, MAX_BYTES_IN_ALL);
        if !taken {
            self.of_sandbox.fetch_sub(bytes, Ordering::AcqRel);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.of_sandbox.fetch_sub(bytes, Ordering::AcqRel);
        self.in_all.fetch_sub(bytes, Ordering::AcqRel);
    }
}

fn add_up_to(count: &AtomicUsize, bytes: usize, most: usize) -> bool {
    let sum = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= most);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum).is_ok()
}

impl EventQueue {
    fn new(budget: QueueBudget) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            budget,
            lost: false,
            ended: false,
        }
    }

    /// Keeps an event, if there is room.
    fn push(&mut self, event: FilesystemEvent) {
        let bytes = size_of::<FilesystemEvent>() + event.name.len() + event.entry.as_ref().map_or(0, bytes_of);
        if self.events.len() < MAX_QUEUE_LENGTH && self.budget.take(bytes) {
            self.bytes += bytes;
            self.events.push_back(event);
        } else {
            self.lost = true;
        }
    }

    /// All that waited.
    fn take(&mut self) -> Vec<FilesystemEvent> {
        self.budget.give_back(std::mem::take(&mut self.bytes));
        std::mem::take(&mut self.events).into()
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Room for one more watcher.
#[derive(Debug)]
pub(super) struct WatcherRoom {
    watchers: Arc<SandboxWatchers>,
    sandbox: String,
}

impl SandboxWatchers {
    /// Makes sure that a sandbox may have one more.
    ///
    /// # Errors
    /// `resource_exhausted` if it may not.
    pub(super) fn room(self: &Arc<Self>, sandbox: &str) -> Result<WatcherRoom, ConnectError> {
        let mut sandboxes = self.lock();
        let now = Instant::now();
        sandboxes.retain(|_, sandbox| {
            sandbox
                .watchers
                .retain(|_, watcher| now - watcher.asked < UNUSED && !watcher.has_ended());
            sandbox.reserved > 0 || !sandbox.watchers.is_empty()
        });
        let entry = sandboxes.entry(sandbox.to_owned()).or_default();
        if entry.watchers.len() + entry.reserved >= MAX_WATCHERS {
            let text = format!("a sandbox may have {MAX_WATCHERS} watchers; remove one first");
            return Err(ConnectError::new(ConnectCode::ResourceExhausted, text));
        }
        entry.reserved += 1;
        Ok(WatcherRoom {
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
            drop(queue.take());
            let text = "more happened than a watcher remembers; look at the directory itself";
            return Err(ConnectError::new(ConnectCode::ResourceExhausted, text));
        }
        Ok(queue.take())
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

impl FileWatcher {
    /// Whether the directory or the sandbox is gone, and all that happened was asked for.
    fn has_ended(&self) -> bool {
        let queue = lock(&self.queue);
        queue.ended && queue.events.is_empty()
    }
}

impl WatcherRoom {
    /// Begins to record what a watch sees; the answer is the name of the watcher.
    ///
    /// # Errors
    /// `internal` if the machine gives no random bytes.
    pub(super) fn fill(self, watch: FileWatch) -> Result<String, ConnectError> {
        let id = new_id()?;
        let mut sandboxes = self.watchers.lock();
        let sandbox = sandboxes.entry(self.sandbox.clone()).or_default();
        let budget = QueueBudget {
            of_sandbox: Arc::clone(&sandbox.bytes),
            in_all: Arc::clone(&self.watchers.bytes),
        };
        let queue = Arc::new(Mutex::new(EventQueue::new(budget)));
        let task = tokio::spawn(record(watch, Arc::clone(&queue))).abort_handle();
        let watcher = FileWatcher {
            queue,
            task,
            asked: Instant::now(),
        };
        sandbox.watchers.insert(id.clone(), watcher);
        Ok(id)
    }
}

impl Drop for WatcherRoom {
    fn drop(&mut self) {
        if let Some(sandbox) = self.watchers.lock().get_mut(&self.sandbox) {
            sandbox.reserved -= 1;
        }
    }
}

async fn record(mut watch: FileWatch, queue: Arc<Mutex<EventQueue>>) {
    let end = loop {
        let changes = match watch.next().await {
            Ok(changes) => changes,
            Err(error) => break error,
        };
        let mut queue = lock(&queue);
        for change in &changes {
            match event(change) {
                Some(event) => queue.push(event),
                None => queue.lost = true,
            }
        }
    };
    let mut queue = lock(&queue);
    queue.ended = true;
    if matches!(end, SupervisorError::Gone) {
        // Nobody can ask a sandbox that is gone for anything.
        queue.lost = false;
        drop(queue.take());
    }
}

fn new_id() -> Result<String, ConnectError> {
    let mut bytes = [0; 10];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(format!("w{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())),
        _ => Err(ConnectError::new(
            ConnectCode::Internal,
            "no random bytes for the watcher's name",
        )),
    }
}

fn not_found(id: &str) -> ConnectError {
    ConnectError::new(
        ConnectCode::NotFound,
        format!("watcher with id {} not found", id.escape_debug()),
    )
}

/// What is guarded is whole after every step, so a thread that panicked left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(length: usize) -> FilesystemEvent {
        FilesystemEvent {
            name: "a".repeat(length),
            ..FilesystemEvent::default()
        }
    }

    fn queue(of_sandbox: &Arc<AtomicUsize>, in_all: &Arc<AtomicUsize>) -> EventQueue {
        let (of_sandbox, in_all) = (Arc::clone(of_sandbox), Arc::clone(in_all));
        EventQueue::new(QueueBudget { of_sandbox, in_all })
    }

    #[test]
    fn queues_are_bounded_by_their_bytes() {
        let (one, other, all) = (Arc::default(), Arc::default(), Arc::default());
        let mut queues = [queue(&one, &all), queue(&one, &all), queue(&other, &all)];
        for _ in 0..MAX_BYTES / 12_000 {
            queues[0].push(event(12_000));
        }
        assert!(queues[0].lost && queues[0].bytes <= MAX_BYTES);
        // What is lost of one is lost of all of the sandbox, and of no other.
        queues[1].push(event(12_000));
        queues[2].push(event(12_000));
        assert_eq!((queues[1].lost, queues[2].lost), (true, false));
        drop(queues[0].take());
        queues[1].lost = false;
        queues[1].push(event(12_000));
        assert!(!queues[1].lost);
        drop(queues);
        assert_eq!((one.load(Ordering::Relaxed), all.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn all_sandboxes_have_so_many_bytes() {
        let all = Arc::default();
        let mut queues: Vec<EventQueue> = (0..64).map(|_| queue(&Arc::default(), &all)).collect();
        for queue in &mut queues {
            queue.push(event(MAX_BYTES - 1000));
        }
        let lost = queues.iter().filter(|queue| queue.lost).count();
        assert_eq!(lost, 64 - MAX_BYTES_IN_ALL / (MAX_BYTES - 1000));
        let counted = queues
            .iter()
            .map(|queue| queue.budget.of_sandbox.load(Ordering::Relaxed));
        assert_eq!(counted.sum::<usize>(), all.load(Ordering::Relaxed));
    }
}
