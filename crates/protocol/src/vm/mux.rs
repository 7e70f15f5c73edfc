//! Many streams over one: bounded, fair, and without waiting.
//!
//! The caller polls the ends that [`Mux::interests`] names, says which are ready, hands in what came ([`Mux::take`]) and sends
//! what [`Mux::unsent`] holds. What waits to be sent stays around [`MAX_UNSENT`] and what waits for an end below
//! [`STREAM_WINDOW`](super::STREAM_WINDOW), whatever the other side does or leaves undone.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::bytes_ahead::BytesAhead;
use super::stream::{MuxedStream, StreamEnd};
use super::{CONTROL_STREAM, CloseDirection, MAX_STREAM_DATA, MAX_STREAMS, StreamFrame, StreamKind};
use crate::frame::{FrameError, encode_into};
use crate::message::Dialogue;

/// Bytes that wait to be sent, beyond which nothing is read from any end.
pub const MAX_UNSENT: usize = 128 * 1024;

/// The least that is read of an end, if there is more: smaller pieces are not worth a frame.
const MIN_READ: usize = 16 * 1024;

/// What the other side did against the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MuxBreach {
    /// Its bytes are no messages.
    #[error("no message: {0}")]
    Frame(FrameError),
    /// A frame names a stream that never was, or data one that is over.
    #[error("a frame of stream {stream}, which there is not")]
    UnknownStream {
        /// The number.
        stream: u32,
    },
    /// It sent more than it may.
    #[error("more bytes of stream {stream} than may be on the way")]
    WindowExceeded {
        /// The stream.
        stream: u32,
    },
    /// It acknowledged more than was sent.
    #[error("an acknowledgement of bytes of stream {stream} that were never sent")]
    NeverSent {
        /// The stream.
        stream: u32,
    },
    /// It sent data of a stream whose end it had told.
    #[error("bytes of stream {stream} after its end")]
    DataAfterEnd {
        /// The stream.
        stream: u32,
    },
    /// It ended a stream a second time.
    #[error("stream {stream} is closed twice")]
    ClosedTwice {
        /// The stream.
        stream: u32,
    },
    /// It opened a stream that it may not open, with a number that is not the next, or one too many.
    #[error("stream {stream} may not be opened")]
    NotToOpen {
        /// The number.
        stream: u32,
    },
    /// A message that has no place where it came, or a list that is too long.
    #[error("{what}")]
    OutOfPlace {
        /// What is wrong about it.
        what: &'static str,
    },
}

/// What a stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamInterest {
    /// Which stream.
    pub stream: u32,
    /// Whether its end is to be read.
    pub reads: bool,
    /// Whether its end is to be written.
    pub writes: bool,
}

