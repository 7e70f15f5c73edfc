//! A way into a sandbox's network namespace for whoever is outside: sockets of that namespace, as many as are needed.
//!
//! A socket stays in the namespace in which it was made, so that one which was made inside and is held outside connects
//! inside. One is needed for each connection, and nobody outside can make one there. But a socket that a listener of
//! the namespace accepted is of that namespace as well, and connect(2) dissolves its association: an entrance is a
//! listener and a socket that connects to it, and every such pair of connections yields one more socket.
//!
//! All of it is made before any code of the sandbox runs and never leaves our hands, and both ends have ports below
//! 1024, which that code cannot bind: a connection from there is ours. Descriptors that code inside hands out could be
//! anything, blocking ones or ones that it still holds; and a socket of ours handed inside would be a way out, by the
//! same dissolving.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType};

use super::sockets;

/// The port of the listener.
const LISTENER: u16 = 2;
/// The port of the socket that connects to it.
const ASKING: u16 = 3;

/// One for one family of addresses. Both sockets do not block.
#[derive(Debug)]
pub struct EntranceSockets {
    /// Listening on the loopback address.
    pub listener: OwnedFd,
    /// What connects to it; bound, and connected only for a moment.
    pub asking: OwnedFd,
}

impl EntranceSockets {
    /// Makes one on `loopback`, in the namespace of the caller.
    ///
    /// # Errors
    /// As [`sockets::listen`].
    pub fn make(loopback: IpAddr) -> io::Result<Self> {
        let asking = sockets::socket(
            SocketAddr::new(loopback, ASKING),
            SocketType::STREAM,
            SocketFlags::NONBLOCK,
        )?;
        rustix::net::bind(&asking, &Self::origin(loopback))?;
        let listener = sockets::listen(Self::address(loopback))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: listener.into(),
            asking,
        })
    }

    /// Where the listener is.
    pub fn address(loopback: IpAddr) -> SocketAddr {
        SocketAddr::new(loopback, LISTENER)
    }

    /// From where the socket connects that belongs to it, and nobody else.
    pub fn origin(loopback: IpAddr) -> SocketAddr {
        SocketAddr::new(loopback, ASKING)
    }
}

/// Makes a socket of TCP one that is connected to nothing, whatever it was; it can connect anew then (connect(2),
/// `AF_UNSPEC`).
///
/// # Errors
/// `ENOTSOCK`.
pub fn disconnect(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(socket)?)
}

#[cfg(test)]
mod tests;
