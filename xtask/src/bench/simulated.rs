//! `cargo xtask bench simulated`: what a command of level `simulated` takes from the command line, beside the plain start of bash
//! and the same at level `process`. Whoever is compared takes turns.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::contender::Arena;
use super::report::{Machine, milliseconds};
use super::sample::{CommandLine, Sample, Series};
use super::{Shuffle, released, write_json};
use crate::error::TaskError;

/// What is run, and how it is named.
const SCRIPTS: [(&str, &str); 7] = [
    ("echo hi", "echo hi"),
    ("a pipeline", "seq 1000 | grep 7 | sort -r | head -3"),
    ("a loop", "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done; echo $i"),
    ("grep, 10 MB", "grep -c 77 data"),
    ("awk, 10 MB", "awk '{ n += $2 } END { print n }' data"),
    ("sort, 10 MB", "sort data | tail -n 1"),
    ("Python", "python3 -c 'import json, re, csv; print(1)'"),
];
/// How many lines of 20 bytes the file `data` has.
const LINES: u32 = 500_000;
/// Who runs it.
const CONTENDERS: [&str; 3] = ["bash", "simulated", "process"];

/// Options of `cargo xtask bench simulated`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulatedOptions {
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

#[derive(Debug, serde::Serialize)]
struct Figure {
    script: &'static str,
    contender: &'static str,
    wall_us: Series,
    cpu_us: Series,
}

#[derive(Debug, serde::Serialize)]
struct Report {
    machine: Machine,
    rounds: u32,
    figures: Vec<Figure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(f, "\n{:<14}{:<12}{:>10}{:>10}{:>10}  ms", "", "", "wall", "p95", "CPU")?;
        for figure in &self.figures {
            write!(f, "{:<14}{:<12}", figure.script, figure.contender)?;
            for micros in [figure.wall_us.median, figure.wall_us.p95, figure.cpu_us.median] {
                write!(f, "{:>10.2}", milliseconds(micros))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release does not build or a command fails.
pub(crate) fn run(options: &SimulatedOptions) -> Result<(), TaskError> {
    let arena = Arena::new(released(options.binary.as_deref())?)?;
    let data = arena.path("workspace").join("data");
    // In no order, and the same each time.
    let lines: String = (0..LINES)
        .map(|line| format!("{:08} {:010}\n", line.wrapping_mul(40_503) % LINES, line))
        .collect();
    fs::write(&data, lines).map_err(TaskError::file("writing", &data))?;
    let mut figures = Vec::new();
    for (name, script) in SCRIPTS {
        let lines = CONTENDERS.map(|contender| command(&arena, contender, script));
        lines.iter().try_for_each(CommandLine::check)?;
        let mut series: [Vec<Sample>; CONTENDERS.len()] = Default::default();
        let mut shuffle = Shuffle::new();
        for _ in 0..options.rounds {
            for index in shuffle.order(lines.len()) {
                series[index].push(lines[index].sample()?);
            }
        }
        for (contender, samples) in CONTENDERS.into_iter().zip(series) {
            figures.push(Figure {
                script: name,
                contender,
                wall_us: Series::of(samples.iter().map(|sample| sample.wall_us)),
                cpu_us: Series::of(samples.iter().map(|sample| sample.cpu_us)),
            });
        }
    }
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        figures,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

fn command(arena: &Arena, contender: &str, script: &str) -> CommandLine {
    let mut arguments: Vec<std::ffi::OsString> = Vec::new();
    if contender != "bash" {
        arguments.push(arena.binary().into());
        arguments.extend(["run", "--quiet", "--level", contender, "--"].map(Into::into));
    }
    arguments.extend(["/bin/bash", "-c", script].map(Into::into));
    CommandLine {
        arguments,
        environment: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("HOME".into(), arena.path("home").into()),
            ("OFFLEASH_STATE".into(), arena.path("state").into()),
        ],
        directory: arena.path("workspace"),
    }
}
