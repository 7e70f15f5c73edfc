//! The requests of a client before they are read by the library that answers them: none reaches it that two readers could
//! understand differently.
//!
//! The library is laxer than [`crate::http_head`] and writes anew what it has understood, so that a client would never
//! hear that others might have understood something else. Bytes are passed on as they came. A body is never held, and a
//! head only until it is whole.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use http::Method;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http_head::Scheme;
use crate::http_requests::{Judged, Next, RequestError, RequestsReader};

/// How much is taken of what follows a request for a WebSocket before that is answered.
const AHEAD: usize = 16 * 1024;
/// How much room is kept for the next head.
const KEPT: usize = 16 * 1024;

/// What stands for a request that is refused, so that it is answered in its turn, behind those before it. No client can
/// send it: methods of lower case are refused themselves.
const STAND_IN: &[u8] = b"refused / HTTP/1.1\r\nconnection: close\r\n\r\n";
const STAND_IN_METHOD: &str = "refused";

/// What the reader of a connection and those who answer its requests tell each other.
#[derive(Debug, Default)]
pub(super) struct Framing {
    refused: RefCell<Option<RequestError>>,
    /// Whether a server has declined a WebSocket, and nobody has heard of it yet.
    stays_http: Cell<bool>,
    /// Who waits to hear it.
    waiting: RefCell<Option<Waker>>,
}

impl Framing {
    /// Why the rest of what the client sent is not read.
    pub(super) fn refused(&self) -> Option<RequestError> {
        self.refused.borrow().clone()
    }

    /// Why a request is refused for which one of this method stands.
    pub(super) fn refused_for(&self, method: &Method) -> Option<RequestError> {
        self.refused().filter(|_| method.as_str() == STAND_IN_METHOD)
    }

    /// Why the body of the request that is being answered is refused.
    pub(super) fn refused_body(&self) -> Option<RequestError> {
        self.refused().filter(|error| matches!(error, RequestError::Body(_)))
    }

    /// The server did not agree to a WebSocket.
    pub(super) fn stays_http(&self) {
        self.stays_http.set(true);
        let waiting = self.waiting.take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// Gives what a client sends as far as it was judged.
#[derive(Debug)]
pub(super) struct JudgedStream<S> {
    stream: S,
    requests: RequestsReader,
    framing: Rc<Framing>,
    /// What came and was not given, and how much of it has passed.
    held: Vec<u8>,
    passed: usize,
    /// Whether a stand-in was given, behind which nothing follows.
    ended: bool,
}

impl<S> JudgedStream<S> {
    pub(super) fn new(stream: S, scheme: Scheme, framing: Rc<Framing>) -> Self {
        Self {
            stream,
            requests: RequestsReader::new(scheme),
            framing,
            held: Vec::new(),
            passed: 0,
            ended: false,
        }
    }

    /// The stream, and what came on it and was not given.
    pub(super) fn into_parts(self) -> (S, Vec<u8>) {
        (self.stream, self.held)
    }

    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let given = self.passed.min(into.remaining()).min(self.held.len());
        into.put_slice(self.held.get(..given).unwrap_or_default());
        self.held.drain(..given);
        self.passed -= given;
        if self.held.is_empty() && self.held.capacity() > KEPT {
            self.held = Vec::new();
        }
    }

    /// A head is refused in its turn; a body ends where it stands.
    fn refuse(&mut self, error: RequestError, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ended {
            return Poll::Pending;
        }
        *self.framing.refused.borrow_mut() = Some(error.clone());
        if matches!(error, RequestError::Body(_)) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        self.ended = true;
        self.held = STAND_IN.to_vec();
        self.passed = STAND_IN.len();
        self.give(into);
        Poll::Ready(Ok(()))
    }

    /// Judges what stands behind the first `before` bytes, keeps what does not pass, and says whether anything did.
    fn judge(&mut self, into: &mut ReadBuf<'_>, before: usize) -> bool {
        let read = into.filled().get(before..).unwrap_or_default();
        if !self.held.is_empty() {
            self.held.extend_from_slice(read);
            into.set_filled(before);
            return false;
        }
        let passed = self.requests.read(read).passed;
        self.held.extend_from_slice(read.get(passed..).unwrap_or_default());
        into.set_filled(before + passed);
        passed > 0
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for JudgedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.framing.stays_http.take() {
                this.requests.stays_http();
            }
            if this.passed == 0 {
                let Judged { passed, next } = this.requests.read(&this.held);
                this.passed = passed;
                match next {
                    Next::Refused(error) if passed == 0 => return this.refuse(error, into),
                    Next::Switching => {
                        this.framing.waiting.replace(Some(context.waker().clone()));
                        if passed == 0 && this.held.len() >= AHEAD {
                            return Poll::Pending;
                        }
                    }
                    Next::Refused(_) | Next::More => {}
                }
            }
            if this.passed > 0 {
                this.give(into);
                return Poll::Ready(Ok(()));
            }
            let before = into.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, into))?;
            let has_ended = into.filled().len() == before;
            if has_ended || this.judge(into, before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for JudgedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
