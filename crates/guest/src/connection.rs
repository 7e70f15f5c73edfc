//! The control socket: messages in, and an outbox of messages that are on the way out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use offleash_protocol::{FrameError, FromGuest, MessageDecoder, ToGuest, encode_into};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};

/// Bytes that wait for the host, beyond which no output is read from commands.
const OUTBOX: usize = 256 * 1024;

/// Beyond this not even requests are read: every answer goes into the outbox, and the host takes none of them.
const OUTBOX_FULL: usize = 4 * OUTBOX;

/// Descriptors that may come at once: one, since each comes with a byte of its own.
const MAX_DESCRIPTORS: usize = 1;

/// The connection to the host.
pub(crate) struct HostConnection {
    socket: OwnedFd,
    decoder: MessageDecoder<ToGuest>,
    /// Came with requests that were not looked at yet, in order.
    descriptors: VecDeque<OwnedFd>,
    outbox: Vec<u8>,
    /// How much of the outbox was sent.
    sent: usize,
}

/// Why the connection is of no more use.
#[derive(Clone, Copy)]
pub(crate) enum ConnectionError {
    /// The host closed it.
    Gone,
    /// The host sent something that is not the protocol.
    Protocol,
}

impl From<FrameError> for ConnectionError {
    fn from(_: FrameError) -> Self {
        ConnectionError::Protocol
    }
}

impl HostConnection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: MessageDecoder::new(),
            descriptors: VecDeque::new(),
            outbox: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How many bytes of output may be read from a command now.
    pub(crate) fn room(&self) -> usize {
        OUTBOX.saturating_sub(self.unsent())
    }

    /// Whether there is something to send.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent() > 0
    }

    /// Whether requests may be read.
    pub(crate) fn takes_requests(&self) -> bool {
        self.unsent() < OUTBOX_FULL
    }

    fn unsent(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// Puts a message into the outbox.
    pub(crate) fn send(&mut self, message: &FromGuest) {
        // Nothing that the guest says comes near the limit of a frame; should it, saying nothing is all that is left.
        let _ = encode_into(message, &mut self.outbox);
    }

    /// Hands as much of the outbox to the kernel as it takes now.
    pub(crate) fn flush(&mut self) -> Result<(), ConnectionError> {
        while self.sent < self.outbox.len() {
            match rustix::net::send(
                &self.socket,
                &self.outbox[self.sent..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConnectionError::Gone),
            }
        }
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent >= OUTBOX / 2 {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Takes what the host sent, by way of `buffer`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<(), ConnectionError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(ConnectionError::Gone),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ConnectionError::Protocol);
        }
        match received.bytes {
            0 => Err(ConnectionError::Gone),
            count => {
                self.decoder.push(&buffer[..count]);
                Ok(())
            }
        }
    }

    /// The next message that has arrived in full.
    pub(crate) fn next(&mut self) -> Result<Option<ToGuest>, ConnectionError> {
        let message = self.decoder.next()?;
        // Then one descriptor may be that of a request of which only the beginning is here.
        let begun = usize::from(self.decoder.pending() > 0);
        if message.is_none() && self.descriptors.len() > begun {
            return Err(ConnectionError::Protocol);
        }
        Ok(message)
    }

    /// The descriptor that came with the message answered last.
    pub(crate) fn take_descriptor(&mut self) -> Result<OwnedFd, ConnectionError> {
        self.descriptors.pop_front().ok_or(ConnectionError::Protocol)
    }
}
