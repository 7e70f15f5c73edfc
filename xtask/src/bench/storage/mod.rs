//! `cargo xtask bench storage`: what images, builds, checkpoints and snapshots take, beside podman and a sandbox of the
//! base.
//!
//! Images come from a registry of Debian's on loopback that is started here. They are made of this machine's own files.

mod image;
mod report;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::api::client::{Client, nanoseconds};
use super::api::daemon::Daemon;
use super::report::{Machine, Skipped};
use super::sample::CommandLine;
use super::{Shuffle, released, write_json};
use crate::error::TaskError;
use crate::program;
use image::{IMAGE_NAME, Registry};
use report::{Figure, Report};

/// How long sandboxes live that are forgotten, s.
const LIFETIME: u32 = 1800;
/// Time between creates, for what was ended to go.
const PAUSE: Duration = Duration::from_millis(150);
/// Sandboxes that are made at once of one snapshot.
const BURST: usize = 10;
/// What a large sandbox writes: 20,000 files of 105 KB in 200 directories, 2.1 GB.
const FILL: &str = "mkdir -p /home/user/large && cd /home/user/large && head -c 105000 /dev/urandom > /tmp/one && \
                    i=0; while [ $i -lt 200 ]; do mkdir d$i; j=0; while [ $j -lt 100 ]; do cp /tmp/one d$i/f$j; j=$((j+1)); \
                    done; i=$((i+1)); done";
/// What changes between two checkpoints.
const CHANGE: &str = "date +%s%N > /home/user/large/d7/f7";
/// A build of ten steps.
const DOCKERFILE: &str = "FROM bench\nENV A=1\nWORKDIR /w\nCOPY a /w/a\nRUN echo 1 > one\nRUN echo 2 > two\nRUN echo 3 > three\n\
                          RUN echo 4 > four\nRUN echo 5 > five\nCOPY a /w/b\nRUN echo 6 > six\n";

