//! The control socket: messages in, and an outbox of messages that are on the way out.

use alloc::vec::Vec;

use offleash_protocol::{Decoder, FrameError, FromGuest, ToGuest, encode_into};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Bytes that wait for the host, beyond which no output is read from commands.
const OUTBOX: usize = 256 * 1024;

/// Beyond this not even requests are read: every answer goes into the outbox, and the host takes none of them.
const OUTBOX_FULL: usize = 4 * OUTBOX;

/// The connection to the host.
pub(crate) struct Connection {
    socket: OwnedFd,
    decoder: Decoder<ToGuest>,
    outbox: Vec<u8>,
    /// How much of the outbox was sent.
    sent: usize,
}

/// Why the connection is of no more use.
#[derive(Clone, Copy)]
pub(crate) enum Broken {
    /// The host closed it.
    Gone,
    /// The host sent something that is not the protocol.
    Protocol,
}

impl From<FrameError> for Broken {
    fn from(_: FrameError) -> Self {
        Broken::Protocol
    }
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: Decoder::new(),
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
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while self.sent < self.outbox.len() {
            match rustix::net::send(
                &self.socket,
                &self.outbox[self.sent..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Broken::Gone),
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
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Broken> {
        match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Broken::Gone),
            Ok((count, _)) => {
                self.decoder.push(&buffer[..count]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Broken::Gone),
        }
    }

    /// The next message that has arrived in full.
    pub(crate) fn next(&mut self) -> Result<Option<ToGuest>, Broken> {
        Ok(self.decoder.next()?)
    }
}
