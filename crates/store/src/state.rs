//! The state directory: where it is, that it is ours, and what lies in it.
//!
//! ```text
//! runs/ID/run.json             what the run was and how it ended, once it has ended
//! runs/ID/layer-N/upper,work   what it changed, one layer per writable host directory
//! runs/ID/seen                 what the host had at the changed paths when it ended
//! runs/ID/applied, restored    what was written back already, and what was rolled back
//! runs/ID/journal…             an apply that is going on, or was when it was killed
//! live/ID                      the lock of a run that is going on or being worked on; gone when that ended well.
//!                              Until a run has ended its record is in there
//! spare/used-N, spare/ready-N  empty directories of runs that changed nothing, for runs to come
//! registry.sqlite3…            what the daemon must not forget ([`crate::registry`])
//! templates/NAME               a template that was built ([`crate::Templates`])
//! snapshots/ID                 what a sandbox had written at one moment ([`crate::SnapshotDirectories`])
//! volumes/ID                   a directory that outlives sandboxes ([`crate::VolumeStore`])
//! images/…                     images of containers and their unpacked layers, which the room `images` keeps
//! sandboxes/ID                 a sandbox of the daemon's: its supervisor's socket and its files
//! own/ID                       a sandbox of one program, which holds it: its supervisor's socket
//! offleash-guest-DIGEST        the program that is every sandbox's first process, for all to execute
//! warm/KEY/ID                  the socket of a sandbox that waits for a run of its kind
//! daemon.lock                  held by the daemon
//! audit.jsonl, audit.head, audit.lock
//! ```
//!
//! All of it is private to its owner, mode 0700.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::text::Text;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::HostIdentity;
use crate::failure::{FailedCall, FileError};
use crate::spread::spread;

pub(crate) const PRIVATE: Mode = Mode::RWXU;
const OPEN_DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The open state directory; clones share it.
#[derive(Debug, Clone)]
pub struct StateDirectory {
    path: PathBuf,
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) runs: Arc<OwnedFd>,
    pub(crate) live: Arc<OwnedFd>,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A symbolic link or something else is where the directory should be.
    #[error("state directory `{}` is not a directory of its own but a symbolic link or another file", Text::from(.path))]
    NotADirectory {
        /// The state directory.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error("state directory `{}` belongs to user {owner}, not to user {euid}", Text::from(.path))]
    ForeignOwner {
        /// The state directory.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        euid: u32,
    },
    /// Others can write to it.
    #[error("state directory `{}` can be written by other users (mode {mode:04o})", Text::from(.path))]
    WritableByOthers {
        /// The state directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It was named, and does not exist.
    #[error("the state directory `{}` does not exist", Text::from(.path))]
    Missing {
        /// The state directory.
        path: PathBuf,
    },
    /// It cannot be made or opened.
    #[error("cannot use the state directory `{}`", Text::from(.path))]
    Unusable {
        /// The state directory.
        path: PathBuf,
        /// The call that failed.
        source: FileError,
    },
}

impl Explained for StateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unusable { source, .. } => source.kind(),
            Self::Missing { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Denied,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::WritableByOthers { path, .. } => format!(
                "run `chmod 700 {}`, or name another with `--state DIR`",
                Text::from(path)
            ),
            Self::Missing { .. } => "name the one that the runs had, with `--state DIR` or `OFFLEASH_STATE`".to_owned(),
            _ => "name another directory with `--state DIR` or `OFFLEASH_STATE`".to_owned(),
        })
    }
}

