//! The side of a run: takes a sandbox that waits, and waits for the end of what runs in it.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_store::WarmDirectory;
use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::key::Key;
use super::message::{self, Handover, Request, TAKEN};

/// How long a holder may take to look at everything again. One that was stopped takes longer; then the run makes a sandbox
/// of its own.
const LOOKING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The same for hearing what is to be run.
const HEARING: Duration = Duration::from_secs(2);

/// A sandbox that waited and is this run's now.
#[derive(Debug)]
pub struct Claim {
    stream: UnixStream,
}

/// How a run ended that another process carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It is over, and all of it is told; this is the exit code.
    With(u8),
    /// It goes on.
    NotYet,
}

/// Why nothing is known of a run that was handed over.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The process that held the sandbox has died.
    #[error("the process that held the sandbox has ended before the run did")]
    Lost,
    /// The connection to it failed.
    #[error("cannot hear from the process that holds the sandbox")]
    Connection(#[from] io::Error),
}

impl Explained for ClaimError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Internal
    }

    fn hint(&self) -> Option<String> {
        Some("what the run changed is kept: `offleash runs` shows it".to_owned())
    }
}

impl Claim {
    /// Takes a sandbox that waits in the state directory `explicit` or the usual one, for a run of `key`, with these
    /// standard streams and the current directory of this process.
    ///
    /// `None` if there is none for exactly this run; then nothing has been started.
    ///
    /// # Errors
    /// `Lost` when that cannot be told: the command may have been started.
    pub fn take(
        explicit: Option<&Path>,
        key: impl FnOnce() -> Option<Key>,
        handover: impl FnOnce() -> Handover,
        streams: [BorrowedFd<'_>; 3],
    ) -> Result<Option<Self>, ClaimError> {
        let mut known = None;
        let name = || {
            let key = known.insert(key()?);
            Some(key.name())
        };
        let found = WarmDirectory::find(explicit, name);
        let (Some(directory), Some(key)) = (found, known) else {
            return Ok(None);
        };
        let Ok(names) = directory.names() else {
            return Ok(None);
        };
        if names.is_empty() {
            return Ok(None);
        }
        let message = handover().encode(key.text());
        for name in names {
            if let Some(stream) = connect(&directory, &name)
                && let Some(claim) = Self::of(stream, &message, streams)?
            {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    fn of(stream: UnixStream, message: &[u8], streams: [BorrowedFd<'_>; 3]) -> Result<Option<Self>, ClaimError> {
        let Ok(cwd) = std::fs::File::open(".") else {
            return Ok(None);
        };
        let [input, output, errors] = streams;
        let streams = [input, output, errors, cwd.as_fd()];
        let sent = socket::send(stream.as_fd(), &[Request::Run.byte()], &streams);
        if sent.and_then(|()| message::write(&stream, message)).is_err() {
            return Ok(None);
        }
        let mut answer = [0];
        if !is_ready(&stream, &LOOKING) {
            // From here on nothing can be said to us: what was not said before is not said at all (unix_stream_sendmsg).
            let is_closed = stream.shutdown(Shutdown::Read);
            if is_closed.is_err() || matches!((&stream).read(&mut answer), Ok(1)) {
                return Err(ClaimError::Lost);
            }
            return Ok(None);
        }
        let is_taken = matches!((&stream).read(&mut answer), Ok(1)) && answer[0] == TAKEN;
        Ok(is_taken.then_some(Self { stream }))
    }

    /// Passes on a signal that this process was sent.
    ///
    /// # Errors
    /// When the holder is gone.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match u8::try_from(signal) {
            Ok(signal) => (&self.stream).write_all(&[signal]),
            Err(_) => Ok(()),
        }
    }

    /// What has become of the run, to be asked when [`Self::as_fd`] is readable.
    ///
    /// # Errors
    /// `Lost` when the holder died.
    pub fn ended(&self) -> Result<Ended, ClaimError> {
        let mut answer = [0];
        match (&self.stream).read(&mut answer) {
            Ok(0) => Err(ClaimError::Lost),
            Ok(_) => Ok(Ended::With(answer[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Ended::NotYet),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(ClaimError::Lost),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Connects to a holder of this user's; the socket of one that died is removed.
pub(super) fn connect(directory: &WarmDirectory, name: &OsStr) -> Option<UnixStream> {
    let path = directory.socket(name);
    let connected = connect_to(&path).or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            // Nobody listens yet at a socket that is being made just now.
            let _alone = directory.lock().map_err(|_| error)?;
            connect_to(&path).inspect_err(|error| {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    // Should it stay, the next one meets it, too.
                    let _removed = directory.remove(name);
                }
            })
        }
        _ => Err(error),
    });
    connected.ok().filter(is_ours)
}

/// Connects, and says all that follows, to one that hears it in time: one that was stopped holds nobody up, also when many
/// have given up on it before.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(HEARING))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Whether the process at the other end is of this user.
pub(super) fn is_ours(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn is_ready(stream: &UnixStream, within: &Timespec) -> bool {
    let mut waiting = [PollFd::new(stream, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut waiting, Some(within)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
