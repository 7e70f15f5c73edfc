//! A command that is run and waited for in one request.

use std::collections::BTreeMap;
use std::time::Instant;

use http::{Response, StatusCode};
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_daemon::{Caller, CreateRequest, Daemon};
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{Selector, StartExec};

use super::cells::some_time;
use super::sandboxes;
use super::shapes::{NewCommand, NewRun, RunResult};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::failure;
use crate::http::json::RequestBody;
use crate::telemetry::{self, SpanOperation};

/// The most that is kept of each stream of output.
const MAX_OUTPUT: usize = 1024 * 1024;
/// The most that a command is given to read.
const MAX_INPUT: usize = 512 * 1024;

const SIGKILL: i32 = 9;

/// What a command did.
#[derive(Debug, Default)]
struct RunOutcome {
    exit_code: Option<i32>,
    signal: Option<i32>,
    out_of_memory: bool,
    timed_out: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    took_ms: u64,
    took_us: Option<u64>,
}

/// Makes a sandbox, runs a command in it, and kills it unless it is to be kept.
pub(crate) async fn run(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewRun = body.read().await?;
    let (exec, input) = command(new.command)?;
    let request = sandboxes::create_request(new.sandbox.unwrap_or_default(), None)?;
    let keep = new.keep.unwrap_or(false);
    // Whoever goes away meanwhile leaves no sandbox behind that nobody knows of.
    let work = |daemon: Daemon, caller: Caller| async move {
        Ok(made_and_run(&daemon, &caller, request, exec, input, keep).await)
    };
    let (id, outcome) = asked.whole(work).await?.map_err(|failed| failed.told(asked))?;
    Ok(answered(id, keep, outcome))
}

/// Runs a command in a sandbox that is there.
pub(crate) async fn run_in(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let id = asked.sandbox_id(given)?;
    let command_asked: NewCommand = body.read().await?;
    let (exec, input) = command(command_asked)?;
    let daemon = &asked.daemon();
    // Only the owner of a sandbox may.
    let view = daemon.get(&asked.caller, id).map_err(|error| asked.refused(&error))?;
    let exec = with_env(exec, view.env);
    let supervisor = daemon.supervisor(id).await.map_err(|error| asked.refused(&error))?;
    let outcome = executed(&supervisor, exec, input)
        .await
        .map_err(|error| RunFailure::Supervisor(error).told(asked))?;
    Ok(answered(id.to_owned(), true, outcome))
}

/// Why a run has no outcome.
#[derive(Debug)]
enum RunFailure {
    Daemon(offleash_daemon::DaemonError),
    Supervisor(SupervisorError),
}

impl RunFailure {
    fn told(&self, asked: &ApiRequest<'_>) -> ApiRefusal {
        let error = match self {
            Self::Daemon(error) => return asked.refused(error),
            Self::Supervisor(error) => error,
        };
        failure::refusal_of_supervisor(asked.journal(), "the command was not run", error)
    }
}

async fn made_and_run(
    daemon: &Daemon,
    caller: &Caller,
    request: CreateRequest,
    exec: StartExec,
    input: Option<Vec<u8>>,
    keep: bool,
) -> Result<(String, RunOutcome), RunFailure> {
    let created = telemetry::of(SpanOperation::Create, daemon.create(caller, request), |view| {
        view.id.clone()
    });
    let view = created.await.map_err(RunFailure::Daemon)?;
    let (id, exec) = (view.id, with_env(exec, view.env));
    let outcome = match daemon.supervisor(&id).await {
        Ok(supervisor) => {
            let executed = executed(&supervisor, exec, input);
            let executed = telemetry::of(SpanOperation::Exec, executed, |_| id.clone()).await;
            executed.map_err(RunFailure::Supervisor)
        }
        Err(error) => Err(RunFailure::Daemon(error)),
    };
    if !keep {
        // It may have ended by itself; and the outcome is what was asked for.
        let _killed = telemetry::of(SpanOperation::Kill, daemon.kill(caller, &id), |_| id.clone()).await;
    }
    Ok((id, outcome?))
}

