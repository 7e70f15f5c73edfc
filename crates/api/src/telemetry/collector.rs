//! Speaks with a collector: OTLP over HTTP, in JSON (<https://opentelemetry.io/docs/specs/otlp/>).

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::SignalEndpoint;
use super::encryption::CollectorTls;
use crate::http::connect::connect;

/// What is read of its answer.
const MAX_READ: usize = 64 * 1024;

/// Where one signal goes, and how long that may take.
#[derive(Debug, Clone)]
pub(super) struct Collector {
    pub(super) endpoint: SignalEndpoint,
    /// With what it is spoken to where its address says so.
    pub(super) tls: Option<CollectorTls>,
    pub(super) timeout: Duration,
    /// What tells of everything: `resource` and `scope` of OTLP.
    pub(super) resource: Value,
}

/// Why something was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("connecting to the collector")]
    Connect(#[source] io::Error),
    #[error("the collector's certificate is not trusted")]
    Untrusted(#[source] io::Error),
    #[error("speaking TLS with the collector")]
    Tls(#[source] io::Error),
    #[error("speaking with the collector")]
    Http(#[from] hyper::Error),
    #[error("the collector answered {0}")]
    Refused(StatusCode),
    #[error("the collector takes too long")]
    Late,
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
}

impl Collector {
    /// Sends a message, once.
    pub(super) async fn send(&self, message: &Value) -> Result<(), ExportError> {
        let body = Bytes::from(message.to_string());
        timeout(self.timeout, self.post(body))
            .await
            .unwrap_or(Err(ExportError::Late))
    }

    async fn post(&self, body: Bytes) -> Result<(), ExportError> {
        let endpoint = &self.endpoint;
        let (host, port) = endpoint.address();
        let stream = connect(host, port).await.map_err(ExportError::Connect)?;
        match (endpoint.is_encrypted, &self.tls) {
            (false, _) => self.ask(stream, body).await,
            (true, Some(tls)) => self.ask(tls.begin(host, stream).await?, body).await,
            // Never in the open instead.
            (true, None) => Err(ExportError::Tls(io::Error::other("nobody vouches for it"))),
        }
    }

    async fn ask(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, body: Bytes) -> Result<(), ExportError> {
        let endpoint = &self.endpoint;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::post(&endpoint.path)
            .header(HOST, endpoint.authority.as_str())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        for (name, value) in &endpoint.headers {
            request.headers_mut().insert(name, value.clone());
        }
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
}

/// An attribute that is a word.
pub(super) fn word(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// An attribute that is a number.
pub(super) fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// A time, as OTLP has it in JSON.
pub(super) fn nanoseconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

/// Who speaks: the `scope` of OTLP.
pub(super) fn scope() -> Value {
    json!({ "name": "offleash", "version": env!("CARGO_PKG_VERSION") })
}
