//! Whether anybody uses a sandbox, and since when nobody does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SandboxEntry;

/// How a sandbox is used from outside.
#[derive(Debug)]
pub(crate) struct SandboxActivity {
    /// How many uses there are at this moment.
    uses: AtomicUsize,
    /// When it was used last.
    last: Mutex<Instant>,
}

impl Default for SandboxActivity {
    fn default() -> Self {
        Self {
            uses: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
        }
    }
}

impl SandboxActivity {
    /// It is used at this moment.
    pub(crate) fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When it was used last; now if it is.
    pub(crate) fn last(&self) -> Instant {
        match self.is_used() {
            true => Instant::now(),
            false => *self.last.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.uses.load(Ordering::SeqCst) > 0
    }

    /// For how long nobody has used it; nothing while somebody does.
    pub(crate) fn idle(&self) -> Duration {
        self.last().elapsed()
    }
}

/// A use of a sandbox, until this is dropped.
#[derive(Debug)]
pub(crate) struct SandboxUseGuard {
    entry: Arc<SandboxEntry>,
    /// Whether it is a use, and not a look that keeps it awake as long as it lasts.
    is_use: bool,
}

impl SandboxUseGuard {
    /// Whoever begins one looks at the state of the sandbox afterwards: who puts it to sleep looks for uses after the state
    /// was changed, so that one of the two sees the other.
    pub(crate) fn begin(entry: &Arc<SandboxEntry>) -> Self {
        Self::counted(entry, true)
    }

    /// The same for who only looks: when it is over it was nothing.
    pub(crate) fn look(entry: &Arc<SandboxEntry>) -> Self {
        Self::counted(entry, false)
    }

    fn counted(entry: &Arc<SandboxEntry>, is_use: bool) -> Self {
        entry.activity().uses.fetch_add(1, Ordering::SeqCst);
        Self {
            entry: Arc::clone(entry),
            is_use,
        }
    }

    /// What is used.
    pub(crate) fn entry(&self) -> &Arc<SandboxEntry> {
        &self.entry
    }
}

impl Drop for SandboxUseGuard {
    fn drop(&mut self) {
        let activity = self.entry.activity();
        if self.is_use {
            activity.note();
        }
        activity.uses.fetch_sub(1, Ordering::SeqCst);
    }
}
