//! Reads what a caller sends: one message, or frames.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;

use super::frame::{Frame, FrameDecoder};
use super::{ConnectCode, ConnectError, ConnectMessage, MAX_MESSAGE, MessageCodec};

/// How long the one message of a call may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(120);
/// How long a caller may take to end a request whose message is there.
const LEFTOVERS: Duration = Duration::from_secs(30);

/// The one message of a unary call.
///
/// # Errors
/// `resource_exhausted` if it is larger than [`MAX_MESSAGE`], without reading more; `deadline_exceeded` if it takes longer
/// than two minutes; `invalid_argument` if it is no such message or the body breaks off.
pub(crate) async fn read_message<M, B>(codec: MessageCodec, body: B) -> Result<M, ConnectError>
where
    M: ConnectMessage,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    codec.decode(&in_time(whole(body)).await?)
}

async fn whole<B>(mut body: B) -> Result<BytesMut, ConnectError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    if body.size_hint().lower() > as_u64(MAX_MESSAGE) {
        return Err(too_large());
    }
    let mut message = BytesMut::new();
    while let Some(bytes) = data(&mut body).await? {
        if message.len() + bytes.len() > MAX_MESSAGE {
            return Err(too_large());
        }
        message.extend_from_slice(&bytes);
    }
    Ok(message)
}

/// What arrives, if it does in time.
async fn in_time<T>(arrival: impl Future<Output = Result<T, ConnectError>>) -> Result<T, ConnectError> {
    let late = |_| {
        let text = format!("the message took longer than {} s to arrive", ARRIVAL.as_secs());
        ConnectError::new(ConnectCode::DeadlineExceeded, text)
    };
    tokio::time::timeout(ARRIVAL, arrival).await.map_err(late)?
}

/// The messages of a stream that a caller sends.
#[derive(Debug)]
pub(crate) struct MessageFrames<B> {
    body: B,
    codec: MessageCodec,
    decoder: FrameDecoder,
    ended: bool,
}

impl<B> MessageFrames<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    pub(crate) fn new(codec: MessageCodec, body: B) -> Self {
        Self {
            body,
            codec,
            decoder: FrameDecoder::new(MAX_MESSAGE),
            ended: false,
        }
    }

    /// The next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// Those of [`FrameDecoder::next`] and [`MessageCodec::decode`]; `invalid_argument` when the body ends inside a frame.
    pub(crate) async fn next<M: ConnectMessage>(&mut self) -> Result<Option<M>, ConnectError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            match self.decoder.next()? {
                Some(Frame::Message(message)) => return self.codec.decode(&message).map(Some),
                Some(Frame::End) => self.ended = true,
                None => self.fill().await?,
            }
        }
    }

    /// The one message of a stream that has no more; `None` if it has none. What follows is read and dropped meanwhile: a
    /// connection that is closed while some of a request is unread is reset, and the caller loses the end of the answer.
    ///
    /// # Errors
    /// As [`Self::next`]; `deadline_exceeded` if it takes longer than two minutes.
    pub(crate) async fn only<M: ConnectMessage>(mut self) -> Result<Option<M>, ConnectError>
    where
        B: Send + 'static,
    {
        let message = in_time(self.next()).await;
        tokio::spawn(tokio::time::timeout(LEFTOVERS, drop_rest(self.body)));
        message
    }

    async fn fill(&mut self) -> Result<(), ConnectError> {
        match data(&mut self.body).await? {
            Some(bytes) => self.decoder.push(&bytes),
            None if self.decoder.is_empty() => self.ended = true,
            None => return Err(ConnectError::invalid("the stream ends inside a frame")),
        }
        Ok(())
    }
}

/// Reads what is left of a body, up to the size of a message.
async fn drop_rest<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let mut dropped = 0;
    while let Ok(Some(bytes)) = data(&mut body).await {
        dropped += bytes.len();
        if dropped > MAX_MESSAGE {
            return;
        }
    }
}

/// The next bytes of a body; `None` at its end.
async fn data<B>(body: &mut B) -> Result<Option<Bytes>, ConnectError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ConnectError::invalid(format!("reading the request: {error}")))?;
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

fn too_large() -> ConnectError {
    let text = format!("the message is larger than {MAX_MESSAGE} bytes");
    ConnectError::new(ConnectCode::ResourceExhausted, text)
}

fn as_u64(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}
