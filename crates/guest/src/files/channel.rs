//! The worker's socket: requests in, answers out, one after the other.

use alloc::vec::Vec;

use offleash_protocol::files::{DATA_CHUNK, DATA_PREFIX, FileReply, FileRequest, frame_data, framed_data};
use offleash_protocol::{HEADER, MessageDecoder, encode_into};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::failure::{HostGone, RequestStop, failed};

/// A conversation with the host, in which this side waits.
pub(super) struct HostChannel {
    socket: OwnedFd,
    decoder: MessageDecoder<FileRequest>,
    /// Room for a frame of data, either way.
    buffer: Vec<u8>,
    out: Vec<u8>,
}

/// What comes while a file is written.
pub(super) enum IncomingWrite<'a> {
    /// A piece of it.
    Piece(&'a [u8]),
    /// Anything else, and small pieces.
    Request(FileRequest),
}

impl HostChannel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: MessageDecoder::new(),
            // Not touched before it is needed.
            buffer: alloc::vec![0; DATA_PREFIX + DATA_CHUNK],
            out: Vec::new(),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits for the next request; `None` when no more will come.
    pub(super) fn next(&mut self) -> Result<Option<FileRequest>, HostGone> {
        loop {
            if let Some(request) = self.decoder.next().map_err(|_| HostGone)? {
                return Ok(Some(request));
            }
            match rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(None),
                Ok((count, _)) => self.decoder.push(&self.buffer[..count]),
                Err(Errno::INTR) => {}
                Err(_) => return Err(HostGone),
            }
        }
    }

    /// Waits for what follows in the writing of a file; a large piece of it is answered from where it came to lie.
    pub(super) fn incoming(&mut self) -> Result<IncomingWrite<'_>, HostGone> {
        // Only between frames can it be seen what follows.
        if self.decoder.pending() > 0 {
            return Ok(IncomingWrite::Request(self.next()?.ok_or(HostGone)?));
        }
        let prefix = &mut self.buffer[..DATA_PREFIX];
        // No frame is shorter than its header and one byte.
        let (start, rest) = prefix.split_at_mut(HEADER + 1);
        receive(&self.socket, start)?;
        let body = start.first_chunk().map_or(0, |header| u32::from_le_bytes(*header));
        let is_longer = usize::try_from(body).is_ok_and(|body| body > rest.len());
        if is_longer {
            receive(&self.socket, rest)?;
        }
        let length = prefix
            .first_chunk()
            .filter(|_| is_longer)
            .and_then(|prefix| framed_data(*prefix));
        if let Some(length) = length {
            let piece = &mut self.buffer[DATA_PREFIX..][..length];
            receive(&self.socket, piece)?;
            return Ok(IncomingWrite::Piece(piece));
        }
        let received = if is_longer { DATA_PREFIX } else { HEADER + 1 };
        self.decoder.push(&prefix[..received]);
        Ok(IncomingWrite::Request(self.next()?.ok_or(HostGone)?))
    }

    /// Sends an answer; one that is too large for a frame fails the request.
    pub(super) fn send(&mut self, reply: &FileReply) -> Result<(), RequestStop> {
        self.out.clear();
        encode_into(reply, &mut self.out).map_err(|_| failed("answer")(Errno::MSGSIZE))?;
        Ok(send_all(&self.socket, &self.out)?)
    }

    /// Reads at most `limit` bytes by `read` and sends them as one piece of a file; answers how many there were.
    pub(super) fn send_data(
        &mut self,
        limit: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, RequestStop> {
        let place = &mut self.buffer[DATA_PREFIX..][..limit.min(DATA_CHUNK)];
        let length = read(place).map_err(failed("read"))?;
        if length > 0 {
            send_all(&self.socket, frame_data(&mut self.buffer, length))?;
        }
        Ok(length)
    }
}

/// Fills a place with what comes.
fn receive(socket: &OwnedFd, mut place: &mut [u8]) -> Result<(), HostGone> {
    while !place.is_empty() {
        match rustix::net::recv(socket, &mut *place, RecvFlags::empty()) {
            Ok((0, _)) => return Err(HostGone),
            Ok((count, _)) => place = &mut place[count..],
            Err(Errno::INTR) => {}
            Err(_) => return Err(HostGone),
        }
    }
    Ok(())
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), HostGone> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return Err(HostGone),
        }
    }
    Ok(())
}
