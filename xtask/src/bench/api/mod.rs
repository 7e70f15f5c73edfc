//! `cargo xtask bench api`: what a daemon takes to make sandboxes, to run commands in them and to move files, seen from a
//! bare client that keeps its connection and from the real SDK for Python; and what they cost in memory.
//!
//! Daemons with and without a warm pool take turns, and so does a plain start of the same program.

pub(super) mod client;
pub(super) mod daemon;
mod http;
mod report;
mod sdk;

use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::report::{Machine, Skipped};
use super::sample::Series;
use super::{released, write_json};
use crate::error::TaskError;
use client::{Client, Sandbox, nanoseconds};
use daemon::{Daemon, available_kib};
use report::{Figure, Footprint, IN_SUPERVISOR, PLAIN, Report};

/// What is run in sandboxes: as little as a program can do.
const COMMAND: &str = "/bin/true";
/// What waits in a sandbox that is paused: ten processes.
const WAITING: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 900 >/dev/null 2>&1 & done";
/// How long sandboxes live that are forgotten, s.
const LIFETIME: u32 = 900;
/// Sandboxes that are made at once.
const BURST: usize = 100;
/// How often that is done.
const BURSTS: usize = 3;
/// Sizes of files, and how often each goes both ways.
const FILES: [(&str, u64, u32); 3] = [("1 kB", 1_000, 50), ("1 MB", 1_000_000, 30), ("1 GB", 1_000_000_000, 3)];
/// How many wait in a pool.
const POOL: usize = 4;
/// Time between creates that come one after another: for the pool to be filled again, and for what was ended to go.
const PAUSE: Duration = Duration::from_millis(150);

