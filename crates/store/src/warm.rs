//! Where sandboxes wait for runs: a directory `warm/KEY` for each kind, with a socket for each sandbox.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{FailedCall, FileError};
use crate::state::open_part;
use crate::tree::names_in;
use crate::{HostIdentity, StateDirectory};

const WARM: &str = "warm";
/// What the names of places begin with at which nobody waits yet.
const UNFINISHED: char = '~';
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directory of one kind of sandboxes that wait.
#[derive(Debug)]
pub struct WarmDirectory {
    /// `warm`, which it is in.
    all: OwnedFd,
    key: String,
    directory: OwnedFd,
}

impl WarmDirectory {
    /// The directory of a key in a state directory that nobody has opened, if both are there and nobody else's. Nothing is
    /// made and nothing finished: whoever finds none goes the usual way, where that is told. The key is asked for only where
    /// there are any.
    pub fn find(explicit: Option<&Path>, key: impl FnOnce() -> Option<String>) -> Option<Self> {
        let identity = HostIdentity::of_this_process();
        let path = explicit.map_or_else(|| identity.default_state(), Path::to_owned);
        let root = rustix::fs::open(path, DIRECTORY, Mode::empty()).ok()?;
        let all = rustix::fs::openat(&root, WARM, DIRECTORY, Mode::empty()).ok()?;
        let key = key()?;
        let directory = rustix::fs::openat(&all, &*key, DIRECTORY, Mode::empty()).ok()?;
        let are_ours = [&root, &all, &directory].into_iter().all(|directory| {
            rustix::fs::fstat(directory).is_ok_and(|found| found.st_uid == identity.euid && found.st_mode & 0o022 == 0)
        });
        are_ours.then_some(Self { all, key, directory })
    }

    /// The sandboxes that wait, oldest first. Some may be dead.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn names(&self) -> Result<Vec<OsString>, FileError> {
        let mut names = self.places()?;
        names.retain(|name| !name.as_encoded_bytes().starts_with(UNFINISHED.to_string().as_bytes()));
        Ok(names)
    }

    /// The sockets of sandboxes that wait and of those that are being made. Some may be dead.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn places(&self) -> Result<Vec<OsString>, FileError> {
        // Opened anew: what was opened is read once.
        let names = match self.again().and_then(|directory| names_in(&directory)) {
            // The last one has just taken it away.
            Err(Errno::NOENT) => Vec::new(),
            listed => listed.tried("listing", &*self.key)?,
        };
        let mut names: Vec<OsString> = names.into_iter().map(OsString::from).collect();
        names.sort();
        Ok(names)
    }

    /// Has nobody else make or clear away a place until the answer is dropped.
    ///
    /// # Errors
    /// If it cannot be locked.
    pub fn lock(&self) -> Result<WarmLock, FileError> {
        // Opened anew: a lock belongs to what was opened.
        let directory = self.again().tried("opening", &*self.key)?;
        loop {
            match rustix::fs::flock(&directory, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                locked => {
                    locked.tried("locking", &*self.key)?;
                    return Ok(WarmLock { _directory: directory });
                }
            }
        }
    }

    fn again(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.directory, ".", DIRECTORY, Mode::empty())
    }

    /// A name for the socket of a sandbox that is being made, to be bound while the directory is locked.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn free_place(&self) -> Result<OsString, FileError> {
        let taken = self.places()?;
        let mut names = (0_u64..).map(|number| OsString::from(format!("{UNFINISHED}{number}")));
        Ok(names.find(|name| !taken.contains(name)).unwrap_or_default())
    }

    /// Has the sandbox whose place was `place` wait as `name` from here on.
    ///
    /// # Errors
    /// If there is no such place any more.
    pub fn finish(&self, place: &OsStr, name: &OsStr) -> Result<(), FileError> {
        rustix::fs::renameat(&self.directory, place, &self.directory, name).tried("renaming", Path::new(place))
    }

    /// A path by which this process reaches the socket `name`, however long that of the state directory is.
    pub fn socket(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.directory.as_raw_fd().to_string())
            .join(name)
    }

    /// Removes the socket `name`, and the directory with the last of them.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &OsStr) -> Result<(), FileError> {
        match rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(FileError::new("removing", Path::new(name), error)),
        }
        self.remove_if_empty();
        Ok(())
    }

    /// Removes the directory if none waits.
    pub fn remove_if_empty(&self) {
        // Usually another waits; if it cannot be removed, it takes no more than an inode.
        let _kept = rustix::fs::unlinkat(&self.all, &*self.key, AtFlags::REMOVEDIR);
    }
}

