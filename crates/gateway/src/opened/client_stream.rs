//! The sandbox's side of a connection, of which a part was read before it was known that it is to be opened.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::limits::Counts;

/// How much is taken in one go.
const CHUNK: usize = 16 * 1024;

/// A turn that was asked for, to pass on bytes.
type Turn<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Gives what was read already, then what comes; counts, and passes on no more than may pass.
pub(super) struct ClientStream<'a> {
    stream: &'a mut TcpStream,
    counts: &'a Counts,
    read: Vec<u8>,
    given: usize,
    /// For what was read last; until it has come, no more is read.
    reading: Option<Turn<'a>>,
    /// For how much may be written when it has come.
    writing: Option<(Turn<'a>, usize)>,
    may_be_written: usize,
}

impl<'a> ClientStream<'a> {
    pub(super) fn new(stream: &'a mut TcpStream, counts: &'a Counts, read: Vec<u8>) -> Self {
        let turn = (!read.is_empty()).then(|| turn_to_read(counts, read.len()));
        Self {
            stream,
            counts,
            read,
            given: 0,
            reading: turn,
            writing: None,
            may_be_written: 0,
        }
    }

    fn poll_turn_to_read(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.reading {
            ready!(turn.as_mut().poll(context));
            self.reading = None;
        }
        Poll::Ready(())
    }

    /// Waits until something may be written, and says how much.
    fn poll_turn_to_write(&mut self, context: &mut Context<'_>, wanted: usize) -> Poll<usize> {
        let counts = self.counts;
        if self.may_be_written == 0 {
            let (turn, length) = self.writing.get_or_insert_with(|| {
                let length = wanted.min(counts.received.piece(CHUNK));
                (Box::pin(counts.received.pass(length)), length)
            });
            ready!(turn.as_mut().poll(context));
            self.may_be_written = *length;
            self.writing = None;
        }
        Poll::Ready(self.may_be_written.min(wanted))
    }
}

/// Counts what was read, and asks for its turn.
fn turn_to_read(counts: &Counts, length: usize) -> Turn<'_> {
    counts.sent.add(length);
    Box::pin(counts.sent.pass(length))
}

impl AsyncRead for ClientStream<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_turn_to_read(context));
        let rest = this.read.get(this.given..).unwrap_or_default();
        if !rest.is_empty() {
            let taken = rest.len().min(into.remaining());
            into.put_slice(rest.get(..taken).unwrap_or_default());
            this.given += taken;
            return Poll::Ready(Ok(()));
        }
        this.read = Vec::new();
        this.given = 0;
        let room = into.remaining().min(this.counts.sent.piece(CHUNK));
        let mut piece = ReadBuf::new(into.initialize_unfilled_to(room));
        ready!(Pin::new(&mut *this.stream).poll_read(context, &mut piece))?;
        let taken = piece.filled().len();
        into.advance(taken);
        if taken > 0 {
            this.reading = Some(turn_to_read(this.counts, taken));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream<'_> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let most = ready!(this.poll_turn_to_write(context, bytes.len()));
        let piece = bytes.get(..most).unwrap_or(bytes);
        let written = ready!(Pin::new(&mut *this.stream).poll_write(context, piece))?;
        this.may_be_written -= written.min(this.may_be_written);
        this.counts.received.add(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(context)
    }
}

impl fmt::Debug for ClientStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
