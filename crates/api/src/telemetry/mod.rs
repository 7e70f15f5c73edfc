//! What a server tells a collector: spans, numbers and lines (OpenTelemetry, by OTLP over HTTP).
//!
//! Without a collector there is none of it. With one, spans and lines wait in bounded queues for tasks that send them. Where
//! those are full they are dropped and counted, and no request ever waits for it. What is told has names of ours, ids, durations and
//! outcomes. Paths, queries, headers, commands and code are never in it.

mod collector;
mod encryption;
mod endpoint;
mod log;
mod lost;
mod metric;
mod queue;
mod span;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method};
use offleash_daemon::EventListener;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::journal::Journal;
use collector::{Collector, word};
pub use encryption::CollectorTls;
pub use endpoint::{BadEndpoint, BadHeaders, SignalEndpoint, TelemetrySignal};
use log::{LogRecord, ToldJournal};
pub(crate) use lost::LostSignals;
use metric::MetricSender;
pub(crate) use metric::{AnswerTimes, MetricFamily, MetricKind, MetricNumber, MetricPoint, MetricSnapshot};
use queue::{LINGER_TIMEOUT, QueueSender, SignalQueue};
use span::EndedSpan;
pub(crate) use span::{RequestSpan, WorkSpan, carry, known_method};

/// Who is told what.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// Where spans go.
    pub traces: Option<SignalEndpoint>,
    /// Where numbers go.
    pub metrics: Option<SignalEndpoint>,
    /// Where lines go.
    pub logs: Option<SignalEndpoint>,
    /// What the server is called (`service.name`).
    pub service_name: String,
    /// What else is said of it.
    pub resource: Vec<(String, String)>,
    /// Whom collectors that are spoken to by TLS are vouched for by.
    pub tls: Option<CollectorTls>,
    /// How long a collector may take for one message.
    pub timeout: Duration,
    /// How often numbers are sent.
    pub metric_interval: Duration,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            traces: None,
            metrics: None,
            logs: None,
            service_name: "offleash".to_owned(),
            resource: Vec::new(),
            tls: None,
            timeout: Duration::from_secs(10),
            metric_interval: Duration::from_secs(60),
        }
    }
}

impl TelemetryConfig {
    /// What everything is told of, with the words of the semantic conventions.
    fn described(&self) -> Value {
        let version = env!("CARGO_PKG_VERSION");
        let own = [
            word("service.name", &self.service_name),
            word("service.version", version),
        ];
        let more = self.resource.iter().map(|(key, value)| word(key, value));
        json!({ "attributes": own.into_iter().chain(more).collect::<Vec<_>>() })
    }
}

/// What a request turned out to be about.
#[derive(Debug, Default)]
pub(crate) struct RequestSubject {
    pub(crate) key: Option<String>,
    pub(crate) sandbox: Option<String>,
    pub(crate) port: Option<u16>,
    /// The route that it takes, without what the caller put into it.
    pub(crate) route: Option<&'static str>,
    /// The origin of a page that was allowed to call, and may read the answer.
    pub(crate) page: Option<HeaderValue>,
}

/// What is done in or with a sandbox for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanOperation {
    /// A sandbox is made or handed out.
    Create,
    /// One is paused.
    Pause,
    /// A paused one goes on.
    Resume,
    /// One is ended.
    Kill,
    /// A command, from its start to its end or to that of the connection that hears of it.
    Exec,
}

/// Does `work` and tells how long it took, whether it succeeded, and then with which sandbox.
pub(crate) async fn of<T, E>(
    operation: SpanOperation,
    work: impl Future<Output = Result<T, E>>,
    sandbox: impl Fn(&T) -> String,
) -> Result<T, E> {
    let mut span = WorkSpan::begin(operation);
    let done = work.await;
    if let Ok(done) = &done {
        span.sandbox(|| sandbox(done));
    }
    span.ended(done.is_ok());
    done
}

/// Where spans, numbers and lines go.
#[derive(Debug)]
pub(crate) struct Telemetry {
    spans: Option<SignalQueue<EndedSpan>>,
    lines: Option<SignalQueue<LogRecord>>,
    metrics: Option<MetricSender>,
    metric_interval: Duration,
    lost: Arc<LostSignals>,
}

impl Telemetry {
    /// Begins to send what is put in; within an event loop. That a collector takes nothing is told to `journal`.
    pub(crate) fn start(config: TelemetryConfig, journal: &Arc<dyn Journal>) -> Self {
        let (lost, resource) = (Arc::new(LostSignals::default()), config.described());
        let collector = |endpoint| Collector {
            endpoint,
            tls: config.tls.clone(),
            timeout: config.timeout,
            resource: resource.clone(),
        };
        let spans = config.traces.map(|endpoint| {
            SignalQueue::start(QueueSender {
                signal: TelemetrySignal::Traces,
                collector: collector(endpoint),
                message: span::message,
                journal: Arc::clone(journal),
                lost: Arc::clone(&lost),
            })
        });
        let lines = config.logs.map(|endpoint| {
            SignalQueue::start(QueueSender {
                signal: TelemetrySignal::Logs,
                collector: collector(endpoint),
                message: log::message,
                journal: Arc::clone(journal),
                lost: Arc::clone(&lost),
            })
        });
        let metrics = config.metrics.map(|endpoint| MetricSender {
            collector: collector(endpoint),
            journal: Arc::clone(journal),
            lost: Arc::clone(&lost),
            began: SystemTime::now(),
        });
        Self {
            spans,
            lines,
            metrics,
            metric_interval: config.metric_interval,
            lost,
        }
    }

    /// A journal that a collector hears of, too, if one does.
    pub(crate) fn journal(&self, inner: Arc<dyn Journal>) -> Arc<dyn Journal> {
        match &self.lines {
            None => inner,
            Some(lines) => Arc::new(ToldJournal {
                inner,
                lines: lines.clone(),
                full: Mutex::default(),
            }),
        }
    }

    /// Begins to tell what happens to sandboxes.
    pub(crate) fn tell_events(&self, events: impl FnOnce() -> EventListener) {
        if let Some(lines) = &self.lines {
            tokio::spawn(log::tell_events(events(), lines.clone()));
        }
    }

    /// Begins to send numbers, until `gather` has none any more.
    pub(crate) fn tell_metrics(&self, gather: impl Fn() -> Option<MetricSnapshot> + Send + 'static) {
        let Some(sender) = self.metrics.clone() else { return };
        let every = self.metric_interval;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(snapshot) = gather() else { return };
                sender.send(&snapshot).await;
            }
        });
    }

    /// Whether anybody is told of requests.
    pub(crate) fn traces(&self) -> bool {
        self.spans.is_some()
    }

    /// The span of a request whose head is there.
    pub(crate) fn request(&self, method: &Method, fields: &HeaderMap) -> RequestSpan {
        RequestSpan::begin(self.spans.as_ref(), method, fields)
    }

    /// What was lost.
    pub(crate) fn lost(&self) -> &LostSignals {
        &self.lost
    }

    /// Waits until everything so far was sent, for a moment each, and the numbers as they are at the end.
    pub(crate) async fn flush(&self, numbers: impl FnOnce() -> MetricSnapshot) {
        if let Some(spans) = &self.spans {
            spans.flush().await;
        }
        if let Some(lines) = &self.lines {
            lines.flush().await;
        }
        if let Some(metrics) = &self.metrics {
            let _in_time = timeout(LINGER_TIMEOUT, metrics.send(&numbers())).await;
        }
    }
}
