//! WebSockets (RFC 6455) that clients of doors speak: the handshake, and messages within bounds.
//!
//! What a client sends is read when somebody asks for it, and nothing is read while the client takes nothing of what it is sent: pings
//! that nobody hears the answers of do not pile up. A client that takes nothing for too long is given up by [`super::pace`].

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use futures_core::Stream as _;
use futures_sink::Sink as _;
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use tokio::time::timeout;
use tokio_websockets::{CloseCode, Limits, Message, ServerBuilder, WebSocketStream};

use super::answer::ApiRefusal;
use super::body::{self, Body};
use super::clients::ClientSlot;
use super::peer::ClientConnection;

/// What the digest of a key is made with (RFC 6455, section 1.3).
const HANDSHAKE_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes of a key.
const KEY_LENGTH: usize = 16;
/// What is said about why one ends, in bytes (RFC 6455, section 5.5).
const MAX_REASON: usize = 123;
/// How long a client may take to say that it has heard of the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// A request for a WebSocket, which is what it must be.
#[derive(Debug)]
pub(crate) struct WebSocketRequest {
    connection: OnUpgrade,
    /// What the client's connection has among all, for as long as it speaks.
    held: Option<Arc<ClientSlot>>,
    accept: String,
    offered: Vec<String>,
    protocol: Option<HeaderValue>,
}

impl WebSocketRequest {
    /// Reads the handshake of a client.
    ///
    /// # Errors
    /// 426 for what asks for no WebSocket, or for one of another version; 400 for one that is malformed.
    pub(crate) fn of(parts: &Parts, client: &ClientConnection) -> Result<Self, ApiRefusal> {
        let value = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let names = |name, word: &str| {
            let mut words = value(name).unwrap_or_default().split(',');
            words.any(|one: &str| one.trim().eq_ignore_ascii_case(word))
        };
        let is_asked = names(UPGRADE, "websocket") && names(CONNECTION, "upgrade");
        if !is_asked || parts.method != Method::GET || parts.version != Version::HTTP_11 {
            let message = "this is reached by a WebSocket";
            return Err(ApiRefusal::new(StatusCode::UPGRADE_REQUIRED, message).final_answer());
        }
        if value(SEC_WEBSOCKET_VERSION) != Some("13") {
            let message = "WebSockets are spoken as RFC 6455 has them, version 13";
            return Err(ApiRefusal::new(StatusCode::UPGRADE_REQUIRED, message).final_answer());
        }
        let key = value(SEC_WEBSOCKET_KEY).unwrap_or_default();
        let is_key = BASE64.decode(key.as_bytes()).is_ok_and(|key| key.len() == KEY_LENGTH);
        if !is_key {
            return Err(ApiRefusal::bad_request("`sec-websocket-key` is none"));
        }
        let offered = parts.headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let offered = offered.filter_map(|value| value.to_str().ok());
        Ok(Self {
            connection: hyper::upgrade::on(Request::from_parts(parts.clone(), ())),
            held: client.held.clone(),
            accept: accept(key),
            offered: offered
                .flat_map(|value| value.split(','))
                .map(|one| one.trim().to_owned())
                .collect(),
            protocol: None,
        })
    }

    /// The protocols that the client offers to speak.
    pub(crate) fn offered(&self) -> &[String] {
        &self.offered
    }

    /// Speaks one of those.
    pub(crate) fn speaking(mut self, protocol: Option<&str>) -> Self {
        self.protocol = protocol.and_then(|protocol| HeaderValue::from_str(protocol).ok());
        self
    }

    /// Answers the request, and has `work` speak over messages of at most `most` bytes once the client has heard.
    pub(crate) fn answer<F>(self, most: usize, work: impl FnOnce(WebSocket) -> F + Send + 'static) -> Response<Body>
    where
        F: Future<Output = ()> + Send,
    {
        let (connection, held) = (self.connection, self.held);
        tokio::spawn(async move {
            // A client that is gone before that wants nothing any more.
            if let Ok(upgraded) = connection.await {
                work(WebSocket::over(upgraded, most)).await;
            }
            drop(held);
        });
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        // Letters, digits and signs alone.
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        }
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// What shows a client that its key was read.
fn accept(key: &str) -> String {
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(HANDSHAKE_GUID);
    BASE64.encode(digest.finish().as_ref())
}

/// A message of a client's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketMessage {
    Text(String),
    Binary(Bytes),
}

impl SocketMessage {
    /// Its bytes, whichever it is.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

/// The client is gone, or does not speak as it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client of a WebSocket is gone")]
pub(crate) struct SocketGone;

/// A WebSocket that a client has been let into.
#[derive(Debug)]
pub(crate) struct WebSocket {
    stream: WebSocketStream<TokioIo<Upgraded>>,
}

impl WebSocket {
    fn over(upgraded: Upgraded, most: usize) -> Self {
        let limits = Limits::default().max_payload_len(Some(most));
        Self {
            stream: ServerBuilder::new().limits(limits).serve(TokioIo::new(upgraded)),
        }
    }

    /// The next message; `None` once the client is gone, has said that it ends, or broke the protocol or the bound. May be dropped and
    /// called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> Option<SocketMessage> {
        loop {
            let message = poll_fn(|cx| {
                // Answers to pings wait in there: nobody reads on who does not get rid of them.
                match ready!(Pin::new(&mut self.stream).poll_ready(cx)) {
                    Ok(()) => Pin::new(&mut self.stream).poll_next(cx),
                    Err(error) => Poll::Ready(Some(Err(error))),
                }
            });
            let message = message.await?;
            let Ok(message) = message else {
                // It is told why by what is said before the end.
                let _told = timeout(FAREWELL, self.flush()).await;
                return None;
            };
            if message.is_close() {
                let _told = timeout(FAREWELL, self.flush()).await;
                return None;
            }
            if let Some(text) = message.as_text() {
                return Some(SocketMessage::Text(text.to_owned()));
            }
            if message.is_binary() {
                return Some(SocketMessage::Binary(message.into_payload().into()));
            }
        }
    }

    /// Sends text.
    ///
    /// # Errors
    /// When the client is gone, or takes nothing for too long.
    pub(crate) async fn text(&mut self, text: String) -> Result<(), SocketGone> {
        self.send(Message::text(text)).await
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) async fn binary(&mut self, bytes: Vec<u8>) -> Result<(), SocketGone> {
        self.send(Message::binary(bytes)).await
    }

    /// Ends it, and says why; waits a moment for the client to have heard.
    pub(crate) async fn close(mut self, code: u16, reason: &str) {
        let code = CloseCode::try_from(code).unwrap_or(CloseCode::NORMAL_CLOSURE);
        let end = reason.floor_char_boundary(MAX_REASON);
        let farewell = async {
            self.send(Message::close(Some(code), &reason[..end])).await?;
            // What it still says is nobody's.
            while self.next().await.is_some() {}
            Ok::<_, SocketGone>(())
        };
        let _heard = timeout(FAREWELL, farewell).await;
    }

    async fn send(&mut self, message: Message) -> Result<(), SocketGone> {
        poll_fn(|cx| Pin::new(&mut self.stream).poll_ready(cx))
            .await
            .map_err(|_| SocketGone)?;
        Pin::new(&mut self.stream).start_send(message).map_err(|_| SocketGone)?;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), SocketGone> {
        poll_fn(|cx| Pin::new(&mut self.stream).poll_flush(cx))
            .await
            .map_err(|_| SocketGone)
    }
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
mod tests;
