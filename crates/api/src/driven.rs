//! Bodies of answers whose bytes come while the client reads.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use crate::body::{Body, BodyError};

/// Pieces that may wait for the client.
const WAITING: usize = 4;

/// A body whose bytes `make`'s future sends.
///
/// The future runs while the client reads and is dropped with the body, which happens as soon as the client is gone.
pub(crate) fn driven<M, F>(make: M) -> Body
where
    M: FnOnce(Feed) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, pieces) = mpsc::channel(WAITING);
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(make(Feed { sender }));
    Driven {
        pieces,
        work: Some(work),
    }
    .boxed_unsync()
}

/// Where the future behind a body puts its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    sender: mpsc::Sender<Result<Bytes, BodyError>>,
}

impl Feed {
    /// Sends a piece, or an error after which the connection is cut; waits while the client does not read.
    pub(crate) async fn send(&self, piece: Result<Bytes, BodyError>) {
        // The other end is the body that polls the caller; when it is gone, so is the caller.
        let _ = self.sender.send(piece).await;
    }
}

struct Driven {
    pieces: mpsc::Receiver<Result<Bytes, BodyError>>,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl http_body::Body for Driven {
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
