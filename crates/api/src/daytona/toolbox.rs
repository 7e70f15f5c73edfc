//! One sandbox of the caller's, as all that is below `/api/toolbox/ID` has it.

use std::collections::BTreeMap;
use std::time::Duration;

use offleash_daemon::SandboxView;
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::files::FileChannel;
use offleash_supervisor::service::message::{Selector, StartExec};
use tokio::time::timeout;

use crate::commands::{self, CommandOutcome, OutputBounds};
use crate::control::ApiRequest;
use crate::http::answer::ApiRefusal;
use crate::http::failure;
use crate::http::path::{PathError, PathStart, below};
use crate::http::query;

pub(super) const SIGKILL: i32 = 9;
/// How long a command that was killed may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What is kept of what a program says about why it failed.
const MAX_REASON: usize = 1024;

/// Shells, the better one first.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// A sandbox of the caller's, which runs.
pub(super) struct Toolbox<'a> {
    asked: &'a ApiRequest<'a>,
    pub(super) view: SandboxView,
    pub(super) supervisor: SupervisorClient,
}

/// A program that the toolbox runs for a request.
#[derive(Debug, Default)]
pub(super) struct ToolCommand {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Where; below the working directory of the sandbox if it is not absolute, and there if absent.
    pub(super) cwd: Option<String>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) bounds: OutputBounds,
}

impl<'a> Toolbox<'a> {
    /// The sandbox of this id. One that sleeps is woken by this.
    ///
    /// # Errors
    /// 404 for one that is another key's, 409 for one that is stopped.
    pub(super) async fn open(asked: &'a ApiRequest<'a>, given: &str) -> Result<Self, ApiRefusal> {
        let (view, supervisor) = asked.own_sandbox(given).await?;
        Ok(Self {
            asked,
            view,
            supervisor,
        })
    }

    /// The whole path of what a caller wrote: below the working directory, if it is not absolute.
    pub(super) fn resolve(&self, path: &str) -> Result<Vec<u8>, ApiRefusal> {
        if path.is_empty() {
            return Err(ApiRefusal::bad_request("path: there must be one"));
        }
        self.resolve_or_here(path)
    }

    /// The same; an empty path is the working directory.
    pub(super) fn resolve_or_here(&self, path: &str) -> Result<Vec<u8>, ApiRefusal> {
        let wrong = |error: PathError| ApiRefusal::bad_request(format!("path: {error}"));
        match PathStart::parse(path.as_bytes()).map_err(wrong)? {
            PathStart::Absolute(path) => Ok(path),
            PathStart::Home(rest) => below(&self.view.cwd, &rest).map_err(wrong),
        }
    }

    /// The path in the query, under `name`.
    pub(super) fn path_in_query(&self, name: &str) -> Result<Vec<u8>, ApiRefusal> {
        self.resolve(&self.required(name)?)
    }

    /// A value of the query that must be there.
    pub(super) fn required(&self, name: &str) -> Result<String, ApiRefusal> {
        let value = self.given(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| ApiRefusal::bad_request(format!("{name}: it must be in the query")))
    }

    /// A value of the query.
    pub(super) fn given(&self, name: &str) -> Option<String> {
        let pairs = query::pairs(self.asked.query());
        query::value(&pairs, name).map(str::to_owned)
    }

    /// A conversation about files.
    pub(super) async fn files(&self) -> Result<FileChannel, ApiRefusal> {
        self.supervisor.files(None).await.map_err(|error| self.refused(&error))
    }

    /// What the caller is told of an error of the sandbox.
    pub(super) fn refused(&self, error: &SupervisorError) -> ApiRefusal {
        failure::refusal_of_supervisor(self.asked.journal(), "the sandbox did not do it", error)
    }

    /// The command, as it is started.
    pub(super) fn exec(&self, command: ToolCommand) -> Result<StartExec, ApiRefusal> {
        if command.argv.iter().any(|word| word.contains('\0')) {
            return Err(ApiRefusal::bad_request("command: no NUL may be in it"));
        }
        let exec = StartExec {
            argv: command.argv.into_iter().map(String::into_bytes).collect(),
            env: commands::checked_env(command.env)?,
            cwd: Some(self.resolve_or_here(command.cwd.as_deref().unwrap_or_default())?),
            timeout_ms: command.timeout_ms,
            ..StartExec::default()
        };
        Ok(commands::with_env(exec, self.view.env.clone()))
    }

    /// Starts a shell that is typed into, as `exec` says: Bash, or whichever there is.
    ///
    /// # Errors
    /// Whatever keeps it from being started.
    pub(super) async fn start_shell(&self, exec: StartExec) -> Result<ExecStream, ApiRefusal> {
        let mut last = SupervisorError::NotFound;
        for shell in SHELLS {
            let exec = StartExec {
                argv: vec![shell.as_bytes().to_vec()],
                stdin: true,
                ..exec.clone()
            };
            match self.supervisor.start(exec).await {
                Ok(stream) => return Ok(stream),
                Err(error @ SupervisorError::NotFound) => last = error,
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(self.refused(&last))
    }

    /// Ends a command, and whatever it started. When this answers it has ended, and another one can have its name.
    pub(super) async fn end(&self, which: &Selector) -> Result<(), ApiRefusal> {
        let ended = async {
            let mut news = self.supervisor.attach(which).await?;
            self.supervisor.signal(which, SIGKILL).await?;
            while !matches!(news.next().await?, None | Some(ExecNews::Ended(_))) {}
            Ok(())
        };
        match timeout(END_TIMEOUT, ended).await {
            Ok(Ok(()) | Err(SupervisorError::NoProcess)) => Ok(()),
            Ok(Err(error)) => Err(self.refused(&error)),
            Err(_) => Err(ApiRefusal::new(
                http::StatusCode::GATEWAY_TIMEOUT,
                "it was killed, and has not ended yet",
            )),
        }
    }

    /// Runs a command to its end.
    pub(super) async fn run(&self, command: ToolCommand) -> Result<CommandOutcome, ApiRefusal> {
        let bounds = command.bounds;
        let exec = self.exec(command)?;
        let outcome = commands::executed(&self.supervisor, exec, None, bounds).await;
        outcome.map_err(|error| self.asked.not_run(&error))
    }

    /// Runs one that must succeed; what it says is why not otherwise. Answers what it wrote.
    pub(super) async fn succeed(&self, command: ToolCommand) -> Result<Vec<u8>, ApiRefusal> {
        let outcome = self.run(command).await?;
        match outcome.exit_code {
            Some(0) if outcome.truncated => Err(ApiRefusal::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                "there is more than an answer may have",
            )),
            Some(0) => Ok(outcome.stdout),
            _ => Err(failed(&outcome)),
        }
    }
}

/// What a program said about why it failed.
pub(super) fn failed(outcome: &CommandOutcome) -> ApiRefusal {
    let said = &outcome.stderr[..outcome.stderr.len().min(MAX_REASON)];
    let said = String::from_utf8_lossy(said);
    let message = match said.trim() {
        "" => format!("it failed with code {}", outcome.shell_code()),
        said => said.to_owned(),
    };
    ApiRefusal::bad_request(message)
}
