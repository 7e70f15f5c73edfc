//! Bytes that wait, taken from the front in any pieces.

use alloc::vec::Vec;

/// A queue of bytes whose owner bounds what is in it.
#[derive(Debug, Default)]
pub(super) struct BytesAhead {
    held: Vec<u8>,
    start: usize,
}

impl BytesAhead {
    pub(super) fn len(&self) -> usize {
        self.held.len() - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn waiting(&self) -> &[u8] {
        self.held.get(self.start..).unwrap_or_default()
    }

    /// Where more is appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        if self.start > 0 && self.start >= self.len() {
            self.held.drain(..self.start);
            self.start = 0;
        }
        &mut self.held
    }

    /// Forgets what was taken; the memory of a queue that ran empty is given back.
    pub(super) fn advance(&mut self, count: usize) {
        self.start = self.held.len().min(self.start.saturating_add(count));
        if self.is_empty() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.start = 0;
        if self.held.capacity() > KEPT {
            self.held = Vec::new();
        } else {
            self.held.clear();
        }
    }
}

/// Memory that an empty queue keeps, bytes: what a shell's conversation needs.
const KEPT: usize = 4096;