/// What is to be run, and what it is to read.
fn command(new: NewCommand) -> Result<(StartExec, Option<Vec<u8>>), ApiRefusal> {
    let argv: Vec<String> = match (new.argv, new.shell) {
        (Some(argv), None) if !argv.is_empty() => argv,
        (None, Some(line)) => ["/bin/bash", "-l", "-c"]
            .into_iter()
            .map(str::to_owned)
            .chain([line])
            .collect(),
        _ => {
            return Err(ApiRefusal::bad_request(
                "command: either `argv` or `shell` must say what to run",
            ));
        }
    };
    let env = new.env.unwrap_or_default();
    let has_nul = |text: &str| text.contains('\0');
    let texts = argv.iter().chain(env.keys()).chain(env.values()).chain(&new.cwd);
    if texts.into_iter().any(|text| has_nul(text)) || env.keys().any(|name| name.is_empty() || name.contains('=')) {
        return Err(ApiRefusal::bad_request(
            "command: no NUL may be in it, nor a `=` in the name of a variable",
        ));
    }
    let input = new.stdin.map(String::into_bytes);
    if input.as_ref().is_some_and(|input| input.len() > MAX_INPUT) {
        return Err(ApiRefusal::bad_request(format!(
            "command: `stdin` may have {MAX_INPUT} bytes"
        )));
    }
    let exec = StartExec {
        argv: argv.into_iter().map(String::into_bytes).collect(),
        env: env
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect(),
        cwd: new.cwd.map(String::into_bytes),
        user: new.user,
        stdin: input.is_some(),
        timeout_ms: some_time(new.timeout_ms)?,
        ..StartExec::default()
    };
    Ok((exec, input))
}

/// Adds the variables of a sandbox; the command's own win.
fn with_env(mut exec: StartExec, env: BTreeMap<String, String>) -> StartExec {
    let pair = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    let all: BTreeMap<_, _> = env.into_iter().map(pair).chain(exec.env).collect();
    exec.env = all.into_iter().collect();
    exec
}

/// Runs a command and waits for its end.
async fn executed(
    supervisor: &SupervisorClient,
    exec: StartExec,
    input: Option<Vec<u8>>,
) -> Result<RunOutcome, SupervisorError> {
    let began = Instant::now();
    let mut stream = match supervisor.start(exec).await {
        Ok(stream) => stream,
        Err(error) => return RunOutcome::of_no_command(error),
    };
    let which = Selector::Pid(stream.pid());
    let fed = async {
        if let Some(input) = input {
            // A command that does not read what it is given may.
            let _given = supervisor.input(&which, input).await;
            let _closed = supervisor.close_input(&which).await;
        }
    };
    let (outcome, ()) = tokio::join!(outcome(&mut stream), fed);
    let mut outcome = outcome?;
    let took_us = stream.took().map(|took| u64::try_from(took.as_micros()));
    outcome.took_us = took_us.and_then(Result::ok);
    outcome.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(outcome)
}

async fn outcome(stream: &mut ExecStream) -> Result<RunOutcome, SupervisorError> {
    let mut outcome = RunOutcome::default();
    loop {
        match stream.next().await?.ok_or(SupervisorError::Gone)? {
            ExecNews::Output { stream, bytes } => outcome.take(stream, &bytes),
            ExecNews::TimedOut => outcome.timed_out = true,
            ExecNews::Ended(ExecEnd::Exited { code }) => {
                outcome.exit_code = Some(i32::from(code));
                return Ok(outcome);
            }
            ExecNews::Ended(ExecEnd::Signaled { signal }) => {
                outcome.signal = Some(signal);
                return Ok(outcome);
            }
            ExecNews::Ended(ExecEnd::OutOfMemory { .. }) => {
                outcome.signal = Some(SIGKILL);
                outcome.out_of_memory = true;
                return Ok(outcome);
            }
            ExecNews::Ended(ExecEnd::NotStarted(_) | ExecEnd::Lost) => return Err(SupervisorError::Gone),
        }
    }
}

impl RunOutcome {
    /// What a shell says of a command that is not there or cannot be executed; every other error stays one.
    fn of_no_command(error: SupervisorError) -> Result<Self, SupervisorError> {
        let Some(code) = error.exit_code() else {
            return Err(error);
        };
        Ok(Self {
            exit_code: Some(code.into()),
            stderr: format!("offleash: {error}\n").into_bytes(),
            ..Self::default()
        })
    }

    fn take(&mut self, stream: OutputStream, bytes: &[u8]) {
        let kept = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let taken = bytes.len().min(MAX_OUTPUT - kept.len());
        kept.extend_from_slice(&bytes[..taken]);
        self.truncated |= taken < bytes.len();
    }
}

fn answered(sandbox: String, kept: bool, outcome: RunOutcome) -> Response<Body> {
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    };
    let result = RunResult {
        sandbox,
        kept,
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        out_of_memory: outcome.out_of_memory,
        timed_out: outcome.timed_out,
        stdout: text(outcome.stdout),
        stderr: text(outcome.stderr),
        truncated: outcome.truncated,
        took_ms: outcome.took_ms,
        took_us: outcome.took_us,
    };
    answer::json(StatusCode::OK, &result)
}
