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

use tokio::time::{Sleep, sleep};

use crate::http::watched::{StreamWatch, WatchedStream};

/// Bytes that may come before an answer's own head was read; some of them may be of its body.
const MAX_BYTES: usize = 256 * 1024;
/// Heads that may come before it.
const MAX_HEADS: usize = 64;
/// How long it may take from the first byte on. A program that says nothing at all may take longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(300);

/// How far an answer is.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerProgress(Arc<AnswerCounts>);

#[derive(Debug, Default)]
struct AnswerCounts {
    heads: AtomicUsize,
    answered: AtomicBool,
}

impl AnswerProgress {
    /// A head came that is not the answer's own.
    pub(super) fn head(&self) {
        self.0.heads.fetch_add(1, Ordering::AcqRel);
    }

    /// The answer's own head came: nothing is bounded any more.
    pub(super) fn answered(&self) {
        self.0.answered.store(true, Ordering::Release);
    }
}

/// A connection whose answer is awaited.
pub(super) type AwaitedStream<S> = WatchedStream<S, AnswerWatch>;

/// What came before the answer.
#[derive(Debug)]
pub(super) struct AnswerWatch {
    progress: AnswerProgress,
    bytes: usize,
    /// When it takes too long.
    late: Option<Pin<Box<Sleep>>>,
}

/// A connection on which `progress` says how far the answer is.
pub(super) fn awaited<S>(stream: S, progress: AnswerProgress) -> AwaitedStream<S> {
    let watch = AnswerWatch {
        progress,
        bytes: 0,
        late: None,
    };
    WatchedStream::new(stream, watch)
}

impl AnswerWatch {
    fn is_answered(&self) -> bool {
        self.progress.0.answered.load(Ordering::Acquire)
    }
}

impl<S> StreamWatch<S> for AnswerWatch {
    fn may_read(&mut self) -> io::Result<()> {
        if self.is_answered() {
            return Ok(());
        }
        if self.bytes > MAX_BYTES || self.progress.0.heads.load(Ordering::Acquire) > MAX_HEADS {
            let text = "too much comes before the answer's own head";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>, bytes: usize, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if self.is_answered() {
            self.late = None;
            return polled;
        }
        self.bytes += bytes;
        if self.bytes > 0 && polled.is_pending() {
            let late = self.late.get_or_insert_with(|| Box::pin(sleep(HEAD_TIMEOUT)));
            if late.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        polled
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
    async fn read(pieces: usize, progress: &AnswerProgress) -> io::Result<usize> {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            for _ in 0..pieces {
                theirs.write_all(&[0; 64 * 1024]).await.unwrap();
            }
            // Silent, and there.
            std::future::pending::<()>().await;
        });
        let mut stream = awaited(ours, progress.clone());
        let (mut buffer, mut taken) = (vec![0; 64 * 1024], 0);
        while taken < pieces * buffer.len() {
            taken += stream.read(&mut buffer).await?;
        }
        tokio::time::timeout(HEAD_TIMEOUT * 2, stream.read(&mut buffer))
            .await
            .map_or(Ok(taken), |read| read)
    }

    #[test]
    fn what_comes_before_an_answer_is_bounded() {
        run(async {
            let kind = |outcome: io::Result<usize>| outcome.unwrap_err().kind();
            assert_eq!(
                kind(read(8, &AnswerProgress::default()).await),
                io::ErrorKind::InvalidData
            );
            assert_eq!(kind(read(1, &AnswerProgress::default()).await), io::ErrorKind::TimedOut);
            // Nothing at all may take its time.
            assert_eq!(read(0, &AnswerProgress::default()).await.unwrap(), 0);
            let many = AnswerProgress::default();
            (0..=MAX_HEADS).for_each(|_| many.head());
            assert_eq!(kind(read(1, &many).await), io::ErrorKind::InvalidData);
            let answered = AnswerProgress::default();
            answered.answered();
            assert_eq!(read(8, &answered).await.unwrap(), 8 * 64 * 1024);
        });
    }
}
