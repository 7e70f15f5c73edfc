//! One client's connection as the supervisor sees it: a request in, frames out, and never a wait for either.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use offleash_isolation::sandbox::ExecId;
use offleash_protocol::{MessageDecoder, encode};
use offleash_sys::socket;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::message::{SupervisorFailure, SupervisorReply, SupervisorRequest};

/// What is known of a client.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    decoder: MessageDecoder<SupervisorRequest>,
    outbox: VecDeque<OutboxPiece>,
    /// How much of the first piece was sent.
    sent: usize,
    unsent: usize,
    /// When it was made.
    pub(super) since: Instant,
    pub(super) stage: ConnectionStage,
    /// Whether it is answered when the sandbox has ended.
    pub(super) waits_for_the_end: bool,
    /// Whether the rest of its request has to wait.
    held_back: bool,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// The request is not here in full.
    Asking,
    /// Something else has to happen first.
    Waiting,
    /// It hears of an execution.
    Following(ExecId),
    /// What is left to send is the last.
    Leaving,
}

/// A frame on its way, and what goes with its first byte.
#[derive(Debug)]
struct OutboxPiece {
    bytes: Rc<[u8]>,
    descriptor: Option<OwnedFd>,
}

/// What came of looking at a connection.
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    Request(Box<SupervisorRequest>),
    /// It is of no more use: the client has hung up, or says what is not the protocol.
    HungUp,
}

impl Connection {
    /// A connection that was accepted just now; its socket does not block.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: MessageDecoder::new(),
            outbox: VecDeque::new(),
            sent: 0,
            unsent: 0,
            since: Instant::now(),
            stage: ConnectionStage::Asking,
            waits_for_the_end: false,
            held_back: false,
        }
    }

    /// Another descriptor of it, for whoever answers in our place.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// What to wait for; a client that hangs up is always noticed.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.held_back);
        flags.set(PollFlags::OUT, !self.outbox.is_empty());
        (self.socket.as_fd(), flags)
    }

    /// How many bytes are here of a request that is not here in full.
    pub(super) fn unfinished(&self) -> usize {
        self.decoder.pending()
    }

    /// Has the rest of its request wait, or come. The time that it may take begins anew.
    pub(super) fn hold_back(&mut self, held_back: bool) {
        if held_back {
            self.since = Instant::now();
        }
        self.held_back = held_back;
    }

    /// Takes in what the client sent, by way of `buffer`: `room` bytes, and what one more call gives.
    pub(super) fn hear(&mut self, buffer: &mut [u8], room: usize) -> Heard {
        let before = self.unfinished();
        loop {
            if self.unfinished() - before > room {
                return Heard::Nothing;
            }
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Heard::HungUp,
                // Nothing is to be said after the request.
                Ok(_) if self.stage != ConnectionStage::Asking => return Heard::HungUp,
                Ok((length, _)) => self.decoder.push(buffer.get(..length).unwrap_or_default()),
                Err(Errno::AGAIN) => return Heard::Nothing,
                Err(Errno::INTR) => continue,
                Err(_) => return Heard::HungUp,
            }
            match self.decoder.next() {
                Ok(None) => {}
                Ok(Some(request)) if self.decoder.pending() == 0 => {
                    self.decoder = MessageDecoder::new();
                    self.stage = ConnectionStage::Waiting;
                    return Heard::Request(Box::new(request));
                }
                Ok(Some(_)) | Err(_) => return Heard::HungUp,
            }
        }
    }

    /// Puts a frame behind what is to be sent.
    pub(super) fn put(&mut self, frame: Rc<[u8]>) {
        self.unsent += frame.len();
        self.outbox.push_back(OutboxPiece {
            bytes: frame,
            descriptor: None,
        });
    }

    /// Puts a reply behind what is to be sent.
    pub(super) fn reply(&mut self, reply: &SupervisorReply) {
        self.put(frame(reply));
    }

    /// Puts a reply with a descriptor behind what is to be sent, as the last.
    pub(super) fn answer_with(&mut self, reply: &SupervisorReply, descriptor: OwnedFd) {
        let bytes = frame(reply);
        self.unsent += bytes.len();
        self.outbox.push_back(OutboxPiece {
            bytes,
            descriptor: Some(descriptor),
        });
        self.stage = ConnectionStage::Leaving;
    }

    /// Puts the last reply behind what is to be sent.
    pub(super) fn answer(&mut self, reply: &SupervisorReply) {
        self.reply(reply);
        self.stage = ConnectionStage::Leaving;
    }

    /// How many bytes it has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whether all is said and done.
    pub(super) fn is_over(&self) -> bool {
        self.stage == ConnectionStage::Leaving && self.outbox.is_empty()
    }

    /// Sends what the client takes now; `false` when it takes nothing any more.
    pub(super) fn flush(&mut self) -> bool {
        while let Some(piece) = self.outbox.front() {
            let rest = piece.bytes.get(self.sent..).unwrap_or_default();
            let with = piece.descriptor.as_ref().filter(|_| self.sent == 0).map(AsFd::as_fd);
            match socket::send_now(self.socket.as_fd(), rest, with.as_slice()) {
                Ok(count) => {
                    self.unsent = self.unsent.saturating_sub(count);
                    self.sent += count;
                    if self.sent >= piece.bytes.len() {
                        self.outbox.pop_front();
                        self.sent = 0;
                    }
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// A reply as it goes over the wire.
pub(super) fn frame(reply: &SupervisorReply) -> Rc<[u8]> {
    let too_large = |_| {
        encode(&SupervisorReply::Failed(SupervisorFailure::Failed {
            reason: "the answer is too large".to_owned(),
        }))
    };
    // That much of a frame is always one.
    encode(reply).or_else(too_large).unwrap_or_default().into()
}
