//! A connection to a program in a sandbox whose answer is awaited: what comes before the answer is bounded in bytes, in
//! number and in time.
//!
//! A program may say more than one head (RFC 9110, section 15.2), and one that says nothing else would keep us reading.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes that may come before an answer's own head was read; some of them may be of its body.
const MOST_BYTES: usize = 256 * 1024;
/// Heads that may come before it.
const MOST_HEADS: usize = 64;
/// How long it may take from the first byte on. A program that says nothing at all may take longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// How far an answer is.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Come>);

#[derive(Debug, Default)]
struct Come {
    heads: AtomicUsize,
    answered: AtomicBool,
}

impl Progress {
    /// A head came that is not the answer's own.
    pub(super) fn head(&self) {
        self.0.heads.fetch_add(1, Ordering::AcqRel);
    }

    /// The answer's own head came: nothing is bounded any more.
    pub(super) fn answered(&self) {
        self.0.answered.store(true, Ordering::Release);
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Awaited<S> {
    stream: S,
    progress: Progress,
    bytes: usize,
    /// When it takes too long.
    late: Option<Pin<Box<Sleep>>>,
}

impl<S> Awaited<S> {
    pub(super) fn new(stream: S, progress: Progress) -> Self {
        Self {
            stream,
            progress,
            bytes: 0,
            late: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Awaited<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.progress.0.answered.load(Ordering::Acquire) {
            self.late = None;
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        if self.bytes > MOST_BYTES || self.progress.0.heads.load(Ordering::Acquire) > MOST_HEADS {
            let text = "too much comes before the answer's own head";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.bytes += buffer.filled().len() - before;
        if self.bytes > 0 && polled.is_pending() {
            let late = self.late.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
            if late.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Awaited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn run(work: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Its clock goes on by itself while everything waits.
        runtime.enable_time().start_paused(true).build().unwrap().block_on(work);
    }

    /// What comes of reading 64 kB at a time, of which there are `pieces`.
    async fn read(pieces: usize, progress: &Progress) -> io::Result<usize> {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            for _ in 0..pieces {
                theirs.write_all(&[0; 64 * 1024]).await.unwrap();
            }
            // Silent, and there.
            std::future::pending::<()>().await;
        });
        let mut stream = Awaited::new(ours, progress.clone());
        let (mut buffer, mut taken) = (vec![0; 64 * 1024], 0);
        while taken < pieces * buffer.len() {
            taken += stream.read(&mut buffer).await?;
        }
        tokio::time::timeout(PATIENCE * 2, stream.read(&mut buffer))
            .await
            .map_or(Ok(taken), |read| read)
    }

    #[test]
    fn what_comes_before_an_answer_is_bounded() {
        run(async {
            let kind = |outcome: io::Result<usize>| outcome.unwrap_err().kind();
            assert_eq!(kind(read(8, &Progress::default()).await), io::ErrorKind::InvalidData);
            assert_eq!(kind(read(1, &Progress::default()).await), io::ErrorKind::TimedOut);
            // Nothing at all may take its time.
            assert_eq!(read(0, &Progress::default()).await.unwrap(), 0);
            let many = Progress::default();
            (0..=MOST_HEADS).for_each(|_| many.head());
            assert_eq!(kind(read(1, &many).await), io::ErrorKind::InvalidData);
            let answered = Progress::default();
            answered.answered();
            assert_eq!(read(8, &answered).await.unwrap(), 8 * 64 * 1024);
        });
    }
}
