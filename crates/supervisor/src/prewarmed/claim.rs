//! Connections to supervisors, for a run (`hand_over`) and for whoever asks for something else.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_store::WarmDirectory;

/// How long a supervisor may take to hear what it is asked.
const HEARING: Duration = Duration::from_secs(2);

/// Nothing is known of a run that was handed over: the process that held the sandbox has died.
#[derive(Debug, thiserror::Error)]
#[error("the process that held the sandbox has ended before the run did")]
pub struct Lost;

impl Explained for Lost {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Internal
    }

    fn hint(&self) -> Option<String> {
        Some("what the run changed is kept: `offleash runs` shows it".to_owned())
    }
}

/// Connects to a supervisor of this user's; the socket of one that died is removed.
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
pub(super) fn connect_to(path: &Path) -> io::Result<UnixStream> {
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
