//! What the streams of a machine lead to on the host: the control socket, what came with it, and connections.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use offleash_protocol::vm::{EndRead, EndWrite, StreamEnd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, Shutdown};

/// A socket.
#[derive(Debug)]
pub(super) struct CarriedEnd {
    socket: OwnedFd,
    /// Whether descriptors may come with what is read.
    is_control: bool,
    /// Came with the last byte that was read.
    attached: Option<OwnedFd>,
    has_ended: bool,
}

impl CarriedEnd {
    pub(super) fn control(socket: OwnedFd) -> Self {
        Self {
            is_control: true,
            ..Self::socket(socket)
        }
    }

    pub(super) fn socket(socket: OwnedFd) -> Self {
        Self {
            socket,
            is_control: false,
            attached: None,
            has_ended: false,
        }
    }

    /// Whether whoever has the other end has closed it.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// As recv(2); a descriptor belongs to the last byte, since it is sent with a byte of its own and the kernel hands out
    /// nothing behind one that came with a descriptor (unix(7), "Ancillary messages": they form a barrier).
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if !self.is_control {
            return rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT).map(|(count, _)| count);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.attached = descriptors.last().or(self.attached.take());
            }
        }
        match received.flags.contains(ReturnFlags::CTRUNC) {
            true => Err(Errno::MFILE),
            false => Ok(received.bytes),
        }
    }
}

impl AsFd for CarriedEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl StreamEnd for CarriedEnd {
    fn read(&mut self, buffer: &mut [u8]) -> EndRead {
        match self.receive(buffer) {
            Ok(count) if count > 0 => EndRead::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => EndRead::Nothing,
            Ok(_) | Err(_) => {
                self.has_ended = true;
                EndRead::Ended
            }
        }
    }

    fn take_attached(&mut self) -> Option<Self> {
        self.attached.take().map(Self::socket)
    }

    fn write(&mut self, bytes: &[u8]) -> EndWrite {
        match rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) if count > 0 => EndWrite::Bytes(count),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => EndWrite::Full,
            Err(_) => EndWrite::Refused,
        }
    }

    fn end_writing(&mut self) {
        // One whose other end is gone has none that could be told.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    fn end_reading(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }
}
