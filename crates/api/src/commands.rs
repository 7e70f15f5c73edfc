//! Commands that are run and waited for, once for all doors: what they wrote, within bounds, and how they ended.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::time::Instant;

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_daemon::{Caller, CreateRequest, Daemon, DaemonError, SandboxView};
use offleash_supervisor::service::client::{ExecNews, ExecStream, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{Selector, StartExec};
use tokio::sync::mpsc;

use crate::http::answer::ApiRefusal;
use crate::telemetry::{self, SpanOperation};

/// The most that is kept of each stream of output, if nothing else is said.
pub(crate) const MAX_OUTPUT: usize = 1024 * 1024;

const SIGKILL: i32 = 9;

/// What a command did.
#[derive(Debug, Default)]
pub(crate) struct CommandOutcome {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out_of_memory: bool,
    pub(crate) timed_out: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Both streams in the order in which they came, where that was asked for.
    pub(crate) both: Vec<u8>,
    pub(crate) truncated: bool,
    /// The stream that had more than it may, where the command was ended for that.
    pub(crate) overflowed: Option<OutputStream>,
    pub(crate) took_ms: u64,
    pub(crate) took_us: Option<u64>,
}

/// What is kept of what a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputBounds {
    /// Bytes of each stream.
    pub(crate) of_stream: usize,
    /// Whether both streams are kept in their order, too.
    pub(crate) in_order: bool,
    /// Whether a command that writes more is ended; the rest is left out otherwise.
    pub(crate) ends: bool,
}

impl Default for OutputBounds {
    fn default() -> Self {
        Self {
            of_stream: MAX_OUTPUT,
            in_order: false,
            ends: false,
        }
    }
}

/// Names and values of variables.
pub(crate) type EnvPairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Variables as commands take them.
///
/// # Errors
/// 400 for a name that no variable has, and for NUL.
pub(crate) fn checked_env(env: BTreeMap<String, String>) -> Result<EnvPairs, ApiRefusal> {
    let is_wrong =
        |(name, value): (&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    if env.iter().any(is_wrong) {
        return Err(ApiRefusal::bad_request(
            "variables: no NUL may be in one, nor a `=` in its name",
        ));
    }
    let pair = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    Ok(env.into_iter().map(pair).collect())
}

/// Adds the variables of a sandbox; the command's own win.
pub(crate) fn with_env(mut exec: StartExec, env: BTreeMap<String, String>) -> StartExec {
    let pair = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    let all: BTreeMap<_, _> = env.into_iter().map(pair).chain(exec.env).collect();
    exec.env = all.into_iter().collect();
    exec
}

/// Why nothing came of a command in a sandbox of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandFailure {
    #[error(transparent)]
    Daemon(DaemonError),
    #[error(transparent)]
    Supervisor(SupervisorError),
}

/// Makes a sandbox, does something in it, and kills it unless it is to be kept; answers its id, too.
///
/// # Errors
/// Whatever the daemon refuses, and what `work` fails with.
pub(crate) async fn in_new_sandbox<T, F>(
    daemon: &Daemon,
    caller: &Caller,
    request: CreateRequest,
    keep: bool,
    work: impl FnOnce(SandboxView, SupervisorClient) -> F,
) -> Result<(String, T), CommandFailure>
where
    F: Future<Output = Result<T, SupervisorError>>,
{
    let created = telemetry::of(SpanOperation::Create, daemon.create(caller, request), |view| {
        view.id.clone()
    });
    let view = created.await.map_err(CommandFailure::Daemon)?;
    let id = view.id.clone();
    let done = match daemon.supervisor(&id).await {
        Ok(supervisor) => work(view, supervisor).await.map_err(CommandFailure::Supervisor),
        Err(error) => Err(CommandFailure::Daemon(error)),
    };
    if !keep {
        // It may have ended by itself; and what was done is what was asked for.
        let _killed = telemetry::of(SpanOperation::Kill, daemon.kill(caller, &id), |_| id.clone()).await;
    }
    Ok((id, done?))
}

/// Runs a command and waits for its end.
///
/// # Errors
/// Whatever keeps it from being started but that there is no such command, which is told as a shell does; `Gone`.
pub(crate) async fn executed(
    supervisor: &SupervisorClient,
    exec: StartExec,
    input: Option<Vec<u8>>,
    bounds: OutputBounds,
) -> Result<CommandOutcome, SupervisorError> {
    let began = Instant::now();
    let mut stream = match supervisor.start(exec).await {
        Ok(stream) => stream,
        Err(error) => return CommandOutcome::of_no_command(error),
    };
    let which = Selector::Pid(stream.pid());
    let fed = async {
        if let Some(input) = input {
            // A command that does not read what it is given may.
            let _given = supervisor.input(&which, input).await;
            let _closed = supervisor.close_input(&which).await;
        }
    };
    let (outcome, ()) = tokio::join!(outcome(supervisor, &mut stream, bounds, |_, _| async {}), fed);
    Ok(outcome?.timed(&stream, began))
}

