//! The sockets that a server listens on: one of TCP, and one in the state directory for the owner alone.

use std::fs::{self, Permissions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};

/// Where a server listens.
#[derive(Debug)]
pub enum Listen {
    /// At an address; port 0 takes any that is free.
    Address(SocketAddr),
    /// With a socket that was handed to us (systemd's socket activation).
    Inherited(std::net::TcpListener),
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be listened on.
    #[error("listening on {address}")]
    Address {
        /// The address that was asked for.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The socket that was handed to us cannot be used.
    #[error("using the socket that was handed over")]
    Inherited(#[source] io::Error),
    /// The address can be reached from other machines, and nothing keeps what is said secret.
    #[error("{address} can be reached by others, who could read keys and everything else that is sent there")]
    Public {
        /// The address.
        address: SocketAddr,
    },
    /// The owner's socket cannot be made.
    #[error("listening on `{}`", .path.display())]
    Local {
        /// Where it was to be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Listens for TCP; the address is that which is really listened on.
pub(crate) async fn tcp(listen: Listen) -> Result<(TcpListener, SocketAddr), ListenError> {
    let listener = match listen {
        Listen::Address(address) => TcpListener::bind(address)
            .await
            .map_err(|source| ListenError::Address { address, source })?,
        Listen::Inherited(listener) => inherited(listener).map_err(ListenError::Inherited)?,
    };
    let address = listener.local_addr().map_err(ListenError::Inherited)?;
    Ok((listener, address))
}

fn inherited(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// What clients on this machine call a server that listens at `address`.
pub(crate) fn url(address: SocketAddr, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    // Whoever listens everywhere is reached here at loopback.
    let reached = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, v6.port())),
        other => other,
    };
    format!("{scheme}://{reached}")
}

/// Listens on a socket at `path` that only its owner can connect to; what an earlier server left there is replaced.
///
/// The caller sees to it that no other server has the directory.
pub(crate) fn local(path: &Path) -> Result<UnixListener, ListenError> {
    make_local(path).map_err(|source| ListenError::Local {
        path: path.to_owned(),
        source,
    })
}

fn make_local(path: &Path) -> io::Result<UnixListener> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // By way of a descriptor, because the path of a socket may have 107 bytes and a directory's more.
    let directory = fs::File::open(directory)?;
    let directory = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let (new, path) = (directory.join("api.new"), directory.join(name));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, &path)?;
    Ok(listener)
}
