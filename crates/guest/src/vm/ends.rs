//! What the streams lead to inside: the guest's control socket, sockets that it was given, and ports.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use offleash_protocol::vm::{EndRead, EndWrite, StreamEnd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};

/// The end of a stream.
pub(super) enum InnerEnd {
    /// The guest's control socket.
    Control {
        socket: OwnedFd,
        /// What goes with the byte at this place of all that is written, in order.
        attached: VecDeque<(u64, OwnedFd)>,
        written: u64,
    },
    /// Any other.
    Socket(OwnedFd),
    /// A connection to a port that is not there yet.
    Dialled {
        socket: OwnedFd,
        port: u16,
        /// Where else it is tried, the last first.
        left: Vec<IpAddr>,
    },
    /// There is none: a port at which nobody listens.
    Nothing,
}

impl InnerEnd {
    pub(super) fn control(socket: OwnedFd) -> Self {
        InnerEnd::Control {
            socket,
            attached: VecDeque::new(),
            written: 0,
        }
    }

    /// Has a descriptor go to the guest with the byte at `place` of the control stream.
    pub(super) fn attach(&mut self, place: u64, descriptor: OwnedFd) {
        if let InnerEnd::Control { attached, .. } = self {
            attached.push_back((place, descriptor));
        }
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            InnerEnd::Control { socket, .. } | InnerEnd::Socket(socket) | InnerEnd::Dialled { socket, .. } => {
                Some(socket.as_fd())
            }
            InnerEnd::Nothing => None,
        }
    }
}

/// Connects to a port of this machine: at its loopback addresses, else at its network's. Nothing waits.
pub(super) fn dial(port: u16, interface: Option<[u8; 4]>) -> InnerEnd {
    let own = interface.map(|address| IpAddr::V4(Ipv4Addr::from(address)));
    let loopback = [IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];
    dial_next(port, own.into_iter().chain(loopback).collect())
}

fn dial_next(port: u16, mut left: Vec<IpAddr>) -> InnerEnd {
    while let Some(address) = left.pop() {
        if let Ok(socket) = connect(SocketAddr::new(address, port)) {
            return InnerEnd::Dialled { socket, port, left };
        }
    }
    InnerEnd::Nothing
}

impl InnerEnd {
    /// Takes note of what became of a connection that was dialled; answers whether it is still on its way.
    fn is_on_its_way(&mut self) -> bool {
        while let InnerEnd::Dialled { socket, port, left } = self {
            let is_refused = matches!(rustix::net::sockopt::socket_error(&*socket), Ok(Err(_)) | Err(_));
            if !is_refused && rustix::net::getpeername(&*socket).is_err() {
                return true;
            }
            let (port, left) = (*port, core::mem::take(left));
            *self = match (is_refused, core::mem::replace(self, InnerEnd::Nothing)) {
                (false, InnerEnd::Dialled { socket, .. }) => InnerEnd::Socket(socket),
                _ => dial_next(port, left),
            };
        }
        false
    }
}

fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Sends one byte, and a descriptor with it.
fn send_with(socket: &OwnedFd, byte: &[u8], descriptor: &OwnedFd) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(byte)], &mut control, flags)
}

fn write_control(
    socket: &OwnedFd,
    attached: &mut VecDeque<(u64, OwnedFd)>,
    written: &mut u64,
    bytes: &[u8],
) -> Result<usize, Errno> {
    let count = match attached.front() {
        Some((place, descriptor)) if place <= written => {
            let count = send_with(socket, bytes.get(..1).unwrap_or_default(), descriptor)?;
            attached.pop_front();
            count
        }
        Some((place, _)) => {
            let before = usize::try_from(*place - *written)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            send(socket, bytes.get(..before).unwrap_or_default())?
        }
        None => send(socket, bytes)?,
    };
    *written += u64::try_from(count).unwrap_or(0);
    Ok(count)
}

