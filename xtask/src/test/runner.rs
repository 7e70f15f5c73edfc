//! Runs compiled tests, each in a process of its own.
//!
//! Not left to `cargo test` for three reasons: a test that forks, reaps or changes its signals must not meet another
//! one in its process; the same executables have to run as another user; and skips (lines `SKIP: reason`) have to be
//! collected from tests that passed.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};

use super::compiled::{Compiled, TestBinary};
use super::libtest::{self, Ended, Running};
use super::summary::{Pass, Skip};
use super::times::{self, TestTime};
use crate::error::TaskError;
use crate::program::workspace_root;
use crate::sdks;

/// After this long a test is killed and has failed. Building a template of large packages takes minutes on a busy machine.
const TEST_TIMEOUT_S: i64 = 600;

/// How a test executable is started for a certain user.
pub(super) trait Launch: Sync {
    /// The tests that this user runs.
    fn tests(&self) -> Vec<TestBinary>;

    /// The command that starts `binary`, arguments of the test harness to be added.
    fn command(&self, binary: &TestBinary) -> Command;

    /// Whether a test, named as in messages, may come out differently for this user.
    fn concerns(&self, _label: &str) -> bool {
        true
    }
}

/// As the user who runs this task.
#[derive(Debug)]
pub(super) struct AsThisUser<'a> {
    /// What was built.
    pub(super) compiled: &'a Compiled,
    /// Where tests write, if not where others do.
    pub(super) scratch: Option<&'a Path>,
}

impl Launch for AsThisUser<'_> {
    fn tests(&self) -> Vec<TestBinary> {
        self.compiled.tests.clone()
    }

    fn command(&self, binary: &TestBinary) -> Command {
        let mut command = Command::new(&binary.path);
        command
            .current_dir(&binary.directory)
            .env("CARGO_MANIFEST_DIR", &binary.directory);
        command
            .env("INSTA_UPDATE", "no")
            .env("INSTA_WORKSPACE_ROOT", workspace_root())
            .env("OFFLEASH_SDKS", sdks::directory());
        if let Some(offleash) = self.compiled.offleash() {
            command.env("OFFLEASH_BINARY", offleash);
        }
        if let Some(scratch) = self.scratch {
            command.env("TMPDIR", scratch);
        }
        command
    }
}

/// One test of one executable; no name means that the executable does not list its tests and runs as a whole.
#[derive(Debug)]
pub(super) struct Job {
    /// The executable.
    pub(super) binary: TestBinary,
    /// The test's whole name.
    pub(super) test: Option<String>,
}

impl Job {
    /// How it is named in messages.
    pub(super) fn label(&self) -> String {
        match &self.test {
            Some(test) => format!("{}::{test}", self.binary.label()),
            None => self.binary.label(),
        }
    }
}

/// What came of a test.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It could not run here, and why.
    Skipped(String),
}

/// Who runs tests, and how theirs are started.
pub(super) struct Runner<'a> {
    /// Which user, as the summary names them.
    pub(super) user: &'static str,
    /// How a test is started for them.
    pub(super) launch: &'a dyn Launch,
}

/// Runs the tests of all `runners` beside one another, so that nobody waits for somebody else's last test; failures are printed as
/// they come.
pub(super) fn run(runners: &[Runner<'_>]) -> Vec<Pass> {
    let start = Instant::now();
    let mut jobs = Vec::new();
    let mut passes = Vec::new();
    for (place, runner) in runners.iter().enumerate() {
        let binaries = runner.launch.tests().into_iter();
        let own: Vec<_> = binaries
            .flat_map(|binary| list(&binary, runner.launch))
            .filter(|job| runner.launch.concerns(&job.label()))
            .collect();
        eprintln!("── tests as {}", runner.user);
        println!("{}", Running(own.len()));
        passes.push(Mutex::new(Pass::new(runner.user)));
        jobs.extend(times::of(own, runner.user).map(|(time, job)| (time, place, job)));
    }
    // The longest first, whose they are.
    jobs.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    let next = AtomicUsize::new(0);
    // More than there are CPUs: half of what tests take is waiting, and with two to a CPU a third of it was idle.
    let workers = 5 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get) / 2;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((_, place, job)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run_and_keep(job, runners[*place].launch, &passes[*place], start);
                }
            });
        }
    });
    passes.into_iter().map(finished).collect()
}

/// Runs a test and counts it; `start` is when the first one began.
fn run_and_keep(job: &Job, launch: &dyn Launch, pass: &Mutex<Pass>, start: Instant) {
    let begun = Instant::now();
    let ran = run_one(job, launch);
    let elapsed = begun.elapsed();
    let mut pass = pass.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (verdict, cpu) = match ran {
        Ok((verdict, output, cpu)) => (Ok((verdict, output)), cpu),
        Err(error) => (Err(error), Duration::ZERO),
    };
    let name = job.label();
    pass.times.push(TestTime { elapsed, cpu, name });
    keep(&mut pass, job, verdict);
    pass.time = start.elapsed();
}

/// What a user's tests came to, told in the words of Rust's harness.
fn finished(pass: Mutex<Pass>) -> Pass {
    let mut pass = pass.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    pass.failed.sort();
    if let Err(error) = times::keep(&pass.times, pass.user) {
        eprintln!("what the tests took is not kept: {error}");
    }
    println!("{}", Ended(&pass));
    pass
}

