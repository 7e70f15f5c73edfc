//! What a template has started in each of its sandboxes: before anybody has the sandbox, and waited for until it is ready.
//!
//! The commands are the tenant's, and run as any command of the sandbox does: as its usual user, with its variables, where
//! commands start. What they write is read only to say why they failed.

use std::collections::VecDeque;
use std::time::Duration;

use offleash_core::exec::ExecEnd;
use offleash_core::template::StartCommand;
use offleash_core::text::one_line;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::StartExec;
use tokio::time::{Instant, sleep, timeout_at};

use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::sandboxes::SandboxEntry;

/// How long a sandbox may take until it is ready. SDKs wait a minute for an answer.
const READY_TIMEOUT: Duration = Duration::from_secs(50);
/// How often a sandbox is asked whether it is ready: at first, and at most.
const READY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_READY_INTERVAL: Duration = Duration::from_secs(1);
/// Lines of output that are told with a failure, and how long each may be.
const LAST_LINES: usize = 12;
const MAX_LINE: usize = 500;
/// The shells that are tried, the best first.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Starts what templates say.
#[derive(Debug)]
pub(crate) struct StartRunner {
    core: DaemonCore,
}

/// The last lines of a command.
#[derive(Debug, Default)]
struct LastLines {
    begun: Vec<u8>,
    lines: VecDeque<String>,
}

impl LastLines {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                // What is longer is cut.
                byte if self.begun.len() < MAX_LINE => self.begun.push(*byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        let line = one_line(&std::mem::take(&mut self.begun)).into_owned();
        self.lines.push_back(line);
    }

