//! The sandbox's side of its network: every address leads to sockets that were made here, before any of its code ran.
//!
//! Whoever holds the sockets answers (`gateway`). The namespace has no interface but `lo`, so that without them nothing
//! is reached.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use offleash_core::plan::NetworkDoors;
use offleash_core::spec::PROXY_PORT;
use offleash_sys::network::nftables::{self, FirstPackets, RedirectFilters};
use offleash_sys::network::queue::PacketQueue;
use offleash_sys::network::{EntranceSockets, Ipv6, NetworkError, NetworkSockets, SourceAddresses, routes, sockets};

use rustix::net::{AddressFamily, SocketType};

use super::handshake::StepFailure;

/// The port of the listener that gets every connection.
const LISTENER: u16 = PROXY_PORT;
/// The port of DNS.
const DNS: u16 = 53;
/// What programs see as their own addresses: the beginning of a range for measurements (RFC 2544), of which the
/// gateway gives out the rest, and a unique local address (RFC 4193).
const SOURCES: SourceAddresses = SourceAddresses {
    v4: Ipv4Addr::new(198, 18, 0, 2),
    v6: Ipv6Addr::new(0xfd6f, 0x666c, 0x6561, 0x7368, 0, 0, 0, 2),
};

/// How connections get to the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RedirectWay {
    /// All of them, by packet filters.
    ByFilters,
    /// Those to certain ports, which are listened on: the kernel has no such filters, and why.
    ByListeners(String),
}

/// Makes the network; needs `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE` over the namespace. Where the kernel has no
/// packet filters, `ports` are listened on, at every address. `doors` are there in any case.
pub(crate) fn make(ports: &[u16], doors: &NetworkDoors) -> Result<(NetworkSockets, RedirectWay), StepFailure> {
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
        let loopback = listener.ip();
        for port in &doors.services {
            let service = sockets::listen(here(loopback, *port)).map_err(step)?;
            made.services.push(service.into());
        }
        if doors.entrance {
            made.entrances.push(EntranceSockets::make(loopback).map_err(step)?);
        }
    }
    // Without it, or without a rule for it, refused connections are accepted and reset.
    let queue = match PacketQueue::open() {
        Ok(queue) => Some(queue),
        Err(NetworkError::Missing { .. }) => None,
        Err(error) => return Err(failed("making the queue of first packets")(error)),
    };
    let filters = RedirectFilters {
        sources: SOURCES,
        ipv6,
        listener: LISTENER,
        dns: DNS,
        first_packets: queue.as_ref().map_or(FirstPackets::Passed, |_| FirstPackets::Held),
    };
    match nftables::lead_to_listener(&filters) {
        Ok((_, led)) => {
            made.first_packets = queue
                .filter(|_| led == FirstPackets::Held)
                .map(PacketQueue::into_descriptor);
            Ok((made, RedirectWay::ByFilters))
        }
        Err(missing @ NetworkError::Missing { .. }) if !ports.is_empty() => {
            // Nothing was changed: whatever is not listened on is refused by the kernel at once, as nobody is there.
            for port in ports.iter().filter(|port| ![LISTENER, DNS].contains(port)) {
                for [_, dns] in any {
                    let everywhere = here(dns.ip(), *port);
                    made.connections.push(sockets::listen(everywhere).map_err(step)?.into());
                }
            }
            Ok((made, RedirectWay::ByListeners(missing.to_string())))
        }
        Err(error) => Err(failed("leading connections to the gateway")(error)),
    }
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

/// The sockets as they are sent.
pub(super) fn in_order(sockets: &NetworkSockets) -> Vec<BorrowedFd<'_>> {
    let NetworkSockets {
        connections,
        questions,
        long_questions,
        first_packets,
        services,
        entrances,
    } = sockets;
    let entrances = entrances.iter().flat_map(|way| [&way.listener, &way.asking]);
    let all = [connections, questions, long_questions, services];
    all.into_iter()
        .flatten()
        .chain(first_packets)
        .chain(entrances)
        .map(|socket| socket.as_fd())
        .collect()
}

/// The sockets that were sent, of a network with `doors`, told apart by what they are.
///
/// # Errors
/// When one is no socket, which no first process of ours sends.
pub(super) fn from_order(sent: impl IntoIterator<Item = OwnedFd>, doors: &NetworkDoors) -> io::Result<NetworkSockets> {
    let mut sockets = NetworkSockets::default();
    let mut listener = None;
    for socket in sent {
        if rustix::net::sockopt::socket_domain(&socket)? == AddressFamily::NETLINK {
            sockets.first_packets = Some(socket);
            continue;
        }
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        let loopback = address.ip();
        if rustix::net::sockopt::socket_type(&socket)? == SocketType::DGRAM {
            sockets.questions.push(socket);
        } else if address.port() == DNS {
            sockets.long_questions.push(socket);
        } else if doors.entrance && address == EntranceSockets::address(loopback) {
            listener = Some(socket);
        } else if doors.entrance && address == EntranceSockets::origin(loopback) {
            // Each comes behind its listener.
            let listener = listener.take().ok_or(io::ErrorKind::InvalidData)?;
            sockets.entrances.push(EntranceSockets {
                listener,
                asking: socket,
            });
        } else if loopback.is_loopback() && doors.services.contains(&address.port()) {
            sockets.services.push(socket);
        } else {
            sockets.connections.push(socket);
        }
    }
    Ok(sockets)
}
