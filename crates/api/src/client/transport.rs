//! One request over a connection of its own.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use offleash_core::error::ErrorKind;
use serde_json::Value;
use tokio::net::UnixStream;

use super::{ClientError, malformed};
use crate::http::body::Body;

/// What is read of an answer that is no file.
const MAX_READ: usize = 64 << 20;

/// How long a daemon may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// What `sockaddr_un` holds (unix(7)).
const MAX_SOCKET_PATH_LENGTH: usize = 107;

/// An answer that is not a refusal.
#[derive(Debug)]
pub(super) struct Answer {
    asked: String,
    response: Response<Incoming>,
}

/// An event loop on this thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, ClientError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|source| ClientError::Local {
        tried: "make an event loop".to_owned(),
        source,
    })
}

/// A request that was put together from what a person gave.
pub(super) fn built(request: http::Result<Request<Body>>, asked: &str) -> Result<Request<Body>, ClientError> {
    request.map_err(|error| ClientError::Refused {
        message: format!("`{asked}` cannot be asked for: {error}"),
        kind: ErrorKind::Invalid,
    })
}

/// Sends a request and waits for the head of its answer.
pub(super) async fn send(socket: &Path, request: Request<Body>, asked: &str) -> Result<Answer, ClientError> {
    let answer = exchange(socket, request, asked).await?;
    match answer.response.status() {
        status if status.is_success() => Ok(answer),
        status => Err(refused(status, answer).await),
    }
}

/// Sends a request after which the connection is something else, and waits until it is.
pub(super) async fn become_other(socket: &Path, request: Request<Body>, asked: &str) -> Result<Upgraded, ClientError> {
    let answer = exchange(socket, request, asked).await?;
    match answer.response.status() {
        StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(answer.response)
            .await
            .map_err(|error| malformed(asked, error)),
        status => Err(refused(status, answer).await),
    }
}

async fn exchange(socket: &Path, request: Request<Body>, asked: &str) -> Result<Answer, ClientError> {
    let not_running = |source| ClientError::NotRunning {
        socket: socket.to_owned(),
        source,
    };
    let connected = tokio::time::timeout(CONNECT, connect(socket)).await;
    let stream = connected
        .map_err(|_| not_running(io::ErrorKind::TimedOut.into()))?
        .map_err(not_running)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| malformed(asked, error))?;
    // Ends with the answer; what is wrong with it is told there.
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await;
    let response = response.map_err(|error| malformed(asked, error))?;
    Ok(Answer {
        asked: asked.to_owned(),
        response,
    })
}

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= MAX_SOCKET_PATH_LENGTH {
        return UnixStream::connect(socket).await;
    }
    // By way of its directory, whose descriptor has a short name.
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let opened = std::fs::File::open(directory)?;
    let short = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string());
    UnixStream::connect(short.join(name)).await
}

async fn refused(status: StatusCode, answer: Answer) -> ClientError {
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        StatusCode::TOO_MANY_REQUESTS => ErrorKind::Exhausted,
        StatusCode::NOT_IMPLEMENTED => ErrorKind::Unsupported,
        status if status.is_client_error() => ErrorKind::Invalid,
        status if status == StatusCode::BAD_GATEWAY || status == StatusCode::SERVICE_UNAVAILABLE => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Internal,
    };
    let bytes = answer.bytes().await.unwrap_or_default();
    let told: Option<Value> = serde_json::from_slice(&bytes).ok();
    let message = told
        .as_ref()
        .and_then(|told| told.get("message"))
        .and_then(Value::as_str);
    ClientError::Refused {
        message: message.map_or_else(|| format!("the daemon answered {status}"), str::to_owned),
        kind,
    }
}

impl Answer {
    /// A header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let value = self.response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    }

    /// The whole body.
    pub(super) async fn bytes(self) -> Result<Bytes, ClientError> {
        let asked = self.asked;
        let read = Limited::new(self.response.into_body(), MAX_READ).collect().await;
        Ok(read.map_err(|error| malformed(&asked, error))?.to_bytes())
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let Some(frame) = self.response.body_mut().frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| malformed(&self.asked, error))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}
