//! The lock that says who works on a run: its own process while it goes on, later an `apply` or `discard`.
//!
//! A claim is a locked file `live/ID`. The kernel drops the lock when its holder dies, so a file whose lock is free is
//! the mark of a crash; whoever ends well removes the file. Only files in `live` are looked at when offleash starts,
//! so that a start costs nothing for runs that are over.
//!
//! The lock belongs to the open file description: a child that inherited the descriptor would keep it. It is
//! close-on-exec, and children of the supervisor exec.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
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
            if let Some(claim) = Self::create(state, id)? {
                return Ok(Some(claim));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }

    /// Makes the mark of `id` and claims it.
    ///
    /// The file is locked before it has a name: one that is there and not locked is the mark of a crash, and whoever
    /// starts at that moment would take the run for a crashed one.
    fn create(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(lock) = rustix::fs::openat(&state.live, ".", flags, Mode::RUSR | Mode::WUSR) else {
            // A file system without nameless files; there the moment is short.
            return Self::open(state, id, OFlags::CREATE);
        };
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).tried("locking run", id.as_str())?;
        let nameless = format!("/proc/self/fd/{}", lock.as_raw_fd());
        match rustix::fs::linkat(
            CWD,
            nameless.as_str(),
            &state.live,
            id.as_str(),
            AtFlags::SYMLINK_FOLLOW,
        ) {
            Ok(()) => Ok(Some(Self {
                id: id.clone(),
                live: Arc::clone(&state.live),
                _lock: lock,
            })),
            Err(Errno::EXIST) => Self::open(state, id, OFlags::empty()),
            Err(Errno::NOENT | Errno::PERM | Errno::OPNOTSUPP) => Self::open(state, id, OFlags::CREATE),
            Err(error) => Err(FileError::new("naming the lock of run", id.as_str(), error)),
        }
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
