//! Bodies as they are carried: counted, and told when they end.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::exchange::Underway;
use super::log::Entry;

/// The body of a request on its way to the server.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Option<Incoming>,
    entry: Rc<Entry>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, entry: Rc<Entry>) -> Self {
        Self {
            body: Some(body),
            entry,
        }
    }

    /// An empty body of the same request.
    pub(super) fn without_contents(&self) -> Self {
        Self {
            body: None,
            entry: Rc::clone(&self.entry),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.entry.sent.set(self.entry.sent.get() + data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The body of an answer on its way to the sandbox.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// The server's.
    Theirs {
        /// The body.
        body: Incoming,
        /// What it belongs to.
        entry: Rc<Entry>,
        /// Ends with it.
        _underway: Underway,
        /// A place for a request among those to a server that takes one at a time.
        _place: Option<OwnedSemaphorePermit>,
    },
    /// One of ours.
    Ours(Full<Bytes>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Theirs { body, entry, .. } => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    entry.received.set(entry.received.get() + data.len() as u64);
                }
                Poll::Ready(frame)
            }
            Self::Ours(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Theirs { body, .. } => body.is_end_stream(),
            Self::Ours(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Theirs { body, .. } => body.size_hint(),
            Self::Ours(body) => body.size_hint(),
        }
    }
}
