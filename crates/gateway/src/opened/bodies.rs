//! Bodies as they are carried: counted, and told when they end.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderMap;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};

use super::exchange::Underway;
use super::log::Entry;
use super::trailers::Trailers;
use crate::secrets::{Mask, Masker};

/// For how long nothing must come of an answer until what is held of it goes on.
const PAUSE: Duration = Duration::from_millis(500);

/// The body of a request on its way to the server.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Contents,
    trailers: Trailers,
    entry: Rc<Entry>,
}

#[derive(Debug)]
enum Contents {
    /// As it comes.
    Theirs(Incoming),
    /// Counted when it was gathered.
    Gathered(Full<Bytes>),
    Nothing,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, trailers: Trailers, entry: Rc<Entry>) -> Self {
        Self {
            body: Contents::Theirs(body),
            trailers,
            entry,
        }
    }

    /// The request that it belongs to.
    pub(super) fn entry(&self) -> Rc<Entry> {
        Rc::clone(&self.entry)
    }

    /// What was gathered of the body of the same request.
    pub(super) fn gathered(trailers: Trailers, entry: Rc<Entry>, bytes: Bytes) -> Self {
        Self {
            body: Contents::Gathered(Full::new(bytes)),
            trailers,
            entry,
        }
    }

    /// An empty body of the same request.
    pub(super) fn without_contents(&self) -> Self {
        Self {
            body: Contents::Nothing,
            trailers: self.trailers.clone(),
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
        let frame = match &mut self.body {
            Contents::Theirs(body) => ready!(Pin::new(body).poll_frame(context)),
            Contents::Gathered(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                return Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})));
            }
            Contents::Nothing => return Poll::Ready(None),
        };
        Poll::Ready(frame.map(|frame| {
            frame.map(|mut frame| {
                if let Some(data) = frame.data_ref() {
                    self.entry.sent.set(self.entry.sent.get() + data.len() as u64);
                }
                if let Some(trailers) = frame.trailers_mut() {
                    self.trailers.leave_out(trailers);
                }
                frame
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Contents::Theirs(body) => body.is_end_stream(),
            Contents::Gathered(body) => body.is_end_stream(),
            Contents::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Contents::Theirs(body) => body.size_hint(),
            Contents::Gathered(body) => body.size_hint(),
            Contents::Nothing => SizeHint::with_exact(0),
        }
    }
}

/// Takes secrets out of the body of an answer, whose length stays the same.
#[derive(Debug)]
pub(super) struct Masking {
    mask: Mask,
    masker: Masker,
    /// What goes on next: some of the body, and behind all of it trailers.
    data: Bytes,
    trailers: Option<HeaderMap>,
    ended: bool,
    /// Until when what is held waits for more.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether it has waited long enough, and what is left of it may be a value.
    rested: bool,
}

impl Masking {
    pub(super) fn new(mask: Mask) -> Self {
        Self {
            masker: mask.body(),
            mask,
            data: Bytes::new(),
            trailers: None,
            ended: false,
            pause: None,
            rested: false,
        }
    }

    fn take(&mut self, frame: Frame<Bytes>) {
        self.pause = None;
        self.rested = false;
        match frame.into_data() {
            Ok(data) => self.data = self.masker.push(data),
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                if let Some(trailers) = &mut self.trailers {
                    self.mask.headers(trailers);
                }
                self.data = self.masker.finish();
            }
        }
    }

    fn end(&mut self) {
        self.data = self.masker.finish();
        self.ended = true;
    }

    /// Waits as long as what is held does, when nothing comes.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.rested || self.masker.is_empty() {
            return Poll::Pending;
        }
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
        ready!(pause.as_mut().poll(context));
        self.pause = None;
        self.rested = true;
        self.data = self.masker.pause();
        Poll::Ready(())
    }

    /// What can go on without more from the server; `Some(None)` is the end.
    fn waiting(&mut self) -> Option<Option<Frame<Bytes>>> {
        if !self.data.is_empty() {
            return Some(Some(Frame::data(std::mem::take(&mut self.data))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Some(Some(Frame::trailers(trailers)));
        }
        self.ended.then_some(None)
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none() && self.masker.is_empty()
    }
}

/// The body of an answer on its way to the sandbox.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// The server's.
    Theirs {
        /// The body.
        body: Incoming,
        /// Takes secrets out of it.
        masking: Option<Box<Masking>>,
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
            Self::Theirs {
                body, masking, entry, ..
            } => loop {
                if let Some(frame) = masking.as_mut().and_then(|masking| masking.waiting()) {
                    return Poll::Ready(frame.map(Ok));
                }
                let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else {
                    match masking {
                        Some(masking) => ready!(masking.poll_pause(context)),
                        None => return Poll::Pending,
                    }
                    continue;
                };
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    entry.received.set(entry.received.get() + data.len() as u64);
                }
                match (masking.as_mut(), frame) {
                    (None, frame) => return Poll::Ready(frame),
                    (Some(_), Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    (Some(masking), Some(Ok(frame))) => masking.take(frame),
                    (Some(masking), None) => masking.end(),
                }
            },
            Self::Ours(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Theirs { body, masking, .. } => {
                body.is_end_stream() && masking.as_ref().is_none_or(|masking| masking.is_empty())
            }
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
