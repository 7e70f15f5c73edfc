//! Connections to a node on which nothing is asked now: the next request goes over one of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use crate::http::body::Body;

/// How many are kept, of one node and of all.
const MAX_OF_NODE: usize = 32;
const MAX_OF_ALL: usize = 2048;
/// How long one is kept while nothing is asked; servers keep them for longer.
const IDLE: Duration = Duration::from_secs(15);

/// How many are kept of all nodes.
#[derive(Debug, Default)]
pub(super) struct KeptCount(AtomicUsize);

/// The connections of one node that are free.
#[derive(Debug)]
pub(super) struct KeptConnections {
    free: Mutex<Vec<FreeConnection>>,
    of_all: Arc<KeptCount>,
}

#[derive(Debug)]
struct FreeConnection {
    sender: SendRequest<Body>,
    since: Instant,
}

impl KeptConnections {
    pub(super) fn new(of_all: &Arc<KeptCount>) -> Arc<Self> {
        let (free, of_all) = (Mutex::default(), Arc::clone(of_all));
        Arc::new(Self { free, of_all })
    }

    /// Takes one that a request can be sent over, as far as is known; the one that was put last.
    pub(super) fn take(&self) -> Option<SendRequest<Body>> {
        let mut free = self.lock();
        self.retain(&mut free);
        // The end of the last answer may not have been taken in yet.
        let place = free.iter().rposition(|one| one.sender.is_ready())?;
        self.of_all.0.fetch_sub(1, Ordering::AcqRel);
        Some(free.remove(place).sender)
    }

    /// Keeps one whose last answer was read to its end, if there is room.
    pub(super) fn put(&self, sender: SendRequest<Body>) {
        let mut free = self.lock();
        self.retain(&mut free);
        if sender.is_closed() || free.len() >= MAX_OF_NODE {
            return;
        }
        if self.of_all.0.fetch_add(1, Ordering::AcqRel) >= MAX_OF_ALL {
            self.of_all.0.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let since = Instant::now();
        free.push(FreeConnection { sender, since });
    }

    /// Closes those that were not used for long.
    pub(super) fn expire(&self) {
        self.retain(&mut self.lock());
    }

    fn retain(&self, free: &mut Vec<FreeConnection>) {
        let before = free.len();
        free.retain(|one| !one.sender.is_closed() && one.since.elapsed() < IDLE);
        self.of_all.0.fetch_sub(before - free.len(), Ordering::AcqRel);
    }

    /// Every step leaves it whole.
    fn lock(&self) -> MutexGuard<'_, Vec<FreeConnection>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeptConnections {
    fn drop(&mut self) {
        let left = self.lock().len();
        self.of_all.0.fetch_sub(left, Ordering::AcqRel);
    }
}
