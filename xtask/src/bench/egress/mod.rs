//! `cargo xtask bench egress`: what the way out of a sandbox costs, beside none and beside a proxy that programs must be
//! told of.
//!
//! Everybody reaches the same server, in network and mount namespaces of this benchmark's own, which end with it: nothing
//! of the machine's network is touched or in the way. As in `bench start` everything is interleaved in one run.

mod client;
mod contender;
mod opened;
mod relay;
mod report;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contender::Arena;
use super::report::{Machine, Skipped};
use super::sample::Series;
use super::{Shuffle, released, write_json};
use crate::error::TaskError;
use crate::program;
pub(crate) use client::ClientOptions;
use client::Work;
use contender::{Contender, Startup};
pub(crate) use opened::TlsClientOptions;
pub(crate) use relay::RelayOptions;
use report::{Figure, Report, Start};

/// A public address, since the gateway leads to others only where a rule says so. In this namespace it is our own.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(ADDRESS), 9000);
/// What is done once a round, and how much of it.
const WORKS: [(Work, u64); 4] = [
    (Work::Download, 512 << 20),
    (Work::Upload, 512 << 20),
    (Work::Connect, 50),
    (Work::Requests, 200),
];

/// Options of `cargo xtask bench egress`.
#[derive(Debug, clap::Args)]
pub(crate) struct EgressOptions {
    /// How often everything is done
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// We are in the namespaces already
    #[arg(long, hide = true)]
    inside: bool,
}

/// A program that takes part.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Part {
    /// Does some work and prints its times
    Client(ClientOptions),
    /// Sends requests over TLS and prints what they took
    TlsClient(TlsClientOptions),
    /// Relays and judges nothing
    Relay(RelayOptions),
}

/// Takes part.
///
/// # Errors
/// Those of the part.
pub(crate) fn take_part(part: &Part) -> Result<(), TaskError> {
    match part {
        Part::Client(options) => client::run(options),
        Part::TlsClient(options) => opened::run_client(options),
        Part::Relay(options) => relay::run(options),
    }
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release does not build, no namespaces can be made, or a contender fails in the middle. One that cannot run
/// here at all is skipped.
pub(crate) fn run(options: &EgressOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    if options.inside {
        return measure_all(options, binary);
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !program::is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.arg(this_program()?).args(["bench", "egress", "--inside"]);
    command.args(["--rounds", &options.rounds.to_string()]);
    command.arg("--binary").arg(binary);
    if let Some(path) = &options.json {
        command.arg("--json").arg(path);
    }
    program::run(&mut command)
}

fn this_program() -> Result<PathBuf, TaskError> {
    std::env::current_exe().map_err(TaskError::file("finding", "the running program"))
}

/// In the namespaces.
fn measure_all(options: &EgressOptions, binary: PathBuf) -> Result<(), TaskError> {
    contender::end_with_parent();
    bring_up_network()?;
    server::serve(SERVER)?;
    let arena = Arena::new(binary)?;
    let client = arena.copy_into_workspace(&this_program()?, "client")?;
    let (contenders, mut skipped) = contenders_that_work(&arena, &client)?;
    let ways = match opened::Ways::prepare(&arena, &client) {
        Ok(ways) => {
            ways.check()?;
            Some(ways)
        }
        Err(error) => {
            skipped.push(Skipped::because("requests over opened TLS", &error));
            None
        }
    };

    let mut shuffle = Shuffle::new();
    let mut figures = Vec::new();
    for (work, amount) in WORKS {
        eprintln!("── {work:?}, {} rounds", options.rounds);
        figures.extend(measure(&contenders, work, amount, options.rounds, &mut shuffle)?);
    }
    eprintln!("── start, {} rounds", options.rounds.saturating_mul(STARTS));
    let starts = measure_starts(&arena, options.rounds.saturating_mul(STARTS), &mut shuffle)?;
    let opened = ways.map(|ways| {
        eprintln!("── requests over TLS, {} rounds", options.rounds);
        ways.measure(options.rounds, &mut shuffle)
    });

    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        figures,
        starts,
        opened: opened.transpose()?,
        skipped,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

/// How many starts are timed a round: one is short, and their difference is small.
const STARTS: u32 = 10;

fn bring_up_network() -> Result<(), TaskError> {
    let address = format!("{ADDRESS}/32");
    for words in [
        &["link", "set", "lo", "up"][..],
        &["address", "add", &address, "dev", "lo"],
    ] {
        let ip = program::find("ip").ok_or_else(|| TaskError::start("ip")(std::io::ErrorKind::NotFound.into()))?;
        program::run(Command::new(ip).args(words))?;
    }
    Ok(())
}

/// Has every contender do a little of everything; those that cannot here are skipped with their reason, except what
/// everybody is compared with, and ours.
fn contenders_that_work(arena: &Arena, client: &Path) -> Result<(Vec<Contender>, Vec<Skipped>), TaskError> {
    let mut working = Vec::new();
    let mut skipped = Vec::new();
    for (name, made) in Contender::all(arena, client) {
        let tried = made.and_then(|contender| {
            for (work, _) in WORKS {
                contender.times(work, 1)?;
            }
            Ok(contender)
        });
        match tried {
            Ok(contender) => working.push(contender),
            Err(error) if [contender::DIRECT, contender::OFFLEASH].contains(&name) => return Err(error),
            Err(error) => skipped.push(Skipped::because(name, &error)),
        }
    }
    Ok((working, skipped))
}

fn measure(
    contenders: &[Contender],
    work: Work,
    amount: u64,
    rounds: u32,
    shuffle: &mut Shuffle,
) -> Result<Vec<Figure>, TaskError> {
    let mut times: Vec<Vec<u64>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for index in shuffle.order(contenders.len()) {
            times[index].extend(contenders[index].times(work, amount)?);
        }
    }
    let figure = |(contender, times): (&Contender, Vec<u64>)| Figure {
        contender: contender.name,
        work,
        amount,
        ns: Series::of(times.into_iter()),
    };
    Ok(contenders.iter().zip(times).map(figure).collect())
}

fn measure_starts(arena: &Arena, rounds: u32, shuffle: &mut Shuffle) -> Result<Vec<Start>, TaskError> {
    let startups = Startup::both(arena);
    let mut times: [Vec<u64>; 2] = Default::default();
    for _ in 0..rounds {
        for index in shuffle.order(startups.len()) {
            times[index].push(startups[index].command.sample()?.wall_us);
        }
    }
    let start = |(startup, times): (&Startup, Vec<u64>)| Start {
        with_network: startup.with_network,
        us: Series::of(times.into_iter()),
    };
    Ok(startups.iter().zip(times).map(start).collect())
}
