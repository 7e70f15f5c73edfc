//! One command, started and timed to its end; and what many such times say.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, set_child_subreaper, waitid};
use serde::{Deserialize, Serialize};

use super::processes::ProcessTable;
use crate::error::TaskError;

/// How long a process that a command left behind may live on.
const ORPHAN_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A command with everything that it is started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CommandLine {
    /// Program and arguments.
    pub(super) arguments: Vec<OsString>,
    /// The whole environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Where it runs.
    pub(super) directory: PathBuf,
}

/// What one command took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Sample {
    /// From before the start to after the end, µs.
    pub(super) wall_us: u64,
    /// User and system time of it and of all its descendants, µs.
    pub(super) cpu_us: u64,
}

impl CommandLine {
    /// The command, without input and output.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.arguments.first().cloned().unwrap_or_default());
        command
            .args(self.arguments.iter().skip(1))
            .current_dir(&self.directory)
            .env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn shown(&self) -> String {
        self.arguments
            .iter()
            .map(|argument| argument.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Runs the command once, untimed, and keeps what it says when it fails.
    ///
    /// # Errors
    /// `Start` and `Ended`.
    pub(super) fn check(&self) -> Result<(), TaskError> {
        self.output().map(drop)
    }

    /// Runs the command once, untimed; what it says on standard output.
    ///
    /// # Errors
    /// `Start` and `Ended`, with what it says on standard error.
    pub(super) fn output(&self) -> Result<String, TaskError> {
        let output = self
            .command()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .map_err(TaskError::start(self.shown()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(TaskError::Ended {
            command: self.shown(),
            status: output.status.to_string(),
            stderr,
        })
    }

    /// Runs the command once to its end; unlike `sample` on any thread and many at the same time.
    ///
    /// # Errors
    /// `Start` and `Ended`.
    pub(super) fn run(&self) -> Result<(), TaskError> {
        let status = self.command().status().map_err(TaskError::start(self.shown()))?;
        if status.success() {
            Ok(())
        } else {
            Err(self.ended(status.to_string()))
        }
    }

    /// Runs the command once and measures it. Only one may be measured in a process at a time.
    ///
    /// # Errors
    /// `Start` and `Ended`; a run that failed has no time, nor has one that leaves processes behind.
    pub(super) fn sample(&self) -> Result<Sample, TaskError> {
        let failed = |error: std::io::Error| TaskError::start(self.shown())(error);
        let mut command = self.command();
        let orphans = Orphans::adopt()?;
        let start = Instant::now();
        let child = command.spawn().map_err(failed)?;
        let pid = process_id(child.id())?;
        // `reap` counts what was used and `waitid` says how it ended, so the second must come first.
        let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let wall = start.elapsed();
        let usage = offleash_sys::process::reap(pid).map_err(failed)?;
        let orphans_cpu_us = orphans.reap()?;
        let status = ended
            .map_err(|error| failed(error.into()))?
            .and_then(|status| status.exit_status());
        if status != Some(0) {
            return Err(self.ended(status.map_or("a signal".to_owned(), |code| format!("exit code {code}"))));
        }
        let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Ok(Sample {
            wall_us,
            cpu_us: usage.user_us + usage.system_us + orphans_cpu_us,
        })
    }

    fn ended(&self, status: String) -> TaskError {
        TaskError::Ended {
            command: self.shown(),
            status,
            stderr: String::new(),
        }
    }
}

fn process_id(id: u32) -> Result<Pid, TaskError> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| TaskError::Answer {
        from: "the kernel",
        why: format!("{id} as a process id"),
    })
}

/// Processes that a command does not wait for itself (bubblewrap leaves its inner one), which come to us so that their
/// time is counted too.
struct Orphans {
    children_before: Vec<u32>,
}

impl Orphans {
    fn adopt() -> Result<Self, TaskError> {
        set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| orphans(error.into()))?;
        Ok(Self {
            children_before: ProcessTable::now()?.children(std::process::id()).collect(),
        })
    }

    /// Waits for all that came to us; the CPU time they used, µs.
    fn reap(self) -> Result<u64, TaskError> {
        let table = ProcessTable::now()?;
        let new = table
            .children(std::process::id())
            .filter(|child| !self.children_before.contains(child));
        let mut cpu_us = 0;
        for orphan in new {
            let pid = process_id(orphan)?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| orphans(error.into()))?;
            if poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&ORPHAN_TIMEOUT)) == Ok(0) {
                let why = format!("it left process {orphan} ({}) running", table.name(orphan));
                return Err(TaskError::Answer {
                    from: "the measured command",
                    why,
                });
            }
            let usage = offleash_sys::process::reap(pid).map_err(orphans)?;
            cpu_us += usage.user_us + usage.system_us;
        }
        Ok(cpu_us)
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        // Fails only on kernels before 3.4, where `adopt` has failed already.
        set_child_subreaper(None).unwrap_or_default();
    }
}

fn orphans(error: std::io::Error) -> TaskError {
    TaskError::file("waiting for", "processes that were left behind")(error)
}

/// What a series of numbers comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Series {
    /// Half are at most this.
    pub(super) median: u64,
    /// 95 of 100 are at most this.
    pub(super) p95: u64,
}

impl Series {
    /// The series of `values`; zeros when there are none.
    pub(super) fn of(values: impl Iterator<Item = u64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable();
        // Nearest rank: the smallest value that at least that share of all values does not exceed.
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| values.get(rank(percent)).copied().unwrap_or(0);
        Self {
            median: at(50),
            p95: at(95),
        }
    }
}

/// Nanoseconds as milliseconds.
pub(super) fn milliseconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1000.0
}

/// KiB as MB.
pub(super) fn megabytes(kib: u64) -> f64 {
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) * 1.024 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> CommandLine {
        let arguments = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
        CommandLine {
            arguments,
            environment: Vec::new(),
            directory: "/".into(),
        }
    }

    #[test]
    fn series_takes_nearest_ranks() {
        assert_eq!(Series::of((1..=100).rev()), Series { median: 50, p95: 95 });
        assert_eq!(Series::of([7].into_iter()), Series { median: 7, p95: 7 });
        assert_eq!(Series::of(std::iter::empty()), Series { median: 0, p95: 0 });
    }

    /// One test for everything that starts a command, because only one may be measured in a process at a time.
    #[test]
    fn a_sample_counts_waiting_as_wall_time_only_and_all_descendants_work_as_cpu_time() {
        let sample = shell("sleep 0.3").sample().unwrap();
        assert!(sample.wall_us >= 300_000, "{sample:?}");
        assert!(sample.cpu_us < 200_000, "{sample:?}");

        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        for script in [format!("sh -c '{work}'; true"), format!("sh -c '{work}' &")] {
            let sample = shell(&script).sample().unwrap();
            assert!(sample.cpu_us > 5_000, "{script}: {sample:?}");
        }
        assert!(matches!(shell("exit 3").sample(), Err(TaskError::Ended { .. })));
        assert!(
            shell("echo reason >&2; exit 3")
                .check()
                .unwrap_err()
                .to_string()
                .contains("reason")
        );
    }
}
