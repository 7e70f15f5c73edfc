//! A conversation with a browser over the Chrome DevTools Protocol.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream as _;
use futures_sink::Sink as _;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_websockets::{ClientBuilder, Limits, Message, WebSocketStream};

use crate::bounds::MAX_MESSAGE;
use crate::endpoint::{EndpointPath, cut, upgraded};
use crate::error::BrowserError;

/// How long a browser may take to do what it is told.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to read what it is told.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A conversation with a browser.
#[derive(Debug)]
pub struct CdpConnection {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    last_id: u64,
}

#[derive(Debug, Deserialize)]
struct CallAnswer {
    id: Option<u64>,
    result: Option<Value>,
    error: Option<CallError>,
}

#[derive(Debug, Deserialize)]
struct CallError {
    #[serde(default)]
    message: String,
}

impl CdpConnection {
    /// Begins one with the browser at the other end of `stream`.
    ///
    /// # Errors
    /// `Unreachable`, `Malformed`, `Timeout`, `Random`.
    pub async fn open<S>(stream: S, path: &EndpointPath) -> Result<Self, BrowserError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = Limits::default().max_payload_len(Some(MAX_MESSAGE));
        let stream = upgraded(stream, path).await?;
        Ok(Self {
            socket: ClientBuilder::new().limits(limits).take_over(stream),
            last_id: 0,
        })
    }

    /// Has the browser do something, and answers what it says of it; what it says meanwhile of other things is lost.
    ///
    /// # Errors
    /// `Refused`, `Timeout`, `Closed`, `Broken`.
    pub async fn call(&mut self, asked: &'static str, params: Value) -> Result<Value, BrowserError> {
        self.last_id += 1;
        let id = self.last_id;
        let command = json!({ "id": id, "method": asked, "params": params }).to_string();
        let answered = async {
            self.send(command).await?;
            loop {
                let text = self.next().await?.ok_or(BrowserError::Closed)?;
                let Ok(answer) = serde_json::from_str::<CallAnswer>(&text) else {
                    continue;
                };
                if answer.id != Some(id) {
                    continue;
                }
                return match (answer.result, answer.error) {
                    (_, Some(error)) => {
                        let message = cut(&error.message);
                        Err(BrowserError::Refused { asked, message })
                    }
                    (Some(result), None) => Ok(result),
                    (None, None) => Err(BrowserError::Malformed { asked }),
                };
            }
        };
        timeout(CALL_TIMEOUT, answered)
            .await
            .unwrap_or(Err(BrowserError::Timeout { asked }))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `Broken`, and `Timeout` for a browser that does not read.
    pub async fn send(&mut self, text: String) -> Result<(), BrowserError> {
        let sent = async {
            poll_fn(|cx| Pin::new(&mut self.socket).poll_ready(cx)).await?;
            Pin::new(&mut self.socket).start_send(Message::text(text))?;
            poll_fn(|cx| Pin::new(&mut self.socket).poll_flush(cx)).await?;
            Ok(())
        };
        let asked = "a message";
        timeout(SEND_TIMEOUT, sent)
            .await
            .unwrap_or(Err(BrowserError::Timeout { asked }))
    }

    /// The next text that it sends; `None` when it hung up. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// `Broken`, also for a message longer than [`MAX_MESSAGE`].
    pub async fn next(&mut self) -> Result<Option<String>, BrowserError> {
        loop {
            let next = poll_fn(|cx| Pin::new(&mut self.socket).poll_next(cx)).await;
            let Some(message) = next.transpose()? else {
                return Ok(None);
            };
            if message.is_close() {
                return Ok(None);
            }
            if let Some(text) = message.as_text() {
                return Ok(Some(text.to_owned()));
            }
        }
    }
}
