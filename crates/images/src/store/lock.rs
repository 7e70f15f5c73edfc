//! Locks: many may add at once, and who removes is alone.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::ImageStore;
use crate::error::ImageError;

/// How long who removes waits for those who add.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A lock that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: OwnedFd,
}

impl ImageStore {
    /// Nothing is removed as long as this is held.
    pub(crate) fn lock_for_adding(&self) -> Result<StoreLock, ImageError> {
        self.lock(FlockOperation::NonBlockingLockShared, "removes images")
    }

    /// Nothing is added or opened as long as this is held.
    pub(super) fn lock_for_removing(&self) -> Result<StoreLock, ImageError> {
        self.lock(
            FlockOperation::NonBlockingLockExclusive,
            "pulls, loads or opens an image",
        )
    }

    fn lock(&self, operation: FlockOperation, doing: &'static str) -> Result<StoreLock, ImageError> {
        lock_file(&self.path.join("lock"), operation, LOCK_TIMEOUT, doing)
    }
}

/// Locks a file, which is made if need be, and waits so long for it.
pub(super) fn lock_file(
    path: &Path,
    operation: FlockOperation,
    patience: Duration,
    doing: &'static str,
) -> Result<StoreLock, ImageError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(ImageError::file("opening", path))?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(StoreLock { _file: file }),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => std::thread::sleep(LOCK_INTERVAL),
            Err(Errno::WOULDBLOCK) => return Err(ImageError::Busy { doing }),
            Err(Errno::INTR) => {}
            Err(error) => return Err(ImageError::file("locking", path)(error)),
        }
    }
}

/// Opens and locks something that is used; `None` if it is gone.
pub(super) fn hold(path: &Path) -> Result<Option<OwnedFd>, ImageError> {
    let Some(opened) = open(path)? else { return Ok(None) };
    rustix::fs::flock(&opened, FlockOperation::LockShared).map_err(ImageError::file("locking", path))?;
    Ok(Some(opened))
}

/// Whether something is there that nobody uses; who asks is alone, so nobody begins to meanwhile.
pub(super) fn is_free(path: &Path) -> Result<bool, ImageError> {
    let Some(opened) = open(path)? else { return Ok(true) };
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(ImageError::file("locking", path)(error)),
    }
}

fn open(path: &Path) -> Result<Option<OwnedFd>, ImageError> {
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(ImageError::file("opening", path)(error)),
    }
}

/// Whether a lock could be had on an open file at once.
pub(super) fn try_lock(file: &File) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}
