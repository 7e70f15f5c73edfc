//! The directories of sandboxes that are held: those of the daemon's, `sandboxes/ID` in the state directory, with the
//! daemon's own lock, and those of one program each, `own/ID`, which their program locks as long as it lives.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{FailedCall, FileError};
use crate::removal::remove_tree;
use crate::state::{PRIVATE, StateError, open_part};
use crate::{StateDirectory, tree};

const SANDBOXES: &str = "sandboxes";
const OWN: &str = "own";
const LOCK: &str = "daemon.lock";

/// The directories of sandboxes; clones share them.
#[derive(Debug, Clone)]
pub struct SandboxDirectories {
    path: PathBuf,
    directory: Arc<OwnedFd>,
}

/// Says that a program lives whose sandbox has this directory, until dropped or the process dies.
#[derive(Debug)]
pub struct DirectoryHold {
    /// Holds the lock. Close-on-exec, so that supervisors do not hold it, too.
    #[expect(dead_code, reason = "open until dropped")]
    lock: OwnedFd,
}

/// The right to be the daemon of a state directory, until dropped or the process dies.
#[derive(Debug)]
pub struct DaemonLock {
    /// Holds the lock. Close-on-exec, so that supervisors do not hold it, too.
    #[expect(dead_code, reason = "open until dropped")]
    lock: OwnedFd,
}

impl StateDirectory {
    /// The directories of the daemon's sandboxes.
    ///
    /// # Errors
    /// If there is no place for them and none can be made.
    pub fn sandboxes(&self) -> Result<SandboxDirectories, StateError> {
        self.directories(SANDBOXES)
    }

    /// The directories of sandboxes that belong to one program each.
    ///
    /// # Errors
    /// If there is no place for them and none can be made.
    pub fn own_sandboxes(&self) -> Result<SandboxDirectories, StateError> {
        self.directories(OWN)
    }

    fn directories(&self, name: &str) -> Result<SandboxDirectories, StateError> {
        let directory = open_part(&self.root, name).map_err(|source| StateError::Unusable {
            path: self.path().to_owned(),
            source,
        })?;
        Ok(SandboxDirectories {
            path: self.path().join(name),
            directory: directory.into(),
        })
    }

    /// Becomes the daemon of this state directory; `None` if another process is.
    ///
    /// # Errors
    /// If the lock cannot be made.
    pub fn lock_for_daemon(&self) -> Result<Option<DaemonLock>, StateError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let locked =
            rustix::fs::openat(&self.root, LOCK, flags, Mode::RUSR | Mode::WUSR).and_then(
                |lock| match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::AGAIN) => Ok(None),
                    other => other.map(|()| Some(DaemonLock { lock })),
                },
            );
        locked.tried("locking", LOCK).map_err(|source| StateError::Unusable {
            path: self.path().to_owned(),
            source,
        })
    }
}

impl SandboxDirectories {
    /// Where the directory of `id` is, or would be.
    pub fn path_of(&self, id: &RunId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// Makes the directory of `id`, private and empty.
    ///
    /// # Errors
    /// If there is one already, or none can be made.
    pub fn make(&self, id: &RunId) -> Result<PathBuf, FileError> {
        rustix::fs::mkdirat(&self.directory, id.as_str(), PRIVATE).tried("creating", id.as_str())?;
        Ok(self.path_of(id))
    }

    /// Makes the directory of `id`, private and empty, and holds it against [`Self::remove_abandoned`].
    ///
    /// # Errors
    /// If there is one already, or none can be made.
    pub fn make_and_hold(&self, id: &RunId) -> Result<(PathBuf, DirectoryHold), FileError> {
        loop {
            let path = self.make(id)?;
            // Somebody may have taken it for abandoned in between; then it is gone.
            if let Some(hold) = self.hold(id)? {
                return Ok((path, hold));
            }
        }
    }

    /// Removes directories that nobody holds, with all that is in them. What is in the way of one is left to the next time.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn remove_abandoned(&self) -> Result<(), FileError> {
        for id in self.ids()? {
            if let Ok(Some(_hold)) = self.hold(&id) {
                let _removed = self.remove(&id);
            }
        }
        Ok(())
    }

    /// `None` if somebody else holds it, or it is gone.
    fn hold(&self, id: &RunId) -> Result<Option<DirectoryHold>, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = match rustix::fs::openat(&*self.directory, id.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.tried("opening", id.as_str())?,
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => return Ok(None),
            locked => locked.tried("locking", id.as_str())?,
        }
        let is_there = rustix::fs::fstat(&lock).tried("examining", id.as_str())?.st_nlink > 0;
        Ok(is_there.then_some(DirectoryHold { lock }))
    }

    /// Removes the directory of `id` with all that is in it; nothing happens if there is none.
    ///
    /// # Errors
    /// What is in the way; the rest may be gone.
    pub fn remove(&self, id: &RunId) -> Result<(), FileError> {
        remove_tree(&self.directory, id.as_str().as_ref())
    }

    /// Which sandboxes have one. Other names are nobody's of ours and are left out.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn ids(&self) -> Result<Vec<RunId>, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let again = rustix::fs::openat(&*self.directory, ".", flags, Mode::empty()).tried("opening", SANDBOXES)?;
        let names = tree::names_in(&again).tried("listing", SANDBOXES)?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    /// The beginning of a file in the directory of `id`, at most `most` bytes; `None` if there is no such file.
    pub fn read(&self, id: &RunId, name: &str, most: u64) -> Option<Text> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = Path::new(id.as_str()).join(name);
        let file = rustix::fs::openat(&*self.directory, &path, flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        File::from(file).take(most).read_to_end(&mut bytes).ok()?;
        Some(Text(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostIdentity;

    fn state(directory: &Path) -> StateDirectory {
        StateDirectory::open(Some(directory), &HostIdentity::of_this_process()).unwrap()
    }

    #[test]
    fn directories_are_made_listed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let sandboxes = state(&directory.path().join("state")).sandboxes().unwrap();
        let id: RunId = "i123".parse().unwrap();
        let path = sandboxes.make(&id).unwrap();
        assert!(sandboxes.make(&id).is_err());
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("note"), "0123456789").unwrap();
        std::fs::write(path.parent().unwrap().join("not an id"), "").unwrap();
        assert_eq!(sandboxes.ids().unwrap(), std::slice::from_ref(&id));
        assert_eq!(sandboxes.read(&id, "note", 4), Some(Text::from("0123")));
        assert_eq!(sandboxes.read(&id, "other", 4), None);
        sandboxes.remove(&id).unwrap();
        sandboxes.remove(&id).unwrap();
        assert_eq!(sandboxes.ids().unwrap(), []);
    }

    #[test]
    fn what_nobody_holds_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let own = state(&directory.path().join("state")).own_sandboxes().unwrap();
        let (held, abandoned): (RunId, RunId) = ("r1".parse().unwrap(), "r2".parse().unwrap());
        let (path, hold) = own.make_and_hold(&held).unwrap();
        drop(own.make_and_hold(&abandoned).unwrap());
        own.remove_abandoned().unwrap();
        assert_eq!(own.ids().unwrap(), std::slice::from_ref(&held));
        assert!(path.is_dir());
        drop(hold);
        own.remove_abandoned().unwrap();
        assert_eq!(own.ids().unwrap(), []);
    }

    #[test]
    fn one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let state = state(&directory.path().join("state"));
        let lock = state.lock_for_daemon().unwrap();
        assert!(lock.is_some());
        assert!(state.lock_for_daemon().unwrap().is_none());
        drop(lock);
        assert!(state.lock_for_daemon().unwrap().is_some());
    }
}
