//! `cargo xtask bench interpreter`: how soon an interpreter with pandas answers in a new sandbox, what a cell takes, and
//! what each such sandbox costs in memory, beside a plain `python3`, a Jupyter kernel, and bare copies of a Python.
//!
//! Through the server's API, from a client that keeps its connection. Whoever is compared takes turns.

mod memory;
mod peers;
mod report;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::api::client::{Client, Sandbox, answered, nanoseconds};
use super::api::daemon::Daemon;
use super::report::{Machine, Skipped};
use super::sample::Series;
use super::{Shuffle, released, write_json};
use crate::error::TaskError;
use crate::program;
use peers::Peers;
use report::{AtOnce, Figure, Memory, Report};

/// The template of the benchmark's own, and what is installed in it and beside it.
const TEMPLATE: &str = "code-interpreter";
const PACKAGES: [&str; 4] = ["numpy", "pandas", "matplotlib", "ipython"];
/// The first cell of a sandbox, and one of a context that lives.
const FIRST: &str = "import pandas; 1";
const AGAIN: &str = "1+1";
/// How long sandboxes live that are forgotten, s.
const LIFETIME: u32 = 900;
/// How many wait in the pool when one is taken after another.
const POOL: usize = 2;
/// How interpreters come to be in sandboxes that waited without one.
const COPIED_INTO: &str = "copied on request into one that waited";
/// How sandboxes come to be that did not wait, with their interpreters.
const REQUEST: &str = "copied on request";
/// How long the interpreter may take of which others are copies.
const COPIED: Duration = Duration::from_secs(120);
/// Time for what was ended to go.
const PAUSE: Duration = Duration::from_millis(300);

