//! The server's numbers, for those who watch it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Response, StatusCode};
use offleash_daemon::{Caller, Daemon, VisibleState};

use super::pages;
use crate::http::body::Body;
use crate::http::clients::ClientSlots;
use crate::telemetry::{
    AnswerTimes, LostSignals, MetricFamily, MetricKind, MetricNumber, MetricPoint, MetricSnapshot, known_method,
};

/// The bounds of what requests may take, in milliseconds.
const BOUNDS_MS: [u64; 9] = [1, 5, 10, 50, 100, 500, 1000, 5000, 30_000];

/// The same in seconds.
fn bounds() -> Vec<f64> {
    BOUNDS_MS
        .iter()
        .map(|bound| Duration::from_millis(*bound).as_secs_f64())
        .collect()
}

/// How many requests were answered, by method and status, and how long that took.
#[derive(Debug, Default)]
pub(crate) struct AnswerTally {
    /// Both are of small sets: methods that everybody has, and statuses that we give.
    answered: Mutex<BTreeMap<(&'static str, u16), TimeTally>>,
}

#[derive(Debug, Default, Clone)]
struct TimeTally {
    /// Those that took no longer than each of [`BOUNDS_MS`], and longer than the one before.
    by_time: [u64; BOUNDS_MS.len()],
    slower: u64,
    took: Duration,
}

impl AnswerTally {
    pub(crate) fn answered(&self, method: &Method, status: StatusCode, took: Duration) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = answered.entry((known_method(method), status.as_u16())).or_default();
        let bound = BOUNDS_MS.iter().position(|bound| took <= Duration::from_millis(*bound));
        let count = bound
            .and_then(|place| tally.by_time.get_mut(place))
            .unwrap_or(&mut tally.slower);
        *count = count.saturating_add(1);
        tally.took = tally.took.saturating_add(took);
    }

    /// What there is so far.
    pub(super) fn times(&self) -> Vec<AnswerTimes> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let times = |((method, status), tally): (&(&'static str, u16), &TimeTally)| AnswerTimes {
            method,
            status: *status,
            counts: tally.by_time.iter().copied().chain([tally.slower]).collect(),
            seconds: tally.took.as_secs_f64(),
        };
        answered.iter().map(times).collect()
    }
}

/// Numbers, with those of answers.
pub(super) fn snapshot(families: Vec<MetricFamily>, answers: &AnswerTally, is_encrypted: bool) -> MetricSnapshot {
    MetricSnapshot {
        families,
        bounds: bounds(),
        answers: answers.times(),
        is_encrypted,
    }
}

/// A page with numbers and those of answers.
pub(crate) fn page(families: Vec<MetricFamily>, answers: &AnswerTally, is_encrypted: bool) -> Response<Body> {
    pages::metrics(&snapshot(families, answers, is_encrypted))
}

/// All numbers of a server, but for those of answers.
pub(super) fn families(daemon: &Daemon, clients: &ClientSlots, lost: &LostSignals) -> Vec<MetricFamily> {
    let counts = daemon.counts();
    let fresh = counts.created.saturating_sub(counts.created_warm);
    let states = [
        ("running", counts.running),
        ("paused", counts.paused),
        ("changing", counts.changing),
        ("pooled", counts.pooled),
    ];
    let mut all = vec![gauge(
        ("offleash.sandboxes", "offleash_sandboxes"),
        "{sandbox}",
        "Sandboxes, by what they do.",
        labelled("state", states.map(|(state, count)| (state.to_owned(), whole(count)))),
    )];
    all.extend(used(daemon));
    let waiting = daemon.waiting().into_iter();
    all.push(gauge(
        ("offleash.pool.sandboxes", "offleash_pool_sandboxes"),
        "{sandbox}",
        "Sandboxes that can be handed out at once, by template.",
        labelled("template", waiting.map(|(template, count)| (template, whole(count)))),
    ));
    all.push(gauge(
        ("offleash.pool.browsers", "offleash_pool_browsers"),
        "{browser}",
        "Browsers that can be handed out to sessions at once.",
        plain_count(daemon.waiting_browsers()),
    ));
    let from = [("pool", counts.created_warm), ("scratch", fresh)];
    all.push(counter(
        ("offleash.creates", "offleash_creates_total"),
        "{sandbox}",
        "Sandboxes made since the start, by where they came from.",
        labelled("from", from.map(|(from, count)| (from.to_owned(), count))),
    ));
    all.push(counter(
        ("offleash.creates.failed", "offleash_creates_failed_total"),
        "{sandbox}",
        "Sandboxes that could not be made.",
        plain(MetricNumber::Whole(counts.failed)),
    ));
    all.push(counter(
        ("offleash.alerts", "offleash_alerts_total"),
        "{alert}",
        "Rules of monitoring that fired, by rule.",
        labelled("rule", daemon.alert_counts()),
    ));
    let messages = daemon.webhook_counts().into_iter();
    all.push(counter(
        ("offleash.webhook.messages", "offleash_webhook_messages_total"),
        "{message}",
        "Messages of webhooks, by what became of them.",
        labelled("outcome", messages.map(|(outcome, count)| (outcome.to_owned(), count))),
    ));
    all.push(counter(
        ("offleash.telemetry.lost", "offleash_telemetry_lost_total"),
        "{item}",
        "Spans, messages of metrics and log lines that no collector took.",
        labelled(
            "signal",
            lost.counts().map(|(signal, count)| (signal.to_string(), count)),
        ),
    ));
    all.push(gauge(
        ("offleash.http.connections", "offleash_http_connections"),
        "{connection}",
        "Connections of clients.",
        plain_count(clients.count()),
    ));
    all
}

