//! `cargo xtask bench monitoring`: what rules of monitoring cost the processes that hold sandboxes, beside the same sandboxes
//! without any rule.
//!
//! Two daemons have as many sandboxes each, at the same time, and the CPU time of their processes is read over the same
//! seconds: whatever else the machine does, it does to both.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::api::client::{Client, Sandbox, answered};
use super::api::daemon::Daemon;
use super::processes::ProcessTable;
use super::report::Machine;
use super::sample::Series;
use super::{released, write_json};
use crate::error::TaskError;
use crate::program::workspace_root;

/// What sandboxes do meanwhile, and how it is named.
const LOADS: [(&str, Option<&str>); 2] = [
    ("nothing runs", None),
    (
        "each does something every second",
        Some("(while :; do echo a >/tmp/a; sleep 1; done) >/dev/null 2>&1 &"),
    ),
];
/// How long sandboxes live that are forgotten, s.
const LIFETIME: u32 = 3600;
/// How long the machine is left alone before it is measured.
const SETTLE: Duration = Duration::from_secs(10);
/// The most that monitoring may cost, in thousandths of a CPU.
const BAR_MILLIS: f64 = 10.0;

/// Options of `cargo xtask bench monitoring`.
#[derive(Debug, clap::Args)]
pub(crate) struct MonitoringOptions {
    /// How often the time is read
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many seconds apart
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many sandboxes each daemon has
    #[arg(long, default_value_t = 100)]
    sandboxes: usize,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// CPU time for each second, in microseconds.
#[derive(Debug, serde::Serialize)]
struct Figure {
    load: &'static str,
    with_rules: Series,
    without_rules: Series,
    /// What one round has more than the other, in thousandths of a CPU, at the median.
    more_millis: f64,
}

#[derive(Debug, serde::Serialize)]
struct Report {
    machine: Machine,
    rounds: u32,
    sandboxes: usize,
    figures: Vec<Figure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(
            f,
            "{} sandboxes of each daemon; CPU time of what holds them\n",
            self.sandboxes
        )?;
        writeln!(f, "{:<36}{:>10}{:>10}{:>10}  ms a second", "", "rules", "none", "more")?;
        for figure in &self.figures {
            let [with, without] = [figure.with_rules.median, figure.without_rules.median].map(millis);
            let more = figure.more_millis;
            writeln!(f, "{:<36}{with:>10.2}{without:>10.2}{more:>10.2}", figure.load)?;
        }
        let kept = self.figures.iter().all(|figure| figure.more_millis <= BAR_MILLIS);
        let verdict = if kept { "kept" } else { "missed" };
        writeln!(
            f,
            "bar: {BAR_MILLIS} ms a second more at most (1 % of a CPU): {verdict}"
        )
    }
}

