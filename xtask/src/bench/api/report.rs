//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::series;
use crate::bench::report::{Bar, Bound, Machine, Skipped, write_skipped};
use crate::bench::sample::{Series, megabytes, milliseconds};

/// Create and first command, median, with a warm pool and without, ms.
const WARM_MS: f64 = 10.0;
const COLD_MS: f64 = 25.0;
/// The same of a hundred at once, ms.
const BURST_MS: f64 = 100.0;
/// A command in a sandbox that lives, ms.
const COMMAND_MS: f64 = 2.0;
/// The same from its supervisor's view, to a plain start of the program.
const COMMAND_TO_PLAIN: f64 = 1.3;
/// Figures that are compared.
pub(super) const IN_SUPERVISOR: &str = "the same, from the view of its supervisor";
pub(super) const PLAIN: &str = "the same program, plain";
/// A paused sandbox runs again, ms.
const RESUME_MS: f64 = 20.0;
/// A large file, MB a second.
const FILE_RATE: f64 = 500.0;
/// The daemon with a thousand sandboxes, MB.
const DAEMON_MB: f64 = 60.0;

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often most things were done.
    pub(super) rounds: u32,
    /// Times.
    pub(super) figures: Vec<Figure>,
    /// Memory.
    pub(super) footprints: Vec<Footprint>,
    /// What could not be measured.
    pub(super) skipped: Vec<Skipped>,
}

/// What one thing took.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    /// What was done.
    pub(super) name: String,
    /// Bytes that were moved, if it is a file.
    pub(super) bytes: Option<u64>,
    /// What it took, ns.
    pub(super) ns: Series,
    /// How often it was not done.
    pub(super) failures: u32,
}

/// Memory with some sandboxes.
#[derive(Debug, Serialize)]
pub(super) struct Footprint {
    /// How many there were.
    pub(super) sandboxes: usize,
    /// How many were asked for.
    pub(super) asked: usize,
    /// The daemon's own process, KiB, its share of shared pages.
    pub(super) daemon_kib: u64,
    /// What the machine had less than before, KiB.
    pub(super) machine_kib: u64,
    /// The daemon's own process without any sandbox, KiB.
    pub(super) empty_kib: u64,
    /// Why there were fewer than asked for.
    pub(super) failed: Option<String>,
}

impl Figure {
    pub(super) fn of(name: &str, times: Vec<u64>) -> Self {
        Self {
            name: name.to_owned(),
            bytes: None,
            ns: series(times),
            failures: 0,
        }
    }

    pub(super) fn of_bytes(way: &str, size: &str, bytes: u64, times: Vec<u64>) -> Self {
        Self {
            bytes: Some(bytes),
            ..Self::of(&format!("{way} of {size}"), times)
        }
    }

    fn median_ms(&self) -> f64 {
        milliseconds(self.ns.median)
    }

    /// MB a second, by the median.
    fn rate(&self) -> Option<f64> {
        let megabytes = u32::try_from(self.bytes? / 1_000_000).ok()?;
        Some(f64::from(megabytes) / Duration::from_nanos(self.ns.median).as_secs_f64())
    }
}

impl Report {
    fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// The bars whose sides were measured.
    fn bars(&self) -> Vec<Bar> {
        let most = |name: &str, limit| {
            let figure = self.figure(name)?;
            Some(Bar {
                what: format!("{name}, median, ms"),
                value: figure.median_ms(),
                bound: Bound::AtMost(limit),
            })
        };
        let rate = |name: &str| {
            Some(Bar {
                what: format!("{name}, MB a second"),
                value: self.figure(name)?.rate()?,
                bound: Bound::AtLeast(FILE_RATE),
            })
        };
        let of = |name| self.figure(name).map(Figure::median_ms);
        let to_plain = of(IN_SUPERVISOR).zip(of(PLAIN)).map(|(inside, plain)| Bar {
            what: "command in a live sandbox, in its supervisor, to a plain start".to_owned(),
            value: inside / plain,
            bound: Bound::AtMost(COMMAND_TO_PLAIN),
        });
        let failures: u32 = self.figures.iter().map(|figure| figure.failures).sum();
        let memory = self.footprints.last().map(|last| Bar {
            what: format!("the daemon with {} sandboxes, MB", last.sandboxes),
            value: megabytes(last.daemon_kib),
            bound: Bound::AtMost(DAEMON_MB),
        });
        [
            most("create and first command, warm", WARM_MS),
            most("create and first command, cold", COLD_MS),
            most("burst, warm", BURST_MS),
            Some(Bar {
                what: "failures".to_owned(),
                value: f64::from(failures),
                bound: Bound::AtMost(0.0),
            }),
            most("command in a live sandbox", COMMAND_MS),
            to_plain,
            most("resume", RESUME_MS),
            rate("upload of 1 GB"),
            rate("download of 1 GB"),
            memory,
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(f, "\n{:<50}{:>10}{:>10}  ms", "", "median", "p95")?;
        for figure in &self.figures {
            let (median, p95) = (figure.median_ms(), milliseconds(figure.ns.p95));
            write!(f, "{:<50}{median:>10.2}{p95:>10.2}", figure.name)?;
            if let Some(rate) = figure.rate().filter(|_| figure.bytes >= Some(1_000_000)) {
                write!(f, "  {rate:.0} MB/s")?;
            }
            if figure.failures > 0 {
                write!(f, "  {} failed", figure.failures)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "\n{:>10}{:>12}{:>14}  KiB", "sandboxes", "daemon", "machine, each")?;
        for footprint in &self.footprints {
            let each = footprint.machine_kib / u64::try_from(footprint.sandboxes.max(1)).unwrap_or(1);
            write!(f, "{:>10}{:>12}{each:>14}", footprint.sandboxes, footprint.daemon_kib)?;
            if let Some(failed) = &footprint.failed {
                write!(f, "  of {}: {failed}", footprint.asked)?;
            }
            writeln!(f)?;
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

    #[test]
    fn every_bar_is_about_something_that_is_measured() {
        let names = [
            "create and first command, warm",
            "create and first command, cold",
            "burst, warm",
            "command in a live sandbox",
            IN_SUPERVISOR,
            PLAIN,
        ];
        let mut figures: Vec<Figure> = names.iter().map(|name| Figure::of(name, vec![1_000_000])).collect();
        for way in ["upload", "download"] {
            figures.push(Figure::of_bytes(way, "1 GB", 1_000_000_000, vec![1_000_000_000]));
        }
        let report = Report {
            machine: Machine::this(),
            rounds: 1,
            figures,
            footprints: vec![Footprint {
                sandboxes: 1000,
                asked: 1000,
                daemon_kib: 50_000,
                machine_kib: 1_000_000,
                empty_kib: 10_000,
                failed: None,
            }],
            skipped: vec![],
        };
        let bars = report.bars();
        assert_eq!(bars.len(), 9, "{bars:?}");
        assert!(bars.iter().all(Bar::is_met), "{bars:?}");
    }
}
