//! A measuring process with mounts of its own.
//!
//! crun refuses machines that mount both versions of cgroups. In a mount namespace without the second version it
//! works; the helper lives there, so that entering the namespace is not part of what is measured.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::sample::{CommandLine, Sample};
use crate::error::TaskError;

/// A running helper; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    process: Child,
    /// Taken only by `drop`, which closes it.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper that does not see `/sys/fs/cgroup/unified`.
    ///
    /// # Errors
    /// `Start`.
    pub(super) fn without_unified_cgroups() -> Result<Self, TaskError> {
        let this = std::env::current_exe().map_err(TaskError::file("finding", "the running program"))?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "sh",
                "-c",
                r#"umount /sys/fs/cgroup/unified && exec "$0" bench helper"#,
            ])
            .arg(this);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(TaskError::start("unshare"))?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let answers = answers.ok_or_else(|| answer("no standard output"))?;
        Ok(Self {
            process,
            requests,
            answers: BufReader::new(answers),
        })
    }

    /// Has the helper run `command` once.
    ///
    /// # Errors
    /// What went wrong there, or `Answer` when the helper itself has ended.
    pub(super) fn sample(&mut self, command: &CommandLine) -> Result<Sample, TaskError> {
        let mut request = serde_json::to_string(command).map_err(answer)?;
        request.push('\n');
        let requests = self.requests.as_mut().ok_or_else(|| answer("no standard input"))?;
        requests.write_all(request.as_bytes()).map_err(answer)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(answer)? == 0 {
            return Err(answer("it has ended; own mounts need root"));
        }
        serde_json::from_str::<Result<Sample, String>>(&line)
            .map_err(answer)?
            .map_err(answer)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.requests = None;
        // It ends at the end of its input; when waiting fails it is gone already.
        self.process.wait().map(drop).unwrap_or_default();
    }
}

fn answer(why: impl ToString) -> TaskError {
    TaskError::Answer {
        from: "the measuring helper",
        why: why.to_string(),
    }
}

/// The helper's side: one command a line in, one answer a line out, until the input ends.
///
/// # Errors
/// `Answer` when the other side does not speak this protocol or is gone.
pub(crate) fn serve() -> Result<(), TaskError> {
    for line in io::stdin().lock().lines() {
        let command: CommandLine = serde_json::from_str(&line.map_err(answer)?).map_err(answer)?;
        // Only a run that is not measured keeps what the command says, so one that failed is run once more for that.
        let sample = command
            .sample()
            .map_err(|error| command.check().err().unwrap_or(error).to_string());
        println!("{}", serde_json::to_string(&sample).map_err(answer)?);
    }
    Ok(())
}
