//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;

use serde::Serialize;

use crate::bench::report::{Bar, Bound, Machine, Skipped, write_skipped};
use crate::bench::sample::{Series, milliseconds};

pub(super) const PULL: &str = "pull and unpack";
pub(super) const PODMAN: &str = "pull by podman";
pub(super) const OF_BASE: &str = "create from the base";
pub(super) const OF_IMAGE: &str = "create from an image";
pub(super) const REBUILD: &str = "unchanged build of ten steps";
pub(super) const BURST_OF_SNAPSHOT: &str = "ten sandboxes of one snapshot";

/// Our pull and unpacking, to podman's.
const PULL_TO_PODMAN: f64 = 0.7;
/// A create from an image, to one from the base.
const IMAGE_TO_BASE: f64 = 1.1;
const REBUILD_MS: f64 = 500.0;
const CHECKPOINT_MS: f64 = 50.0;
const RESTORE_MS: f64 = 50.0;
const BURST_MS: f64 = 200.0;

/// A sandbox that is kept and put back, and what its figures are called.
#[derive(Debug)]
pub(super) struct Size {
    pub(super) name: &'static str,
    pub(super) is_large: bool,
    pub(super) first: &'static str,
    pub(super) later: &'static str,
    pub(super) restore: &'static str,
}

pub(super) const ORDINARY: &Size = &Size {
    name: "ordinary",
    is_large: false,
    first: "first checkpoint, one file",
    later: "checkpoint, one file",
    restore: "restore, one file",
};
pub(super) const LARGE: &Size = &Size {
    name: "large",
    is_large: true,
    first: "first checkpoint, 2 GB in 20,000 files",
    later: "checkpoint, 2 GB, one file changed",
    restore: "restore, 2 GB",
};

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often most things were done.
    pub(super) rounds: u32,
    /// Times.
    pub(super) figures: Vec<Figure>,
    /// What could not be measured.
    pub(super) skipped: Vec<Skipped>,
}

/// What one thing took.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    name: &'static str,
    times: usize,
    ns: Series,
}

impl Figure {
    pub(super) fn of(name: &'static str, times: Vec<u64>) -> Self {
        Self {
            name,
            times: times.len(),
            ns: Series::of(times.into_iter()),
        }
    }
}

impl Report {
    fn median_ms(&self, name: &str) -> Option<f64> {
        let figure = self.figures.iter().find(|figure| figure.name == name)?;
        Some(milliseconds(figure.ns.median))
    }

    /// The bars whose sides were measured.
    fn bars(&self) -> Vec<Bar> {
        let ratio = |ours: &str, theirs: &str, limit| {
            Some(Bar {
                what: format!("{ours}, to {theirs}"),
                value: self.median_ms(ours)? / self.median_ms(theirs)?,
                bound: Bound::AtMost(limit),
            })
        };
        let most = |name: &str, limit| {
            Some(Bar {
                what: format!("{name}, median, ms"),
                value: self.median_ms(name)?,
                bound: Bound::AtMost(limit),
            })
        };
        let of_size = |size: &Size| {
            [
                most(size.first, CHECKPOINT_MS),
                most(size.later, CHECKPOINT_MS),
                most(size.restore, RESTORE_MS),
            ]
        };
        [
            ratio(PULL, PODMAN, PULL_TO_PODMAN),
            ratio(OF_IMAGE, OF_BASE, IMAGE_TO_BASE),
            most(REBUILD, REBUILD_MS),
        ]
        .into_iter()
        .chain(of_size(ORDINARY))
        .chain(of_size(LARGE))
        .chain([most(BURST_OF_SNAPSHOT, BURST_MS)])
        .flatten()
        .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(f, "\n{:<45}{:>8}{:>12}{:>12}  ms", "", "times", "median", "p95")?;
        for figure in &self.figures {
            let (median, p95) = (milliseconds(figure.ns.median), milliseconds(figure.ns.p95));
            writeln!(f, "{:<45}{:>8}{median:>12.2}{p95:>12.2}", figure.name, figure.times)?;
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
            PULL,
            PODMAN,
            OF_BASE,
            OF_IMAGE,
            REBUILD,
            BURST_OF_SNAPSHOT,
            ORDINARY.first,
            ORDINARY.later,
            ORDINARY.restore,
            LARGE.first,
            LARGE.later,
            LARGE.restore,
        ];
        let report = Report {
            machine: Machine::this(),
            rounds: 1,
            figures: names.map(|name| Figure::of(name, vec![1_000_000])).into(),
            skipped: vec![],
        };
        let bars = report.bars();
        assert_eq!(bars.len(), 10, "{bars:?}");
    }
}
