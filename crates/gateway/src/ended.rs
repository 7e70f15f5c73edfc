//! Whether a gateway has ended by itself, known before anything that it held is closed.
//!
//! A program inside sees its connections close and may end at once; whoever is told of that end must find here that the
//! gateway was first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it has ended; the same for all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

/// Tells of the end when it is dropped, by a return as well as by a panic.
#[derive(Debug)]
#[must_use = "the end is told when it is dropped"]
pub(crate) struct TellsOfEnd(Ended);

impl Ended {
    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// To be made after everything that is closed with the gateway, so that it is dropped before.
    pub(crate) fn told_by(&self) -> TellsOfEnd {
        TellsOfEnd(self.clone())
    }
}

impl Drop for TellsOfEnd {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}