impl StreamEnd for InnerEnd {
    fn read(&mut self, buffer: &mut [u8]) -> EndRead {
        if self.is_on_its_way() {
            return EndRead::Nothing;
        }
        let Some(socket) = self.socket() else {
            return EndRead::Ended;
        };
        match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT).map(|(count, _)| count) {
            Ok(count) if count > 0 => EndRead::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => EndRead::Nothing,
            Ok(_) | Err(_) => EndRead::Ended,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> EndWrite {
        if self.is_on_its_way() {
            return EndWrite::Full;
        }
        let written = match self {
            InnerEnd::Control {
                socket,
                attached,
                written,
            } => write_control(socket, attached, written, bytes),
            InnerEnd::Socket(socket) | InnerEnd::Dialled { socket, .. } => send(socket, bytes),
            InnerEnd::Nothing => return EndWrite::Refused,
        };
        match written {
            Ok(count) if count > 0 => EndWrite::Bytes(count),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => EndWrite::Full,
            Err(_) => EndWrite::Refused,
        }
    }

    fn end_writing(&mut self) {
        if let Some(socket) = self.socket() {
            // One whose other end is gone has none that could be told.
            let _ = rustix::net::shutdown(socket, Shutdown::Write);
        }
    }

    fn end_reading(&mut self) {
        if let Some(socket) = self.socket() {
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::IoSliceMut;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    /// What one call of recvmsg(2) hands out: bytes, and how many descriptors.
    fn receive(socket: &OwnedFd) -> (Vec<u8>, usize) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; 64];
        let received = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
        )
        .expect("something");
        let descriptors = control.drain().map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.count(),
            _ => 0,
        });
        let count = descriptors.sum();
        (buffer[..received.bytes].to_vec(), count)
    }

    /// Asks again and again, for some seconds.
    fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
        for _ in 0..5000 {
            if let Some(answer) = ask() {
                return answer;
            }
            crate::vm::pause(2);
        }
        panic!("it never came about");
    }

    /// The guest takes one descriptor at a time, with a byte of its own.
    #[test]
    fn descriptors_go_with_their_bytes() {
        let (guest, ours) = pair();
        let mut end = InnerEnd::control(ours);
        for place in [3, 4, 6] {
            end.attach(place, pair().0);
        }
        let mut rest = &b"abcdefgh"[..];
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let EndWrite::Bytes(count) = end.write(rest) else {
                panic!("there is room");
            };
            pieces.push(count);
            rest = &rest[count..];
        }
        assert_eq!(pieces, [3, 1, 1, 1, 1, 1]);
        let (mut bytes, mut with_descriptor) = (Vec::new(), Vec::new());
        while bytes.len() < 8 {
            let (piece, descriptors) = receive(&guest);
            bytes.extend_from_slice(&piece);
            if descriptors > 0 {
                assert_eq!(descriptors, 1);
                with_descriptor.extend(bytes.last().copied());
            }
        }
        assert_eq!((&bytes[..], &with_descriptor[..]), (&b"abcdefgh"[..], &b"deg"[..]));
    }

    #[test]
    fn a_port_is_dialled_at_either_loopback_address_and_nobody_is_an_end() {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let family = match address {
                IpAddr::V4(_) => AddressFamily::INET,
                IpAddr::V6(_) => AddressFamily::INET6,
            };
            let Ok(listener) = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None) else {
                continue;
            };
            if rustix::net::bind(&listener, &SocketAddr::new(address, 0)).is_err() {
                // A machine without IPv6.
                continue;
            }
            rustix::net::listen(&listener, 4).expect("bound");
            let bound = rustix::net::getsockname(&listener).expect("bound");
            let port = SocketAddr::try_from(bound).expect("an address of the internet").port();
            let mut end = dial(port, None);
            let written = until(|| Some(end.write(b"hello")).filter(|written| *written != EndWrite::Full));
            assert_eq!(written, EndWrite::Bytes(5));
            let accepted = rustix::net::accept(&listener).expect("it was dialled");
            let mut heard = [0; 5];
            assert_eq!(rustix::io::read(&accepted, &mut heard), Ok(5));
            drop((listener, accepted));
        }
        // A port of the range that is privileged and that nothing here listens on.
        let mut nobody = dial(1, None);
        let read = until(|| Some(nobody.read(&mut [0; 4])).filter(|read| *read != EndRead::Nothing));
        assert_eq!(read, EndRead::Ended);
        assert_eq!(nobody.write(b"x"), EndWrite::Refused);
    }
}
