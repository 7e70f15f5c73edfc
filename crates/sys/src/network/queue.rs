//! First packets of connections, held by the kernel until somebody outside has said what becomes of them.
//!
//! A program whose connection is refused before it is made gets `ECONNREFUSED` from `connect(2)`, as from a host where
//! nobody listens; one that is accepted first could only be reset. The rules of [`super::nftables`] put a first packet
//! into a queue; whoever holds it reads where it goes and passes it on, with a mark upon which they answer with a reset
//! if it is refused. Without a holder the kernel drops what would be queued, and so nothing is reached. Source:
//! linux/netfilter/nfnetlink_queue.h.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;

use super::NetworkError;
use super::netlink::{NetlinkFamily, NetlinkSocket, RequestBatch, RequestStep, attributes, field};

/// The only queue; a verdict of nftables can name no other.
const QUEUE: u16 = 0;
/// Packets that may wait; what comes while as many do is dropped, and sent again by its sender a second later.
const MAX_WAITING: u32 = 4096;
/// As much of a packet as is read: the header of IP at its longest and two ports.
const READ_OF_EACH: u32 = 64;
/// What marks a packet that is refused.
pub(super) const REFUSED: u32 = 1;

/// `NFNL_SUBSYS_QUEUE` and its messages (`NFQNL_MSG_…`).
const SUBSYSTEM: u8 = 3;
const PACKET: u8 = 0;
const VERDICT: u8 = 1;
const CONFIGURATION: u8 = 2;
/// Attributes of packets and verdicts (`NFQA_…`).
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const MARK: u16 = 3;
const PAYLOAD: u16 = 10;
/// Attributes of the configuration (`NFQA_CFG_…`).
const COMMAND: u16 = 1;
const PARAMETERS: u16 = 2;
const LENGTH: u16 = 3;
/// `NFQNL_CFG_CMD_BIND`, `NFQNL_COPY_PACKET`, `NF_ACCEPT`.
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const ACCEPT: u32 = 1;

/// A first packet that waits for what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingPacket {
    id: u32,
    /// Where it goes; `None` if it cannot be read.
    pub destination: Option<SocketAddr>,
}

/// What becomes of a first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketFate {
    /// It goes on to the listener.
    Passed,
    /// It is answered with a reset.
    Refused,
}

/// The queue of a namespace. When the last of its descriptors is closed, what would be queued is dropped.
#[derive(Debug)]
pub struct PacketQueue(NetlinkSocket);

impl PacketQueue {
    /// Makes the queue of this process's namespace; needs `CAP_NET_ADMIN` over it.
    ///
    /// # Errors
    /// `Missing` when the kernel has no such queues.
    pub fn open() -> Result<Self, NetworkError> {
        let step = "opening a socket for held packets";
        let netlink =
            NetlinkSocket::open(NetlinkFamily::Netfilter).map_err(|source| match Errno::from_io_error(&source) {
                Some(Errno::PROTONOSUPPORT) => NetworkError::Missing {
                    step,
                    part: "NETFILTER_NETLINK",
                    source,
                },
                _ => NetworkError::Talking { step, source },
            })?;
        let mut requests = RequestBatch::default();
        let step = RequestStep {
            does: "making a queue of first packets",
            needs: Some("packet queue (NETFILTER_NETLINK_QUEUE)"),
        };
        requests.push(step, kind(CONFIGURATION), libc::NLM_F_ACK, |request| {
            request.header(&header()).attribute(COMMAND, &[BIND, 0, 0, 0]);
        });
        requests.push(step, kind(CONFIGURATION), libc::NLM_F_ACK, |request| {
            let [a, b, c, d] = READ_OF_EACH.to_be_bytes();
            request
                .header(&header())
                .attribute(PARAMETERS, &[a, b, c, d, COPY_PACKET])
                .number(LENGTH, MAX_WAITING);
        });
        match netlink.send(&requests, |_| {})?.into_iter().next() {
            None => Ok(Self(netlink)),
            // An unknown part of `nfnetlink` is an invalid message.
            Some(refusal) if [Errno::INVAL, Errno::OPNOTSUPP].contains(&refusal.source) => Err(NetworkError::Missing {
                step: refusal.step,
                part: "packet queue (NETFILTER_NETLINK_QUEUE)",
                source: refusal.source.into(),
            }),
            Some(refusal) => Err(refusal.into()),
        }
    }

    /// The queue that another process of ours made.
    pub fn from_descriptor(socket: OwnedFd) -> Self {
        Self(NetlinkSocket::from_descriptor(socket))
    }

    /// What was sent to it.
    pub fn into_descriptor(self) -> OwnedFd {
        self.0.into_descriptor()
    }

    /// Takes packets that wait, as many as the kernel tells at once.
    ///
    /// # Errors
    /// `WouldBlock` when there are none.
    pub fn receive(&self) -> io::Result<Vec<WaitingPacket>> {
        let mut waiting = Vec::new();
        let told = self.0.listen(|message| {
            if message.kind == kind(PACKET)
                && let Some(packet) = read(message.payload)
            {
                waiting.push(packet);
            }
        });
        match told {
            Ok(true) => Ok(waiting),
            Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says what becomes of a packet.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn decide(&self, packet: WaitingPacket, fate: PacketFate) -> io::Result<()> {
        let mut requests = RequestBatch::default();
        requests.push("deciding a first packet", kind(VERDICT), 0, |request| {
            let verdict = [ACCEPT.to_be_bytes(), packet.id.to_be_bytes()].concat();
            request.header(&header()).attribute(VERDICT_HEADER, &verdict);
            if fate == PacketFate::Refused {
                request.number(MARK, REFUSED);
            }
        });
        self.0.post(&requests)?;
        Ok(())
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The same one for as long as it lives.
impl AsRawFd for PacketQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn kind(message: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, message])
}

/// `struct nfgenmsg`: no family, version 0, the queue.
fn header() -> [u8; 4] {
    let [high, low] = QUEUE.to_be_bytes();
    [0, 0, high, low]
}

/// Reads a message about a packet; `None` if it has no number to answer to.
fn read(message: &[u8]) -> Option<WaitingPacket> {
    let mut id = None;
    let mut destination = None;
    for attribute in attributes(message.get(header().len()..)?) {
        match attribute? {
            (PACKET_HEADER, value) => id = field(value, 0).map(u32::from_be_bytes),
            (PAYLOAD, packet) => destination = destination_of(packet),
            _ => {}
        }
    }
    Some(WaitingPacket { id: id?, destination })
}

/// Where a packet of TCP goes (RFC 791, 3.1; RFC 8200, 3; RFC 9293, 3.1). One of IPv6 with more headers than one, which
/// no program sends to begin with, is not read.
fn destination_of(packet: &[u8]) -> Option<SocketAddr> {
    let first = packet.first()?;
    let (address, ports): (IpAddr, usize) = match first >> 4 {
        4 => (
            Ipv4Addr::from(field::<4>(packet, 16)?).into(),
            usize::from(first & 0x0f) * 4,
        ),
        6 if packet.get(6) == Some(&6) => (Ipv6Addr::from(field::<16>(packet, 24)?).into(), 40),
        _ => return None,
    };
    let port = u16::from_be_bytes(field(packet, ports.checked_add(2)?)?);
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests;