/// The streams of one side, whose messages are `M` and whose ends are `E`.
#[derive(Debug)]
pub struct Mux<M, E> {
    /// In the order of their numbers.
    streams: Vec<MuxedStream<E>>,
    outbox: BytesAhead,
    /// The highest number there was.
    last: u32,
    /// Which stream is served first in a turn.
    first: usize,
    /// Where an end is read into.
    buffer: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M: Dialogue + From<StreamFrame>, E: StreamEnd> Mux<M, E> {
    /// A side with no stream yet.
    pub fn new() -> Self {
        Self {
            streams: Vec::new(),
            outbox: BytesAhead::default(),
            last: CONTROL_STREAM,
            first: 0,
            buffer: Vec::new(),
            message: PhantomData,
        }
    }

    /// Begins the control stream, which is not opened by a frame.
    pub fn begin(&mut self, control: E) {
        if self.place(CONTROL_STREAM).is_err() {
            self.streams.insert(0, MuxedStream::new(CONTROL_STREAM, control));
        }
    }

    /// Puts a message behind what waits to be sent. To be used for few: nothing bounds them here.
    pub fn send(&mut self, message: &M) {
        // What does not fit into a frame is a defect of ours; the other side misses it, which is all that can be done.
        let _ = encode_into(message, self.outbox.tail());
    }

    /// Opens a stream and tells the other side; gives the end back if there are too many.
    ///
    /// # Errors
    /// The end, when there are [`MAX_STREAMS`].
    pub fn open(&mut self, kind: StreamKind, end: E) -> Result<u32, E> {
        let (Some(stream), false) = (self.last.checked_add(1), self.is_full()) else {
            return Err(end);
        };
        self.last = stream;
        self.streams.push(MuxedStream::new(stream, end));
        self.send(&M::from(StreamFrame::Open { stream, kind }));
        Ok(stream)
    }

    /// Whether there can be no further stream now.
    pub fn is_full(&self) -> bool {
        self.streams.len() >= MAX_STREAMS
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Begins a stream that the other side opened.
    ///
    /// # Errors
    /// `NotToOpen` for a number that is not above all before, or for one stream too many.
    pub fn accept(&mut self, stream: u32, end: E) -> Result<(), MuxBreach> {
        if stream <= self.last || self.is_full() {
            return Err(MuxBreach::NotToOpen { stream });
        }
        self.last = stream;
        self.streams.push(MuxedStream::new(stream, end));
        Ok(())
    }

    /// Takes a frame from the other side. One that opens a stream is answered, for who may open some ([`accept`](Self::accept)).
    ///
    /// # Errors
    /// What is against the rules about it.
    pub fn take(&mut self, frame: StreamFrame) -> Result<Option<(u32, StreamKind)>, MuxBreach> {
        match frame {
            StreamFrame::Open { stream, kind } => return Ok(Some((stream, kind))),
            StreamFrame::Data { stream, bytes } => match self.place(stream) {
                Ok(place) => self.at(place, |found| found.receive(&bytes))?,
                Err(_) => return Err(MuxBreach::UnknownStream { stream }),
            },
            StreamFrame::Window { stream, count } => {
                if let Some(place) = self.place_of_known(stream)? {
                    self.at(place, |found| found.acknowledged(count))?;
                }
            }
            StreamFrame::Close { stream, direction } => {
                if let Some(place) = self.place_of_known(stream)? {
                    self.at(place, |found| match direction {
                        CloseDirection::Sending => found.peer_ended(),
                        CloseDirection::Receiving => {
                            found.peer_refuses();
                            Ok(())
                        }
                    })?;
                }
            }
        }
        Ok(None)
    }

    fn at(
        &mut self,
        place: usize,
        act: impl FnOnce(&mut MuxedStream<E>) -> Result<(), MuxBreach>,
    ) -> Result<(), MuxBreach> {
        self.streams.get_mut(place).map_or(Ok(()), act)
    }

    fn place(&self, stream: u32) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&stream, |found| found.number)
    }

    /// `None` for a stream that is over: what crosses its end on the way is no harm.
    fn place_of_known(&self, stream: u32) -> Result<Option<usize>, MuxBreach> {
        match self.place(stream) {
            Ok(place) => Ok(Some(place)),
            Err(_) if stream <= self.last => Ok(None),
            Err(_) => Err(MuxBreach::UnknownStream { stream }),
        }
    }

    /// The end of a stream.
    pub fn end(&self, stream: u32) -> Option<&E> {
        self.place(stream)
            .ok()
            .and_then(|place| self.streams.get(place))
            .map(|found| &found.end)
    }

    /// The same, to be changed.
    pub fn end_mut(&mut self, stream: u32) -> Option<&mut E> {
        let place = self.place(stream).ok()?;
        self.streams.get_mut(place).map(|found| &mut found.end)
    }

    /// How many bytes of a stream have come from the other side.
    pub fn received(&self, stream: u32) -> u64 {
        let found = self.place(stream).ok().and_then(|place| self.streams.get(place));
        found.map_or(0, MuxedStream::received)
    }

    /// Whether all that the other side sent of a stream was handed on, and no more follows.
    pub fn is_drained(&self, stream: u32) -> bool {
        let found = self.place(stream).ok().and_then(|place| self.streams.get(place));
        found.is_none_or(MuxedStream::is_drained)
    }

    /// Whether nothing more is sent of a stream, and the other side was told.
    pub fn has_told_end(&self, stream: u32) -> bool {
        let found = self.place(stream).ok().and_then(|place| self.streams.get(place));
        found.is_none_or(|found| found.has_told_end)
    }