/// Counts what came of a test; a failure is printed.
pub(super) fn keep(pass: &mut Pass, job: &Job, verdict: Result<(Verdict, String), TaskError>) {
    let (verdict, output) = verdict.unwrap_or_else(|error| (Verdict::Failed, error.to_string()));
    match verdict {
        Verdict::Passed => pass.passed += 1,
        Verdict::Skipped(reason) => pass.skipped.push(Skip {
            what: job.label(),
            reason,
        }),
        Verdict::Failed => {
            let output = libtest::without_counts(&output);
            eprintln!("FAILED as {}: {}\n{output}", pass.user, job.label());
            pass.failed.push(job.label());
        }
    }
}

/// The tests in `binary`, in the order in which it lists them.
pub(super) fn list(binary: &TestBinary, launch: &dyn Launch) -> Vec<Job> {
    let whole = || {
        vec![Job {
            binary: binary.clone(),
            test: None,
        }]
    };
    // An executable that cannot be started is run as a whole, so that the failure is reported where failures are.
    let Ok(output) = launch
        .command(binary)
        .args(["--list", "--format", "terse"])
        .stdin(Stdio::null())
        .output()
    else {
        return whole();
    };
    if !output.status.success() {
        return whole();
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    names
        .map(|name| Job {
            binary: binary.clone(),
            test: Some(name.to_owned()),
        })
        .collect()
}

fn run_one(job: &Job, launch: &dyn Launch) -> Result<(Verdict, String, Duration), TaskError> {
    // A file and not a pipe: a process that escapes a test and holds a pipe open must not hang the whole run.
    let mut output = tempfile::tempfile().map_err(TaskError::file("creating a file in", std::env::temp_dir()))?;
    let duplicate = || {
        output
            .try_clone()
            .map_err(TaskError::file("duplicating", "the output of a test"))
    };
    let mut command = launch.command(&job.binary);
    if let Some(test) = &job.test {
        command.args(["--exact", test, "--show-output"]);
    }
    command
        .stdin(Stdio::null())
        .stdout(duplicate()?)
        .stderr(duplicate()?)
        .process_group(0);
    let (success, cpu) = wait(&mut command, &job.label())?;
    let text = read_back(&mut output)?;
    Ok((verdict(success, &text), text, cpu))
}

/// Starts `command` and waits for its end: whether it succeeded, and what it took of processors. After the timeout its
/// process group is killed.
fn wait(command: &mut Command, label: &str) -> Result<(bool, Duration), TaskError> {
    let child = command.spawn().map_err(TaskError::start(label))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| TaskError::Answer {
        from: "fork",
        why: "a pid that is none".to_owned(),
    })?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| TaskError::start(label)(error.into()))?;
    let timeout = Timespec {
        tv_sec: TEST_TIMEOUT_S,
        tv_nsec: 0,
    };
    let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    if ended == Ok(0) {
        eprintln!("{label}: killed after {TEST_TIMEOUT_S} s");
        // It may have ended in this moment, and then there is nothing to kill.
        kill_process_group(pid, Signal::KILL).unwrap_or_default();
    }
    let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let ended = ended.map_err(|error| TaskError::start(label)(error.into()))?;
    let success = ended.and_then(|ended| ended.exit_status()) == Some(0);
    let usage = offleash_sys::process::reap(pid).map_err(TaskError::start(label))?;
    Ok((success, Duration::from_micros(usage.user_us + usage.system_us)))
}

fn read_back(output: &mut File) -> Result<String, TaskError> {
    let mut bytes = Vec::new();
    let read = output.rewind().and_then(|()| output.read_to_end(&mut bytes));
    read.map_err(TaskError::file("reading", "the output of a test"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A test that failed has failed, whatever it says it skipped.
pub(super) fn verdict(success: bool, output: &str) -> Verdict {
    if !success {
        return Verdict::Failed;
    }
    if let Some(reason) = skip_reason(output) {
        return Verdict::Skipped(reason);
    }
    if output.contains("; 1 ignored;") {
        return Verdict::Skipped("ignored".to_owned());
    }
    Verdict::Passed
}

/// The reasons of all lines `SKIP: reason`, joined. The harness may have begun the line before the test did.
fn skip_reason(output: &str) -> Option<String> {
    let mut reasons: Vec<_> = output
        .lines()
        .filter_map(|line| Some(line.split_once("SKIP: ")?.1.trim()))
        .collect();
    reasons.dedup();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_follows_exit_status_then_skip_lines() {
        let passed = "test a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
        let ignored = "test a ... ignored\n\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured";
        let skipped = "---- a stdout ----\nSKIP: no cgroup v2\n";
        let skipped_without_capture = "test a ... SKIP: no cgroup v2\nok\n";
        let skip = || Verdict::Skipped("no cgroup v2".to_owned());
        let cases = [
            (true, passed, Verdict::Passed),
            (true, ignored, Verdict::Skipped("ignored".to_owned())),
            (true, skipped, skip()),
            (true, skipped_without_capture, skip()),
            (false, skipped, Verdict::Failed),
            (false, passed, Verdict::Failed),
        ];
        for (success, output, expected) in cases {
            assert_eq!(verdict(success, output), expected, "{success} {output}");
        }
    }
}