    fn told(mut self, how: &str) -> String {
        if !self.begun.is_empty() {
            self.end_line();
        }
        let lines = self.lines.into_iter();
        std::iter::once(how.to_owned())
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl StartRunner {
    pub(crate) fn new(core: DaemonCore) -> Self {
        Self { core }
    }

    /// Starts what `command` says in a sandbox that nobody has so far, and waits until it is ready. Somebody is asked before about what
    /// is to be asked about: whoever may build a template starts commands by it.
    ///
    /// # Errors
    /// `ApprovalDenied`, `StartFailed`, `Supervisor`.
    pub(crate) async fn start(
        &self,
        entry: &SandboxEntry,
        template: &str,
        command: &StartCommand,
    ) -> Result<(), DaemonError> {
        if command.is_empty() {
            return Ok(());
        }
        for line in [&command.start, &command.ready].into_iter().flatten() {
            self.ask(entry, template, line).await?;
        }
        let supervisor = self.core.host.supervisor(entry.id());
        let specification = entry.specification();
        let env = specification.env.iter();
        let env: Vec<(Vec<u8>, Vec<u8>)> = env
            .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
            .collect();
        let failed = |why: String| DaemonError::StartFailed {
            name: template.to_owned(),
            why,
        };
        let until = Instant::now() + READY_TIMEOUT;
        let mut started = match &command.start {
            Some(line) => Some(shell(&supervisor, line, &env).await?),
            None => None,
        };
        let mut output = LastLines::default();
        let Some(ready) = &command.ready else {
            return Ok(());
        };
        let mut pause = READY_INTERVAL;
        loop {
            let tried = shell(&supervisor, ready, &env).await?;
            let mut said = LastLines::default();
            let end = tokio::select! {
                end = timeout_at(until, end_of(tried, &mut said)) => end,
                how = failure_of(started.as_mut(), &mut output) => match how {
                    Some(how) => return Err(failed(output.told(&how))),
                    None => {
                        started = None;
                        continue;
                    }
                },
            };
            match end {
                Ok(Ok(ExecEnd::Exited { code: 0 })) => return Ok(()),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(DaemonError::supervisor("wait for a start command", error)),
                Err(_) => {
                    let how = format!("it is not ready after {} seconds", READY_TIMEOUT.as_secs());
                    return Err(failed(output.told(&how)));
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                how = failure_of(started.as_mut(), &mut output) => match how {
                    Some(how) => return Err(failed(output.told(&how))),
                    None => started = None,
                },
            }
            if Instant::now() >= until {
                let how = format!("it is not ready after {} seconds", READY_TIMEOUT.as_secs());
                return Err(failed(output.told(&how)));
            }
            pause = (pause * 2).min(MAX_READY_INTERVAL);
        }
    }
}

impl StartRunner {
    /// Asks before a line of a template is started, if a rule says so.
    async fn ask(&self, entry: &SandboxEntry, template: &str, line: &str) -> Result<(), DaemonError> {
        let core = &self.core;
        let argv = ["/bin/sh", "-c", line].map(|word| word.as_bytes().to_vec());
        let asked = core.questions.before_command(entry, Some(&core.registry), &argv).await;
        asked.map_err(|error| DaemonError::ApprovalDenied {
            what: format!("what template `{template}` starts was not started, and its sandbox was not made"),
            why: match error {
                SupervisorError::NotAllowed { why, .. } => why,
                other => other.to_string(),
            },
        })
    }
}

/// Starts a line of the best shell that the sandbox has.
async fn shell(
    supervisor: &SupervisorClient,
    line: &str,
    env: &[(Vec<u8>, Vec<u8>)],
) -> Result<ExecStream, DaemonError> {
    let mut missing = None;
    for shell in SHELLS {
        let exec = StartExec {
            argv: [shell, "-c", line].map(|word| word.as_bytes().to_vec()).to_vec(),
            env: env.to_vec(),
            ..StartExec::default()
        };
        match supervisor.start(exec).await {
            Ok(stream) => return Ok(stream),
            Err(error @ (SupervisorError::NotFound | SupervisorError::NotExecutable { .. })) => missing = Some(error),
            Err(error) => return Err(DaemonError::supervisor("start a command of the template", error)),
        }
    }
    let source = missing.unwrap_or(SupervisorError::NotFound);
    Err(DaemonError::supervisor(
        "find a shell for the template's command",
        source,
    ))
}

/// How a command ends, once it has.
async fn end_of(mut stream: ExecStream, said: &mut LastLines) -> Result<ExecEnd, SupervisorError> {
    loop {
        match stream.next().await? {
            Some(ExecNews::Output { bytes, .. }) => said.push(&bytes),
            Some(ExecNews::Ended(end)) => return Ok(end),
            Some(ExecNews::TimedOut) => {}
            None => return Err(SupervisorError::Gone),
        }
    }
}

/// How the command failed that goes on; `None` once it has succeeded, which one does that starts others. Waits for ever where
/// there is none.
async fn failure_of(started: Option<&mut ExecStream>, output: &mut LastLines) -> Option<String> {
    let Some(stream) = started else {
        return std::future::pending().await;
    };
    loop {
        match stream.next().await {
            Ok(Some(ExecNews::Output { bytes, .. })) => output.push(&bytes),
            Ok(Some(ExecNews::Ended(ExecEnd::Exited { code: 0 }))) => return None,
            Ok(Some(ExecNews::Ended(ExecEnd::Exited { code }))) => {
                return Some(format!("it ended with exit code {code}"));
            }
            Ok(Some(ExecNews::Ended(ExecEnd::Signaled { signal }))) => {
                return Some(format!("it was ended by signal {signal}"));
            }
            Ok(Some(ExecNews::Ended(_)) | None) | Err(_) => return Some("it ended".to_owned()),
            Ok(Some(ExecNews::TimedOut)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_told_each_of_them_bounded() {
        let mut lines = LastLines::default();
        for number in 0..LAST_LINES + 3 {
            lines.push(format!("line {number}\n").as_bytes());
        }
        lines.push(&[b'x'; MAX_LINE * 2]);
        let told = lines.told("it ended with exit code 1");
        let told: Vec<&str> = told.lines().collect();
        assert_eq!((told.len(), told[0]), (1 + LAST_LINES, "it ended with exit code 1"));
        assert_eq!((told[1], told[LAST_LINES].len()), ("line 4", MAX_LINE));
    }
}