/// Options of `cargo xtask bench storage`.
#[derive(Debug, clap::Args)]
pub(crate) struct StorageOptions {
    /// How often each thing is done
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Leave out the sandbox of 2 GB
    #[arg(long)]
    small: bool,
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
/// When the release does not build, there is no registry, or one of our commands fails. Without podman it is skipped.
pub(crate) fn run(options: &StorageOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let place = tempfile::tempdir().map_err(TaskError::file("making", "a directory"))?;
    let registry = Registry::start(place.path())?;
    let bench = Bench {
        binary,
        place: place.path().to_owned(),
        rounds: options.rounds,
    };
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    eprintln!("── pulls, {} rounds", options.rounds);
    figures.extend(bench.pulls(&registry, &mut skipped)?);

    let state = tempfile::tempdir().map_err(TaskError::file("making", "a state directory"))?;
    let directory = state.path().to_owned();
    let daemon = Daemon::start_in(
        &bench.binary,
        state,
        "[sandboxes]\nmax = 200\n[pool]\nmin = 0\nmax = 0\n",
    )?;
    bench
        .ours(&directory, &["image", "pull", "--plain-http", "-q", &registry.image()])
        .check()?;
    eprintln!("── creates, {} rounds", options.rounds);
    figures.extend(bench.creates(&daemon, &registry)?);
    eprintln!("── unchanged builds, {} rounds", options.rounds);
    figures.push(bench.builds(&directory, &registry)?);
    eprintln!("── checkpoints and restores, {} rounds", options.rounds);
    figures.extend(bench.checkpoints(&directory, report::ORDINARY, "date > /home/user/some")?);
    if !options.small {
        figures.extend(bench.checkpoints(&directory, report::LARGE, FILL)?);
    }
    eprintln!("── {BURST} of one snapshot, {} rounds", options.rounds);
    figures.push(bench.of_a_snapshot(&directory)?);
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        figures,
        skipped,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

/// What is measured, and where.
struct Bench {
    binary: PathBuf,
    place: PathBuf,
    rounds: u32,
}

impl Bench {
    fn command(&self, words: impl IntoIterator<Item = OsString>) -> CommandLine {
        let kept = ["PATH", "HOME"].map(|name| (name.into(), std::env::var_os(name).unwrap_or_default()));
        CommandLine {
            arguments: words.into_iter().collect(),
            environment: kept.into(),
            directory: self.place.clone(),
        }
    }

    /// A command of ours over a state directory.
    fn ours(&self, state: &Path, words: &[&str]) -> CommandLine {
        let mut line = self.command([self.binary.clone().into_os_string()]);
        line.arguments.extend(words.iter().map(OsString::from));
        line.environment.push(("OFFLEASH_STATE".into(), state.into()));
        line
    }

    /// A script in a sandbox.
    fn inside(&self, state: &Path, name: &str, script: &str) -> CommandLine {
        self.ours(state, &["exec", name, "--", "/bin/sh", "-c", script])
    }

    /// Times of one command, by the clock, ns.
    fn timed(line: &CommandLine) -> Result<u64, TaskError> {
        Ok(line.sample()?.wall_us.saturating_mul(1000))
    }

    /// A pull into an empty store and its unpacking, by us and by podman in turn.
    fn pulls(&self, registry: &Registry, skipped: &mut Vec<Skipped>) -> Result<Vec<Figure>, TaskError> {
        let image = registry.image();
        let mut contenders = vec![report::PULL];
        match program::find("podman") {
            Some(_) => contenders.push(report::PODMAN),
            None => skipped.push(Skipped::because(
                report::PODMAN,
                &TaskError::start("podman")(std::io::ErrorKind::NotFound.into()),
            )),
        }
        let mut times: Vec<Vec<u64>> = contenders.iter().map(|_| Vec::new()).collect();
        let mut shuffle = Shuffle::new();
        for round in 0..self.rounds {
            for index in shuffle.order(contenders.len()) {
                // Stores stay until the end: ext4 looks for a place among all that was removed in the last half minute.
                let store = self.place.join(format!("store{index}-{round}"));
                fs::create_dir(&store).map_err(TaskError::file("creating", &store))?;
                let line = match contenders[index] {
                    report::PODMAN => {
                        let (root, run) = (store.join("root"), store.join("run"));
                        self.command(
                            [
                                "podman".into(),
                                "--root".into(),
                                root.into(),
                                "--runroot".into(),
                                run.into(),
                            ]
                            .into_iter()
                            .chain(["pull", "-q", "--tls-verify=false", &image].map(OsString::from)),
                        )
                    }
                    _ => self.ours(&store, &["image", "pull", "--plain-http", "-q", &image]),
                };
                times[index].push(Self::timed(&line)?);
                self.command(["sync".into()]).check()?;
            }
        }
        let figure = |(name, times): (&'static str, Vec<u64>)| Figure::of(name, times);
        Ok(contenders.into_iter().zip(times).map(figure).collect())
    }

    /// A sandbox of the base and one of an image, in turn.
    fn creates(&self, daemon: &Daemon, registry: &Registry) -> Result<Vec<Figure>, TaskError> {
        let mut client = Client::new(daemon.address, &daemon.key)?;
        let image = format!("image:{}", registry.image());
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..self.rounds.saturating_mul(5) {
            for (template, times) in ["base", &image].into_iter().zip(&mut times) {
                let started = std::time::Instant::now();
                let sandbox = client.create_of(template, LIFETIME)?;
                times.push(nanoseconds(started));
                client.kill(&sandbox)?;
                std::thread::sleep(PAUSE);
            }
        }
        let [base, of_image] = times;
        Ok(vec![
            Figure::of(report::OF_BASE, base),
            Figure::of(report::OF_IMAGE, of_image),
        ])
    }

    /// A build of ten steps that were all made before.
    fn builds(&self, state: &Path, registry: &Registry) -> Result<Figure, TaskError> {
        let context = self.place.join("context");
        fs::create_dir(&context).map_err(TaskError::file("creating", &context))?;
        let text = DOCKERFILE.replace(IMAGE_NAME, &registry.image());
        fs::write(context.join("Dockerfile"), text).map_err(TaskError::file("writing", &context))?;
        fs::write(context.join("a"), "a\n").map_err(TaskError::file("writing", &context))?;
        let line = self.ours(
            state,
            &[
                "template",
                "build",
                "-q",
                "--name",
                "ten",
                "--plain-http",
                "-f",
                "context/Dockerfile",
                "context",
            ],
        );
        line.check()?;
        let times: Result<Vec<u64>, TaskError> = (0..self.rounds).map(|_| Self::timed(&line)).collect();
        Ok(Figure::of(report::REBUILD, times?))
    }

    /// The first checkpoint of a sandbox, later ones after a small change, and the way back.
    fn checkpoints(&self, state: &Path, size: &report::Size, fill: &str) -> Result<Vec<Figure>, TaskError> {
        self.ours(
            state,
            &["create", "--name", size.name, "--disk", "8G", "--timeout", "1h"],
        )
        .check()?;
        self.inside(state, size.name, fill).check()?;
        let first = Self::timed(&self.ours(state, &["checkpoint", size.name, "--name", "first"]))?;
        let (mut later, mut restored) = (Vec::new(), Vec::new());
        let change = if size.is_large { CHANGE } else { fill };
        for round in 0..self.rounds {
            self.inside(state, size.name, change).check()?;
            self.command(["sync".into()]).check()?;
            let name = format!("later{round}");
            later.push(Self::timed(
                &self.ours(state, &["checkpoint", size.name, "--name", &name]),
            )?);
            restored.push(Self::timed(
                &self.ours(state, &["restore", size.name, "--checkpoint", &name]),
            )?);
        }
        if !size.is_large {
            self.ours(state, &["snapshot", "create", size.name, "--name", "kept"])
                .check()?;
        }
        self.ours(state, &["stop", size.name]).check()?;
        Ok(vec![
            Figure::of(size.first, vec![first]),
            Figure::of(size.later, later),
            Figure::of(size.restore, restored),
        ])
    }

    /// Ten sandboxes at once of one snapshot, until the last has answered.
    fn of_a_snapshot(&self, state: &Path) -> Result<Figure, TaskError> {
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            let line = self.ours(state, &["create", "--snapshot", "kept", "--timeout", "10m"]);
            let started = std::time::Instant::now();
            let made: Vec<Result<String, TaskError>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..BURST).map(|_| scope.spawn(|| line.output())).collect();
                let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<String, TaskError>>| match thread.join() {
                    Ok(output) => output,
                    Err(_) => Err(super::api::client::answered("a thread", "it panicked".to_owned())),
                };
                threads.into_iter().map(ended).collect()
            });
            times.push(nanoseconds(started));
            for id in made {
                self.ours(state, &["stop", id?.trim()]).check()?;
            }
        }
        Ok(Figure::of(report::BURST_OF_SNAPSHOT, times))
    }
}
