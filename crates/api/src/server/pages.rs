//! Pages about the server itself, for those who watch it.

use std::fmt::Write as _;

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::http::body::{self, Body};
use crate::telemetry::{MetricFamily, MetricKind, MetricNumber, MetricSnapshot};

/// Numbers for Prometheus (its text format, version 0.0.4).
pub(crate) fn metrics(numbers: &MetricSnapshot) -> Response<Body> {
    let mut page = MetricsPage::default();
    for family in &numbers.families {
        page.family(family);
    }
    classes(&mut page, numbers);
    times(&mut page, numbers);
    let mut response = Response::new(body::full(page.text));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// How many answers there were, by the class of their status.
fn classes(page: &mut MetricsPage, numbers: &MetricSnapshot) {
    const NAME: &str = "offleash_http_responses_total";
    page.head(NAME, "counter", "Answers, by the class of their status.");
    for class in 1..=5 {
        let of_class = numbers.answers.iter().filter(|times| times.status / 100 == class);
        let count: u64 = of_class.flat_map(|times| &times.counts).sum();
        page.line(NAME, &[("class", &format!("{class}xx"))], &count.to_string());
    }
}

/// How long answers took until their first byte, as a histogram.
fn times(page: &mut MetricsPage, numbers: &MetricSnapshot) {
    const NAME: &str = "offleash_http_response_seconds";
    page.head(NAME, "histogram", "How long it took until an answer began.");
    let mut all: u64 = 0;
    let bounds = numbers.bounds.iter().map(|bound| format!("{bound:.3}"));
    for (place, bound) in bounds.chain(["+Inf".to_owned()]).enumerate() {
        all += numbers
            .answers
            .iter()
            .filter_map(|times| times.counts.get(place))
            .sum::<u64>();
        page.line(&format!("{NAME}_bucket"), &[("le", &bound)], &all.to_string());
    }
    let seconds: f64 = numbers.answers.iter().map(|times| times.seconds).sum();
    page.line(&format!("{NAME}_sum"), &[], &format!("{seconds:.6}"));
    page.line(&format!("{NAME}_count"), &[], &all.to_string());
}

#[derive(Debug, Default)]
struct MetricsPage {
    text: String,
}

impl MetricsPage {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.text
            .push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn family(&mut self, family: &MetricFamily) {
        let kind = match family.kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
        };
        self.head(family.prometheus, kind, family.help);
        for point in &family.points {
            let labels: Vec<(&str, &str)> = point
                .labels
                .iter()
                .map(|(label, word)| (*label, word.as_str()))
                .collect();
            let value = match point.value {
                MetricNumber::Whole(number) => number.to_string(),
                MetricNumber::Real(number) => format!("{number:.3}"),
            };
            self.line(family.prometheus, &labels, &value);
        }
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.text.push_str(name);
        for (number, (label, word)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            // Writing into a string does not fail.
            let _written = write!(self.text, "{before}{label}=\"{}\"", escaped(word));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _written = writeln!(self.text, "{end} {value}");
    }
}

/// A word between quotation marks.
fn escaped(word: &str) -> String {
    word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
