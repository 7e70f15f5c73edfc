//! Snapshots of what sandboxes wrote, on disk: `snapshots` in the state directory.
//!
//! ```text
//! snapshots/ID/layer/PART/upper   what was written, complete and never changed again
//! snapshots/ID/index-PART         what was seen of its files when they were copied
//! ```
//!
//! The daemon's registry says which are whole and whose they are. Whoever uses one holds a shared lock on its directory.
//! Deliberately not here: copying (`copy`), and removing files of subordinate ids, which takes their superuser.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::copy::{LayerIndex, MAX_INDEX};
use crate::failure::{FailedCall, FileError};

const SNAPSHOTS: &str = "snapshots";
const LAYER: &str = "layer";
const INDEX: &str = "index-";

/// The directories of snapshots of a state directory.
#[derive(Debug, Clone)]
pub struct SnapshotDirectories {
    path: PathBuf,
}

/// A snapshot that stays in place as long as this lives.
#[derive(Debug)]
pub struct HeldSnapshot {
    path: PathBuf,
    lock: OwnedFd,
}

impl SnapshotDirectories {
    /// Those of the state directory at `state`, of which the directory for them is made if it is not there.
    ///
    /// # Errors
    /// If there is none and none can be made.
    pub fn of(state: &Path) -> Result<Self, FileError> {
        let path = state.join(SNAPSHOTS);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(FileError::new("making", &path, error)),
            // It may be a link to where there is more room.
            _ => Ok(Self {
                path: fs::canonicalize(&path).tried("finding", &path)?,
            }),
        }
    }

    /// Where the snapshot `id` is, or would be.
    pub fn path_of(&self, id: &RunId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The ids of all that there is something of.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn ids(&self) -> Result<Vec<RunId>, FileError> {
        let found = fs::read_dir(&self.path).tried("listing", &self.path)?.flatten();
        Ok(found
            .filter_map(|found| found.file_name().to_str()?.parse().ok())
            .collect())
    }

    /// Makes the directory of a new one.
    ///
    /// # Errors
    /// If it cannot be made, also because it is there.
    pub fn make(&self, id: &RunId) -> Result<HeldSnapshot, FileError> {
        let path = self.path_of(id);
        for directory in [path.clone(), path.join(LAYER)] {
            let made = DirBuilder::new().mode(0o700).create(&directory);
            made.tried("making", &directory)?;
        }
        self.hold(id)?
            .ok_or_else(|| FileError::new("opening", &path, Errno::NOENT))
    }

    /// Keeps one in place; `None` if there is none, or it is being removed.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn hold(&self, id: &RunId) -> Result<Option<HeldSnapshot>, FileError> {
        let path = self.path_of(id);
        let Some(opened) = open(&path)? else { return Ok(None) };
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(HeldSnapshot { path, lock: opened })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(FileError::new("locking", &path, error)),
        }
    }

    /// Does `remove` with the directory of one that nobody holds; answers whether nobody does.
    ///
    /// # Errors
    /// If it cannot be opened, and what `remove` answers.
    pub fn unless_held<E: From<FileError>>(
        &self,
        id: &RunId,
        remove: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<bool, E> {
        let path = self.path_of(id);
        let Some(opened) = open(&path)? else { return Ok(true) };
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => remove(&path).map(|()| true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(FileError::new("locking", &path, error).into()),
        }
    }
}

impl HeldSnapshot {
    /// The directory of its layer.
    pub fn layer(&self) -> PathBuf {
        self.path.join(LAYER)
    }

    /// What was seen of the files of a part when they were copied; `None` where that is not to be had.
    pub fn index(&self, part: &str) -> Option<LayerIndex> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.path.join(format!("{INDEX}{part}")), flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        File::from(file).take(MAX_INDEX).read_to_end(&mut bytes).ok()?;
        LayerIndex::from_bytes(&bytes)
    }

    /// Writes what was seen of the files of a part.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_index(&self, part: &str, index: &LayerIndex) -> Result<(), FileError> {
        let path = self.path.join(format!("{INDEX}{part}"));
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let written = file.and_then(|mut file| file.write_all(&index.to_bytes()));
        written.tried("writing", &path)
    }

    /// Has everything of the file system that it is on written out.
    ///
    /// # Errors
    /// If that fails.
    pub fn write_out(&self) -> Result<(), FileError> {
        rustix::fs::syncfs(&self.lock).tried("writing out", &self.path)
    }
}

fn open(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(FileError::new("opening", path, error)),
    }
}