/// Options of `cargo xtask bench interpreter`.
#[derive(Debug, clap::Args)]
pub(crate) struct InterpreterOptions {
    /// How often each is done
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many sandboxes with pandas there are at once
    #[arg(long, default_value_t = 100)]
    many: usize,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What the build of the template may reach beside PyPI, as `offleash template build --allow` has it
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Variables for the build of the template, as `offleash template build --build-env` has them
    #[arg(long, value_name = "NAME[=VALUE]")]
    build_env: Vec<String>,
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release or the template does not build, or the daemon fails in the middle. Peers that cannot be installed
/// are skipped.
pub(crate) fn run(options: &InterpreterOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let templates = directory("for the template")?;
    build(&binary, templates.path(), options)?;
    let start = |pool: &str| Daemon::start_in(&binary, state_with(templates.path())?, pool);
    let mut skipped = Vec::new();
    let figures = {
        let (warm, cold) = (start(&waiting(POOL))?, start(&waiting(0))?);
        let bare = start(&format!("{}interpreter = false\n", waiting(POOL)))?;
        until_copied(&cold)?;
        until_copied(&bare)?;
        eprintln!("── an environment for python3 and Jupyter");
        let mut peers = match Peers::start(&PACKAGES) {
            Ok(peers) => {
                skipped.extend(peers.criu.as_ref().err().map(|error| Skipped::because("CRIU", error)));
                Some(peers)
            }
            Err(error) => {
                skipped.push(Skipped::because("python3, Jupyter and bare copies", &error));
                None
            }
        };
        let mut figures = first_cells([&warm, &bare, &cold], peers.as_mut(), options.rounds)?;
        figures.extend(cells(&cold, peers.as_mut(), options.rounds * 5)?);
        figures
    };
    let plain = {
        let daemon = start(&format!("[pool]\nmin = {0}\nmax = {0}\n", options.many.min(20)))?;
        daemon.wait_until_filled_with("base", options.many.min(20))?;
        std::thread::sleep(PAUSE);
        memory::of_each(daemon.pid())
    };
    eprintln!("── {} at once", options.many);
    let daemon = start(&waiting(options.many))?;
    daemon.wait_until_filled_with(TEMPLATE, options.many)?;
    std::thread::sleep(PAUSE);
    let memory = match (&plain, memory::of_each(daemon.pid())) {
        (Ok(plain), Ok(ready)) => Some(Memory::of(plain, &ready)),
        (Err(error), _) => {
            skipped.push(Skipped::because("private memory", error));
            None
        }
        (_, Err(error)) => {
            skipped.push(Skipped::because("private memory", &error));
            None
        }
    };
    let mut at_once = vec![at_once("waiting", &daemon, options.many, None)?];
    drop(daemon);
    eprintln!("── {} at once, none of which waits", options.many);
    let daemon = start(&waiting(0))?;
    until_copied(&daemon)?;
    at_once.push(self::at_once(REQUEST, &daemon, options.many, plain.as_deref().ok())?);
    drop(daemon);
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        figures,
        memory,
        at_once,
        skipped,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

fn directory(what: &'static str) -> Result<tempfile::TempDir, TaskError> {
    tempfile::tempdir().map_err(TaskError::file("making", format!("a directory {what}")))
}

/// Builds the template below the state directory `state`.
fn build(binary: &Path, state: &Path, options: &InterpreterOptions) -> Result<(), TaskError> {
    eprintln!("── template: {}", PACKAGES.join(", "));
    let mut command = Command::new(binary);
    command.args(["template", "build", "--quiet", "--name", TEMPLATE, "--pip"]);
    command.arg(PACKAGES.join(",")).arg("--state").arg(state);
    for rule in &options.allow {
        command.args(["--allow", rule]);
    }
    for variable in &options.build_env {
        command.args(["--build-env", variable]);
    }
    program::run(&mut command)
}

/// A state directory of its own that shares the templates of another one.
fn state_with(templates: &Path) -> Result<tempfile::TempDir, TaskError> {
    let state = directory("for a daemon")?;
    for shared in ["templates", "base"] {
        let (from, to) = (templates.join(shared), state.path().join(shared));
        if from.exists() {
            symlink(from, &to).map_err(TaskError::file("linking", &to))?;
        }
    }
    Ok(state)
}

/// The configuration of a daemon with so many sandboxes of the template that wait, and no others.
fn waiting(count: usize) -> String {
    let table = format!("[pool.templates.{TEMPLATE}]\nmin = {count}\nmax = {count}\n");
    format!("[pool]\nmin = 0\nmax = 0\nmax_total = {count}\n{table}")
}

/// The first answer of an interpreter with pandas, each way in turn.
fn first_cells(daemons: [&Daemon; 3], mut peers: Option<&mut Peers>, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    eprintln!("── first cells, {rounds} rounds");
    let mut ours = Vec::new();
    for daemon in daemons {
        ours.push((
            daemon,
            Client::new(daemon.address, &daemon.key)?,
            [const { Vec::new() }; 3],
        ));
    }
    let mut theirs = [const { Vec::new() }; 5];
    let mut shuffle = Shuffle::new();
    for _ in 0..rounds {
        for turn in shuffle.order(ours.len() + theirs.len()) {
            match turn {
                0..3 => {
                    let (daemon, client, [creates, cells, both]) = &mut ours[turn];
                    if turn < 2 {
                        daemon.wait_until_filled_with(TEMPLATE, POOL)?;
                    }
                    let (sandbox, [create, cell]) = first_cell(client)?;
                    client.kill(&sandbox)?;
                    creates.push(create);
                    cells.push(cell);
                    both.push(create + cell);
                    std::thread::sleep(PAUSE);
                }
                peer => {
                    let Some(peers) = peers.as_mut() else { continue };
                    let taken = match peer {
                        3 => peers.python.import()?,
                        4 => peers.jupyter.first(FIRST)?,
                        5 => peers.copies.first(FIRST)?,
                        6 => peers.copies.again(FIRST)?,
                        _ => match &mut peers.criu {
                            Ok(criu) => criu.first(FIRST)?,
                            Err(_) => continue,
                        },
                    };
                    theirs[peer - 3].push(taken);
                }
            }
        }
    }
    let mut figures = Vec::new();
    for ((_, _, times), way) in ours.into_iter().zip(["waiting", COPIED_INTO, REQUEST]) {
        for (times, what) in times.into_iter().zip(["create", "first cell", "create and first cell"]) {
            figures.push(Figure::of(format!("{what}, {way}"), times));
        }
    }
    let names = [
        "python3 -c 'import pandas'",
        "Jupyter kernel: start and first cell",
        "a bare copy of a Python with pandas: fork and first cell",
        "a bare copy of a Python with pandas that waited: first cell",
        "CRIU: restore of a Python with pandas and first cell",
    ];
    let measured = names.into_iter().zip(theirs).filter(|(_, times)| !times.is_empty());
    figures.extend(measured.map(|(name, times)| Figure::of(name.to_owned(), times)));
    Ok(figures)
}

/// Makes a sandbox and runs its first cell; what each took, ns.
fn first_cell(client: &mut Client) -> Result<(Sandbox, [u64; 2]), TaskError> {
    let started = Instant::now();
    let sandbox = client.create_of(TEMPLATE, LIFETIME)?;
    let created = nanoseconds(started);
    client.run_code(&sandbox, FIRST)?;
    Ok((sandbox, [created, nanoseconds(started) - created]))
}

/// A cell in a context that lives, ours and Jupyter's in turn.
fn cells(daemon: &Daemon, mut peers: Option<&mut Peers>, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    eprintln!("── cells, {rounds} rounds");
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let (sandbox, _) = first_cell(&mut client)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let started = Instant::now();
        client.run_code(&sandbox, AGAIN)?;
        ours.push(nanoseconds(started));
        theirs.extend(peers.as_mut().map(|peers| peers.jupyter.again(AGAIN)).transpose()?);
    }
    client.kill(&sandbox)?;
    let mut figures = vec![Figure::of("1+1".to_owned(), ours)];
    if !theirs.is_empty() {
        figures.push(Figure::of("1+1 in a Jupyter kernel".to_owned(), theirs));
    }
    Ok(figures)
}

/// Makes sandboxes until one has an interpreter that was copied.
fn until_copied(daemon: &Daemon) -> Result<(), TaskError> {
    let mut client = Client::new(daemon.address, &daemon.key)?;
    let deadline = Instant::now() + COPIED;
    loop {
        let (sandbox, _) = first_cell(&mut client)?;
        let is_forked = client.is_forked(&sandbox)?;
        client.kill(&sandbox)?;
        if is_forked {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(answered("the daemon", "no interpreter that is copied".to_owned()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// So many sandboxes at once, each with its first cell. Against `plain`, what each holds more than one without an
/// interpreter is told, too.
fn at_once(way: &'static str, daemon: &Daemon, count: usize, plain: Option<&[u64]>) -> Result<AtOnce, TaskError> {
    let ready = Arc::new(Barrier::new(count + 1));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let (ready, address, key) = (Arc::clone(&ready), daemon.address, daemon.key.clone());
            std::thread::spawn(move || -> Result<(u64, Sandbox), TaskError> {
                let client = Client::new(address, &key);
                ready.wait();
                let (sandbox, [create, cell]) = first_cell(&mut client?)?;
                Ok((create + cell, sandbox))
            })
        })
        .collect();
    ready.wait();
    let started = Instant::now();
    let (mut times, mut failures) = (Vec::new(), 0);
    for thread in threads {
        match thread.join() {
            Ok(Ok((taken, _))) => times.push(taken),
            Ok(Err(error)) => {
                eprintln!("{error}");
                failures += 1;
            }
            Err(_) => failures += 1,
        }
    }
    let total_ns = nanoseconds(started);
    std::thread::sleep(PAUSE);
    let memory = plain.and_then(|plain| Some(Memory::of(plain, &memory::of_each(daemon.pid()).ok()?)));
    Ok(AtOnce {
        way,
        sandboxes: count,
        total_ns,
        memory,
        each: Series::of(times.into_iter()),
        failures,
    })
}

/// What a file holds.
fn text_of(path: &Path) -> Result<String, TaskError> {
    fs::read_to_string(path).map_err(TaskError::file("reading", path))
}