    /// What each stream that waits for something waits for, and its end.
    pub fn interests(&self) -> impl Iterator<Item = (StreamInterest, &E)> {
        let has_room = self.room() > 0;
        let is_full = self.is_full();
        self.streams.iter().filter_map(move |found| {
            // A descriptor that comes with the control stream needs a stream.
            let may_read = has_room && !(is_full && found.number == CONTROL_STREAM);
            let interest = StreamInterest {
                stream: found.number,
                reads: may_read && found.window() > 0,
                writes: found.has_incoming(),
            };
            (interest.reads || interest.writes).then_some((interest, &found.end))
        })
    }

    /// Takes note of what a stream's end is ready for.
    pub fn ready(&mut self, stream: u32, readable: bool, writable: bool) {
        let Ok(place) = self.place(stream) else { return };
        if let Some(found) = self.streams.get_mut(place) {
            found.is_readable |= readable;
            if writable {
                found.deliver();
            }
        }
    }

    /// Reads from the ends that are ready, and lays down what is to be told, as far as there is room. To be called once in a turn.
    pub fn advance(&mut self) {
        let count = self.streams.len();
        self.first = self.first.wrapping_add(1);
        for offset in 0..count {
            if self.room() == 0 {
                break;
            }
            self.tell((self.first.wrapping_add(offset)) % count);
        }
        for offset in 0..count {
            if self.room() == 0 {
                break;
            }
            self.read((self.first.wrapping_add(offset)) % count);
        }
        self.streams.retain(|found| !found.is_over());
    }

    /// What is to be told of a stream beside its data.
    fn tell(&mut self, place: usize) {
        let Some(found) = self.streams.get_mut(place) else {
            return;
        };
        let stream = found.number;
        let mut frames = Vec::new();
        if found.owes_window() {
            let count = u32::try_from(core::mem::take(&mut found.owed)).unwrap_or(u32::MAX);
            frames.push(StreamFrame::Window { stream, count });
        }
        if found.owes_refusal() {
            found.has_told_refusal = true;
            let direction = CloseDirection::Receiving;
            frames.push(StreamFrame::Close { stream, direction });
        }
        if found.owes_end() {
            found.has_told_end = true;
            let direction = CloseDirection::Sending;
            frames.push(StreamFrame::Close { stream, direction });
        }
        for frame in frames {
            self.send(&M::from(frame));
        }
    }

    /// Reads once from a stream's end.
    fn read(&mut self, place: usize) {
        let (room, is_full) = (self.room(), self.is_full());
        let Some(found) = self.streams.get_mut(place).filter(|found| found.is_readable) else {
            return;
        };
        let stream = found.number;
        let most = found.window().min(room);
        if most == 0 || (is_full && stream == CONTROL_STREAM) {
            return;
        }
        self.buffer.resize(MAX_STREAM_DATA, 0);
        let count = found.read(self.buffer.get_mut(..most).unwrap_or_default());
        let attached = found.end.take_attached();
        if found.owes_end() {
            self.tell(place);
        }
        let Some(bytes) = self.buffer.get(..count).map(<[u8]>::to_vec) else {
            return;
        };
        match attached {
            None => self.send_data(stream, bytes),
            Some(end) => {
                // It goes with the last byte, and has to be there before.
                let (before, last) = bytes.split_at(count.saturating_sub(1));
                self.send_data(stream, before.to_vec());
                // There is room, or nothing would have been read.
                let _ = self.open(StreamKind::Descriptor, end);
                self.send_data(stream, last.to_vec());
            }
        }
    }

    fn send_data(&mut self, stream: u32, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.send(&M::from(StreamFrame::Data { stream, bytes }));
        }
    }

    /// How many bytes may be added to what waits to be sent.
    fn room(&self) -> usize {
        match MAX_UNSENT.saturating_sub(self.outbox.len()) {
            room if room < MIN_READ => 0,
            room => room,
        }
    }

    /// What waits to be sent.
    pub fn unsent(&self) -> &[u8] {
        self.outbox.waiting()
    }

    /// Takes note that so many bytes of it were sent.
    pub fn sent(&mut self, count: usize) {
        self.outbox.advance(count);
    }
}

impl<M: Dialogue + From<StreamFrame>, E: StreamEnd> Default for Mux<M, E> {
    fn default() -> Self {
        Self::new()
    }
}
