//! A command that is run and waited for in one request.

use http::{Response, StatusCode};
use offleash_daemon::{Caller, Daemon, SandboxView};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::message::StartExec;

use super::cells::some_time;
use super::sandboxes;
use super::shapes::{NewCommand, NewRun, RunResult};
use crate::commands::{self, CommandOutcome, OutputBounds, output_text, with_env};
use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::json::RequestBody;
use crate::telemetry::{self, SpanOperation};

/// The most that a command is given to read.
const MAX_INPUT: usize = 512 * 1024;

/// Makes a sandbox, runs a command in it, and kills it unless it is to be kept.
pub(crate) async fn run(asked: &ApiRequest<'_>, body: RequestBody) -> Result<Response<Body>, ApiRefusal> {
    let new: NewRun = body.read().await?;
    let (exec, input) = command(new.command)?;
    let request = sandboxes::create_request(new.sandbox.unwrap_or_default(), None)?;
    let keep = new.keep.unwrap_or(false);
    // Whoever goes away meanwhile leaves no sandbox behind that nobody knows of.
    let work = |daemon: Daemon, caller: Caller| async move {
        let run = |view: SandboxView, supervisor: SupervisorClient| async move {
            let executed = commands::executed(&supervisor, with_env(exec, view.env), input, OutputBounds::default());
            telemetry::of(SpanOperation::Exec, executed, |_| view.id.clone()).await
        };
        Ok(commands::in_new_sandbox(&daemon, &caller, request, keep, run).await)
    };
    let (id, outcome) = asked.whole(work).await?.map_err(|failed| asked.failed(&failed))?;
    Ok(answered(id, keep, outcome))
}

/// Runs a command in a sandbox that is there.
pub(crate) async fn run_in(
    asked: &ApiRequest<'_>,
    given: &str,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    asked.sandbox_id(given)?;
    let command_asked: NewCommand = body.read().await?;
    let (exec, input) = command(command_asked)?;
    let (view, supervisor) = asked.own_sandbox(given).await?;
    let exec = with_env(exec, view.env);
    let outcome = commands::executed(&supervisor, exec, input, OutputBounds::default())
        .await
        .map_err(|error| asked.not_run(&error))?;
    Ok(answered(view.id, true, outcome))
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

fn answered(sandbox: String, kept: bool, outcome: CommandOutcome) -> Response<Body> {
    let result = RunResult {
        sandbox,
        kept,
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        out_of_memory: outcome.out_of_memory,
        timed_out: outcome.timed_out,
        stdout: output_text(outcome.stdout),
        stderr: output_text(outcome.stderr),
        truncated: outcome.truncated,
        took_ms: outcome.took_ms,
        took_us: outcome.took_us,
    };
    answer::json(StatusCode::OK, &result)
}
