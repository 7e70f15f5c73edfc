//! What is on its way into volumes: files that are being written at the same time share the room that there is.
//!
//! Of this process alone, as is every upload. Whether the room is still there is looked for once more when a file gets its
//! name; this bounds what lies beside the data until then.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Bytes that files beside the data have, by that directory's device and inode.
static ON_THEIR_WAY: Mutex<BTreeMap<(u64, u64), u64>> = Mutex::new(BTreeMap::new());

/// One file's part of what is on its way; given back when it is dropped.
#[derive(Debug)]
pub(super) struct UploadShare {
    volume: (u64, u64),
    bytes: u64,
}

impl UploadShare {
    /// Nothing yet, of the volume whose files come into `incoming`.
    pub(super) fn of(incoming: impl AsFd) -> Result<Self, Errno> {
        let found = rustix::fs::fstat(incoming)?;
        Ok(Self {
            volume: (found.st_dev, found.st_ino),
            bytes: 0,
        })
    }

    /// Takes so much more, of which there may be `room` with all others; whether it was there.
    pub(super) fn grow(&mut self, bytes: u64, room: u64) -> bool {
        let mut all = table();
        let taken = all.entry(self.volume).or_default();
        match taken.checked_add(bytes).filter(|sum| *sum <= room) {
            Some(sum) => {
                *taken = sum;
                self.bytes += bytes;
                true
            }
            None => false,
        }
    }

    /// How much it has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for UploadShare {
    fn drop(&mut self) {
        let mut all = table();
        if let Some(taken) = all.get_mut(&self.volume) {
            *taken = taken.saturating_sub(self.bytes);
            if *taken == 0 {
                all.remove(&self.volume);
            }
        }
    }
}

fn table() -> MutexGuard<'static, BTreeMap<(u64, u64), u64>> {
    ON_THEIR_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}
