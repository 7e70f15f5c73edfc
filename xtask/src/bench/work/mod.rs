//! `cargo xtask bench work`: what real work takes in a sandbox, beside the same work without one and in bubblewrap.
//!
//! Whole runs, the start and the end of the sandbox included. Each job lies in a directory that everybody works in by turns;
//! what one run did to it is undone before the next, untimed, and written to the disk, so that nobody pays for another's writes.

mod contenders;
mod jobs;
mod report;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contender::{Arena, OFFLEASH};
use super::report::{Machine, Skipped};
use super::sample::{CommandLine, Sample, Series};
use super::{Shuffle, released, write_json};
use crate::error::TaskError;
use crate::program;
use contenders::{Contender, WRITTEN_BACK};
use jobs::{JOBS, Job, PRELUDE};
use report::{Report, Timing};

/// Options of `cargo xtask bench work`.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkOptions {
    /// How often each job is done
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Do these jobs alone: git-status, npm-install, pip-install, cargo-build, renames, forks, tar
    #[arg(long, value_name = "JOB", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave out mode rw, whose writing back of many files takes long
    #[arg(long)]
    overlay_only: bool,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds, prepares, measures, prints.
///
/// # Errors
/// When the release does not build, or one of our runs fails. What this machine lacks for a job is skipped.
pub(crate) fn run(options: &WorkOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let arena = Arena::new(binary)?;
    let bench = Bench {
        rust: rust_toolchain()?,
        arena,
    };
    let is_wanted = |job: &&Job| options.only.is_empty() || options.only.iter().any(|name| name == job.name);
    let (mut timings, mut skipped) = (Vec::new(), Vec::new());
    for job in JOBS.iter().filter(is_wanted) {
        eprintln!("── {}, {} rounds", job.name, options.rounds);
        match bench.prepare(job) {
            Ok(()) => timings.extend(bench.measure(job, options, &mut skipped)?),
            Err(error) => skipped.push(Skipped::because(job.name, &error)),
        }
    }
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        timings,
        skipped,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

/// Where the toolchain is that runs this; what `rustup` puts in front of it cannot be used in a sandbox.
fn rust_toolchain() -> Result<PathBuf, TaskError> {
    let mut command = Command::new("rustc");
    let output = command.args(["--print", "sysroot"]).output();
    let output = output.map_err(TaskError::start("rustc"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Where everything is.
struct Bench {
    arena: Arena,
    rust: PathBuf,
}

impl Bench {
    fn directory(&self, job: &Job) -> PathBuf {
        self.arena.path(job.name)
    }

    fn prepare(&self, job: &Job) -> Result<(), TaskError> {
        let directory = self.directory(job);
        fs::create_dir(&directory).map_err(TaskError::file("creating", &directory))?;
        for name in job.needs {
            if program::find(name).is_none() {
                return Err(TaskError::start(*name)(std::io::ErrorKind::NotFound.into()));
            }
        }
        self.outside(job, job.prepare).check()
    }

    /// A script in the job's directory, without a sandbox.
    fn outside(&self, job: &Job, script: &str) -> CommandLine {
        self.command(job, Vec::new(), script)
    }

    /// The same behind the words of a contender.
    fn command(&self, job: &Job, mut words: Vec<OsString>, script: &str) -> CommandLine {
        let script = format!("{PRELUDE}RUST='{}'\n{script}", self.rust.display());
        words.extend(["/bin/sh".into(), "-c".into(), script.into()]);
        CommandLine {
            directory: self.directory(job),
            ..self.arena.command(words)
        }
    }

    /// Does `job` in every contender so many times, each round in another order.
    fn measure(&self, job: &Job, options: &WorkOptions, skipped: &mut Vec<Skipped>) -> Result<Vec<Timing>, TaskError> {
        let mut contenders = Vec::new();
        let all = contenders::all(&self.arena, &self.directory(job), &self.rust);
        let is_wanted = |name: &str| !options.overlay_only || name != WRITTEN_BACK;
        let name_of = |tried: &Result<Contender, (&'static str, TaskError)>| match tried {
            Ok(contender) => contender.name,
            Err((name, _)) => name,
        };
        for contender in all.into_iter().filter(|tried| is_wanted(name_of(tried))) {
            // Once untimed, with what it says if it fails.
            let tried = contender.and_then(|contender| {
                let checked = self.command(job, contender.words.clone(), job.run).check();
                match self.reset(job).and(checked) {
                    Ok(()) => Ok(contender),
                    Err(error) => Err((contender.name, error)),
                }
            });
            match tried {
                Ok(contender) => contenders.push(contender),
                Err((OFFLEASH, error)) => return Err(error),
                Err((name, error)) => skipped.push(Skipped::because(name, &error)),
            }
        }
        let mut series: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
        let mut shuffle = Shuffle::new();
        for _ in 0..options.rounds {
            for index in shuffle.order(contenders.len()) {
                series[index].push(self.sample(job, &contenders[index])?);
            }
        }
        let timing = |(contender, samples): (&Contender, Vec<Sample>)| Timing {
            job: job.name,
            contender: contender.name,
            wall_us: Series::of(samples.iter().map(|sample| sample.wall_us)),
            cpu_us: Series::of(samples.iter().map(|sample| sample.cpu_us)),
        };
        let timings: Vec<_> = contenders.iter().zip(series).map(timing).collect();
        for timing in &timings {
            eprintln!(
                "   {:<14}{:>10} µs, {:>10} µs of CPU",
                timing.contender, timing.wall_us.median, timing.cpu_us.median
            );
        }
        Ok(timings)
    }

    fn sample(&self, job: &Job, contender: &Contender) -> Result<Sample, TaskError> {
        let sample = self.command(job, contender.words.clone(), job.run).sample()?;
        self.reset(job)?;
        Ok(sample)
    }

    /// Makes the directory what it was, throws away what was kept of runs, and waits for the disk.
    fn reset(&self, job: &Job) -> Result<(), TaskError> {
        self.outside(job, job.reset).check()?;
        self.arena.discard_runs()?;
        sync(&self.arena.path("workspace"))
    }
}

fn sync(directory: &Path) -> Result<(), TaskError> {
    let opened = fs::File::open(directory).map_err(TaskError::file("opening", directory))?;
    rustix::fs::syncfs(opened).map_err(|error| TaskError::file("writing back", directory)(error.into()))
}
