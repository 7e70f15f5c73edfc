//! Pages about the server itself, for those who watch it.

use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use offleash_daemon::Daemon;

use crate::http::body::{self, Body};
use crate::http::clients::ClientSlots;

/// How many requests were answered, by the first digit of their status.
#[derive(Debug, Default)]
pub(crate) struct AnswerTally {
    by_class: [AtomicU64; 6],
}

impl AnswerTally {
    pub(crate) fn answered(&self, status: StatusCode) {
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
    let mut response = Response::new(body::full(page.text));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
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