/// While it is there, nobody else makes or clears away a place.
#[derive(Debug)]
pub struct WarmLock {
    _directory: OwnedFd,
}

impl StateDirectory {
    /// The directory of sandboxes of `key`, made if there is none.
    ///
    /// # Errors
    /// If there is no place for it.
    pub fn warm(&self, key: &str) -> Result<WarmDirectory, FileError> {
        let all = open_part(&self.root, WARM)?;
        Ok(WarmDirectory {
            directory: open_part(&all, key)?,
            key: key.to_owned(),
            all,
        })
    }

    /// The directories of all kinds of sandboxes that wait; nothing is made.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn all_warm(&self) -> Result<Vec<WarmDirectory>, FileError> {
        let all = match rustix::fs::openat(&self.root, WARM, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other.tried("opening", WARM)?,
        };
        let names = names_in(&all).tried("listing", WARM)?;
        let mut found = Vec::new();
        for key in names.iter().filter_map(|name| name.to_str()) {
            match rustix::fs::openat(&all, key, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => found.push(WarmDirectory {
                    directory: opened.tried("opening", key)?,
                    key: key.to_owned(),
                    all: all
                        .try_clone()
                        .map_err(|_| FileError::new("opening", key, Errno::MFILE))?,
                }),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn places_become_names_and_the_directory_goes_with_the_last() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state");
        let state = StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap();
        let made = state.warm("k").unwrap();
        let warm = path.join(WARM);
        std::fs::write(warm.join("k/b"), "").unwrap();
        let place = made.free_place().unwrap();
        std::fs::write(warm.join("k").join(&place), "").unwrap();
        assert_ne!(made.free_place().unwrap(), place);
        assert_eq!((made.names().unwrap().len(), made.places().unwrap().len()), (1, 2));
        made.finish(&place, "a".as_ref()).unwrap();
        made.finish(&place, "a".as_ref()).unwrap_err();
        assert_eq!(made.names().unwrap(), ["a", "b"]);
        made.remove("a".as_ref()).unwrap();
        assert!(warm.join("k").exists());
        made.remove("b".as_ref()).unwrap();
        assert!(!warm.join("k").exists());
    }

    #[test]
    fn a_directory_is_found_where_it_is_ours_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state");
        let state = StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap();
        let find = || WarmDirectory::find(Some(&path), || Some("k".to_owned()));
        assert!(find().is_none());
        let _made = state.warm("k").unwrap();
        assert!(find().is_some());
        let key = path.join(WARM).join("k");
        for changed in [&path, &path.join(WARM), &key] {
            for mode in [0o777, 0o770, 0o722] {
                set_mode(changed, mode);
                assert!(find().is_none(), "{} {mode:o}", changed.display());
            }
            set_mode(changed, 0o700);
            assert!(find().is_some());
        }
        std::fs::remove_dir(&key).unwrap();
        std::os::unix::fs::symlink("/tmp", &key).unwrap();
        assert!(find().is_none());
    }

    #[test]
    fn the_key_is_asked_for_only_where_something_may_wait() {
        let place = tempfile::tempdir().unwrap();
        let asked = std::cell::Cell::new(0);
        let find = |path: &Path| {
            WarmDirectory::find(Some(path), || {
                asked.set(asked.get() + 1);
                None
            })
        };
        assert!(find(&place.path().join("nowhere")).is_none());
        assert!(find(place.path()).is_none());
        assert_eq!(asked.get(), 0);
        std::fs::create_dir(place.path().join(WARM)).unwrap();
        assert!(find(place.path()).is_none());
        assert_eq!(asked.get(), 1);
    }
}
