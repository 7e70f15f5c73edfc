//! What was measured, for people and as JSON, and how it stands against the bars.

use std::fmt;
use std::fs;

use serde::Serialize;

use super::contender::{BUBBLEWRAP, OFFLEASH, PLAIN, PYTHON, WARM, Workload};
use super::memory::Memory;
use super::sample::Series;
use super::throughput::Throughput;
use crate::error::TaskError;

/// Our median wall time for `true` is at most this share of bubblewrap's.
const WALL_TO_BUBBLEWRAP: f64 = 0.65;
/// Our median wall time for a Python program is at most this many times that without a sandbox.
const PYTHON_TO_PLAIN: f64 = 1.3;
/// At the concurrency below, we make at least this many times bubblewrap's sandboxes a second.
const THROUGHPUT_TO_BUBBLEWRAP: f64 = 1.8;
const BAR_CONCURRENCY: usize = 8;
/// An idle sandbox holds at most this, its share of the kernel included.
const IDLE_KIB: u32 = 1024;

/// All that one benchmark found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// How often each command ran.
    pub(super) rounds: u32,
    /// Times of single runs.
    pub(super) timings: Vec<Timing>,
    /// Runs a second.
    pub(super) throughput: Vec<Throughput>,
    /// Idle runs.
    pub(super) memory: Vec<Memory>,
    /// Who could not take part.
    pub(super) skipped: Vec<Skipped>,
}

/// What the figures depend on.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    kernel: String,
    cpus: usize,
    user: &'static str,
}

impl Machine {
    /// The machine and the user of this process.
    pub(super) fn this() -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            kernel,
            cpus,
            user: if crate::program::is_root() {
                "root"
            } else {
                "an ordinary user"
            },
        }
    }

    /// The first line of a report.
    pub(super) fn write_heading(&self, f: &mut fmt::Formatter<'_>, rounds: u32) -> fmt::Result {
        let Self { kernel, cpus, user } = self;
        let load = load();
        writeln!(
            f,
            "\nLinux {kernel}, {cpus} CPUs, as {user}, {rounds} rounds, interleaved; load average {load}"
        )
    }
}

/// The times of one contender with one command.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    /// Who.
    pub(super) contender: &'static str,
    /// What was run.
    pub(super) workload: &'static str,
    /// From start to end, µs.
    pub(super) wall_us: Series,
    /// User and system time, µs.
    pub(super) cpu_us: Series,
}

/// A contender that this machine cannot run.
#[derive(Debug, Serialize)]
pub(super) struct Skipped {
    /// Who.
    pub(super) name: &'static str,
    /// Why not.
    pub(super) reason: String,
}

impl Skipped {
    /// What `error` keeps from being measured.
    pub(super) fn because(name: &'static str, error: &TaskError) -> Self {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let reason = format!("{error}{}", cause.unwrap_or_default());
        Self { name, reason }
    }
}

/// One bar and where we stand.
#[derive(Debug, PartialEq)]
pub(super) struct Bar {
    /// What is compared.
    pub(super) what: String,
    /// What was measured.
    pub(super) value: f64,
    /// What is wanted.
    pub(super) bound: Bound,
}

/// On which side of a bar is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    /// Below it.
    AtMost(f64),
    /// Above it.
    AtLeast(f64),
}

impl Bar {
    pub(super) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.value <= most,
            Bound::AtLeast(least) => self.value >= least,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_met() { "met" } else { "MISSED" };
        let (sign, limit) = match self.bound {
            Bound::AtMost(most) => ("≤", most),
            Bound::AtLeast(least) => ("≥", least),
        };
        write!(f, "{word:<7} {}: {:.2} {sign} {limit}", self.what, self.value)
    }
}

impl Report {
    fn wall(&self, contender: &str, workload: Workload) -> Option<f64> {
        let found = self
            .timings
            .iter()
            .find(|timing| timing.contender == contender && timing.workload == workload.name());
        found.map(|timing| number(timing.wall_us.median))
    }

    fn rate(&self, contender: &str) -> Option<f64> {
        let found = self
            .throughput
            .iter()
            .find(|rate| rate.contender == contender && rate.concurrency == BAR_CONCURRENCY);
        found.map(|rate| rate.per_second)
    }

