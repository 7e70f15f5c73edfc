//! The tools that run code and commands.

use std::time::Duration;

use offleash_core::exec::ExecEnd;
use offleash_core::units::Bytes;
use offleash_interpreter::cell::Cell;
use offleash_interpreter::contexts::ContextInfo;
use offleash_interpreter::error::ContextError;
use offleash_supervisor::service::client::ExecNews;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{Selector, StartExec};
use rmcp::RoleServer;
use rmcp::model::CallToolResult;
use rmcp::service::RequestContext;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::arguments::{RunCodeArguments, RunCommandArguments};
use super::backing::OpenedSandbox;
use super::content::ToolOutcome;
use super::failure::ToolError;
use super::progress::{self, ProgressTeller};
use crate::cells::{CellEvents, CellOutcome, CellTarget, RenderedEnd, RenderedEvent, TruncatedPart, language};

/// How long code and commands may take that are not told.
pub(super) const USUAL_TIMEOUT: Duration = Duration::from_secs(120);
/// The most that a command is given to read.
const MAX_INPUT: usize = 16 * 1024 * 1024;
/// The most refusals that one result names.
const MAX_REFUSALS: usize = 16;
/// The most contexts that a hint names.
const MAX_CONTEXTS: usize = 10;
/// The word that asks for a context that does not exist yet.
const NEW_CONTEXT: &str = "new";

const SIGKILL: i32 = 9;

/// Runs code in a context.
pub(super) async fn code(
    sandbox: &OpenedSandbox,
    asked: RunCodeArguments,
    longest: Duration,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ToolError> {
    let most = timeout(asked.timeout_seconds, longest)?;
    let cell = Cell {
        code: asked.code,
        env: sandbox.env.clone(),
        timeout: Some(most),
    };
    let contexts = &sandbox.contexts;
    let named = || language(asked.language.as_deref());
    let mut outcome = ToolOutcome::default();
    let refusals = RefusalCount::so_far(sandbox).await;
    let made;
    let target = match asked.context.as_deref() {
        None => CellTarget::Default(named()?),
        Some(NEW_CONTEXT) => {
            made = contexts.create(named()?, None).await?;
            outcome.say(format!("context: {} (pass it as `context` to go on in it)", made.id));
            CellTarget::Context(&made.id)
        }
        Some(_) if asked.language.is_some() => {
            return Err(ToolError::new("either `context` or `language` may be given")
                .with_hint("a context has its language already"));
        }
        Some(id) => CellTarget::Context(id),
    };
    let began = CellEvents::begin(contexts, target, cell).await;
    let mut events = match began {
        Err(unknown @ ContextError::NotFound { .. }) => {
            let there = contexts.list().await.unwrap_or_default();
            return Err(ToolError::from(unknown).with_hint(instead(&there)));
        }
        began => began?,
    };
    let progress = ProgressTeller::of(context);
    let mut ticks = ticks();
    let mut failed = false;
    let end = loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = ticks.tick() => {
                progress.tell(most, outcome.last_line()).await;
                continue;
            }
            // Letting go of the events interrupts the cell.
            () = context.ct.cancelled() => return Err(ToolError::new("the call was cancelled")),
        };
        match event {
            Some(RenderedEvent::Begin { .. }) => {}
            Some(RenderedEvent::Output { stream, text, .. }) => outcome.output(stream, text.as_bytes()),
            Some(RenderedEvent::Result(value)) => outcome.value(*value),
            Some(RenderedEvent::Error(error)) => {
                outcome.error(&error);
                failed = true;
            }
            Some(RenderedEvent::Truncated { part, limit }) => outcome.say(match part {
                TruncatedPart::Output => format!("[output beyond {limit} bytes is lost]"),
                TruncatedPart::Results => format!("[values beyond {limit} bytes are lost]"),
            }),
            Some(RenderedEvent::End(end)) => break end,
            None => return Err(SupervisorError::Gone.into()),
        }
    };
    if let Some(line) = told(end, most)? {
        outcome.say(line);
        failed = true;
    }
    refusals.tell(sandbox, &mut outcome).await;
    Ok(result(outcome, failed))
}

/// What there is instead of a context that is not there.
fn instead(there: &[ContextInfo]) -> String {
    let named = |one: &ContextInfo| format!("`{}` ({})", one.id, one.language);
    let there = match there {
        [] => "the sandbox has none yet".to_owned(),
        there => {
            let named: Vec<String> = there.iter().rev().take(MAX_CONTEXTS).map(named).collect();
            format!("the latest of the sandbox: {}", named.join(", "))
        }
    };
    format!("pass `new` as `context` to make one, or leave it out for the usual one of a language; {there}")
}

/// What is said of an end that is not the code's own; the sandbox may have ended with it.
fn told(end: RenderedEnd, most: Duration) -> Result<Option<String>, ToolError> {
    if let Some(lost) = end.lost_sandbox {
        // One that was gone before is the business of whoever ended it.
        let why = lost.why.filter(|_| end.outcome == CellOutcome::Died);
        return Err(ToolError::gone(why));
    }
    let reason = end.reason.unwrap_or_default();
    Ok(match end.outcome {
        CellOutcome::Done => None,
        CellOutcome::Interrupted => Some("error: the code was interrupted".to_owned()),
        CellOutcome::TimedOut => Some(format!(
            "error: the code was interrupted after {} s; the state that it had is kept\nhint: `timeout_seconds` gives it more time",
            most.as_secs_f64()
        )),
        CellOutcome::Died => Some(format!(
            "error: the interpreter has lost its state: {reason}\nhint: the next call finds a new one; do again what led here"
        )),
        CellOutcome::NotRun => Some(format!(
            "error: the code was not run, because the interpreter had lost its state before: {reason}\nhint: the next call finds a new one"
        )),
    })
}

