//! What the service manager is told (sd_notify(3)); nothing where there is none.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the address of its socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Whether a service manager wants to be told.
pub(super) fn is_there() -> bool {
    std::env::var_os(SOCKET).is_some()
}

/// Tells the service manager `state`, as in `READY=1`.
pub(super) fn tell(state: &str) {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    // A manager that is not there needs not be told.
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    drop(sent);
}
