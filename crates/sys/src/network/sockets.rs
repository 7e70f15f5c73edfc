//! Listening sockets of a gateway inside a sandbox's network namespace.
//!
//! They are made inside, before any code of the sandbox runs, and used outside: a socket stays in the namespace in
//! which it was made, whoever holds it. None allows another socket on its address (no `SO_REUSEADDR`, no
//! `SO_REUSEPORT`), so that the sandbox's code can neither take it nor listen on a part of it.

use std::io;
use std::mem::size_of_val;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::entrance::EntranceSockets;

/// Connections that may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The sockets of a network to which everything leads that is sent in it. Made by whoever makes the network, and
/// served by whoever answers.
#[derive(Debug, Default)]
pub struct NetworkSockets {
    /// Listening for connections to any address and port.
    pub connections: Vec<OwnedFd>,
    /// Datagrams with questions for names.
    pub questions: Vec<OwnedFd>,
    /// Listening for connections with questions for names.
    pub long_questions: Vec<OwnedFd>,
    /// First packets of connections, where they can be held ([`super::queue`]).
    pub first_packets: Option<OwnedFd>,
    /// Listening on loopback addresses for connections to services of the host.
    pub services: Vec<OwnedFd>,
    /// Ways in from outside, one for each family of addresses, where there are any.
    pub entrances: Vec<EntranceSockets>,
}

/// Listens on an address.
///
/// With the routes of [`super::routes`], a listener on `0.0.0.0` or `::` gets connections to every address at this port,
/// loopback included.
///
/// # Errors
/// `EADDRINUSE`; `EACCES` for a port below 1024 without `CAP_NET_BIND_SERVICE` over the namespace.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, SocketType::STREAM, SocketFlags::empty())?;
    start_listening(socket, address)
}

/// Listens on a loopback address for connections to any address that [`super::nftables`] hands over.
///
/// Connections to the address itself arrive, too: [`original_destination`] is then this address.
///
/// # Errors
/// As [`listen`]; `EPERM` without `CAP_NET_ADMIN` over the namespace.
pub fn listen_transparent(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, SocketType::STREAM, SocketFlags::empty())?;
    match address {
        SocketAddr::V4(_) => enable(&socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT)?,
        SocketAddr::V6(_) => enable(&socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)?,
    }
    start_listening(socket, address)
}

/// A socket for datagrams that tells which address each was sent to, and can answer from there
/// ([`super::datagrams`]).
///
/// # Errors
/// As [`listen`].
pub fn bind_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(address, SocketType::DGRAM, SocketFlags::empty())?;
    match address {
        SocketAddr::V4(_) => enable(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO)?,
        SocketAddr::V6(_) => {
            enable(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
            // An IPv6 source must be the address of an interface otherwise; a local route is not enough as it is for
            // IPv4.
            sockopt::set_ipv6_freebind(&socket, true)?;
        }
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}

/// Where the program that connected wanted to connect to.
///
/// What a kernel that redirected the connection remembers (`SO_ORIGINAL_DST`, `IP6T_SO_ORIGINAL_DST`), and otherwise
/// the accepted socket's own address. It is the listener's address when that was connected to directly, and when the
/// kernel has forgotten: this must be refused, or come from a client that may speak to the gateway.
///
/// # Errors
/// `ENOTCONN`, `ENOTSOCK`.
pub fn original_destination(accepted: impl AsFd) -> io::Result<SocketAddr> {
    let own = SocketAddr::try_from(rustix::net::getsockname(&accepted)?)?;
    let remembered = match own {
        SocketAddr::V4(_) => sockopt::ip_original_dst(&accepted).map(SocketAddr::V4),
        SocketAddr::V6(_) => sockopt::ipv6_original_dst(&accepted).map(SocketAddr::V6),
    };
    match remembered {
        Ok(destination) => Ok(destination),
        // It remembers nothing of this connection (`ENOENT`), or of none: conntrack is not there.
        Err(Errno::NOENT | Errno::NOPROTOOPT | Errno::OPNOTSUPP) => Ok(own),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn socket(address: SocketAddr, kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

fn start_listening(socket: OwnedFd, address: SocketAddr) -> io::Result<TcpListener> {
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Switches an option of a socket on.
pub(super) fn enable(socket: &OwnedFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the socket is open, and `on` is an int of that length that outlives the call (setsockopt(2)).
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
