//! `cargo xtask bench browser`: what a session of a browser takes until a page of it can be sent somewhere, what a navigation
//! takes in it, and what ten of them hold, beside the same browser with the same flags and no sandbox.
//!
//! Playwright drives all of them, in turns. The site is in the sandbox of a session, and on loopback beside a bare browser.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::api::daemon::Daemon;
use super::report::{Bar, Bound, Machine, milliseconds, number};
use super::sample::{Series, megabytes};
use super::{released, write_json};
use crate::error::TaskError;
use crate::{program, sdks};

/// What drives the browsers.
const DRIVER: &str = include_str!("measure.mjs");
/// Which of the SDKs has Playwright.
const KIT: &str = "browser-1.65.1";
/// How many browsers wait.
const WAITING: usize = 1;

/// Options of `cargo xtask bench browser`.
#[derive(Debug, clap::Args)]
pub(crate) struct BrowserOptions {
    /// How often a browser is started each way
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many run at once when memory is measured
    #[arg(long, default_value_t = 10)]
    many: usize,
    /// How many sandboxes a dashboard looks at; none, if 0
    #[arg(long, default_value_t = 0)]
    sandboxes: usize,
    /// Measure this offleash instead of building one in release
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Where Playwright is, in `node_modules`; where `cargo xtask sdks` puts it if not said
    #[arg(long, value_name = "DIRECTORY")]
    kit: Option<PathBuf>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the driver measured, µs and KiB.
#[derive(Debug, Deserialize)]
struct Measured {
    ready: WayTimes,
    answered: AnswerTimes,
    navigation: NavigationTimes,
    memory: BrowserMemory,
    dashboard: Option<DashboardLoad>,
}

#[derive(Debug, Deserialize)]
struct WayTimes {
    bare: Vec<u64>,
    cold: Vec<u64>,
    pool: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct AnswerTimes {
    cold: Vec<u64>,
    pool: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct NavigationTimes {
    bare: Vec<u64>,
    session: Vec<u64>,
}

/// Proportional set sizes of all processes, KiB.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct BrowserMemory {
    bare: u64,
    /// With those of supervisors and gateways.
    sessions: u64,
}

/// What of one processor the daemon takes, of 100.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct DashboardLoad {
    sandboxes: usize,
    /// When nobody looks.
    idle: f64,
    /// When a dashboard does.
    watched: f64,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct BrowserTiming {
    what: &'static str,
    us: Series,
}

#[derive(Debug, Serialize)]
struct BrowserReport {
    machine: Machine,
    rounds: u32,
    many: usize,
    timings: Vec<BrowserTiming>,
    memory_kib: BrowserMemory,
    dashboard: Option<DashboardLoad>,
}

/// Builds, measures, prints.
///
/// # Errors
/// When the release does not build, there is no Chromium or no Playwright, or a browser fails in the middle.
pub(crate) fn run(options: &BrowserOptions) -> Result<(), TaskError> {
    let chromium = program::find("chromium").ok_or_else(|| TaskError::Answer {
        from: "this machine",
        why: "there is no `chromium`".to_owned(),
    })?;
    let binary = released(options.binary.as_deref())?;
    let kit = options.kit.clone().unwrap_or_else(|| sdks::directory().join(KIT));
    let measured = measure(options, &binary, &kit, &chromium)?;
    let report = BrowserReport::of(options, measured);
    print!("{report}");
    match &options.json {
        Some(path) => write_json(&report, path),
        None => Ok(()),
    }
}

fn measure(options: &BrowserOptions, binary: &Path, kit: &Path, chromium: &Path) -> Result<Measured, TaskError> {
    let daemon = |waiting: usize| {
        let state = tempfile::tempdir().map_err(TaskError::file("making", "a state directory"))?;
        let text = format!("[pool]\nmin = 0\nmax = 0\n[sandboxes]\nmax = 2000\nbrowser_pool = {waiting}\n");
        Daemon::start_in(binary, state, &text)
    };
    let (cold, pool) = (daemon(0)?, daemon(WAITING)?);
    let told = |daemon: &Daemon| json!({ "url": format!("http://{}", daemon.address), "key": daemon.key, "pid": daemon.pid() });
    let order = json!({
        "rounds": options.rounds,
        "many": options.many,
        "sandboxes": options.sandboxes,
        "waiting": WAITING,
        "chromium": chromium,
        "cold": told(&cold),
        "pool": told(&pool),
    });
    let place = tempfile::tempdir().map_err(TaskError::file("making", "a directory for the driver"))?;
    let script = place.path().join("measure.mjs");
    std::fs::write(&script, DRIVER).map_err(TaskError::file("writing", &script))?;
    let mut driver = Command::new("node");
    driver.arg(&script).arg(kit).arg(order.to_string());
    let output = driver
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(TaskError::start("node"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| TaskError::Answer {
        from: "the driver of browsers",
        why: format!("{error}; it ended with {}", output.status),
    })
}

impl BrowserReport {
    fn of(options: &BrowserOptions, measured: Measured) -> Self {
        let Measured {
            ready,
            answered,
            navigation,
            memory,
            dashboard,
        } = measured;
        let timing = |what, times: Vec<u64>| BrowserTiming {
            what,
            us: Series::of(times.into_iter()),
        };
        Self {
            machine: Machine::this(),
            rounds: options.rounds,
            many: options.many,
            timings: vec![
                timing(BARE, ready.bare),
                timing(COLD, ready.cold),
                timing(POOL, ready.pool),
                timing("a session is answered, cold", answered.cold),
                timing("a session is answered, from the pool", answered.pool),
                timing(NAVIGATION_BARE, navigation.bare),
                timing(NAVIGATION, navigation.session),
            ],
            memory_kib: memory,
            dashboard,
        }
    }

    fn median(&self, what: &str) -> f64 {
        let timing = self.timings.iter().find(|timing| timing.what == what);
        timing.map_or(0.0, |timing| number(timing.us.median))
    }

    fn bars(&self) -> Vec<Bar> {
        let bar = |what: &str, value: f64, most: f64| Bar {
            what: what.to_owned(),
            value,
            bound: Bound::AtMost(most),
        };
        let memory = number(self.memory_kib.sessions) / number(self.memory_kib.bare.max(1));
        let mut bars = vec![
            bar("ready from the pool, ms", self.median(POOL) / 1000.0, 150.0),
            bar(
                "ready cold, to a bare browser",
                self.median(COLD) / self.median(BARE).max(1.0),
                1.1,
            ),
            bar(
                "navigation, to a bare browser's",
                self.median(NAVIGATION) / self.median(NAVIGATION_BARE).max(1.0),
                1.1,
            ),
            bar("memory of all sessions, to bare browsers'", memory, 1.3),
        ];
        let load = self.dashboard.map(|load| load.watched - load.idle);
        bars.extend(load.map(|load| bar("a dashboard over all sandboxes, % of a processor", load, 5.0)));
        bars
    }
}

const BARE: &str = "ready to go to a page, bare";
const COLD: &str = "ready to go to a page, a session that starts its browser";
const POOL: &str = "ready to go to a page, a session from the pool";
const NAVIGATION_BARE: &str = "a navigation, bare";
const NAVIGATION: &str = "a navigation in a session";

impl fmt::Display for BrowserReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.machine.write_heading(f, self.rounds)?;
        writeln!(f, "\n| median (95 of 100) | ms |\n|---|---|")?;
        for BrowserTiming { what, us } in &self.timings {
            let (median, p95) = (milliseconds(us.median), milliseconds(us.p95));
            writeln!(f, "| {what} | {median:.1} ({p95:.1}) |")?;
        }
        let BrowserMemory { bare, sessions } = self.memory_kib;
        let mut memory = String::new();
        write!(
            memory,
            "{:.0} MB bare, {:.0} MB in sessions",
            megabytes(bare),
            megabytes(sessions)
        )?;
        writeln!(f, "| memory of {} | {memory} |\n", self.many)?;
        if let Some(DashboardLoad {
            sandboxes,
            idle,
            watched,
        }) = self.dashboard
        {
            writeln!(
                f,
                "the daemon with {sandboxes} sandboxes: {idle:.1} % of a processor, {watched:.1} % with a dashboard\n"
            )?;
        }
        for bar in self.bars() {
            writeln!(f, "{bar}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_compare_with_the_bare_browser() {
        let told = json!({
            "ready": { "bare": [400_000], "cold": [430_000], "pool": [120_000] },
            "answered": { "cold": [300_000], "pool": [20_000] },
            "navigation": { "bare": [100_000], "session": [120_000] },
            "memory": { "bare": 1000, "sessions": 1290 },
            "dashboard": { "sandboxes": 1000, "idle": 1.0, "watched": 7.0 },
        });
        let options = BrowserOptions {
            rounds: 1,
            many: 10,
            sandboxes: 1000,
            binary: None,
            kit: None,
            json: None,
        };
        let report = BrowserReport::of(&options, serde_json::from_value(told).unwrap());
        let met: Vec<bool> = report.bars().iter().map(Bar::is_met).collect();
        assert_eq!(met, [true, true, false, true, false]);
        assert!(
            report
                .to_string()
                .contains("| ready to go to a page, bare | 400.0 (400.0) |")
        );
    }
}
