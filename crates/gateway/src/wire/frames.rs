//! Messages as they pass over the socket: four bytes of length, the compact form of serde, and descriptors beside them.
//!
//! Descriptors come in the order in which they were sent, and never after the message that they belong to.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use offleash_sys::socket::{self, MAX_DESCRIPTORS};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize as _, Zeroizing};

/// The longest message of a gateway: a connection with a thousand requests, each with all that is told of it.
pub(crate) const MAX_REPORT: usize = 16 * 1024 * 1024;
/// The longest order: rules, and the authorities of a machine.
pub(crate) const MAX_ORDER: usize = 256 * 1024 * 1024;
/// The most descriptors that wait for their message.
const MAX_WAITING: usize = 256;
const LENGTH: usize = 4;
const READ_AT_ONCE: usize = 64 * 1024;

/// The bytes of a message, wiped afterwards, since it may have secrets in it.
///
/// # Errors
/// `InvalidData` for what has no such form or is too long.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let invalid = |error: postcard::Error| io::Error::new(io::ErrorKind::InvalidData, error);
    let length = postcard::experimental::serialized_size(message).map_err(invalid)?;
    let prefix = u32::try_from(length).map_err(io::Error::other)?.to_le_bytes();
    // As long as it will be, so that it is never moved and nothing of it is left anywhere.
    let mut bytes = Zeroizing::new(vec![0; LENGTH + length]);
    let (start, rest) = bytes.split_at_mut(LENGTH);
    start.copy_from_slice(&prefix);
    postcard::to_slice(message, rest).map_err(invalid)?;
    Ok(bytes)
}

/// Sends a message, over a socket that does not block, to somebody who may take so long for each piece of it.
///
/// # Errors
/// `EPIPE` when the other side is gone, `TimedOut` when it does not take it.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[OwnedFd],
    patience: Duration,
) -> io::Result<()> {
    let mut rest = bytes;
    let mut pieces = descriptors.chunks(MAX_DESCRIPTORS - 1).peekable();
    while !rest.is_empty() {
        let piece: Vec<BorrowedFd<'_>> = pieces
            .peek()
            .copied()
            .unwrap_or_default()
            .iter()
            .map(OwnedFd::as_fd)
            .collect();
        // Each further piece of them goes with one more byte.
        let now = match pieces.len() {
            0 | 1 => rest,
            _ => rest.get(..1).unwrap_or(rest),
        };
        match socket::send_now(socket, now, &piece) {
            Ok(sent) => {
                rest = rest.get(sent..).unwrap_or_default();
                pieces.next();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for_room(socket, patience)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait_for_room(socket: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    match rustix::event::poll(&mut polled, Some(&patience)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What has come, and is not a whole message yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Zeroizing<Vec<u8>>,
    /// Where it is read to; all zeroes in between.
    buffer: Vec<u8>,
    /// How much of it is done with.
    taken: usize,
    descriptors: VecDeque<OwnedFd>,
    longest: usize,
}

/// What came of looking at the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// There is more to be decoded.
    Something,
    /// Nothing came.
    Nothing,
    /// The other side is gone.
    End,
}

impl Incoming {
    /// Nothing yet, of messages that are no longer than `longest`.
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            bytes: Zeroizing::new(Vec::new()),
            buffer: vec![0; READ_AT_ONCE],
            taken: 0,
            descriptors: VecDeque::new(),
            longest,
        }
    }

    /// Takes in what is there, once; waits for it if the socket does.
    ///
    /// # Errors
    /// What recvmsg(2) answers; `InvalidData` for too many descriptors.
    pub(crate) fn receive(&mut self, from: BorrowedFd<'_>) -> io::Result<Received> {
        match socket::receive(from, &mut self.buffer) {
            Ok((0, _)) => Ok(Received::End),
            Ok((length, descriptors)) => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = buffer.get_mut(..length).unwrap_or_default();
                self.push(read);
                read.zeroize();
                self.buffer = buffer;
                self.descriptors.extend(descriptors);
                if self.descriptors.len() > MAX_WAITING {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok(Received::Something)
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => Ok(Received::Nothing),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::CONNRESET) => Ok(Received::End),
            Err(error) => Err(error),
        }
    }

    fn push(&mut self, more: &[u8]) {
        if self.taken > 0 {
            let left = self.bytes.len() - self.taken;
            self.bytes.copy_within(self.taken.., 0);
            self.bytes.truncate(left);
            self.taken = 0;
        }
        let needed = self.bytes.len() + more.len();
        if needed > self.bytes.capacity() {
            // By hand, because a vector that grows leaves what it held where it was.
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.next_power_of_two()));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(more);
    }

    /// The next message, if it is here in full, and how long it was.
    ///
    /// # Errors
    /// `InvalidData` for one that is too long or none.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, usize)>> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let here = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((length, rest)) = here.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| invalid())?;
        if length > self.longest {
            return Err(invalid());
        }
        let Some(bytes) = rest.get(..length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(bytes).map_err(|_| invalid())?;
        self.taken += LENGTH + length;
        if self.taken == self.bytes.len() {
            self.bytes.zeroize();
            self.taken = 0;
        }
        Ok(Some((message, length)))
    }

    /// The descriptors that have come and nobody has taken.
    pub(crate) fn descriptors(&mut self) -> &mut VecDeque<OwnedFd> {
        &mut self.descriptors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn messages_come_whole_with_their_descriptors_however_they_are_cut() {
        let (ours, theirs) = socket::stream_pair().unwrap();
        let pipes: Vec<OwnedFd> = (0..100).map(|_| rustix::pipe::pipe().unwrap().0).collect();
        let long = vec![7_u8; 300_000];
        let sender = std::thread::spawn(move || {
            send(ours.as_fd(), &encode(&("first", 1_u64)).unwrap(), &pipes, TIMEOUT).unwrap();
            send(ours.as_fd(), &encode(&long).unwrap(), &[], TIMEOUT).unwrap();
        });
        let mut incoming = Incoming::new(MAX_REPORT);
        let mut next = || loop {
            if let Some((message, _)) = incoming.next::<(String, u64)>().unwrap() {
                return (message, incoming.descriptors().len());
            }
            assert_eq!(incoming.receive(theirs.as_fd()).unwrap(), Received::Something);
        };
        assert_eq!(next(), (("first".to_owned(), 1), 100));
        let long = loop {
            if let Some((message, _)) = incoming.next::<Vec<u8>>().unwrap() {
                break message;
            }
            assert_eq!(incoming.receive(theirs.as_fd()).unwrap(), Received::Something);
        };
        assert_eq!(long, vec![7; 300_000]);
        sender.join().unwrap();
        assert_eq!(incoming.receive(theirs.as_fd()).unwrap(), Received::End);
    }

    #[test]
    fn what_is_too_long_or_no_message_is_refused_before_it_is_kept() {
        let mut incoming = Incoming::new(100);
        incoming.push(&101_u32.to_le_bytes());
        assert!(incoming.next::<u64>().is_err());
        let mut incoming = Incoming::new(100);
        incoming.push(&[3, 0, 0, 0, 0xff, 0xff, 0xff]);
        assert!(incoming.next::<bool>().is_err());
        let mut incoming = Incoming::new(100);
        incoming.push(&[3, 0, 0]);
        assert!(incoming.next::<bool>().unwrap().is_none());
    }
}
