//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::client::Work;
use super::contender::{DIRECT, OFFLEASH};
use super::opened::Opened;
use crate::bench::report::{Bar, Bound, Machine, Skipped, write_skipped};
use crate::bench::sample::Series;

/// A tunnelled stream is at least this fast, to one that nobody carries.
const THROUGHPUT_TO_DIRECT: f64 = 0.70;
/// A connection takes at most this much longer than a direct one, ms.
const ADDED_LATENCY_MS: f64 = 0.3;
/// The start of a sandbox takes at most this much longer with a network, ms.
const ADDED_START_MS: f64 = 1.5;

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often everything was done.
    pub(super) rounds: u32,
    /// Of the ways to the server.
    pub(super) figures: Vec<Figure>,
    /// Of sandboxes.
    pub(super) starts: Vec<Start>,
    /// Of requests over TLS that the gateway opens, when they could be measured.
    pub(super) opened: Option<Opened>,
    /// What could not be measured.
    pub(super) skipped: Vec<Skipped>,
}

/// What one kind of work took on one way.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    /// Which way.
    pub(super) contender: &'static str,
    /// What was done.
    pub(super) work: Work,
    /// Bytes of a stream; connections or requests, each timed alone, for one round.
    pub(super) amount: u64,
    /// What a stream, a connection or a request took, ns.
    pub(super) ns: Series,
}

/// What the start and the end of a sandbox took.
#[derive(Debug, Serialize)]
pub(super) struct Start {
    /// Whether it had a network.
    pub(super) with_network: bool,
    /// From start to end, µs.
    pub(super) us: Series,
}

impl Figure {
    fn median_seconds(&self) -> f64 {
        seconds(self.ns.median)
    }

    /// MiB a second, when a stream took so long.
    fn rate(&self, ns: u64) -> f64 {
        let mib = u32::try_from(self.amount >> 20).unwrap_or(u32::MAX);
        f64::from(mib) / seconds(ns)
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn milliseconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64() * 1000.0
}

impl Report {
    fn median_seconds(&self, contender: &str, work: Work) -> Option<f64> {
        let mut figures = self.figures.iter();
        let found = figures.find(|figure| figure.contender == contender && figure.work == work);
        found.map(Figure::median_seconds)
    }

    fn start_ms(&self, with_network: bool) -> Option<f64> {
        let mut starts = self.starts.iter();
        let found = starts.find(|start| start.with_network == with_network);
        found.map(|start| milliseconds(start.us.median))
    }

    /// The bars whose both sides were measured.
    fn bars(&self) -> Vec<Bar> {
        let bar = |what: &str, value: Option<f64>, bound| {
            value.map(|value| Bar {
                what: what.to_owned(),
                value,
                bound,
            })
        };
        let both = |work| Some((self.median_seconds(DIRECT, work)?, self.median_seconds(OFFLEASH, work)?));
        let share = |work| both(work).map(|(direct, ours)| direct / ours);
        let added = |work| both(work).map(|(direct, ours)| (ours - direct) * 1000.0);
        let added_start = || Some(self.start_ms(true)? - self.start_ms(false)?);
        [
            bar(
                "download of one stream, median, to a direct one",
                share(Work::Download),
                Bound::AtLeast(THROUGHPUT_TO_DIRECT),
            ),
            bar(
                "upload of one stream, median, to a direct one",
                share(Work::Upload),
                Bound::AtLeast(THROUGHPUT_TO_DIRECT),
            ),
            bar(
                "connection and a byte there and back, median, ms more than a direct one",
                added(Work::Connect),
                Bound::AtMost(ADDED_LATENCY_MS),
            ),
            bar(
                "start of a sandbox, median, ms more with a network",
                added_start(),
                Bound::AtMost(ADDED_START_MS),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn figures_of(&self, work: Work) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(move |figure| figure.work == work)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        for (work, what) in [(Work::Download, "download"), (Work::Upload, "upload")] {
            writeln!(f, "\n{what:<22}{:>10}{:>10}  MiB/s", "median", "slow 5 %")?;
            for figure in self.figures_of(work) {
                let Series { median, p95 } = figure.ns;
                let name = figure.contender;
                writeln!(f, "  {name:<20}{:>10.0}{:>10.0}", figure.rate(median), figure.rate(p95))?;
            }
        }
        for (work, what) in [(Work::Connect, "connection"), (Work::Requests, "request")] {
            writeln!(f, "\n{what:<22}{:>10}{:>10}  µs{:>12}", "median", "p95", "a second")?;
            for figure in self.figures_of(work) {
                let Series { median, p95 } = figure.ns;
                let [median, p95] = [median, p95].map(seconds);
                let name = figure.contender;
                let (median_us, p95_us, rate) = (median * 1e6, p95 * 1e6, 1.0 / median);
                writeln!(f, "  {name:<20}{median_us:>10.1}{p95_us:>10.1}    {rate:>12.0}")?;
            }
        }
        if let Some(opened) = &self.opened {
            write!(f, "{opened}")?;
        }
        writeln!(f, "\n{:<22}{:>10}{:>10}  ms", "start of a sandbox", "median", "p95")?;
        for start in &self.starts {
            let name = if start.with_network {
                "with a network"
            } else {
                "without"
            };
            let Series { median, p95 } = start.us;
            writeln!(
                f,
                "  {name:<20}{:>10.2}{:>10.2}",
                milliseconds(median),
                milliseconds(p95)
            )?;
        }
        writeln!(f)?;
        for bar in self.bars() {
            writeln!(f, "{bar}")?;
        }
        write_skipped(f, &self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(contender: &'static str, work: Work, median: u64) -> Figure {
        let ns = Series { median, p95: median };
        Figure {
            contender,
            work,
            amount: 1 << 30,
            ns,
        }
    }

    fn report(figures: Vec<Figure>) -> Report {
        Report {
            machine: Machine::this(),
            rounds: 1,
            figures,
            starts: vec![],
            opened: None,
            skipped: vec![],
        }
    }

    #[test]
    fn bars_compare_with_the_direct_way() {
        let report = report(vec![
            figure(DIRECT, Work::Download, 700_000_000),
            figure(OFFLEASH, Work::Download, 1_000_000_000),
            figure(DIRECT, Work::Connect, 50_000),
            figure(OFFLEASH, Work::Connect, 351_000),
            figure(OFFLEASH, Work::Upload, 1),
        ]);
        let met: Vec<bool> = report.bars().iter().map(Bar::is_met).collect();
        assert_eq!(met, [true, false], "{report}");
        assert!(report.to_string().contains("1024"), "{report}");
    }

    #[test]
    fn a_network_costs_what_a_start_takes_longer_with_it() {
        let mut report = report(vec![]);
        for (with_network, median) in [(false, 6_000), (true, 7_500)] {
            let us = Series { median, p95: median };
            report.starts.push(Start { with_network, us });
        }
        assert!(report.bars()[0].is_met(), "{report}");
        report.starts[1].us.median += 100;
        assert!(!report.bars()[0].is_met(), "{report}");
    }
}