    /// The bars whose both sides were measured.
    fn bars(&self) -> Vec<Bar> {
        let bar = |what: String, value: Option<f64>, bound| value.map(|value| Bar { what, value, bound });
        let ratio = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
        let idle = self.memory.iter().find(|memory| memory.contender == OFFLEASH);
        let of_true = |ours: &str| {
            let wall = |contender| self.wall(contender, Workload::True);
            bar(
                format!("wall of `true`, median, {ours} to {BUBBLEWRAP}'s"),
                ratio(wall(ours), wall(BUBBLEWRAP)),
                Bound::AtMost(WALL_TO_BUBBLEWRAP),
            )
        };
        let of_python = |ours: &str| {
            let wall = |contender| self.wall(contender, Workload::Python);
            bar(
                format!("wall of python3, median, {ours} to a plain process"),
                ratio(wall(ours), wall(PLAIN)),
                Bound::AtMost(PYTHON_TO_PLAIN),
            )
        };
        [
            of_true(OFFLEASH),
            of_true(WARM),
            of_python(OFFLEASH),
            of_python(WARM),
            of_python(PYTHON),
            bar(
                format!("sandboxes a second, {BAR_CONCURRENCY} at once, to {BUBBLEWRAP}'s"),
                ratio(self.rate(OFFLEASH), self.rate(BUBBLEWRAP)),
                Bound::AtLeast(THROUGHPUT_TO_BUBBLEWRAP),
            ),
            bar(
                "idle sandbox with its command and its share of the kernel, KiB".to_owned(),
                idle.map(|memory| number(memory.processes_kib + memory.kernel_kib)),
                Bound::AtMost(f64::from(IDLE_KIB)),
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// As a floating-point number; what does not fit 32 bits is no time or size of a single run.
pub(super) fn number(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}

pub(super) fn milliseconds(micros: u64) -> f64 {
    number(micros) / 1000.0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(
            f,
            "\n{:<10}{:<16}{:>10}{:>10}{:>10}{:>10}  ms",
            "", "", "wall", "p95", "CPU", "p95"
        )?;
        for timing in &self.timings {
            let Timing {
                contender,
                workload,
                wall_us,
                cpu_us,
            } = timing;
            write!(f, "{workload:<10}{contender:<16}")?;
            for micros in [wall_us.median, wall_us.p95, cpu_us.median, cpu_us.p95] {
                write!(f, "{:>10.2}", milliseconds(micros))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "The CPU time of \"{WARM}\" and \"{PYTHON}\" (that sandbox has a Python that waits, too) is that of the run's own process, \
             without the sandbox that waited."
        )?;
        writeln!(f, "\n{:<10}{:>8}{:>12}", "", "at once", "a second")?;
        for Throughput {
            contender,
            concurrency,
            per_second,
        } in &self.throughput
        {
            writeln!(f, "{contender:<10}{concurrency:>8}{per_second:>12.0}")?;
        }
        self.write_memory(f)?;
        writeln!(f)?;
        for bar in self.bars() {
            writeln!(f, "{bar}")?;
        }
        write_skipped(f, &self.skipped)
    }
}

impl Report {
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<10}{:>11}{:>14}{:>10}  KiB for each idle run",
            "", "processes", "their memory", "kernel"
        )?;
        for memory in &self.memory {
            let Memory {
                contender,
                processes_kib,
                kernel_kib,
                processes,
                upper_bound,
            } = memory;
            let note = if *upper_bound {
                "  (resident, not proportional: run as root to see more)"
            } else {
                ""
            };
            writeln!(
                f,
                "{contender:<10}{processes:>11}{processes_kib:>14}{kernel_kib:>10}{note}"
            )?;
        }
        Ok(())
    }
}

/// Who could not take part, and why.
pub(super) fn write_skipped(f: &mut fmt::Formatter<'_>, skipped: &[Skipped]) -> fmt::Result {
    for Skipped { name, reason } in skipped {
        writeln!(f, "SKIPPED {name}: {}", reason.trim_end())?;
    }
    if !skipped.is_empty() {
        writeln!(f, "{} skipped", skipped.len())?;
    }
    Ok(())
}

/// The load averages, because a loaded machine blurs even ratios.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(contender: &'static str, workload: Workload, median: u64) -> Timing {
        let series = Series { median, p95: median };
        Timing {
            contender,
            workload: workload.name(),
            wall_us: series,
            cpu_us: series,
        }
    }

    fn report(timings: Vec<Timing>) -> Report {
        Report {
            machine: Machine::this(),
            rounds: 1,
            timings,
            throughput: vec![],
            memory: vec![],
            skipped: vec![],
        }
    }

    #[test]
    fn a_bar_is_met_at_its_bound_and_missed_past_it() {
        for (ours, met) in [(650, true), (651, false)] {
            let report = report(vec![
                timing(BUBBLEWRAP, Workload::True, 1000),
                timing(OFFLEASH, Workload::True, ours),
                timing(OFFLEASH, Workload::Python, 1),
            ]);
            let bars = report.bars();
            assert_eq!(bars.len(), 1, "{bars:?}");
            assert_eq!(bars[0].is_met(), met, "{}", bars[0]);
        }
        assert!(
            Bar {
                what: String::new(),
                value: 1.8,
                bound: Bound::AtLeast(1.8)
            }
            .is_met()
        );
    }

    #[test]
    fn a_bar_without_its_reference_is_left_out_and_the_skip_is_said() {
        let mut report = report(vec![timing(OFFLEASH, Workload::True, 1)]);
        report.skipped.push(Skipped {
            name: BUBBLEWRAP,
            reason: "not installed".to_owned(),
        });
        let text = report.to_string();
        assert!(!text.contains("met"), "{text}");
        assert!(text.contains("SKIPPED bwrap: not installed\n1 skipped\n"), "{text}");
    }
}