/// What sandboxes use, of those that are told of in an overview.
fn used(daemon: &Daemon) -> Vec<MetricFamily> {
    let Ok(overview) = daemon.overview(&Caller::local()) else {
        return Vec::new();
    };
    let mut levels: BTreeMap<(String, &str), u64> = BTreeMap::new();
    let (mut cpu, mut memory, mut disk) = (0.0, 0_u64, 0_u64);
    for one in &overview.sandboxes {
        let state = match one.state {
            VisibleState::Running => "running",
            VisibleState::Paused => "paused",
        };
        *levels.entry((one.level.clone(), state)).or_default() += 1;
        if let Some(usage) = &one.usage {
            cpu += usage.cpu_used_pct;
            memory = memory.saturating_add(usage.memory_used);
            disk = disk.saturating_add(usage.disk_used);
        }
    }
    let by_level = levels.into_iter().map(|((level, state), count)| MetricPoint {
        labels: vec![("level", level), ("state", state.to_owned())],
        value: MetricNumber::Whole(count),
    });
    vec![
        gauge(
            ("offleash.sandboxes.by_level", "offleash_sandboxes_by_level"),
            "{sandbox}",
            "Sandboxes, by level and by what they do.",
            by_level.collect(),
        ),
        gauge(
            ("offleash.sandboxes.cpu", "offleash_sandboxes_cpu_cores"),
            "{cpu}",
            "CPUs that running sandboxes use, as sampled last.",
            plain(MetricNumber::Real(cpu / 100.0)),
        ),
        gauge(
            ("offleash.sandboxes.memory", "offleash_sandboxes_memory_bytes"),
            "By",
            "Memory of running sandboxes, as sampled last.",
            plain(MetricNumber::Whole(memory)),
        ),
        gauge(
            ("offleash.sandboxes.disk", "offleash_sandboxes_disk_bytes"),
            "By",
            "Disk of running sandboxes, as sampled last.",
            plain(MetricNumber::Whole(disk)),
        ),
    ]
}

pub(crate) fn gauge(
    names: (&'static str, &'static str),
    unit: &'static str,
    help: &'static str,
    points: Vec<MetricPoint>,
) -> MetricFamily {
    family(MetricKind::Gauge, names, unit, help, points)
}

pub(crate) fn counter(
    names: (&'static str, &'static str),
    unit: &'static str,
    help: &'static str,
    points: Vec<MetricPoint>,
) -> MetricFamily {
    family(MetricKind::Counter, names, unit, help, points)
}

fn family(
    kind: MetricKind,
    (name, prometheus): (&'static str, &'static str),
    unit: &'static str,
    help: &'static str,
    points: Vec<MetricPoint>,
) -> MetricFamily {
    MetricFamily {
        name,
        prometheus,
        unit,
        help,
        kind,
        points,
    }
}

fn plain(value: MetricNumber) -> Vec<MetricPoint> {
    let labels = Vec::new();
    vec![MetricPoint { labels, value }]
}

pub(crate) fn labelled(label: &'static str, counts: impl IntoIterator<Item = (String, u64)>) -> Vec<MetricPoint> {
    let point = |(word, count)| MetricPoint {
        labels: vec![(label, word)],
        value: MetricNumber::Whole(count),
    };
    counts.into_iter().map(point).collect()
}

/// A count of nothing in particular.
pub(crate) fn plain_count(count: usize) -> Vec<MetricPoint> {
    plain(MetricNumber::Whole(whole(count)))
}

fn whole(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
