//! The lock that says who works on a run: its own process while it goes on, later an `apply` or `discard`.
//!
//! A claim is a locked file `live/ID`. The kernel drops the lock when its holder dies, so a file whose lock is free is
//! the mark of a crash; whoever ends well removes the file. Only files in `live` are looked at when offleash starts,
//! so that a start costs nothing for runs that are over.
//!
//! The lock belongs to the open file description: a child that inherited the descriptor would keep it. It is
//! close-on-exec, and children of the supervisor exec.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::StateDirectory;
use crate::failure::{FileError, Tried};

/// The right to work on a run, until dropped or the process dies.
#[derive(Debug)]
pub(crate) struct Claim {
    id: RunId,
    live: Arc<OwnedFd>,
    /// Held for its lock.
    _lock: OwnedFd,
}

impl Claim {
    /// Claims `id`; `None` if somebody else holds it.
    ///
    /// Looking whether a run is held locks it for a moment, so a failure is final only after a few tries.
    pub(crate) fn take(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        for _ in 0..5 {
            if let Some(claim) = Self::open(state, id, OFlags::CREATE)? {
                return Ok(Some(claim));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }

    /// Claims `id` if its mark is there and its holder is dead.
    pub(crate) fn take_over(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        Self::open(state, id, OFlags::empty())
    }

    fn open(state: &StateDirectory, id: &RunId, create: OFlags) -> Result<Option<Self>, FileError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | create;
        loop {
            let lock = match rustix::fs::openat(&state.live, id.as_str(), flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::NOENT) => return Ok(None),
                other => other.tried("opening the lock of run", id.as_str())?,
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => return Ok(None),
                other => other.tried("locking run", id.as_str())?,
            }
            // Between the two calls its last holder may have removed the file; then the lock guards nothing.
            if rustix::fs::fstat(&lock)
                .tried("examining the lock of run", id.as_str())?
                .st_nlink
                > 0
            {
                return Ok(Some(Self {
                    id: id.clone(),
                    live: Arc::clone(&state.live),
                    _lock: lock,
                }));
            }
        }
    }

    /// Whether somebody holds `id`.
    pub(crate) fn is_held(state: &StateDirectory, id: &RunId) -> Result<bool, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = match rustix::fs::openat(&state.live, id.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.tried("opening the lock of run", id.as_str())?,
        };
        // A shared lock does not disturb others who look.
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
            Err(Errno::AGAIN) => Ok(true),
            other => other.tried("locking run", id.as_str()).map(|()| false),
        }
    }

    /// Ends the claim and removes its mark: nothing is left to finish.
    pub(crate) fn release(self) -> Result<(), FileError> {
        match rustix::fs::unlinkat(&self.live, self.id.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(FileError::new("removing the lock of run", self.id.as_str(), error)),
        }
    }
}