/// What whoever watches a command gives it.
#[derive(Debug)]
pub(crate) struct LiveInput {
    /// Bytes that it reads. That nobody gives any more is not told to it.
    pub(crate) bytes: mpsc::Receiver<Vec<u8>>,
    /// Signals. Once nobody can send one any more nobody watches, and it is ended.
    pub(crate) signals: mpsc::Receiver<i32>,
}

/// Runs a command that somebody watches, and waits for its end: what it writes within the bounds goes to `told`, too.
///
/// # Errors
/// As [`executed`].
pub(crate) async fn watched<F: Future<Output = ()>>(
    supervisor: &SupervisorClient,
    exec: StartExec,
    live: &mut LiveInput,
    bounds: OutputBounds,
    told: impl FnMut(OutputStream, Vec<u8>) -> F,
) -> Result<CommandOutcome, SupervisorError> {
    let began = Instant::now();
    let takes_input = exec.stdin;
    let mut stream = match supervisor.start(exec).await {
        Ok(stream) => stream,
        Err(error) => return CommandOutcome::of_no_command(error),
    };
    let which = Selector::Pid(stream.pid());
    let LiveInput { bytes, signals } = live;
    // What comes of either is seen by how the command ends.
    let feeding = async {
        while takes_input && let Some(given) = bytes.recv().await {
            let _given = supervisor.input(&which, given).await;
        }
        pending::<Infallible>().await
    };
    let signalling = async {
        while let Some(signal) = signals.recv().await {
            let _sent = supervisor.signal(&which, signal).await;
        }
        let _ended = supervisor.signal(&which, SIGKILL).await;
        pending::<Infallible>().await
    };
    let outcome = tokio::select! {
        outcome = outcome(supervisor, &mut stream, bounds, told) => outcome?,
        never = feeding => match never {},
        never = signalling => match never {},
    };
    Ok(outcome.timed(&stream, began))
}

async fn outcome<F: Future<Output = ()>>(
    supervisor: &SupervisorClient,
    stream: &mut ExecStream,
    bounds: OutputBounds,
    mut told: impl FnMut(OutputStream, Vec<u8>) -> F,
) -> Result<CommandOutcome, SupervisorError> {
    let mut outcome = CommandOutcome::default();
    loop {
        match stream.next().await?.ok_or(SupervisorError::Gone)? {
            ExecNews::Output { stream: of, mut bytes } => {
                let taken = outcome.take(of, &bytes, bounds);
                let is_whole = taken == bytes.len();
                bytes.truncate(taken);
                told(of, bytes).await;
                if !is_whole && bounds.ends && outcome.overflowed.is_none() {
                    outcome.overflowed = Some(of);
                    // It may have ended by itself.
                    let _gone = supervisor.signal(&Selector::Pid(stream.pid()), SIGKILL).await;
                }
            }
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

impl CommandOutcome {
    /// What a shell says of a command that is not there or cannot be executed; every other error stays one.
    fn of_no_command(error: SupervisorError) -> Result<Self, SupervisorError> {
        let Some(code) = error.exit_code() else {
            return Err(error);
        };
        let said = format!("offleash: {error}\n").into_bytes();
        Ok(Self {
            exit_code: Some(code.into()),
            both: said.clone(),
            stderr: said,
            ..Self::default()
        })
    }

    /// With how long it took.
    fn timed(mut self, stream: &ExecStream, began: Instant) -> Self {
        let took_us = stream.took().map(|took| u64::try_from(took.as_micros()));
        self.took_us = took_us.and_then(Result::ok);
        self.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Keeps what may be kept; answers how many bytes those are.
    fn take(&mut self, stream: OutputStream, bytes: &[u8], bounds: OutputBounds) -> usize {
        let kept = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let taken = bytes.len().min(bounds.of_stream - kept.len());
        kept.extend_from_slice(&bytes[..taken]);
        if bounds.in_order {
            self.both.extend_from_slice(&bytes[..taken]);
        }
        self.truncated |= taken < bytes.len();
        taken
    }

    /// What a shell would have for a code: 128 and the number for a signal.
    pub(crate) fn shell_code(&self) -> i32 {
        let of_signal = || self.signal.map(|signal| 128 + signal);
        self.exit_code.or_else(of_signal).unwrap_or(-1)
    }
}

/// Output as text; what is no text is replaced.
pub(crate) fn output_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
