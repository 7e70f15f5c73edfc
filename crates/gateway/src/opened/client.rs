//! The sandbox's side of an opened connection: TLS with a certificate made for the name, and HTTP over it.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::{sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::bodies::AnswerBody;
use super::client_stream::ClientStream;
use super::exchange::Exchange;
use super::judged_stream::JudgedStream;
use super::{Opening, websocket};
use crate::http_head::Scheme;
use crate::stopped::{Stopped, TIMEOUT};

/// How long a connection may be without a request.
const IDLE: Duration = Duration::from_secs(300);
/// How long the last words may take.
const LINGER: Duration = Duration::from_secs(2);
/// How long the head of a request may take, and with it the pause before it.
const HEAD: Duration = Duration::from_secs(320);
/// The most that the head of a request may have.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEAD_OF_STREAM: u32 = 64 * 1024;
const MAX_FIELDS: usize = 128;
/// How many requests there may be at once on one connection: as many as clients begin with before they are told.
const STREAMS: u32 = 100;
/// How much of a request is on its way before a server takes it. All of them together may have as much, or those that
/// wait for a server would keep the ones from their ends that it is taking.
const STREAM_WINDOW: u32 = 16 * 1024;
const CONNECTION_WINDOW: u32 = STREAMS * STREAM_WINDOW;
const SEND_BUFFER: usize = 64 * 1024;
/// How many streams a client may take back before their requests were looked at, and how many it may break (rapid reset,
/// CVE-2023-44487).
const RESETS: usize = 20;
const BREAKS: usize = 64;
/// How often a client that says nothing is asked whether it is there, and how long it may take.
const PING: Duration = Duration::from_secs(60);
const PONG: Duration = Duration::from_secs(30);

/// Runs the tasks of a connection on the gateway's thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        spawn_local(task);
    }
}

/// Speaks with the client until it has no more requests.
pub(super) async fn serve(opening: &Opening, exchange: Rc<Exchange>, stream: ClientStream<'_>) -> Result<(), Stopped> {
    if exchange.to.scheme == Scheme::Http {
        return speak_http1(exchange, stream).await;
    }
    let config = opening
        .leaves
        .borrow_mut()
        .config(&exchange.to.host)
        .map_err(Stopped::Failed)?;
    let stream = match timeout(TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Stopped::Failed(distrusted(&error))),
        Err(_) => return Err(Stopped::Refused("its TLS handshake was not done in time".to_owned())),
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        speak_http2(exchange, stream).await
    } else {
        speak_http1(exchange, stream).await
    }
}

/// What became of a handshake that the client ended.
fn distrusted(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::AlertReceived(_)) => {
            format!("the program does not trust the certificate authority of the sandbox: {error}")
        }
        _ => format!("its TLS handshake failed: {error}"),
    }
}

async fn speak_http2(exchange: Rc<Exchange>, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), Stopped> {
    let answering = Rc::clone(&exchange);
    let mut connection = pin!(
        http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(BREAKS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEAD_OF_STREAM)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .auto_date_header(false)
            .serve_connection(
                TokioIo::new(stream),
                service_fn(move |request| Rc::clone(&answering).answer(request)),
            )
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = idle(&exchange) => {
            connection.as_mut().graceful_shutdown();
            timeout(LINGER, connection.as_mut()).await.unwrap_or(Ok(()))
        }
    };
    judge_end(ended)
}

async fn speak_http1(exchange: Rc<Exchange>, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), Stopped> {
    type Answer = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>>>>;
    let answering = Rc::clone(&exchange);
    let service =
        service_fn(move |request: Request<Incoming>| -> Answer { Box::pin(Rc::clone(&answering).answer(request)) });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(MAX_FIELDS)
        .max_buf_size(MAX_HEAD)
        .auto_date_header(false)
        .serve_connection(
            TokioIo::new(JudgedStream::new(
                stream,
                exchange.to.scheme,
                Rc::clone(&exchange.framing),
            )),
            service,
        );
    let ended = tokio::select! {
        ended = poll_fn(|context| connection.poll_without_shutdown(context)) => ended,
        () = idle(&exchange) => Ok(()),
    };
    let parts = connection.into_parts();
    let (mut stream, held) = parts.io.into_inner().into_parts();
    let upgraded = exchange.upgraded.borrow_mut().take();
    // Without the answer that agrees, which could not be given, it is still HTTP.
    if let Some((server, mask)) = upgraded
        && ended.is_ok()
    {
        let read = [&parts.read_buf[..], &held].concat();
        websocket::carry(stream, server, mask.as_ref(), &read).await;
        return Ok(());
    }
    // Whoever has gone need not hear it.
    let _ = timeout(LINGER, stream.shutdown()).await;
    match exchange.framing.refused() {
        Some(error) => {
            let _ = timeout(LINGER, until_it_ends(&mut stream)).await;
            Err(error.into())
        }
        None => judge_end(ended),
    }
}

/// Takes what still comes: to close with unread bytes would take the last words back.
async fn until_it_ends(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 4096];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

/// Waits until there has been no request for long.
async fn idle(exchange: &Exchange) {
    loop {
        let now = tokio::time::Instant::now();
        let since = exchange.activity().idle_since().unwrap_or(now);
        if since + IDLE <= now {
            return;
        }
        sleep_until(since + IDLE).await;
    }
}

/// What is wrong with a connection that ended; how one ends that was carried is the two sides' business.
fn judge_end(ended: Result<(), hyper::Error>) -> Result<(), Stopped> {
    match ended {
        Err(error) if error.is_parse() => Err(Stopped::Refused(format!("a request on it is ambiguous: {error}"))),
        _ => Ok(()),
    }
}
