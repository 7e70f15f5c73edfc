//! The sandbox's side of its network: every address leads to sockets that were made here, before any of its code ran.
//!
//! Whoever holds the sockets answers (`gateway`). The namespace has no interface but `lo`, so that without them nothing
//! is reached.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use offleash_core::spec::PROXY_PORT;
use offleash_sys::network::nftables::{self, Filters};
use offleash_sys::network::{Ipv6, NetworkError, NetworkSockets, Sources, routes, sockets};

use super::handshake::StepFailure;

/// The port of the listener that gets every connection.
const LISTENER: u16 = PROXY_PORT;
/// The port of DNS.
const DNS: u16 = 53;
/// What programs see as their own addresses: the beginning of a range for measurements (RFC 2544), of which the
/// gateway gives out the rest, and a unique local address (RFC 4193).
const SOURCES: Sources = Sources {
    v4: Ipv4Addr::new(198, 18, 0, 2),
    v6: Ipv6Addr::new(0xfd6f, 0x666c, 0x6561, 0x7368, 0, 0, 0, 2),
};

/// Makes the network; needs `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE` over the namespace.
pub(crate) fn make() -> Result<NetworkSockets, StepFailure> {
    let ipv6 = routes::deliver_everything_here(SOURCES).map_err(failed("routing the network"))?;
    let any: &[[SocketAddr; 2]] = match ipv6 {
        Ipv6::Ready => &[
            [
                here(Ipv4Addr::LOCALHOST.into(), LISTENER),
                here(Ipv4Addr::UNSPECIFIED.into(), DNS),
            ],
            [
                here(Ipv6Addr::LOCALHOST.into(), LISTENER),
                here(Ipv6Addr::UNSPECIFIED.into(), DNS),
            ],
        ],
        Ipv6::Absent => &[[
            here(Ipv4Addr::LOCALHOST.into(), LISTENER),
            here(Ipv4Addr::UNSPECIFIED.into(), DNS),
        ]],
    };
    let step = |source| StepFailure::new("making the sockets of the network", "", source);
    let mut made = NetworkSockets::default();
    for [listener, dns] in any {
        made.connections
            .push(sockets::listen_transparent(*listener).map_err(step)?.into());
        made.questions.push(sockets::bind_datagrams(*dns).map_err(step)?.into());
        made.long_questions.push(sockets::listen(*dns).map_err(step)?.into());
    }
    let filters = Filters {
        sources: SOURCES,
        ipv6,
        listener: LISTENER,
        dns: DNS,
    };
    nftables::lead_to_listener(&filters).map_err(failed("leading connections to the gateway"))?;
    Ok(made)
}

const fn here(address: std::net::IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

fn failed(step: &'static str) -> impl FnOnce(NetworkError) -> StepFailure {
    move |error| {
        let said = error.to_string();
        let (NetworkError::Talking { source, .. }
        | NetworkError::Refused { source, .. }
        | NetworkError::Missing { source, .. }) = error;
        StepFailure::new(step, said, source)
    }
}

/// The sockets in the order in which they are sent.
pub(super) fn in_order(sockets: &NetworkSockets) -> Vec<BorrowedFd<'_>> {
    use std::os::fd::AsFd as _;
    let NetworkSockets {
        connections,
        questions,
        long_questions,
    } = sockets;
    let of = |index: usize| [connections.get(index), questions.get(index), long_questions.get(index)];
    (0..connections.len())
        .flat_map(of)
        .flatten()
        .map(|socket| socket.as_fd())
        .collect()
}

/// The sockets that were sent in this order.
pub(super) fn from_order(sent: impl IntoIterator<Item = OwnedFd>) -> NetworkSockets {
    let mut sockets = NetworkSockets::default();
    for (index, socket) in sent.into_iter().enumerate() {
        match index % 3 {
            0 => sockets.connections.push(socket),
            1 => sockets.questions.push(socket),
            _ => sockets.long_questions.push(socket),
        }
    }
    sockets
}
