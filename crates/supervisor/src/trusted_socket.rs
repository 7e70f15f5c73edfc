//! Sockets in directories of our own, where nobody but us and root is heard.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Whether the other side is us or root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == ours || peer.uid.is_root())
}

/// Waits for connections at `path`, of which nobody else may be there.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}
