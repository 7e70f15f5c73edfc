//! `cargo xtask bench start`: what the start of a sandbox costs, beside a plain process and the reference tools. The
//! other benchmarks are below and share its report and its way to measure.
//!
//! Everything is interleaved in one run, because absolute times move with the machine and its load and only ratios
//! carry over. A benchmark and never a test: nothing here fails because a machine is slow.

mod api;
mod browser;
mod contender;
mod egress;
mod helper;
mod interpreter;
mod levels;
mod memory;
mod monitoring;
mod processes;
mod report;
mod sample;
mod simulated;
mod storage;
mod throughput;
mod work;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::TaskError;
use crate::program::{self, cargo, workspace_root};
use contender::{Arena, Contender, Workload};
use report::{Machine, Report, Skipped, Timing};
use sample::{Sample, Series};

pub(crate) use api::{ApiOptions, run as run_api};
pub(crate) use browser::{BrowserOptions, run as run_browser};
pub(crate) use egress::{EgressOptions, Part, run as run_egress, take_part};
pub(crate) use helper::serve as serve_helper;
pub(crate) use interpreter::{InterpreterOptions, run as run_interpreter};
pub(crate) use levels::{LevelsOptions, run as run_levels};
pub(crate) use monitoring::{MonitoringOptions, run as run_monitoring};
pub(crate) use simulated::{SimulatedOptions, run as run_simulated};
pub(crate) use storage::{StorageOptions, run as run_storage};
pub(crate) use work::{WorkOptions, run as run_work};

/// Options of `cargo xtask bench start`.
#[derive(Debug, clap::Args)]
pub(crate) struct StartOptions {
    /// How often each command is run
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release does not build or a contender fails in the middle. One that cannot run here at all is skipped.
pub(crate) fn run(options: &StartOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let arena = Arena::new(binary)?;
    let (mut contenders, skipped) = contenders_that_work(&arena)?;

    let mut timings = Vec::new();
    for workload in [Workload::True, Workload::Python] {
        eprintln!("── {}, {} rounds", workload.name(), options.rounds);
        timings.extend(measure(&arena, &mut contenders, workload, options.rounds)?);
    }
    let throughput = throughput::measure(&arena, &contenders)?;
    let memory = memory::measure(&arena, &contenders)?;

    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        timings,
        throughput,
        memory,
        skipped,
    };
    print!("{report}");
    if let Some(path) = &options.json {
        write_json(&report, path)?;
    }
    Ok(())
}

/// The offleash to measure: the one that was named, or one that is built now.
fn released(named: Option<&Path>) -> Result<PathBuf, TaskError> {
    match named {
        Some(path) => path.canonicalize().map_err(TaskError::file("finding", path)),
        None => build_release(),
    }
}

/// Builds the released form of `offleash` and says where it is.
fn build_release() -> Result<PathBuf, TaskError> {
    let mut command = cargo();
    command.args([
        "build",
        "--release",
        "--package",
        "offleash",
        "--message-format=json-render-diagnostics",
    ]);
    command
        .current_dir(workspace_root())
        .stderr(std::process::Stdio::inherit());
    let output = command.output().map_err(TaskError::start("cargo"))?;
    if !output.status.success() {
        let command = program::command_line(&command);
        return Err(TaskError::Ended {
            command,
            status: output.status.to_string(),
            stderr: String::new(),
        });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut executables = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "offleash").then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    executables.next_back().ok_or_else(|| TaskError::Answer {
        from: "cargo",
        why: "no program `offleash`".to_owned(),
    })
}

/// Runs every contender once; those that cannot run here are skipped with their reason, except ours.
fn contenders_that_work(arena: &Arena) -> Result<(Vec<Contender>, Vec<Skipped>), TaskError> {
    let mut working = Vec::new();
    let mut skipped = Vec::new();
    for contender in Contender::all(arena) {
        let (name, tried) = match contender {
            Ok(mut contender) => (contender.name, contender.check(arena).map(|()| working.push(contender))),
            Err((name, error)) => (name, Err(error)),
        };
        match tried {
            Ok(()) => {}
            Err(error) if name == contender::OFFLEASH => return Err(error),
            Err(error) => skipped.push(Skipped::because(name, &error)),
        }
    }
    Ok((working, skipped))
}

/// Runs `workload` in every contender, `rounds` times, each round in another order: whoever comes after a contender
/// that leaves work behind (the teardown of a network namespace takes tens of milliseconds) pays a part of it.
fn measure(
    arena: &Arena,
    contenders: &mut [Contender],
    workload: Workload,
    rounds: u32,
) -> Result<Vec<Timing>, TaskError> {
    let mut contenders: Vec<_> = contenders
        .iter_mut()
        .filter(|contender| contender.runs(workload))
        .collect();
    let mut series: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut shuffle = Shuffle::new();
    for _ in 0..rounds {
        for index in shuffle.order(contenders.len()) {
            series[index].push(contenders[index].sample(arena, workload)?);
        }
    }
    let timing = |(contender, samples): (&&mut Contender, Vec<Sample>)| Timing {
        contender: contender.name,
        workload: workload.name(),
        wall_us: Series::of(samples.iter().map(|sample| sample.wall_us)),
        cpu_us: Series::of(samples.iter().map(|sample| sample.cpu_us)),
    };
    Ok(contenders.iter().zip(series).map(timing).collect())
}

/// A generator of orders, the same ones in every run (xorshift64).
#[derive(Debug)]
struct Shuffle(u64);

impl Shuffle {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        order.sort_by_cached_key(|_| self.next());
        order
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn write_json(report: &impl serde::Serialize, path: &Path) -> Result<(), TaskError> {
    let mut text = serde_json::to_string_pretty(report).map_err(|error| TaskError::Answer {
        from: "the report",
        why: error.to_string(),
    })?;
    text.push('\n');
    fs::write(path, text).map_err(TaskError::file("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_holds_each_contender_once_and_orders_differ() {
        let mut shuffle = Shuffle(1);
        let orders: Vec<_> = (0..20).map(|_| shuffle.order(4)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        assert!(orders.iter().any(|order| order != &orders[0]));
    }
}
