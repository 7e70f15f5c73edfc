//! Sends spans to a collector: OTLP over HTTP, in JSON (<https://opentelemetry.io/docs/specs/otlp/>).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hickory_resolver::TokioResolver;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::TracesEndpoint;
use super::span::{EndedSpan, SpanFact};
use crate::journal::{Event, Journal};

/// Most spans that wait; further ones are dropped.
const MAX_WAITING: usize = 4096;
/// Most of one message, and how long the first of them waits for others.
const MAX_AT_ONCE: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
/// How long a collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often at most it is told that there is none.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// What is read of its answer.
const MAX_READ: usize = 64 * 1024;
/// How long the end of the server waits for what is left.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// What waits to be sent.
#[derive(Debug, Clone)]
pub(super) struct SpanQueue {
    waiting: mpsc::Sender<WaitingSpan>,
}

#[derive(Debug)]
enum WaitingSpan {
    Span(EndedSpan),
    /// Whoever wants to hear that everything before was sent.
    Flush(oneshot::Sender<()>),
}

impl SpanQueue {
    pub(super) fn put(&self, span: EndedSpan) {
        // Dropped where there are too many: nobody is to wait for a collector.
        let _put = self.waiting.try_send(WaitingSpan::Span(span));
    }

    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        let all = async {
            if self.waiting.send(WaitingSpan::Flush(done)).await.is_ok() {
                let _flushed = flushed.await;
            }
        };
        let _in_time = timeout(LINGER_TIMEOUT, all).await;
    }
}

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("connecting to the collector")]
    Connect(#[source] io::Error),
    #[error("speaking with the collector")]
    Http(#[from] hyper::Error),
    #[error("the collector answered {0}")]
    Refused(StatusCode),
    #[error("the collector takes too long")]
    Late,
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
}

/// Begins to send what comes; ends when nobody can send any more.
pub(super) fn start(endpoint: TracesEndpoint, journal: Arc<dyn Journal>) -> SpanQueue {
    let (waiting, receiver) = mpsc::channel(MAX_WAITING);
    tokio::spawn(send_all(endpoint, receiver, journal));
    SpanQueue { waiting }
}

async fn send_all(endpoint: TracesEndpoint, mut waiting: mpsc::Receiver<WaitingSpan>, journal: Arc<dyn Journal>) {
    let mut told: Option<Instant> = None;
    while let Some(first) = waiting.recv().await {
        let (spans, flushed) = gather(first, &mut waiting).await;
        if !spans.is_empty()
            && let Err(error) = timeout(EXPORT_TIMEOUT, post(&endpoint, &spans))
                .await
                .unwrap_or(Err(ExportError::Late))
            && told.is_none_or(|told| told.elapsed() >= TOLD_EVERY)
        {
            told = Some(Instant::now());
            let (told, cause) = ("traces are lost", &error);
            journal.record(&Event::Failure { told, cause });
        }
        if let Some(flushed) = flushed {
            // Who does not wait any more need not hear it.
            let _heard = flushed.send(());
        }
    }
}

/// What comes within a moment, or until somebody waits for it.
async fn gather(
    first: WaitingSpan,
    waiting: &mut mpsc::Receiver<WaitingSpan>,
) -> (Vec<EndedSpan>, Option<oneshot::Sender<()>>) {
    let deadline = Instant::now() + EVERY;
    let mut spans = Vec::new();
    let mut next = Some(first);
    loop {
        match next {
            Some(WaitingSpan::Span(span)) => spans.push(span),
            Some(WaitingSpan::Flush(flushed)) => return (spans, Some(flushed)),
            None => return (spans, None),
        }
        if spans.len() >= MAX_AT_ONCE {
            return (spans, None);
        }
        next = timeout_at(deadline, waiting.recv()).await.ok().flatten();
    }
}

async fn post(endpoint: &TracesEndpoint, spans: &[EndedSpan]) -> Result<(), ExportError> {
    let stream = connect(endpoint).await.map_err(ExportError::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post(&endpoint.path)
        .header(HOST, endpoint.authority.as_str())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(message(spans).to_string())))?;
    let asked = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let _read = Limited::new(response.into_body(), MAX_READ).collect().await;
        match status.is_success() {
            true => Ok(()),
            false => Err(ExportError::Refused(status)),
        }
    };
    let mut asked = std::pin::pin!(asked);
    // The connection goes on only as long as somebody asks it to.
    tokio::select! {
        answered = &mut asked => answered,
        _ended = connection => asked.await,
    }
}

/// Names are asked of the machine's DNS servers and its `hosts`, never of the C library: it would load modules of the machine.
async fn connect(endpoint: &TracesEndpoint) -> io::Result<TcpStream> {
    let (host, port) = endpoint.address();
    if let Ok(address) = host.parse::<IpAddr>() {
        return TcpStream::connect(SocketAddr::new(address, port)).await;
    }
    let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
    let found = resolver.map_err(io::Error::other)?.lookup_ip(host).await;
    let addresses: Vec<SocketAddr> = found
        .map_err(io::Error::other)?
        .iter()
        .map(|address| SocketAddr::new(address, port))
        .collect();
    TcpStream::connect(&addresses[..]).await
}

/// `ExportTraceServiceRequest`, in the form that OTLP gives it in JSON.
fn message(spans: &[EndedSpan]) -> Value {
    let word = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let version = env!("CARGO_PKG_VERSION");
    let resource = [word("service.name", "offleash"), word("service.version", version)];
    let scope = json!({ "name": "offleash", "version": version });
    let spans: Vec<Value> = spans.iter().map(described).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }]})
}

fn described(span: &EndedSpan) -> Value {
    let nanoseconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos()
            .to_string()
    };
    let facts = span.facts.iter().map(|(key, fact)| {
        let value = match fact {
            SpanFact::Word(word) => json!({ "stringValue": word }),
            SpanFact::Id(id) => json!({ "stringValue": id }),
            SpanFact::Number(number) => json!({ "intValue": number.to_string() }),
        };
        json!({ "key": key, "value": value })
    });
    // `SPAN_KIND_SERVER` and `SPAN_KIND_INTERNAL`; `STATUS_CODE_UNSET`, `_OK` and `_ERROR`.
    let kind = if span.is_request { 2 } else { 1 };
    let status = match span.well {
        None => json!({}),
        Some(true) => json!({ "code": 1 }),
        Some(false) => json!({ "code": 2 }),
    };
    let mut described = json!({
        "traceId": HEXLOWER.encode(&span.trace),
        "spanId": HEXLOWER.encode(&span.span),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(span.began),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": facts.collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = &span.parent {
        described["parentSpanId"] = HEXLOWER.encode(parent).into();
    }
    described
}