impl StateDirectory {
    /// Opens `explicit`, or the default for `host`, and makes it if it does not exist.
    ///
    /// An existing one can be on a read-only file system; then only reading works.
    ///
    /// # Errors
    /// If it is a symbolic link, not ours, writable by others, or cannot be made or opened.
    pub fn open(explicit: Option<&Path>, host: &HostIdentity) -> Result<Self, StateError> {
        let path = explicit.map_or_else(|| host.default_state(), Path::to_owned);
        let path = std::path::absolute(&path)
            .tried("finding", &path)
            .map_err(|source| StateError::Unusable { path, source })?;
        let root = open_or_make(&path)?;
        check_ours(&root, &path, host.euid)?;
        spread(&root);
        let part = |name: &str| {
            open_part(&root, name).map_err(|source| StateError::Unusable {
                path: path.clone(),
                source,
            })
        };
        Ok(Self {
            runs: part("runs")?.into(),
            live: part("live")?.into(),
            root: root.into(),
            path,
        })
    }

    /// Opens the one that is there and makes none; `None` when none was named and the default one was never needed.
    ///
    /// # Errors
    /// `Missing` for one that was named, as it was mistyped; as [`Self::open`].
    pub fn open_existing(explicit: Option<&Path>, host: &HostIdentity) -> Result<Option<Self>, StateError> {
        match Self::find(explicit, host)? {
            Some(_) => Self::open(explicit, host).map(Some),
            None => Ok(None),
        }
    }

    /// Where the one is that is there; `None` when none was named and the default one was never needed.
    ///
    /// # Errors
    /// `Missing` for one that was named.
    pub fn find(explicit: Option<&Path>, host: &HostIdentity) -> Result<Option<PathBuf>, StateError> {
        let path = explicit.map_or_else(|| host.default_state(), Path::to_owned);
        // What cannot be looked at is told by whoever opens it.
        let is_missing =
            std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        match (is_missing, explicit) {
            (false, _) => Ok(Some(path)),
            (true, None) => Ok(None),
            (true, Some(_)) => Err(StateError::Missing { path }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open_or_make(path: &Path) -> Result<OwnedFd, StateError> {
    let unusable = |source: FileError| StateError::Unusable {
        path: path.to_owned(),
        source,
    };
    let open = || rustix::fs::open(path, OFlags::RDONLY | OPEN_DIRECTORY, Mode::empty());
    match open() {
        Ok(root) => Ok(root),
        Err(Errno::NOENT) => {
            let mut builder = std::fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create(path)
                .tried("creating", path)
                .map_err(unusable)?;
            open().tried("opening", path).map_err(unusable)
        }
        Err(Errno::LOOP | Errno::NOTDIR) => Err(StateError::NotADirectory { path: path.to_owned() }),
        Err(error) => Err(unusable(FileError::new("opening", path, error))),
    }
}

fn check_ours(root: &OwnedFd, path: &Path, euid: u32) -> Result<(), StateError> {
    let stat = rustix::fs::fstat(root)
        .tried("examining", path)
        .map_err(|source| StateError::Unusable {
            path: path.to_owned(),
            source,
        })?;
    let path = path.to_owned();
    if stat.st_uid != euid {
        return Err(StateError::ForeignOwner {
            path,
            owner: stat.st_uid,
            euid,
        });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(StateError::WritableByOthers {
            path,
            mode: stat.st_mode & 0o7777,
        });
    }
    Ok(())
}

/// How often a part is made anew that is gone again.
const TRIES: usize = 100;

pub(crate) fn open_part(root: &OwnedFd, name: &str) -> Result<OwnedFd, FileError> {
    let open = || rustix::fs::openat(root, name, OFlags::RDONLY | OPEN_DIRECTORY, Mode::empty());
    let mut opened = open();
    // Some parts are removed when nothing is in them, also by others, between any two calls.
    for _ in 0..TRIES {
        if !matches!(opened, Err(Errno::NOENT)) {
            break;
        }
        match rustix::fs::mkdirat(root, name, PRIVATE) {
            Ok(()) | Err(Errno::EXIST) => opened = open(),
            Err(error) => return Err(FileError::new("creating", name, error)),
        }
    }
    let part = opened.tried("opening", name)?;
    spread(&part);
    Ok(part)
}

#[cfg(test)]
mod tests;
