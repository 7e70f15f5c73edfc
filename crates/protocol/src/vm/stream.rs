//! One stream: its windows, its two ends, and what is to be told of it.

use super::bytes_ahead::BytesAhead;
use super::mux::MuxBreach;
use super::{MAX_STREAM_DATA, STREAM_WINDOW};

/// What a stream leads to on this side: something that never makes anybody wait.
pub trait StreamEnd: Sized {
    /// Reads what is there.
    fn read(&mut self, buffer: &mut [u8]) -> EndRead;

    /// What came with the last byte that was read and becomes a stream of its own.
    fn take_attached(&mut self) -> Option<Self> {
        None
    }

    /// Writes as much as there is room for.
    fn write(&mut self, bytes: &[u8]) -> EndWrite;

    /// No more will be written.
    fn end_writing(&mut self);

    /// No more will be read.
    fn end_reading(&mut self);
}

/// What came of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRead {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// There will be no more.
    Ended,
}

/// What came of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndWrite {
    /// So many bytes were taken, at least one.
    Bytes(usize),
    /// There is no room now.
    Full,
    /// No more will be taken.
    Refused,
}

/// A stream on this side.
#[derive(Debug)]
pub(super) struct MuxedStream<E> {
    pub(super) number: u32,
    pub(super) end: E,
    /// Bytes that we sent and of which we have not heard.
    unacknowledged: usize,
    /// Whether the end may have something to read.
    pub(super) is_readable: bool,
    /// Nothing more is read: the end has ended, or the other side wants no more.
    has_ended: bool,
    pub(super) has_told_end: bool,
    /// Bytes from the other side that the end has not taken.
    incoming: BytesAhead,
    /// How many came in all.
    received: u64,
    /// Bytes that were handed on or dropped, and not acknowledged yet.
    pub(super) owed: usize,
    peer_has_ended: bool,
    /// Whether the end was told so.
    is_shut: bool,
    /// The end takes no more.
    refuses: bool,
    pub(super) has_told_refusal: bool,
}

impl<E: StreamEnd> MuxedStream<E> {
    pub(super) fn new(number: u32, end: E) -> Self {
        Self {
            number,
            end,
            unacknowledged: 0,
            is_readable: true,
            has_ended: false,
            has_told_end: false,
            incoming: BytesAhead::default(),
            received: 0,
            owed: 0,
            peer_has_ended: false,
            is_shut: false,
            refuses: false,
            has_told_refusal: false,
        }
    }

    /// How many bytes may be read from the end now.
    pub(super) fn window(&self) -> usize {
        match self.has_ended {
            true => 0,
            false => STREAM_WINDOW.saturating_sub(self.unacknowledged).min(MAX_STREAM_DATA),
        }
    }

    /// Whether the end is to be asked when it takes more.
    pub(super) fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Reads from the end; answers how many bytes, which count as sent.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        match self.end.read(buffer) {
            EndRead::Bytes(count) => {
                self.unacknowledged = self.unacknowledged.saturating_add(count);
                count
            }
            EndRead::Nothing => {
                self.is_readable = false;
                0
            }
            EndRead::Ended => {
                self.has_ended = true;
                0
            }
        }
    }

    /// Takes bytes from the other side and hands on what the end takes.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), MuxBreach> {
        let stream = self.number;
        if self.peer_has_ended {
            return Err(MuxBreach::DataAfterEnd { stream });
        }
        // What is owed was not granted yet, so it still counts.
        let held = self.incoming.len().saturating_add(self.owed);
        if bytes.is_empty() || bytes.len() > MAX_STREAM_DATA || held.saturating_add(bytes.len()) > STREAM_WINDOW {
            return Err(MuxBreach::WindowExceeded { stream });
        }
        self.received = self.received.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
        self.incoming.tail().extend_from_slice(bytes);
        self.deliver();
        Ok(())
    }

    /// Hands on what the end takes now.
    pub(super) fn deliver(&mut self) {
        while !self.refuses && !self.incoming.is_empty() {
            match self.end.write(self.incoming.waiting()) {
                EndWrite::Bytes(count) => {
                    let count = count.min(self.incoming.len());
                    self.incoming.advance(count);
                    self.owed = self.owed.saturating_add(count);
                }
                EndWrite::Full => return,
                EndWrite::Refused => self.refuses = true,
            }
        }
        if self.refuses {
            self.owed = self.owed.saturating_add(self.incoming.len());
            self.incoming.clear();
        }
        if self.peer_has_ended && !self.is_shut {
            self.is_shut = true;
            self.end.end_writing();
        }
    }

    pub(super) fn acknowledged(&mut self, count: u32) -> Result<(), MuxBreach> {
        let stream = self.number;
        let count = usize::try_from(count).map_err(|_| MuxBreach::NeverSent { stream })?;
        self.unacknowledged = self
            .unacknowledged
            .checked_sub(count)
            .ok_or(MuxBreach::NeverSent { stream })?;
        Ok(())
    }

    pub(super) fn peer_ended(&mut self) -> Result<(), MuxBreach> {
        if self.peer_has_ended {
            return Err(MuxBreach::ClosedTwice { stream: self.number });
        }
        self.peer_has_ended = true;
        self.deliver();
        Ok(())
    }

    pub(super) fn peer_refuses(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            self.end.end_reading();
        }
    }

    /// Whether the other side is to be told that no more is sent.
    pub(super) fn owes_end(&self) -> bool {
        self.has_ended && !self.has_told_end
    }

    /// Whether the other side is to be told that no more is taken.
    pub(super) fn owes_refusal(&self) -> bool {
        self.refuses && !self.has_told_refusal && !self.peer_has_ended
    }

    /// Whether more bytes are welcome soon, so that it is worth a frame.
    pub(super) fn owes_window(&self) -> bool {
        self.owed > 0 && !self.peer_has_ended && (self.owed >= STREAM_WINDOW / 4 || self.incoming.is_empty())
    }

    pub(super) fn is_over(&self) -> bool {
        self.has_told_end && self.peer_has_ended && self.is_shut
    }

    /// Whether both directions have ended for the end, though the other side may not have been told.
    pub(super) fn is_drained(&self) -> bool {
        self.peer_has_ended && self.is_shut
    }
}