fn millis(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64() * 1000.0
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release does not build or a daemon fails in the middle.
pub(crate) fn run(options: &MonitoringOptions) -> Result<(), TaskError> {
    let binary = released(options.binary.as_deref())?;
    let daemons = [start(&binary, true)?, start(&binary, false)?];
    let mut sandboxes = Vec::new();
    for daemon in &daemons {
        eprintln!("── {} sandboxes", options.sandboxes);
        let mut client = Client::new(daemon.address, &daemon.key)?;
        let made: Result<Vec<Sandbox>, _> = (0..options.sandboxes).map(|_| client.create(LIFETIME)).collect();
        sandboxes.push(made?);
    }
    let mut figures = Vec::new();
    for (name, script) in LOADS {
        if let Some(script) = script {
            for (daemon, sandboxes) in daemons.iter().zip(&sandboxes) {
                let mut client = Client::new(daemon.address, &daemon.key)?;
                sandboxes
                    .iter()
                    .try_for_each(|sandbox| client.run(sandbox, &["/bin/sh", "-c", script]))?;
            }
        }
        std::thread::sleep(SETTLE);
        eprintln!("── {name}, {} rounds", options.rounds);
        figures.push(measured(&daemons, name, options)?);
    }
    let report = Report {
        machine: Machine::this(),
        rounds: options.rounds,
        sandboxes: options.sandboxes,
        figures,
    };
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

/// A daemon with the built-in rules, or with none.
fn start(binary: &Path, with_rules: bool) -> Result<Daemon, TaskError> {
    let state = tempfile::tempdir().map_err(TaskError::file("making", "a state directory"))?;
    let mut text = "[sandboxes]\nmax = 2000\n[pool]\nmin = 0\nmax = 0\n".to_owned();
    if !with_rules {
        let file = state.path().join("off.toml");
        let off: String = builtin_rules()?
            .iter()
            .map(|name| format!("[[monitor]]\nname = \"{name}\"\naction = \"off\"\n"))
            .collect();
        fs::write(&file, off).map_err(TaskError::file("writing", &file))?;
        text.push_str(&format!("[monitoring]\npolicy = \"{}\"\n", file.display()));
    }
    Daemon::start_in(binary, state, &text)
}

/// The names of the rules, as the reference lists them.
fn builtin_rules() -> Result<Vec<String>, TaskError> {
    let file = workspace_root().join("docs/monitoring.md");
    let text = fs::read_to_string(&file).map_err(TaskError::file("reading", &file))?;
    let rules = text.split_once("## Built-in rules").map_or("", |(_, rest)| rest);
    let rules = rules.split_once("\n## ").map_or(rules, |(rules, _)| rules);
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let names: Vec<String> = rules.lines().filter_map(name).collect();
    match names.is_empty() {
        true => Err(answered("docs/monitoring.md", "it lists no rules".to_owned())),
        false => Ok(names),
    }
}

fn measured(daemons: &[Daemon; 2], load: &'static str, options: &MonitoringOptions) -> Result<Figure, TaskError> {
    let mut rates: [Vec<u64>; 2] = Default::default();
    let mut before = [cpu_us(&daemons[0])?, cpu_us(&daemons[1])?];
    let mut began = Instant::now();
    for _ in 0..options.rounds {
        std::thread::sleep(Duration::from_secs(options.seconds));
        let (now, took) = ([cpu_us(&daemons[0])?, cpu_us(&daemons[1])?], began.elapsed());
        began = Instant::now();
        for (place, rates) in rates.iter_mut().enumerate() {
            let used = Duration::from_micros(now[place].saturating_sub(before[place]));
            let a_second = used.as_secs_f64() / took.as_secs_f64();
            rates.push(u64::try_from(Duration::from_secs_f64(a_second).as_micros()).unwrap_or(u64::MAX));
        }
        before = now;
    }
    let mut more: Vec<f64> = rates[0]
        .iter()
        .zip(&rates[1])
        .map(|(with, without)| millis(*with) - millis(*without))
        .collect();
    more.sort_by(f64::total_cmp);
    let [with, without] = rates.map(|rates| Series::of(rates.into_iter()));
    Ok(Figure {
        load,
        with_rules: with,
        without_rules: without,
        more_millis: more.get(more.len() / 2).copied().unwrap_or_default(),
    })
}

/// CPU time so far of a daemon and of the processes that hold its sandboxes, and of nothing in these, in microseconds.
fn cpu_us(daemon: &Daemon) -> Result<u64, TaskError> {
    let table = ProcessTable::now()?;
    let holders = table.children(daemon.pid()).chain([daemon.pid()]);
    holders.map(time_of).sum()
}

/// CPU time of all threads of a process (proc_pid_schedstat, nanoseconds), in microseconds.
fn time_of(pid: u32) -> Result<u64, TaskError> {
    let tasks = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&tasks).map_err(TaskError::file("listing", &tasks))?;
    let mut all = 0;
    for thread in threads.flatten() {
        // A thread that ended meanwhile has no file any more.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let ns: u64 = text
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or_default();
        all += ns / 1000;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_the_reference_lists_rules() {
        assert!(time_of(std::process::id()).unwrap() > 0);
        let rules = builtin_rules().unwrap();
        assert!(
            rules.iter().any(|rule| rule == "fork-storm") && rules.len() > 10,
            "{rules:?}"
        );
        assert!(!rules.iter().any(|rule| rule == "cpu"));
    }
}
