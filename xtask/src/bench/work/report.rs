//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;

use serde::Serialize;

use super::contenders::WRITTEN_BACK;
use super::jobs::JOBS;
use crate::bench::contender::{BUBBLEWRAP, OFFLEASH, PLAIN};
use crate::bench::report::{Bar, Bound, Machine, Skipped, milliseconds, number, write_skipped};
use crate::bench::sample::Series;

/// Half of the jobs take at most this many times what they take without a sandbox.
const HALF: f64 = 1.10;
/// And no job takes more than this many times that,
const ANY: f64 = 1.3;
/// nor more than this many times what it takes in bubblewrap.
const TO_BUBBLEWRAP: f64 = 1.10;

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often each job was done.
    pub(super) rounds: u32,
    /// What each took.
    pub(super) timings: Vec<Timing>,
    /// Who or what could not take part.
    pub(super) skipped: Vec<Skipped>,
}

/// The times of one contender with one job.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    /// What was done.
    pub(super) job: &'static str,
    /// Who did it.
    pub(super) contender: &'static str,
    /// From start to end, µs.
    pub(super) wall_us: Series,
    /// User and system time, µs.
    pub(super) cpu_us: Series,
}

impl Report {
    fn median(&self, job: &str, contender: &str) -> Option<f64> {
        let mut timings = self.timings.iter();
        let found = timings.find(|timing| timing.job == job && timing.contender == contender);
        found.map(|timing| number(timing.wall_us.median))
    }

    fn ratio(&self, job: &str, ours: &str, theirs: &str) -> Option<f64> {
        Some(self.median(job, ours)? / self.median(job, theirs)?)
    }

    /// The bars whose both sides were measured, of one of our modes.
    fn bars(&self, ours: &'static str) -> Vec<Bar> {
        let to = |theirs: &'static str| {
            let ratios = JOBS
                .iter()
                .filter_map(move |job| Some((job.name, self.ratio(job.name, ours, theirs)?)));
            ratios.collect::<Vec<_>>()
        };
        let each = |theirs, most| {
            let bar = move |(job, value)| Bar {
                what: format!("{job}, {ours} to {theirs}"),
                value,
                bound: Bound::AtMost(most),
            };
            to(theirs).into_iter().map(bar)
        };
        let mut ratios: Vec<_> = to(PLAIN).into_iter().map(|(_, ratio)| ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let half = ratios.get(ratios.len() / 2).map(|&value| Bar {
            what: format!("the median of all jobs, {ours} to {PLAIN}"),
            value,
            bound: Bound::AtMost(HALF),
        });
        let bars = half.into_iter().chain(each(PLAIN, ANY));
        bars.chain(each(BUBBLEWRAP, TO_BUBBLEWRAP)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(
            f,
            "\n{:<14}{:<14}{:>10}{:>10}{:>10}{:>10}  ms{:>10}",
            "", "", "wall", "p95", "CPU", "p95", "to plain"
        )?;
        for timing in &self.timings {
            let Timing {
                job,
                contender,
                wall_us,
                cpu_us,
            } = timing;
            write!(f, "{job:<14}{contender:<14}")?;
            for micros in [wall_us.median, wall_us.p95, cpu_us.median, cpu_us.p95] {
                write!(f, "{:>10.1}", milliseconds(micros))?;
            }
            match self.ratio(job, contender, PLAIN) {
                Some(ratio) => writeln!(f, "    {ratio:>10.2}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(f)?;
        for ours in [OFFLEASH, WRITTEN_BACK] {
            for bar in self.bars(ours) {
                writeln!(f, "{bar}")?;
            }
        }
        write_skipped(f, &self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(timings: &[(&'static str, &'static str, u64)]) -> Report {
        let timing = |&(job, contender, median)| {
            let series = Series { median, p95: median };
            Timing {
                job,
                contender,
                wall_us: series,
                cpu_us: series,
            }
        };
        Report {
            machine: Machine::this(),
            rounds: 1,
            timings: timings.iter().map(timing).collect(),
            skipped: vec![],
        }
    }

    #[test]
    fn each_job_is_held_against_plain_and_bubblewrap_and_all_against_their_median() {
        let report = report(&[
            ("forks", PLAIN, 100),
            ("forks", BUBBLEWRAP, 110),
            ("forks", OFFLEASH, 120),
            ("tar", PLAIN, 100),
            ("tar", OFFLEASH, 140),
            ("renames", PLAIN, 100),
            ("renames", OFFLEASH, 105),
        ]);
        let said: Vec<_> = report.bars(OFFLEASH).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "MISSED  the median of all jobs, offleash to plain: 1.20 ≤ 1.1",
                "met     renames, offleash to plain: 1.05 ≤ 1.3",
                "met     forks, offleash to plain: 1.20 ≤ 1.3",
                "MISSED  tar, offleash to plain: 1.40 ≤ 1.3",
                "met     forks, offleash to bwrap: 1.09 ≤ 1.1",
            ]
        );
        assert!(report.bars(WRITTEN_BACK).is_empty());
    }
}
