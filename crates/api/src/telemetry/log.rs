//! Lines of a server, for whoever collects them: what happens to sandboxes, and failures of its own.
//!
//! A line has words of ours, ids and numbers. What a rule of monitoring found in a sandbox is not in one: it is the sandbox's text.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use data_encoding::HEXLOWER;
use offleash_daemon::{EventKind, EventListener, HeardEvent, SandboxEvent};
use serde_json::{Value, json};

use super::collector::{nanoseconds, number, scope, word};
use super::queue::SignalQueue;
use super::span;
use crate::journal::{Event, Journal};

/// How often it is said at most that there are too many clients.
const FULL_EVERY: Duration = Duration::from_secs(1);
/// The longest text of a line, in bytes.
const MAX_TEXT: usize = 256;

/// How serious a line is: its number and its word.
type Severity = (u8, &'static str);
const INFO: Severity = (9, "INFO");
const WARN: Severity = (13, "WARN");
const ERROR: Severity = (17, "ERROR");

/// A line.
#[derive(Debug)]
pub(super) struct LogRecord {
    at: SystemTime,
    severity: Severity,
    event: &'static str,
    body: String,
    facts: Vec<Value>,
    /// The request that was being answered: its trace and its span.
    request: Option<([u8; 16], [u8; 8])>,
}

/// Tells a collector what it tells the owner, but for requests, which have spans.
#[derive(Debug)]
pub(super) struct ToldJournal {
    pub(super) inner: Arc<dyn Journal>,
    pub(super) lines: SignalQueue<LogRecord>,
    pub(super) full: Mutex<Option<Instant>>,
}

impl Journal for ToldJournal {
    fn record(&self, event: &Event<'_>) {
        let told = match event {
            Event::Request(_) => None,
            Event::Failure { told, .. } => Some((ERROR, "offleash.server.failure", (*told).to_owned())),
            Event::Accept { error } => {
                let body = format!("connections cannot be taken: {}", error.kind());
                Some((ERROR, "offleash.server.accept", body))
            }
            Event::Full { most, .. } => self.says_full().then(|| {
                (
                    WARN,
                    "offleash.server.full",
                    format!("there are {most} connections, and no more may be"),
                )
            }),
        };
        if let Some((severity, event, body)) = told {
            self.lines.put(LogRecord {
                at: SystemTime::now(),
                severity,
                event,
                body: cut(body),
                facts: Vec::new(),
                request: span::current(),
            });
        }
        self.inner.record(event);
    }
}

impl ToldJournal {
    fn says_full(&self) -> bool {
        let mut last = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= FULL_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Tells what happens to sandboxes, until the daemon is gone.
pub(super) async fn tell_events(mut events: EventListener, lines: SignalQueue<LogRecord>) {
    while let Some(heard) = events.next().await {
        match heard {
            HeardEvent::Event { event, alert } => {
                let mut record = of_event(&event);
                if let Some(alert) = alert {
                    record.body = format!(
                        "rule `{}` of monitoring fired in sandbox `{}`",
                        alert.rule, event.sandbox
                    );
                    record.facts.extend([
                        word("offleash.alert.rule", &alert.rule),
                        word("offleash.alert.figure", alert.watch.word()),
                        number("offleash.alert.value", alert.value),
                        number("offleash.alert.threshold", alert.threshold),
                        word("offleash.alert.action", alert.action.word()),
                    ]);
                }
                lines.put(record);
            }
            HeardEvent::Missed(count) => lines.put(LogRecord {
                at: SystemTime::now(),
                severity: WARN,
                event: "offleash.server.missed",
                body: format!("{count} events of sandboxes were not told"),
                facts: Vec::new(),
                request: None,
            }),
        }
    }
}

fn of_event(event: &SandboxEvent) -> LogRecord {
    let (severity, name) = match event.kind {
        EventKind::Created => (INFO, "offleash.sandbox.created"),
        EventKind::Updated => (INFO, "offleash.sandbox.updated"),
        EventKind::Paused => (INFO, "offleash.sandbox.paused"),
        EventKind::Resumed => (INFO, "offleash.sandbox.resumed"),
        EventKind::TimedOut => (INFO, "offleash.sandbox.timed_out"),
        EventKind::Killed => (INFO, "offleash.sandbox.killed"),
        EventKind::Died => (ERROR, "offleash.sandbox.died"),
        EventKind::Alert => (WARN, "offleash.sandbox.alert"),
    };
    let mut facts = vec![word("offleash.sandbox", &event.sandbox)];
    if event.kind != EventKind::Alert
        && let Some(reason) = &event.reason
    {
        facts.push(word("offleash.reason", &cut(reason.clone())));
    }
    LogRecord {
        at: event.at,
        severity,
        event: name,
        body: format!("sandbox `{}`: {}", event.sandbox, event.kind),
        facts,
        request: None,
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// `ExportLogsServiceRequest`, in the form that OTLP gives it in JSON.
pub(super) fn message(resource: &Value, records: &[LogRecord]) -> Value {
    let records: Vec<Value> = records.iter().map(described).collect();
    json!({ "resourceLogs": [{
        "resource": resource,
        "scopeLogs": [{ "scope": scope(), "logRecords": records }],
    }]})
}

fn described(record: &LogRecord) -> Value {
    let mut described = json!({
        "timeUnixNano": nanoseconds(record.at),
        "observedTimeUnixNano": nanoseconds(record.at),
        "severityNumber": record.severity.0,
        "severityText": record.severity.1,
        "eventName": record.event,
        "body": { "stringValue": record.body },
        "attributes": record.facts,
    });
    if let Some((trace, span)) = &record.request {
        described["traceId"] = HEXLOWER.encode(trace).into();
        described["spanId"] = HEXLOWER.encode(span).into();
    }
    described
}
