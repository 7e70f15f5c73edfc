//! A connection on which the head of a request must come within a time: that of the first one from the beginning on, of
//! others from their first byte; and on which what is written must be taken within a time, also after it was HTTP.
//!
//! hyper bounds the head together with the pause before it, and that pause may be long where connections are kept.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::watched::{StreamWatch, WatchedStream};

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(20);

/// How long a client may take none of what is written to it: who pauses takes part of a stream in the end.
const TAKEN: Duration = Duration::from_secs(300);

/// Whether a request is being answered on a connection; what comes then is no head.
#[derive(Debug, Clone, Default)]
pub(crate) struct BusyFlag(Arc<RequestCounts>);

#[derive(Debug, Default)]
struct RequestCounts {
    answering: AtomicBool,
    /// How many there were: one can be answered between two looks.
    begun: AtomicU64,
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct AnsweringGuard(Option<BusyFlag>);

impl BusyFlag {
    /// A request begins to be answered.
    pub(crate) fn begin(&self) -> AnsweringGuard {
        self.0.begun.fetch_add(1, Ordering::AcqRel);
        self.0.answering.store(true, Ordering::Release);
        AnsweringGuard(Some(self.clone()))
    }
}

impl AnsweringGuard {
    /// No request will come any more: the connection speaks something else from now on.
    pub(crate) fn forever(mut self) {
        self.0 = None;
    }
}

impl Drop for AnsweringGuard {
    fn drop(&mut self) {
        if let Some(busy) = &self.0 {
            busy.0.answering.store(false, Ordering::Release);
        }
    }
}

/// A connection whose heads are timed.
pub(crate) type PacedStream<S> = WatchedStream<S, HeadPace>;

/// A connection on which `busy` says when no head is expected.
pub(crate) fn paced<S>(stream: S, busy: BusyFlag) -> PacedStream<S> {
    WatchedStream::new(stream, HeadPace::new(busy))
}

/// How far the head is that is expected, and what the client takes.
#[derive(Debug)]
pub(crate) struct HeadPace {
    busy: BusyFlag,
    /// How many requests had begun at the last look.
    begun: u64,
    head: Option<Pin<Box<Sleep>>>,
    /// When a client that takes nothing is given up.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl HeadPace {
    fn new(busy: BusyFlag) -> Self {
        Self {
            busy,
            begun: 0,
            head: Some(Box::pin(sleep(HEAD))),
            stalled: None,
        }
    }
}

impl<S> StreamWatch<S> for HeadPace {
    fn read(&mut self, cx: &mut Context<'_>, bytes: usize, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        let begun = self.busy.0.begun.load(Ordering::Acquire);
        if begun != self.begun {
            self.begun = begun;
            self.head = None;
        }
        if self.busy.0.answering.load(Ordering::Acquire) {
            return polled;
        }
        if bytes > 0 && self.head.is_none() {
            self.head = Some(Box::pin(sleep(HEAD)));
        }
        let is_late = match &mut self.head {
            Some(head) if polled.is_pending() => head.as_mut().poll(cx).is_ready(),
            _ => false,
        };
        if is_late {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }

    /// What came of writing, unless the client has not taken anything for too long.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(TAKEN)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A connection, its other end, and what says whether a request is answered.
    fn connection() -> (PacedStream<tokio::io::DuplexStream>, tokio::io::DuplexStream, BusyFlag) {
        let (ours, theirs) = tokio::io::duplex(64);
        let busy = BusyFlag::default();
        (paced(ours, busy.clone()), theirs, busy)
    }

    /// The clock of these tests is tokio's and goes on by itself while everything waits.
    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn a10_a_head_that_stops_ends_the_connection() {
        run(async {
            let (mut paced, mut theirs, _busy) = connection();
            theirs.write_all(b"GET").await.unwrap();
            let mut bytes = [0; 8];
            assert_eq!(paced.read(&mut bytes).await.unwrap(), 3);
            let error = paced.read(&mut bytes).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn so_does_a_first_head_that_never_begins() {
        run(async {
            let (mut paced, _theirs, _busy) = connection();
            let error = paced.read(&mut [0; 8]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_pause_before_a_further_head_or_in_a_body_does_not() {
        run(async {
            let (mut paced, mut theirs, busy) = connection();
            let mut bytes = [0; 8];
            for _ in 0..2 {
                theirs.write_all(b"GET").await.unwrap();
                assert_eq!(paced.read(&mut bytes).await.unwrap(), 3);
                // Answered before anybody reads on.
                drop(busy.begin());
                let idle = tokio::time::timeout(HEAD * 4, paced.read(&mut bytes)).await;
                assert!(idle.is_err(), "{idle:?}");
            }
            let answering = busy.begin();
            let body = tokio::time::timeout(HEAD * 4, paced.read(&mut bytes)).await;
            assert!(body.is_err(), "{body:?}");
            answering.forever();
            theirs.write_all(b"x").await.unwrap();
            assert_eq!(paced.read(&mut bytes).await.unwrap(), 1);
            let upgraded = tokio::time::timeout(HEAD * 4, paced.read(&mut bytes)).await;
            assert!(upgraded.is_err(), "{upgraded:?}");
        });
    }

    #[test]
    fn a10_a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        run(async {
            let (mut paced, mut theirs, _busy) = connection();
            let answer = vec![0; 64 * 5];
            let slow = async {
                for _ in 0..4 {
                    sleep(TAKEN - Duration::from_secs(1)).await;
                    theirs.read_exact(&mut [0; 64]).await.unwrap();
                }
                theirs
            };
            let (written, theirs) = tokio::join!(paced.write_all(&answer), slow);
            written.unwrap();
            let error = paced.write_all(&answer).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(theirs);
        });
    }
}
