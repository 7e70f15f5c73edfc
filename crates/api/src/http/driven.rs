//! Bodies of answers whose bytes come while the client reads.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::http::body::{Body, BodyError};

/// Pieces that may wait for the client.
const WAITING: usize = 4;
/// Bytes of a piece of what is at hand.
const PIECE: usize = 64 * 1024;

/// A body whose bytes `make`'s future sends.
///
/// The future runs while the client reads and is dropped with the body, which happens as soon as the client is gone.
pub(crate) fn driven<M, F>(make: M) -> Body
where
    M: FnOnce(BodyFeed) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, pieces) = mpsc::channel(WAITING);
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(make(BodyFeed { sender }));
    DrivenBody {
        pieces,
        work: Some(work),
    }
    .boxed_unsync()
}

/// A body of `bytes` that its client has `time` to take. After that the connection is cut, and neither `bytes` nor `held` is
/// kept any longer, even if nobody reads.
pub(crate) fn taken_within<H: Send + 'static>(bytes: Bytes, time: Duration, held: H) -> Body {
    let (sender, pieces) = mpsc::channel(WAITING);
    let left = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    tokio::spawn(async move {
        let giving = async {
            // Copied, because a part would keep the whole.
            for piece in bytes.chunks(PIECE) {
                if sender.send(Bytes::copy_from_slice(piece)).await.is_err() {
                    break;
                }
            }
        };
        let _taken = timeout(time, giving).await;
        drop(held);
    });
    TakenBody { pieces, left }.boxed_unsync()
}

struct TakenBody {
    pieces: mpsc::Receiver<Bytes>,
    left: u64,
}

impl http_body::Body for TakenBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(piece) = self.pieces.poll_recv(context) else {
            return Poll::Pending;
        };
        Poll::Ready(match piece {
            Some(piece) => {
                self.left -= u64::try_from(piece.len()).unwrap_or(0).min(self.left);
                Some(Ok(Frame::data(piece)))
            }
            None if self.left == 0 => None,
            None => Some(Err("the client took too long".into())),
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Where the future behind a body puts its bytes.
#[derive(Debug, Clone)]
pub(crate) struct BodyFeed {
    sender: mpsc::Sender<Result<Bytes, BodyError>>,
}

impl BodyFeed {
    /// Sends a piece, or an error after which the connection is cut; waits while the client does not read.
    pub(crate) async fn send(&self, piece: Result<Bytes, BodyError>) {
        // The other end is the body that polls the caller; when it is gone, so is the caller.
        let _ = self.sender.send(piece).await;
    }
}

struct DrivenBody {
    pieces: mpsc::Receiver<Result<Bytes, BodyError>>,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl http_body::Body for DrivenBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(piece) = self.pieces.poll_recv(context) {
            return Poll::Ready(piece.map(|piece| piece.map(Frame::data)));
        }
        if let Some(work) = self.work.as_mut()
            && work.as_mut().poll(context).is_ready()
        {
            self.work = None;
        }
        self.pieces
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_not_taken_is_not_kept() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Its clock goes on by itself while everything waits.
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bytes = Bytes::from(vec![1; 100 * PIECE]);
            let held = Arc::new(());
            let time = Duration::from_secs(1);
            let mut body = taken_within(bytes.clone(), time, Arc::clone(&held));
            assert!(body.frame().await.unwrap().is_ok());
            tokio::time::sleep(time * 2).await;
            assert_eq!(Arc::strong_count(&held), 1);
            assert!(bytes.is_unique());
            let rest = body.collect().await;
            assert!(rest.is_err(), "a part was taken for the whole");
            let body = taken_within(bytes.clone(), time, ());
            assert_eq!(body.collect().await.unwrap().to_bytes(), bytes);
        });
    }
}
