//! The place of a sandbox that waits, or will: its socket, which is there before the sandbox is.
//!
//! Whoever starts a supervisor reserves its place, under a lock, and hands it over: so no more are made than are wanted, and who
//! ends all that wait reaches those as well that are not ready yet.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use offleash_store::{FileError, StateDirectory, WarmDirectory};
use offleash_sys::spawn::adopt_descriptor;

use super::key::Key;

/// How often a directory for the socket is made.
const TRIES: usize = 5;
/// The descriptor under which a supervisor gets the socket.
const SOCKET: i32 = 3;

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no directory for its socket.
    #[error("cannot make a place for the socket")]
    Directory(#[from] FileError),
    /// The socket fails.
    #[error("cannot {tried}")]
    Socket {
        /// What was tried.
        tried: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A socket that is this process's to serve. Dropping it removes the socket.
#[derive(Debug)]
pub struct SocketPlace {
    pub(super) directory: WarmDirectory,
    name: OsString,
    pub(super) listener: UnixListener,
    is_ours: bool,
}

impl SocketPlace {
    /// Reserves a place for a sandbox of `key`, unless there are `most` already.
    pub(super) fn reserve(state: &StateDirectory, key: &Key, most: usize) -> Result<Option<Self>, PlaceError> {
        let mut tries = 0..TRIES;
        loop {
            let directory = state.warm(&key.name())?;
            let _alone = directory.lock()?;
            if directory.places()?.len() >= most {
                return Ok(None);
            }
            let name = directory.free_place()?;
            match UnixListener::bind(directory.socket(&name)) {
                Ok(listener) => {
                    return Ok(Some(Self {
                        directory,
                        name,
                        listener,
                        is_ours: true,
                    }));
                }
                // Somebody found the directory empty and took it away.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
                Err(source) => return Err(failed("listen at the socket")(source)),
            }
        }
    }

    /// Takes over the place that was reserved for this process, at its start.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn take_over(state: &StateDirectory, key: &Key) -> Result<Self, PlaceError> {
        let taken = adopt_descriptor(SOCKET).map_err(io::Error::from);
        let listener = UnixListener::from(taken.map_err(failed("take over the socket"))?);
        let address = listener.local_addr().map_err(failed("take over the socket"))?;
        let name = address.as_pathname().and_then(|path| path.file_name());
        let name = name.ok_or_else(|| failed("take over the socket")(io::ErrorKind::InvalidInput.into()))?;
        Ok(Self {
            directory: state.warm(&key.name())?,
            name: name.to_owned(),
            listener,
            is_ours: true,
        })
    }

    /// Leaves it to the process that was started with it.
    pub(super) fn hand_over(&mut self) {
        self.is_ours = false;
    }

    /// Is found by runs from here on, as the sandbox `name`.
    pub(super) fn open(&mut self, name: &OsStr) -> Result<(), PlaceError> {
        self.directory.finish(&self.name, name)?;
        name.clone_into(&mut self.name);
        Ok(())
    }
}

fn failed(tried: &'static str) -> impl Fn(io::Error) -> PlaceError {
    move |source| PlaceError::Socket { tried, source }
}

impl AsFd for SocketPlace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        if self.is_ours {
            // A socket that nobody listens at is removed by whoever meets it.
            let _removed = self.directory.remove(&self.name);
        }
    }
}
