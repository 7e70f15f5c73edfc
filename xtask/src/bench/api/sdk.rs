//! The same through E2B's own SDK for Python, installed by name into an environment of the benchmark's own.

use std::path::Path;
use std::process::Command;

use super::client::answered;
use super::daemon::Daemon;
use super::report::Figure;
use crate::error::TaskError;
use crate::program;

/// Makes a sandbox, runs a command, uses it, ends it; prints what each took in ns, a line of JSON.
const SCRIPT: &str = r#"
import json, sys, time
from e2b import Sandbox
first, again = [], []
for _ in range(int(sys.argv[1])):
    begun = time.perf_counter_ns()
    sandbox = Sandbox.create()
    sandbox.commands.run("true")
    first.append(time.perf_counter_ns() - begun)
    begun = time.perf_counter_ns()
    sandbox.commands.run("true")
    again.append(time.perf_counter_ns() - begun)
    sandbox.kill()
print(json.dumps([first, again]))
"#;

/// Measures against `daemon`.
///
/// # Errors
/// When the SDK cannot be installed or fails.
pub(super) fn measure(daemon: &Daemon, rounds: u32) -> Result<Vec<Figure>, TaskError> {
    let place = tempfile::tempdir().map_err(TaskError::file("making", "a directory for the SDK"))?;
    let directory = place.path().join("environment");
    program::run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
    program::run(Command::new(directory.join("bin/pip")).args(["install", "--quiet", "e2b"]))?;
    eprintln!("── the SDK for Python, {rounds} rounds");
    let [first, again] = times(&directory.join("bin/python3"), daemon, rounds)?;
    Ok(vec![
        Figure::of("SDK for Python: create and first command, warm", first),
        Figure::of("SDK for Python: command in a live sandbox", again),
    ])
}

fn times(python: &Path, daemon: &Daemon, rounds: u32) -> Result<[Vec<u64>; 2], TaskError> {
    let url = format!("http://{}", daemon.address);
    let output = Command::new(python)
        .args(["-c", SCRIPT, &rounds.to_string()])
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", &daemon.key)
        .output()
        .map_err(TaskError::start("python3"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        answered("the SDK for Python", format!("{error}: {told}"))
    })
}