/// Runs a command.
pub(super) async fn command(
    sandbox: &OpenedSandbox,
    asked: RunCommandArguments,
    longest: Duration,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ToolError> {
    let most = timeout(asked.timeout_seconds, longest)?;
    let input = asked.stdin.map(String::into_bytes);
    if input.as_ref().is_some_and(|input| input.len() > MAX_INPUT) {
        return Err(ToolError::new(format!("`stdin` may have {MAX_INPUT} bytes"))
            .with_hint("write it to a file with write_file, and redirect the command from there"));
    }
    let mut env = sandbox.env.clone();
    env.extend(asked.env.unwrap_or_default());
    let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    let start = StartExec {
        argv: vec!["/bin/bash".into(), "-c".into(), asked.command.into_bytes()],
        env: env.into_iter().map(bytes).collect(),
        cwd: Some(asked.cwd.unwrap_or_else(|| sandbox.cwd.clone()).into_bytes()),
        user: asked.user,
        stdin: input.is_some(),
        timeout_ms: Some(u64::try_from(most.as_millis()).unwrap_or(u64::MAX)),
        ..StartExec::default()
    };
    let refusals = RefusalCount::so_far(sandbox).await;
    let mut stream = sandbox.supervisor.start(start).await?;
    let which = Selector::Pid(stream.pid());
    if let Some(input) = input {
        let (supervisor, which) = (sandbox.supervisor.clone(), which.clone());
        tokio::spawn(async move {
            // A command that does not read what it is given may.
            let _given = supervisor.input(&which, input).await;
            let _closed = supervisor.close_input(&which).await;
        });
    }
    let mut outcome = ToolOutcome::default();
    let progress = ProgressTeller::of(context);
    let mut ticks = ticks();
    let mut timed_out = false;
    let end = loop {
        let news = tokio::select! {
            news = stream.next() => match news? {
                Some(news) => news,
                None => return Err(ToolError::gone(stream.why_gone().map(str::to_owned))),
            },
            _ = ticks.tick() => {
                progress.tell(most, outcome.last_line()).await;
                continue;
            }
            () = context.ct.cancelled() => {
                // It may have ended by itself meanwhile.
                let _killed = sandbox.supervisor.signal(&which, SIGKILL).await;
                return Err(ToolError::new("the call was cancelled"));
            }
        };
        match news {
            ExecNews::Output { stream, bytes } => outcome.output(stream, &bytes),
            ExecNews::TimedOut => timed_out = true,
            ExecNews::Ended(end) => break end,
        }
    };
    let failed = match end {
        _ if timed_out => {
            outcome.say(format!(
                "error: the command was killed after {} s\nhint: `timeout_seconds` gives it more time",
                most.as_secs_f64()
            ));
            true
        }
        ExecEnd::Exited { code } => {
            outcome.say(format!("exit code: {code}"));
            code != 0
        }
        ExecEnd::Signaled { signal } => {
            outcome.say(format!("error: the command was ended by signal {signal}"));
            true
        }
        ExecEnd::OutOfMemory { limit } => {
            outcome.say(format!(
                "error: the command was killed: the sandbox was out of memory, of which it may use {}",
                Bytes(limit)
            ));
            true
        }
        ExecEnd::NotStarted(_) | ExecEnd::Lost => return Err(SupervisorError::Gone.into()),
    };
    refusals.tell(sandbox, &mut outcome).await;
    Ok(result(outcome, failed))
}

/// How many refusals there had been when a call began.
struct RefusalCount(u64);

impl RefusalCount {
    async fn so_far(sandbox: &OpenedSandbox) -> Self {
        // Of a sandbox that cannot say it, the call itself says more.
        Self(
            sandbox
                .supervisor
                .refusals(u64::MAX)
                .await
                .map_or(u64::MAX, |refusals| refusals.count),
        )
    }

    /// Tells what was refused since, with what a model can do about it.
    async fn tell(self, sandbox: &OpenedSandbox, outcome: &mut ToolOutcome) {
        let Ok(since) = sandbox.supervisor.refusals(self.0).await else {
            return;
        };
        let count = since.count.saturating_sub(self.0);
        let lines = since.lines.into_iter().take(MAX_REFUSALS);
        let lines: Vec<String> = lines.map(|line| format!("refused by the sandbox: {line}")).collect();
        if lines.is_empty() {
            return;
        }
        let more = count.saturating_sub(u64::try_from(lines.len()).unwrap_or(u64::MAX));
        lines.into_iter().for_each(|line| outcome.say(line));
        if more > 0 {
            outcome.say(format!("[{more} more refusals are left out]"));
        }
        outcome.say(format!("hint: trying again changes nothing; {}", sandbox.remedy));
    }
}

fn result(outcome: ToolOutcome, failed: bool) -> CallToolResult {
    let content = outcome.into_content();
    if failed {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    }
}

/// Ticks of progress, the first after a while.
fn ticks() -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + progress::EVERY, progress::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn timeout(asked: Option<f64>, longest: Duration) -> Result<Duration, ToolError> {
    let Some(asked) = asked else {
        return Ok(USUAL_TIMEOUT.min(longest));
    };
    match Duration::try_from_secs_f64(asked) {
        Ok(timeout) if timeout >= Duration::from_millis(1) && timeout <= longest => Ok(timeout),
        _ => Err(ToolError::new(format!(
            "`timeout_seconds` is {asked}, and must be more than 0 and at most {}",
            longest.as_secs()
        ))),
    }
}