/// Options of `cargo xtask bench api`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApiOptions {
    /// How often a sandbox is made, and a command run
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many sandboxes live at once when memory is measured
    #[arg(long, default_value_t = 1000)]
    many: usize,
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
/// When the release does not build, or the daemon fails in the middle. The SDK is skipped where it cannot be installed.
pub(crate) fn run(options: &ApiOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let (mut figures, mut bursts) = (Vec::new(), Vec::new());
    let mut skipped = Vec::new();
    {
        let (warm, cold) = (Daemon::start(&binary, POOL)?, Daemon::start(&binary, 0)?);
        eprintln!("── one after another, {} rounds", options.rounds);
        figures.extend(one_after_another(&warm, &cold, options.rounds)?);
        eprintln!("── commands, {} rounds", options.rounds);
        figures.extend(commands(&cold, options.rounds)?);
        eprintln!("── pauses, {} rounds", options.rounds);
        figures.extend(pauses(&cold, options.rounds)?);
        for (name, length, rounds) in FILES {
            eprintln!("── files of {name}");
            figures.extend(files(&cold, name, length, rounds)?);
        }
        match sdk::measure(&warm, options.rounds.min(50)) {
            Ok(measured) => figures.extend(measured),
            Err(error) => skipped.push(Skipped::because("the SDK for Python", &error)),
        }
        eprintln!("── {BURST} at once");
        settle();
        figures.push(burst("burst, cold", &cold)?);
    }
    {
        let warm = Daemon::start(&binary, BURST)?;
        for number in 0..BURSTS {
            eprintln!("── {BURST} at once that wait, {} of {BURSTS}", number + 1);
            warm.wait_until_filled(BURST)?;
            settle();
            bursts.push(burst("burst, warm", &warm)?);
        }
    }
    // Each is one figure; the middle one is told.
    bursts.sort_by_key(|burst: &Figure| burst.ns.median);
    let failures = bursts.iter().map(|burst| burst.failures).sum();
    figures.push(Figure {
        failures,
        ..bursts.swap_remove(BURSTS / 2)
    });
    let mut footprints = Vec::new();
    let daemon = Daemon::start(&binary, 0)?;
    for count in [0, 100, options.many] {
        eprintln!("── memory with {count}");
        footprints.push(footprint(&daemon, count, footprints.first())?);
    }
    drop(daemon);
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        figures,
        footprints,
        skipped,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

/// Time for what was ended to go, and for a pool to fill.
fn settle() {
    std::thread::sleep(Duration::from_secs(5));
}

/// A sandbox is made and its first command is done, on each daemon in turn.
fn one_after_another(warm: &Daemon, cold: &Daemon, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    let mut clients = Vec::new();
    for daemon in [warm, cold] {
        clients.push((Client::new(daemon.address, &daemon.key)?, Vec::new()));
    }
    for _ in 0..rounds {
        for (client, times) in &mut clients {
            let started = Instant::now();
            let sandbox = client.create(LIFETIME)?;
            client.run(&sandbox, &[COMMAND])?;
            times.push(nanoseconds(started));
            client.kill(&sandbox)?;
            std::thread::sleep(PAUSE);
        }
    }
    let names = ["create and first command, warm", "create and first command, cold"];
    let figure = |(name, (_, times)): (&'static str, (Client, Vec<u64>))| Figure::of(name, times);
    Ok(names.into_iter().zip(clients).map(figure).collect())
}

/// A command in a sandbox that lives, and the same program without one.
fn commands(daemon: &Daemon, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let sandbox = client.create(LIFETIME)?;
    let (mut inside, mut held, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let started = Instant::now();
        client.run(&sandbox, &[COMMAND])?;
        inside.push(nanoseconds(started));
        held.push(client.run_natively(&sandbox, &[COMMAND])?);
        plain.push(client::plain(COMMAND)?);
    }
    client.kill(&sandbox)?;
    Ok(vec![
        Figure::of("command in a live sandbox", inside),
        Figure::of(IN_SUPERVISOR, held),
        Figure::of(PLAIN, plain),
    ])
}

/// A sandbox with a command that waits is paused and resumed: until each is answered, and until the first command of the
/// resumed one is done. As root it is frozen as a control group, otherwise its processes are stopped one by one where
/// groups are not to be had.
fn pauses(daemon: &Daemon, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let sandbox = client.create(LIFETIME)?;
    client.run(&sandbox, &["/bin/sh", "-c", WAITING])?;
    let (mut pausing, mut resuming, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let started = Instant::now();
        client.pause(&sandbox)?;
        pausing.push(nanoseconds(started));
        let started = Instant::now();
        client.resume(&sandbox, LIFETIME)?;
        resuming.push(nanoseconds(started));
        client.run(&sandbox, &[COMMAND])?;
        again.push(nanoseconds(started));
    }
    client.kill(&sandbox)?;
    Ok(vec![
        Figure::of("pause", pausing),
        Figure::of("resume", resuming),
        Figure::of("resume and first command", again),
    ])
}

fn files(daemon: &Daemon, name: &'static str, length: u64, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let sandbox = client.create(LIFETIME)?;
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let started = Instant::now();
        client.upload(&sandbox, "file", length)?;
        up.push(nanoseconds(started));
        let started = Instant::now();
        client.download(&sandbox, "file", length)?;
        down.push(nanoseconds(started));
    }
    client.kill(&sandbox)?;
    Ok(vec![
        Figure::of_bytes("upload", name, length, up),
        Figure::of_bytes("download", name, length, down),
    ])
}

/// Many sandboxes at once, each with its first command, from the moment that all begin.
fn burst(name: &'static str, daemon: &Daemon) -> Result<Figure, TaskError> {
    let ready = Arc::new(Barrier::new(BURST));
    let threads: Vec<_> = (0..BURST)
        .map(|_| {
            let (ready, address, key) = (Arc::clone(&ready), daemon.address, daemon.key.clone());
            std::thread::spawn(move || -> Result<(u64, Sandbox), TaskError> {
                let client = Client::new(address, &key);
                ready.wait();
                let mut client = client?;
                let started = Instant::now();
                let sandbox = client.create(LIFETIME)?;
                client.run(&sandbox, &[COMMAND])?;
                Ok((nanoseconds(started), sandbox))
            })
        })
        .collect();
    let (mut times, mut failures, mut made) = (Vec::new(), 0, Vec::new());
    for thread in threads {
        match thread.join() {
            Ok(Ok((taken, sandbox))) => {
                times.push(taken);
                made.push(sandbox);
            }
            Ok(Err(error)) => {
                eprintln!("{error}");
                failures += 1;
            }
            Err(_) => failures += 1,
        }
    }
    let mut client = Client::new(daemon.address, &daemon.key)?;
    made.iter().try_for_each(|sandbox| client.kill(sandbox))?;
    Ok(Figure {
        failures,
        ..Figure::of(name, times)
    })
}

/// Memory with `count` sandboxes, which are all ended afterwards.
fn footprint(daemon: &Daemon, count: usize, empty: Option<&Footprint>) -> Result<Footprint, TaskError> {
    settle();
    let before = available_kib()?;
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let mut made: Vec<Sandbox> = Vec::with_capacity(count);
    let mut failed = None;
    for _ in 0..count {
        match client.create(LIFETIME) {
            Ok(sandbox) => made.push(sandbox),
            // What could be made is measured, and the report says how many.
            Err(error) => {
                failed = Some(error.to_string());
                break;
            }
        }
    }
    settle();
    let footprint = Footprint {
        sandboxes: made.len(),
        asked: count,
        daemon_kib: daemon.memory_kib()?,
        machine_kib: before.saturating_sub(available_kib()?),
        failed,
        empty_kib: empty.map_or(0, |empty| empty.daemon_kib),
    };
    for sandbox in &made {
        client.kill(sandbox)?;
    }
    Ok(footprint)
}

/// The series of `times`, ns.
fn series(times: Vec<u64>) -> Series {
    Series::of(times.into_iter())
}
