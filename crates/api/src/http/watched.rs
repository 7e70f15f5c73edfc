//! A stream with somebody who watches what goes through it: the one place where reading and writing are passed on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Who watches a stream `S`. What is left out lets everything through.
pub(crate) trait StreamWatch<S> {
    /// Whether anything more may be read.
    ///
    /// # Errors
    /// What the reader is told if not.
    fn may_read(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// What a reader is told of an attempt that read `bytes`.
    fn read(&mut self, _cx: &mut Context<'_>, _bytes: usize, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        polled
    }

    /// What a writer is told of an attempt.
    fn wrote<T>(&mut self, _cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled
    }

    /// The stream is about to be closed.
    fn closes(&mut self, _stream: &S) {}
}

/// A stream that is watched.
#[derive(Debug)]
pub(crate) struct WatchedStream<S, W: StreamWatch<S>> {
    stream: S,
    watch: W,
}

impl<S, W: StreamWatch<S>> WatchedStream<S, W> {
    pub(crate) fn new(stream: S, watch: W) -> Self {
        Self { stream, watch }
    }
}

impl<S, W: StreamWatch<S>> Drop for WatchedStream<S, W> {
    fn drop(&mut self) {
        self.watch.closes(&self.stream);
    }
}

impl<S: AsyncRead + Unpin, W: StreamWatch<S> + Unpin> AsyncRead for WatchedStream<S, W> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.watch.may_read()?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watch.read(cx, buffer.filled().len() - before, polled)
    }
}

impl<S: AsyncWrite + Unpin, W: StreamWatch<S> + Unpin> AsyncWrite for WatchedStream<S, W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch.wrote(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch.wrote(cx, shut)
    }
}
