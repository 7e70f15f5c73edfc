//! Pages about the server itself, for those who watch it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use offleash_daemon::{Caller, Daemon, VisibleState};

use crate::http::body::{self, Body};
use crate::http::clients::ClientSlots;

/// How many requests were answered, by the first digit of their status, and how long that took.
#[derive(Debug, Default)]
pub(crate) struct AnswerTally {
    by_class: [AtomicU64; 6],
    /// Those that took no longer than each of [`BOUNDS_MS`], and longer than the one before.
    by_time: [AtomicU64; BOUNDS_MS.len()],
    slower: AtomicU64,
    took_us: AtomicU64,
}

/// The bounds of what requests may take, in milliseconds.
const BOUNDS_MS: [u64; 9] = [1, 5, 10, 50, 100, 500, 1000, 5000, 30_000];

impl AnswerTally {
    pub(crate) fn answered(&self, status: StatusCode, took: Duration) {
        let ms = took.as_millis();
        let bound = BOUNDS_MS.iter().position(|bound| ms <= u128::from(*bound));
        let count = bound.and_then(|place| self.by_time.get(place)).unwrap_or(&self.slower);
        count.fetch_add(1, Ordering::Relaxed);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.took_us.fetch_add(took_us, Ordering::Relaxed);
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.by_class.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Numbers for Prometheus (its text format, version 0.0.4).
pub(crate) fn metrics(daemon: &Daemon, tally: &AnswerTally, clients: &ClientSlots) -> Response<Body> {
    let mut page = MetricsPage::default();
    let counts = daemon.counts();
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    page.family("offleash_sandboxes", "gauge", "Sandboxes, by what they do.");
    for (state, count) in [
        ("running", counts.running),
        ("paused", counts.paused),
        ("changing", counts.changing),
        ("pooled", counts.pooled),
    ] {
        page.labelled("offleash_sandboxes", "state", state, number(count));
    }
    used(&mut page, daemon);
    page.family(
        "offleash_pool_sandboxes",
        "gauge",
        "Sandboxes that can be handed out at once, by template.",
    );
    for (template, count) in daemon.waiting() {
        page.labelled("offleash_pool_sandboxes", "template", &template, number(count));
    }
    page.family(
        "offleash_creates_total",
        "counter",
        "Sandboxes made since the start, by where they came from.",
    );
    let fresh = counts.created.saturating_sub(counts.created_warm);
    page.labelled("offleash_creates_total", "from", "pool", counts.created_warm);
    page.labelled("offleash_creates_total", "from", "scratch", fresh);
    page.family(
        "offleash_creates_failed_total",
        "counter",
        "Sandboxes that could not be made.",
    );
    page.plain("offleash_creates_failed_total", counts.failed);
    page.family(
        "offleash_alerts_total",
        "counter",
        "Rules of monitoring that fired, by rule.",
    );
    for (rule, count) in daemon.alert_counts() {
        page.labelled("offleash_alerts_total", "rule", &rule, count);
    }
    page.family(
        "offleash_webhook_messages_total",
        "counter",
        "Messages of webhooks, by what became of them.",
    );
    for (outcome, count) in daemon.webhook_counts() {
        page.labelled("offleash_webhook_messages_total", "outcome", outcome, count);
    }
    page.family("offleash_http_connections", "gauge", "Connections of clients.");
    page.plain("offleash_http_connections", number(clients.count()));
    page.family(
        "offleash_http_responses_total",
        "counter",
        "Answers, by the class of their status.",
    );
    for (class, count) in tally.by_class.iter().enumerate().skip(1) {
        let class = format!("{class}xx");
        page.labelled(
            "offleash_http_responses_total",
            "class",
            &class,
            count.load(Ordering::Relaxed),
        );
    }
    times(&mut page, tally);
    let mut response = Response::new(body::full(page.text));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// What sandboxes use, of those that are told of in an overview.
fn used(page: &mut MetricsPage, daemon: &Daemon) {
    let Ok(overview) = daemon.overview(&Caller::local()) else {
        return;
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
    page.family(
        "offleash_sandboxes_by_level",
        "gauge",
        "Sandboxes, by level and by what they do.",
    );
    for ((level, state), count) in levels {
        let line = format!("offleash_sandboxes_by_level{{level=\"{level}\",state=\"{state}\"}} {count}\n");
        page.text.push_str(&line);
    }
    page.family(
        "offleash_sandboxes_cpu_cores",
        "gauge",
        "CPUs that running sandboxes use, as sampled last.",
    );
    page.text
        .push_str(&format!("offleash_sandboxes_cpu_cores {:.3}\n", cpu / 100.0));
    page.family(
        "offleash_sandboxes_memory_bytes",
        "gauge",
        "Memory of running sandboxes, as sampled last.",
    );
    page.plain("offleash_sandboxes_memory_bytes", memory);
    page.family(
        "offleash_sandboxes_disk_bytes",
        "gauge",
        "Disk of running sandboxes, as sampled last.",
    );
    page.plain("offleash_sandboxes_disk_bytes", disk);
}

/// How long answers took until their first byte, as a histogram.
fn times(page: &mut MetricsPage, tally: &AnswerTally) {
    const NAME: &str = "offleash_http_response_seconds";
    page.family(NAME, "histogram", "How long it took until an answer began.");
    let mut all = 0;
    for (bound, count) in BOUNDS_MS.iter().zip(&tally.by_time) {
        all += count.load(Ordering::Relaxed);
        let (whole, part) = (bound / 1000, bound % 1000);
        page.labelled(&format!("{NAME}_bucket"), "le", &format!("{whole}.{part:03}"), all);
    }
    all += tally.slower.load(Ordering::Relaxed);
    page.labelled(&format!("{NAME}_bucket"), "le", "+Inf", all);
    let us = tally.took_us.load(Ordering::Relaxed);
    page.text
        .push_str(&format!("{NAME}_sum {}.{:06}\n", us / 1_000_000, us % 1_000_000));
    page.plain(&format!("{NAME}_count"), all);
}

#[derive(Debug, Default)]
struct MetricsPage {
    text: String,
}

impl MetricsPage {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.text
            .push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn plain(&mut self, name: &str, value: u64) {
        self.text.push_str(&format!("{name} {value}\n"));
    }

    fn labelled(&mut self, name: &str, label: &str, word: &str, value: u64) {
        self.text.push_str(&format!("{name}{{{label}=\"{word}\"}} {value}\n"));
    }
}
