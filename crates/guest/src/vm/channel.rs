//! The machine's end of the channel.

use alloc::vec::Vec;

use offleash_protocol::MessageDecoder;
use offleash_protocol::vm::{FromVm, Mux, ToVm};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::ends::InnerEnd;

/// Bytes that are taken from the port in one turn.
const TURN_BYTES: usize = 64 * 1024;

/// Rounds of 10 ms for which the last words may take to be taken.
const FAREWELL_ROUNDS: u32 = 200;

/// The channel is of no more use: nobody is at its other end.
pub(super) struct ChannelGone;

/// The channel's port and the streams over it.
pub(super) struct VmChannel {
    port: OwnedFd,
    pub(super) mux: Mux<FromVm, InnerEnd>,
    pub(super) decoder: MessageDecoder<ToVm>,
    buffer: Vec<u8>,
}

impl VmChannel {
    /// `port` makes nobody wait.
    pub(super) fn new(port: OwnedFd) -> Self {
        Self {
            port,
            mux: Mux::new(),
            decoder: MessageDecoder::new(),
            buffer: alloc::vec![0; TURN_BYTES],
        }
    }

    /// What to poll the port for.
    pub(super) fn flags(&self) -> PollFlags {
        match self.mux.unsent().is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        }
    }

    pub(super) fn port(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    /// Hands as much to the port as it takes now.
    pub(super) fn flush(&mut self) -> Result<(), ChannelGone> {
        while !self.mux.unsent().is_empty() {
            match rustix::io::write(&self.port, self.mux.unsent()) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => self.mux.sent(count),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ChannelGone),
            }
        }
        Ok(())
    }

    /// Takes what is there into the decoder.
    pub(super) fn receive(&mut self) -> Result<(), ChannelGone> {
        // The port hands out a page at a time, at most.
        let mut taken = 0;
        while let Some(rest) = self.buffer.get_mut(taken..).filter(|rest| !rest.is_empty()) {
            match rustix::io::read(&self.port, rest) {
                // That is how a port says that its other end was closed.
                Ok(0) if taken == 0 => return Err(ChannelGone),
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => break,
                Ok(count) => taken += count,
                Err(_) => return Err(ChannelGone),
            }
        }
        self.decoder.push(self.buffer.get(..taken).unwrap_or_default());
        Ok(())
    }

    /// Says something behind all that waits, and gives the other side some time to take it.
    pub(super) fn say_last(&mut self, message: &FromVm) {
        self.mux.send(message);
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        for _ in 0..FAREWELL_ROUNDS {
            if self.flush().is_err() || self.mux.unsent().is_empty() {
                return;
            }
            let mut polled = [PollFd::from_borrowed_fd(self.port.as_fd(), PollFlags::OUT)];
            let _ = rustix::event::poll(&mut polled, Some(&pause));
        }
    }
}
