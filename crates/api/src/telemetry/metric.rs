//! Numbers of a server, for whoever collects them.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::TelemetrySignal;
use super::collector::{Collector, nanoseconds, scope, word};
use super::lost::LostSignals;
use crate::journal::Journal;

/// What a number does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It goes up and down.
    Gauge,
    /// It counts since the start of the server.
    Counter,
}

/// Numbers of one name.
#[derive(Debug)]
pub(crate) struct MetricFamily {
    /// Its name to OpenTelemetry.
    pub(crate) name: &'static str,
    /// Its name to Prometheus.
    pub(crate) prometheus: &'static str,
    /// Its unit, as UCUM has it.
    pub(crate) unit: &'static str,
    /// What it is.
    pub(crate) help: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) points: Vec<MetricPoint>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct MetricPoint {
    /// What it is about; words of ours, of the owner, and names of templates and rules.
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: MetricNumber,
}

/// A number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MetricNumber {
    Whole(u64),
    Real(f64),
}

/// How long answers to one method with one status took.
#[derive(Debug, Clone)]
pub(crate) struct AnswerTimes {
    pub(crate) method: &'static str,
    pub(crate) status: u16,
    /// How many took no longer than each bound and longer than the one before, and last how many took longer than all.
    pub(crate) counts: Vec<u64>,
    pub(crate) seconds: f64,
}

/// All numbers of a server at one moment.
#[derive(Debug)]
pub(crate) struct MetricSnapshot {
    pub(crate) families: Vec<MetricFamily>,
    /// The bounds of [`AnswerTimes::counts`], seconds.
    pub(crate) bounds: Vec<f64>,
    pub(crate) answers: Vec<AnswerTimes>,
    pub(crate) is_encrypted: bool,
}

/// Sends numbers.
#[derive(Debug, Clone)]
pub(super) struct MetricSender {
    pub(super) collector: Collector,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) lost: Arc<LostSignals>,
    pub(super) began: SystemTime,
}

impl MetricSender {
    pub(super) async fn send(&self, snapshot: &MetricSnapshot) {
        let message = message(&self.collector.resource, snapshot, self.began, SystemTime::now());
        let outcome = self.collector.send(&message).await;
        self.lost.sent(&*self.journal, (TelemetrySignal::Metrics, 1), outcome);
    }
}

/// `ExportMetricsServiceRequest`, in the form that OTLP gives it in JSON. Counts are since the start (temporality 2).
fn message(resource: &Value, snapshot: &MetricSnapshot, began: SystemTime, now: SystemTime) -> Value {
    let times = (nanoseconds(began), nanoseconds(now));
    let mut metrics: Vec<Value> = snapshot
        .families
        .iter()
        .map(|family| described(family, &times))
        .collect();
    metrics.push(durations(snapshot, &times));
    json!({ "resourceMetrics": [{
        "resource": resource,
        "scopeMetrics": [{ "scope": scope(), "metrics": metrics }],
    }]})
}

fn described(family: &MetricFamily, (began, now): &(String, String)) -> Value {
    let point = |point: &MetricPoint| {
        let attributes: Vec<Value> = point
            .labels
            .iter()
            .map(|(label, value)| word(&format!("offleash.{label}"), value))
            .collect();
        let mut described = json!({ "attributes": attributes, "timeUnixNano": now });
        match point.value {
            MetricNumber::Whole(number) => described["asInt"] = number.to_string().into(),
            MetricNumber::Real(number) => described["asDouble"] = number.into(),
        }
        if family.kind == MetricKind::Counter {
            described["startTimeUnixNano"] = began.as_str().into();
        }
        described
    };
    let points: Vec<Value> = family.points.iter().map(point).collect();
    let mut described = json!({ "name": family.name, "description": family.help, "unit": family.unit });
    match family.kind {
        MetricKind::Gauge => described["gauge"] = json!({ "dataPoints": points }),
        MetricKind::Counter => {
            described["sum"] = json!({ "dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true });
        }
    }
    described
}

/// `http.server.request.duration`, as the semantic conventions have it.
fn durations(snapshot: &MetricSnapshot, (began, now): &(String, String)) -> Value {
    let scheme = if snapshot.is_encrypted { "https" } else { "http" };
    let point = |times: &AnswerTimes| {
        let attributes = [
            word("http.request.method", times.method),
            word("url.scheme", scheme),
            super::collector::number("http.response.status_code", times.status.into()),
        ];
        let all: u64 = times.counts.iter().sum();
        let counts: Vec<String> = times.counts.iter().map(u64::to_string).collect();
        json!({
            "attributes": attributes, "startTimeUnixNano": began, "timeUnixNano": now,
            "count": all.to_string(), "sum": times.seconds, "bucketCounts": counts, "explicitBounds": snapshot.bounds,
        })
    };
    let points: Vec<Value> = snapshot.answers.iter().map(point).collect();
    json!({
        "name": "http.server.request.duration",
        "description": "How long it took until an answer began.",
        "unit": "s",
        "histogram": { "dataPoints": points, "aggregationTemporality": 2 },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_told_as_otlp_has_them() {
        let family = |kind, value| MetricFamily {
            name: "offleash.x",
            prometheus: "offleash_x",
            unit: "1",
            help: "X.",
            kind,
            points: vec![MetricPoint {
                labels: vec![("rule", "own".to_owned())],
                value,
            }],
        };
        let snapshot = MetricSnapshot {
            families: vec![
                family(MetricKind::Gauge, MetricNumber::Real(0.5)),
                family(MetricKind::Counter, MetricNumber::Whole(u64::MAX)),
            ],
            bounds: vec![0.1],
            answers: vec![AnswerTimes {
                method: "GET",
                status: 200,
                counts: vec![2, 1],
                seconds: 1.5,
            }],
            is_encrypted: true,
        };
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let told = message(&json!({}), &snapshot, began, began + Duration::from_nanos(1));
        let metrics = told["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
            .as_array()
            .unwrap();
        let gauge = &metrics[0]["gauge"]["dataPoints"][0];
        assert_eq!(
            (&gauge["asDouble"], &gauge["startTimeUnixNano"]),
            (&json!(0.5), &Value::Null)
        );
        assert_eq!(gauge["attributes"][0], word("offleash.rule", "own"));
        let sum = &metrics[1]["sum"];
        assert_eq!(
            (&sum["isMonotonic"], &sum["aggregationTemporality"]),
            (&json!(true), &json!(2))
        );
        let point = &sum["dataPoints"][0];
        assert_eq!(point["asInt"], json!(u64::MAX.to_string()));
        assert_eq!(
            (&point["startTimeUnixNano"], &point["timeUnixNano"]),
            (&json!("1000000000"), &json!("1000000001"))
        );
        let histogram = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!(
            (&histogram["count"], &histogram["bucketCounts"]),
            (&json!("3"), &json!(["2", "1"]))
        );
        assert_eq!(histogram["attributes"][1], word("url.scheme", "https"));
    }
}
