//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::bench::report::{Bar, Bound, Machine, Skipped, write_skipped};
use crate::bench::sample::{Series, megabytes, milliseconds};

/// The first cell with pandas in a sandbox that waited, median, ms.
const WAITING_MS: f64 = 3.0;
/// Create and first cell with pandas in a sandbox that is made for it, median, ms.
const REQUEST_MS: f64 = 10.0;
/// `1+1` in a context that lives, median, ms.
const CELL_MS: f64 = 2.0;
/// What a sandbox with pandas holds alone, more than one without, MB.
const MEMORY_MB: f64 = 3.0;
/// A hundred at once, from the first to the last, s.
const AT_ONCE_S: f64 = 1.0;

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often sandboxes were made one after another.
    pub(super) rounds: u32,
    /// Times.
    pub(super) figures: Vec<Figure>,
    /// What each sandbox holds; absent where that cannot be read.
    pub(super) memory: Option<Memory>,
    /// Many at once, in each way.
    pub(super) at_once: Vec<AtOnce>,
    /// What could not be measured.
    pub(super) skipped: Vec<Skipped>,
}

/// What one thing took.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    /// What was done.
    pub(super) name: String,
    /// What it took, ns.
    pub(super) ns: Series,
}

/// Private memory, medians, KiB.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    /// How many with pandas were looked at.
    pub(super) sandboxes: usize,
    /// A sandbox that waits with pandas imported.
    pub(super) ready_kib: u64,
    /// One that waits without an interpreter.
    pub(super) plain_kib: u64,
}

/// Many sandboxes at once, each with its first cell.
#[derive(Debug, Serialize)]
pub(super) struct AtOnce {
    /// Whether they waited.
    pub(super) way: &'static str,
    /// How many.
    pub(super) sandboxes: usize,
    /// From the first to the last, ns.
    pub(super) total_ns: u64,
    /// Each of them, ns.
    pub(super) each: Series,
    /// What each holds after its cell, where that was looked at.
    pub(super) memory: Option<Memory>,
    /// How many failed.
    pub(super) failures: u32,
}

impl Figure {
    pub(super) fn of(name: String, times: Vec<u64>) -> Self {
        let ns = Series::of(times.into_iter());
        Self { name, ns }
    }
}

impl Memory {
    pub(super) fn of(plain: &[u64], ready: &[u64]) -> Self {
        Self {
            sandboxes: ready.len(),
            ready_kib: Series::of(ready.iter().copied()).median,
            plain_kib: Series::of(plain.iter().copied()).median,
        }
    }

    fn extra_mb(&self) -> f64 {
        megabytes(self.ready_kib.saturating_sub(self.plain_kib))
    }
}

impl Report {
    /// The bars whose sides were measured.
    fn bars(&self) -> Vec<Bar> {
        let most = |name: &str, limit| {
            let figure = self.figures.iter().find(|figure| figure.name == name)?;
            Some(Bar {
                what: format!("{name}, median, ms"),
                value: milliseconds(figure.ns.median),
                bound: Bound::AtMost(limit),
            })
        };
        let memory = self.memory.as_ref().map(|memory| Bar {
            what: "private memory, more than without an interpreter, MB".to_owned(),
            value: memory.extra_mb(),
            bound: Bound::AtMost(MEMORY_MB),
        });
        let at_once = self.at_once.iter().map(|many| Bar {
            what: format!("{} at once, {}, s", many.sandboxes, many.way),
            value: Duration::from_nanos(many.total_ns).as_secs_f64(),
            bound: Bound::AtMost(AT_ONCE_S),
        });
        let held = self.at_once.iter().filter_map(|many| {
            Some(Bar {
                what: format!("private memory more after the first cell, {}, MB", many.way),
                value: many.memory.as_ref()?.extra_mb(),
                bound: Bound::AtMost(MEMORY_MB),
            })
        });
        let times = [
            most("first cell, waiting", WAITING_MS),
            most("create and first cell, waiting", WAITING_MS),
            most(
                "create and first cell, copied on request into one that waited",
                REQUEST_MS,
            ),
            most("create and first cell, copied on request", REQUEST_MS),
            most("1+1", CELL_MS),
            memory,
        ];
        times.into_iter().flatten().chain(at_once).chain(held).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(f, "\n{:<64}{:>10}{:>10}  ms", "", "median", "p95")?;
        for Figure { name, ns } in &self.figures {
            let (median, p95) = (milliseconds(ns.median), milliseconds(ns.p95));
            writeln!(f, "{name:<64}{median:>10.2}{p95:>10.2}")?;
        }
        for many in &self.at_once {
            let AtOnce {
                way, each, failures, ..
            } = many;
            let (median, p95) = (milliseconds(each.median), milliseconds(each.p95));
            let name = format!("each of those at once, {way}");
            writeln!(f, "{name:<64}{median:>10.2}{p95:>10.2}  {failures} failed")?;
        }
        if let Some(memory) = &self.memory {
            let Memory {
                sandboxes,
                ready_kib,
                plain_kib,
            } = memory;
            writeln!(
                f,
                "\nprivate memory, median of {sandboxes}: {ready_kib} KiB; without an interpreter {plain_kib} KiB"
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

    #[test]
    fn every_bar_is_about_something_that_is_measured() {
        let names = [
            "first cell, waiting",
            "create and first cell, waiting",
            "create and first cell, copied on request into one that waited",
            "create and first cell, copied on request",
            "1+1",
        ];
        let many = |way, memory| AtOnce {
            way,
            sandboxes: 100,
            total_ns: 500_000_000,
            each: Series::of([1_000_000].into_iter()),
            memory,
            failures: 0,
        };
        let report = Report {
            machine: Machine::this(),
            rounds: 1,
            figures: names.map(|name| Figure::of(name.to_owned(), vec![1_000_000])).into(),
            memory: Some(Memory::of(&[1000], &[3000])),
            at_once: vec![
                many("waiting", None),
                many("copied on request", Some(Memory::of(&[1000], &[3000]))),
            ],
            skipped: vec![],
        };
        let bars = report.bars();
        assert_eq!(bars.len(), 9, "{bars:?}");
        assert!(bars.iter().all(Bar::is_met), "{bars:?}");
    }
}
