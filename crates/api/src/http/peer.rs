//! Who asks: what all requests of a connection have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use super::clients::ClientSlot;
use super::pace::BusyFlag;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientPeer {
    /// Whoever can reach the address.
    Anybody(SocketAddr),
    /// The owner of the server, or root, on its own socket.
    Owner,
}

impl ClientPeer {
    /// Where the client is, when it is not on our own socket.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Anybody(address) => Some(address),
            Self::Owner => None,
        }
    }
}

/// What every request of a connection has in common.
#[derive(Debug, Clone)]
pub(crate) struct ClientConnection {
    pub(crate) peer: ClientPeer,
    /// Whether it came over TLS.
    pub(crate) secure: bool,
    pub(crate) busy: BusyFlag,
    /// Its slot among all clients, also of what the connection becomes after it was HTTP.
    pub(crate) held: Option<Arc<ClientSlot>>,
}
