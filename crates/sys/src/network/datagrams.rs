//! Datagrams with the address that they were sent to, so that an answer comes from there.
//!
//! A resolver that asked 8.8.8.8 throws away what another address answers. The kernel passes both beside the content
//! (`IP_PKTINFO`, ip(7); `IPV6_PKTINFO`, ipv6(7)).

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use super::netlink::field;

/// A datagram that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// How many bytes of the buffer it is.
    pub length: usize,
    /// Whether it was longer than the buffer; the rest is lost.
    pub truncated: bool,
    /// Who sent it.
    pub from: SocketAddr,
    /// Which address it was sent to.
    pub to: IpAddr,
}

/// Room for the larger address and for what comes beside a datagram, aligned as the kernel's structures.
#[derive(Debug)]
#[repr(C, align(8))]
struct MessageBuffer([u8; 64]);

/// `struct cmsghdr`: the length, header included, the level and the kind.
const CONTROL_HEADER: usize = 16;

/// Receives one from a socket of [`super::sockets::bind_datagrams`].
///
/// # Errors
/// `EAGAIN` if the socket does not wait and there is none; `EBADMSG` if the kernel does not say where it went.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
    let (mut name, mut control) = (MessageBuffer([0; 64]), MessageBuffer([0; 64]));
    let mut content = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = message(
        &mut name,
        size_of::<MessageBuffer>(),
        &mut content,
        &mut control,
        size_of::<MessageBuffer>(),
    )?;
    let descriptor = socket.as_fd().as_raw_fd();
    let length = loop {
        // SAFETY: the descriptor is open, and `message` points to a name, content and control room of the lengths that
        // it says, which are ours alone and outlive the call (recvmsg(2)).
        let length = unsafe { libc::recvmsg(descriptor, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(length) {
            Ok(length) => break length,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
    let beside = control.0.get(..message.msg_controllen).unwrap_or_default();
    let broken = || io::Error::from(rustix::io::Errno::BADMSG);
    Ok(ReceivedDatagram {
        length,
        truncated,
        from: read_name(&name.0).ok_or_else(broken)?,
        to: read_destination(beside).ok_or_else(broken)?,
    })
}

/// Answers `question` from the address that it was sent to.
///
/// # Errors
/// `EINVAL` if nobody can answer from there, as from a multicast address; `EMSGSIZE`; `EAGAIN`.
pub fn answer(socket: impl AsFd, question: &ReceivedDatagram, bytes: &[u8]) -> io::Result<()> {
    let (mut name, mut control) = (MessageBuffer([0; 64]), MessageBuffer([0; 64]));
    let name_length = write_name(&mut name.0, question.from);
    let control_length = write_source(&mut control.0, question.to);
    let mut content = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let message = message(&mut name, name_length, &mut content, &mut control, control_length)?;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and `message` points to a name, content and control message of the lengths that
    // it says, which outlive the call and are only read (sendmsg(2)).
    let sent = unsafe { libc::sendmsg(descriptor, &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn message(
    name: &mut MessageBuffer,
    name_length: usize,
    content: &mut libc::iovec,
    control: &mut MessageBuffer,
    control_length: usize,
) -> io::Result<libc::msghdr> {
    // SAFETY: all fields of `msghdr` are integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.0.as_mut_ptr().cast();
    message.msg_namelen = libc::socklen_t::try_from(name_length).map_err(io::Error::other)?;
    message.msg_iov = content;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_length;
    Ok(message)
}

/// `struct sockaddr_in` and `sockaddr_in6`: the family, the port, then for IPv6 the flow before the address and the
/// scope behind it.
fn read_name(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(field(bytes, 2)?);
    match i32::from(u16::from_ne_bytes(field(bytes, 0)?)) {
        libc::AF_INET => {
            let address = Ipv4Addr::from_octets(field(bytes, 4)?);
            Some(SocketAddrV4::new(address, port).into())
        }
        libc::AF_INET6 => {
            let flow = u32::from_ne_bytes(field(bytes, 4)?);
            let address = Ipv6Addr::from_octets(field(bytes, 8)?);
            let scope = u32::from_ne_bytes(field(bytes, 24)?);
            Some(SocketAddrV6::new(address, port, flow, scope).into())
        }
        _ => None,
    }
}

/// Writes what [`read_name`] reads; returns its length.
fn write_name(room: &mut [u8; 64], name: SocketAddr) -> usize {
    let family = if name.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(u16::try_from(family).unwrap_or(0).to_ne_bytes());
    bytes.extend(name.port().to_be_bytes());
    match name {
        SocketAddr::V4(name) => {
            bytes.extend(name.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(name) => {
            bytes.extend(name.flowinfo().to_ne_bytes());
            bytes.extend(name.ip().octets());
            bytes.extend(name.scope_id().to_ne_bytes());
        }
    }
    place(room, &bytes)
}

/// The destination in an `IP_PKTINFO` (interface, own address, destination) or `IPV6_PKTINFO` (destination, interface).
fn read_destination(mut beside: &[u8]) -> Option<IpAddr> {
    loop {
        let length = usize::from_ne_bytes(field(beside, 0)?);
        let level_and_kind = (
            i32::from_ne_bytes(field(beside, 8)?),
            i32::from_ne_bytes(field(beside, 12)?),
        );
        let content = beside.get(CONTROL_HEADER..length)?;
        match level_and_kind {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => return Some(Ipv4Addr::from_octets(field(content, 8)?).into()),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => return Some(Ipv6Addr::from_octets(field(content, 0)?).into()),
            _ => beside = beside.get(length.checked_next_multiple_of(8)?..)?,
        }
    }
}

/// Writes the control message that sets a datagram's source; returns its length with padding.
fn write_source(room: &mut [u8; 64], source: IpAddr) -> usize {
    let mut content = Vec::with_capacity(20);
    let (level, kind) = match source {
        IpAddr::V4(source) => {
            content.extend([0; 4]);
            content.extend(source.octets());
            content.extend([0; 4]);
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
        }
        IpAddr::V6(source) => {
            content.extend(source.octets());
            content.extend([0; 4]);
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
        }
    };
    let mut bytes = Vec::with_capacity(40);
    bytes.extend((CONTROL_HEADER + content.len()).to_ne_bytes());
    bytes.extend(level.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    place(room, &bytes)
}

fn place(room: &mut [u8; 64], bytes: &[u8]) -> usize {
    if let Some(start) = room.get_mut(..bytes.len()) {
        start.copy_from_slice(bytes);
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["192.0.2.1:53", "[fd00::1]:65535", "[fe80::1%3]:1"] {
            let name: SocketAddr = name.parse().unwrap();
            let mut room = [0; 64];
            let length = write_name(&mut room, name);
            assert_eq!(read_name(&room[..length]), Some(name));
            assert_eq!(read_name(&room[..length - 9]), None, "{name} cut short");
        }
    }

    #[test]
    fn what_the_kernel_leaves_out_or_cuts_is_not_made_up() {
        let mut room = [0; 64];
        let length = write_source(&mut room, IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(read_destination(&room[..length]), Some(Ipv6Addr::LOCALHOST.into()));
        for cut in 0..36 {
            assert_eq!(read_destination(&room[..cut]), None);
        }
        // A length that leads nowhere, or back.
        for length in [0_usize, 15, 1000, usize::MAX] {
            room[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(read_destination(&room), None);
        }
    }
}
