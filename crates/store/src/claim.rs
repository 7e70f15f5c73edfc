//! The lock that says who works on a run: its own process while it goes on, later an `apply` or `discard`.
//!
//! A claim is a locked file `live/ID`, the run's mark. The kernel drops the lock when its holder dies, so a file whose
//! lock is free is the mark of a crash; whoever ends well removes the file. Only files in `live` are looked at when
//! offleash starts, so that a start costs nothing for runs that are over. The mark of a run that goes on holds its
//! record; that of an `apply` or `discard` is empty, or is the one that a crashed run left.
//!
//! The lock belongs to the open file description: a child that inherited the descriptor would keep it. It is
//! close-on-exec, and children of the supervisor exec.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::StateDirectory;
use crate::clock::NOW;
use crate::failure::{FailedCall, FileError};
use crate::node::{NodeTime, identity_of};
use crate::run_file::{RecordReading, RunFile};

/// The right to work on a run, until dropped or the process dies.
#[derive(Debug)]
pub(crate) struct RunClaim {
    id: RunId,
    live: Arc<OwnedFd>,
    /// Holds the lock.
    mark: File,
}

/// How often a claim is tried: looking whether a run is held locks it for a moment.
const TRIES: usize = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

impl RunClaim {
    /// Claims `id`, over the mark of a crash if there is one; `None` if somebody else holds it.
    pub(crate) fn take(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        for _ in 0..TRIES {
            match Self::make(state, id)? {
                None => {}
                made => return Ok(made),
            }
            match Self::open(state, id, OFlags::empty())? {
                None => std::thread::sleep(BETWEEN_TRIES),
                opened => return Ok(opened),
            }
        }
        Ok(None)
    }

    /// Claims the id of a run that is to be made; `None` if there is a mark of that name.
    pub(crate) fn take_new(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        for _ in 0..TRIES {
            match Self::make(state, id)? {
                None => std::thread::sleep(BETWEEN_TRIES),
                made => return Ok(made),
            }
        }
        Ok(None)
    }

    /// Makes the mark of `id` and claims it.
    ///
    /// The file is locked before it has a name: one that is there and not locked is the mark of a crash, and whoever
    /// starts at that moment would take the run for a crashed one.
    fn make(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
        let Ok(mark) = rustix::fs::openat(&state.live, ".", flags, Mode::RUSR | Mode::WUSR) else {
            // A file system without nameless files; there the moment is short.
            return Self::open(state, id, OFlags::CREATE);
        };
        rustix::fs::flock(&mark, FlockOperation::NonBlockingLockExclusive).tried("locking run", id.as_str())?;
        let nameless = format!("/proc/self/fd/{}", mark.as_raw_fd());
        match rustix::fs::linkat(
            CWD,
            nameless.as_str(),
            &state.live,
            id.as_str(),
            AtFlags::SYMLINK_FOLLOW,
        ) {
            Ok(()) => Ok(Some(Self::of(state, id, mark))),
            Err(Errno::EXIST) => Ok(None),
            Err(Errno::NOENT | Errno::PERM | Errno::OPNOTSUPP) => Self::open(state, id, OFlags::CREATE),
            Err(error) => Err(FileError::new("naming the lock of run", id.as_str(), error)),
        }
    }

    fn of(state: &StateDirectory, id: &RunId, mark: OwnedFd) -> Self {
        Self {
            id: id.clone(),
            live: Arc::clone(&state.live),
            mark: mark.into(),
        }
    }

    /// Claims `id` if its mark is there and its holder is dead.
    pub(crate) fn take_over(state: &StateDirectory, id: &RunId) -> Result<Option<Self>, FileError> {
        Self::open(state, id, OFlags::empty())
    }

    fn open(state: &StateDirectory, id: &RunId, create: OFlags) -> Result<Option<Self>, FileError> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC | create;
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
                return Ok(Some(Self::of(state, id, lock)));
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

    /// When the mark was made, by the clock of the state directory's file system.
    pub(crate) fn made_at(&self) -> Result<NodeTime, FileError> {
        let stat = rustix::fs::fstat(&self.mark).tried("examining the lock of run", self.id.as_str())?;
        Ok(identity_of(&stat).ctime)
    }

    /// Has the mark as if it were made now; the present by the same clock.
    pub(crate) fn made_anew(&self) -> Result<NodeTime, FileError> {
        rustix::fs::futimens(&self.mark, &NOW).tried("renewing the lock of run", self.id.as_str())?;
        self.made_at()
    }

    /// Adds a record to the mark; from now on it is the one that counts.
    pub(crate) fn note(&self, record: &RunFile) -> Result<(), FileError> {
        let noted = record.line().and_then(|line| (&self.mark).write_all(&line));
        noted.tried("noting run", self.id.as_str())
    }

    /// The record in the mark of `id`; `None` if there is no mark, or no record in it.
    pub(crate) fn record(state: &StateDirectory, id: &RunId) -> Result<Option<RecordReading>, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mark = match rustix::fs::openat(&state.live, id.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.tried("opening the record of run", id.as_str())?,
        };
        RunFile::read_line(mark.into()).tried("reading the record of run", id.as_str())
    }

    /// Ends the claim and removes its mark: nothing is left to finish.
    pub(crate) fn release(self) -> Result<(), FileError> {
        match rustix::fs::unlinkat(&self.live, self.id.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(FileError::new("removing the lock of run", self.id.as_str(), error)),
        }
    }
}
