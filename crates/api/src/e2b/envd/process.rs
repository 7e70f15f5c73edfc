//! `process.Process`: commands in a sandbox, as E2B's SDKs start and hear of them.
//!
//! A command outlives the connection that started it; only its own timeout, a signal, or the end of the sandbox ends it.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::units::Bytes;
use offleash_daemon::is_driver_tag;
use offleash_supervisor::service::client::{ExecNews, SupervisorClient};
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::message::{MAX_TAG, ProcessInfo as Running, Selector, StartExec};
use tokio::time::{Instant, sleep_until, timeout};

use super::attended::AttendedExec;
use super::failure::{ServiceFailure, gone};
use super::messages::process::{
    CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, DataEvent, EndEvent, KeepAlive,
    ListRequest, ListResponse, METHODS, ProcessConfig, ProcessEvent, ProcessInfo, ProcessInput, ProcessSelector, Pty,
    SendInputRequest, SendInputResponse, SendSignalRequest, SendSignalResponse, StartEvent, StartRequest,
    StartResponse, StreamInputRequest, StreamInputResponse, UpdateRequest, UpdateResponse,
};
use super::{SandboxAccess, headers, read, unary};
use crate::e2b::connect::{
    CallKind, ConnectCall, ConnectCode, ConnectError, ConnectMessage, MessageCodec, MessageFrames, MessageSender,
    StreamEnd, refuse, stream,
};
use crate::http::body::Body;
use crate::http::path::{PathStart, text};
use crate::telemetry::{SpanOperation, WorkSpan};

/// Most bytes of output in one event.
const OUTPUT_CHUNK: usize = 32 * 1024;
const PTY_CHUNK: usize = 16 * 1024;
/// A terminal without a size of its own.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

const TOO_LATE: &str = "this took longer than connect-timeout-ms";

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// How a method is called, if there is one of that name.
pub(super) fn kind(method: &str) -> Option<CallKind> {
    METHODS.iter().find(|(name, _)| *name == method).map(|(_, kind)| *kind)
}

/// Answers a call of a method that [`kind`] knows.
pub(super) async fn answer(
    sandbox: &SandboxAccess,
    method: &str,
    call: ConnectCall,
    request: Request<Incoming>,
) -> Response<Body> {
    let supervisor = &sandbox.supervisor;
    let (parts, body) = request.into_parts();
    let fields = &parts.headers;
    match method {
        "List" => {
            let listed = async {
                let ListRequest {} = read(call, body).await?;
                list(supervisor).await
            };
            unary(sandbox, call, in_time(fields, listed).await)
        }
        "Update" => {
            let done = async { update(supervisor, read(call, body).await?).await };
            unary(sandbox, call, in_time(fields, done).await)
        }
        "SendInput" => {
            let done = async { send_input(supervisor, read(call, body).await?).await };
            unary(sandbox, call, in_time(fields, done).await)
        }
        "SendSignal" => {
            let done = async { send_signal(supervisor, read(call, body).await?).await };
            unary(sandbox, call, in_time(fields, done).await)
        }
        "CloseStdin" => {
            let done = async { close_stdin(supervisor, read(call, body).await?).await };
            unary(sandbox, call, in_time(fields, done).await)
        }
        "StreamInput" => stream_input(sandbox, call, fields, body).await,
        "Start" => {
            let followed = start(sandbox, fields, call.codec, body).await;
            told::<StartResponse>(sandbox, call, followed)
        }
        _ => {
            let followed = connect(supervisor, fields, call.codec, body).await;
            told::<ConnectResponse>(sandbox, call, followed)
        }
    }
}

/// A message that tells of an event.
trait EventResponse: ConnectMessage + Sync + 'static {
    fn of(event: ProcessEvent) -> Self;
}

impl EventResponse for StartResponse {
    fn of(event: ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

impl EventResponse for ConnectResponse {
    fn of(event: ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

/// The events of a command that is followed, each a message `R`.
fn told<R: EventResponse>(
    sandbox: &SandboxAccess,
    call: ConnectCall,
    followed: Result<FollowedCommand, ServiceFailure>,
) -> Response<Body> {
    match followed {
        Ok(followed) => stream(call.codec, |outgoing| followed.tell::<R>(outgoing)),
        Err(ServiceFailure::Gone) => gone(&sandbox.id),
        Err(ServiceFailure::Told(error)) => refuse(call, &error),
    }
}

/// What `work` answers, unless the caller wanted it sooner. One who gives no time waits as long as it stays: a command that
/// reads nothing holds up whoever gives it input, as a pipe would, and the caller's going ends that.
async fn in_time<T>(
    fields: &HeaderMap,
    work: impl Future<Output = Result<T, ServiceFailure>>,
) -> Result<T, ServiceFailure> {
    match ConnectCall::timeout(fields)? {
        Some(time) => timeout(time, work)
            .await
            .unwrap_or_else(|_| Err(too_late(TOO_LATE).into())),
        None => work.await,
    }
}

async fn list(supervisor: &SupervisorClient) -> Result<ListResponse, ServiceFailure> {
    let running = supervisor.processes().await?;
    // Drivers of contexts are nobody's commands.
    let commands = running.iter().filter(|process| !is_driver_tag(process.tag.as_deref()));
    let processes = commands.map(process_info).collect();
    Ok(ListResponse { processes })
}

fn process_info(running: &Running) -> ProcessInfo {
    let mut argv = running.argv.iter().map(|argument| text(argument));
    let config = ProcessConfig {
        cmd: argv.next().unwrap_or_default(),
        args: argv.collect(),
        envs: running
            .env
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
        cwd: Some(text(&running.cwd)),
    };
    ProcessInfo {
        config: Some(config),
        pid: running.pid,
        tag: running.tag.clone(),
    }
}

/// A command that a caller follows.
struct FollowedCommand {
    exec: AttendedExec,
    is_terminal: bool,
    keepalive: Duration,
    /// When the caller wants to hear no more; a command that was started with a timeout is the supervisor's to end.
    until: Option<Instant>,
    /// Of a command that was started for this caller.
    span: Option<WorkSpan>,
}

async fn start(
    sandbox: &SandboxAccess,
    fields: &HeaderMap,
    codec: MessageCodec,
    body: Incoming,
) -> Result<FollowedCommand, ServiceFailure> {
    let request = only_message::<StartRequest>(codec, body).await?;
    let timeout = ConnectCall::timeout(fields)?;
    let start = start_exec(request, &sandbox.env, headers::user(fields), timeout)?;
    let is_terminal = start.tty.is_some();
    let command = start.argv.first().map(|command| text(command)).unwrap_or_default();
    let cwd = start.cwd.as_deref().map(text);
    let mut span = WorkSpan::begin(SpanOperation::Exec);
    span.sandbox(|| sandbox.id.clone());
    let started = sandbox.supervisor.start(start).await;
    let exec = started.map_err(|error| {
        span.ended(false);
        not_started(error, &command, cwd)
    })?;
    Ok(FollowedCommand {
        exec: AttendedExec::started(exec, fields, sandbox),
        is_terminal,
        keepalive: headers::keepalive(fields),
        until: None,
        span: Some(span),
    })
}

async fn connect(
    supervisor: &SupervisorClient,
    fields: &HeaderMap,
    codec: MessageCodec,
    body: Incoming,
) -> Result<FollowedCommand, ServiceFailure> {
    let which = selector(only_message::<ConnectRequest>(codec, body).await?.process)?;
    let timeout = ConnectCall::timeout(fields)?;
    let processes = supervisor.processes().await?;
    // One that has ended a moment ago is not among them; nothing but its end will be told.
    let is_terminal = running(&processes, &which).is_some_and(|process| process.tty);
    let exec = supervisor
        .attach(&which)
        .await
        .map_err(|error| no_process(error, &which))?;
    Ok(FollowedCommand {
        exec: AttendedExec::of(exec),
        is_terminal,
        keepalive: headers::keepalive(fields),
        until: timeout.map(|timeout| Instant::now() + timeout),
        span: None,
    })
}

impl FollowedCommand {
    /// Tells the caller what happens, until the command has ended.
    async fn tell<R: EventResponse>(mut self, outgoing: MessageSender) -> Result<(), StreamEnd> {
        let start = StartEvent { pid: self.exec.pid() };
        send::<R>(
            &outgoing,
            ProcessEvent {
                start: Some(start),
                ..ProcessEvent::default()
            },
        )
        .await?;
        let mut silent_until = Instant::now() + self.keepalive;
        loop {
            let news = tokio::select! {
                news = self.exec.next() => news.map_err(ServiceFailure::from)?,
                () = sleep_until(silent_until) => {
                    let keepalive = Some(KeepAlive {});
                    send::<R>(&outgoing, ProcessEvent { keepalive, ..ProcessEvent::default() }).await?;
                    silent_until = Instant::now() + self.keepalive;
                    continue;
                }
                () = reached(self.until) => return Err(too_late(TOO_LATE).into()),
            };
            match news {
                Some(ExecNews::Output { stream, bytes }) => {
                    for event in output(stream, bytes, self.is_terminal) {
                        send::<R>(&outgoing, event).await?;
                    }
                }
                Some(ExecNews::TimedOut) => {
                    return Err(too_late("the command ran longer than connect-timeout-ms and was killed").into());
                }
                Some(ExecNews::Ended(ended)) => {
                    let Some(end) = end(&ended) else {
                        return Err(StreamEnd::Cut);
                    };
                    if let Some(mut span) = self.span.take() {
                        span.ended(ended == ExecEnd::Exited { code: 0 });
                    }
                    return Ok(send::<R>(
                        &outgoing,
                        ProcessEvent {
                            end: Some(end),
                            ..ProcessEvent::default()
                        },
                    )
                    .await?);
                }
                None => return Err(StreamEnd::Cut),
            }
            silent_until = Instant::now() + self.keepalive;
        }
    }
}

/// Waits until then, or for ever.
async fn reached(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

async fn send<R: EventResponse>(outgoing: &MessageSender, event: ProcessEvent) -> Result<(), ConnectError> {
    outgoing.send(&R::of(event)).await
}

fn output(stream: OutputStream, bytes: Vec<u8>, is_terminal: bool) -> impl Iterator<Item = ProcessEvent> {
    let most = if is_terminal { PTY_CHUNK } else { OUTPUT_CHUNK };
    let whole = bytes.len() <= most;
    let (first, rest) = if whole {
        (Some(bytes), Vec::new())
    } else {
        (None, bytes)
    };
    let pieces: Vec<Vec<u8>> = rest.chunks(most).map(<[u8]>::to_vec).collect();
    first.into_iter().chain(pieces).map(move |piece| {
        let mut data = DataEvent::default();
        match (is_terminal, stream) {
            (true, _) => data.pty = Some(piece),
            (false, OutputStream::Stdout) => data.stdout = Some(piece),
            (false, OutputStream::Stderr) => data.stderr = Some(piece),
        }
        ProcessEvent {
            data: Some(data),
            ..ProcessEvent::default()
        }
    })
}

/// How a command ended, in Go's words; `None` if that is not known because the sandbox is gone.
fn end(ended: &ExecEnd) -> Option<EndEvent> {
    let (exit_code, exited, status) = match ended {
        ExecEnd::Exited { code } => (i32::from(*code), true, format!("exit status {code}")),
        ExecEnd::Signaled { signal } => (-1, false, format!("signal: {}", signal_name(*signal))),
        ExecEnd::OutOfMemory { limit } => (
            -1,
            false,
            format!("signal: killed (out of memory, limit {})", Bytes(*limit)),
        ),
        ExecEnd::NotStarted(_) => (-1, false, "not started".to_owned()),
        ExecEnd::Lost => return None,
    };
    Some(EndEvent {
        exit_code,
        exited,
        error: (exit_code != 0).then(|| status.clone()),
        status,
    })
}

/// What Go calls a signal of Linux.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        31 => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// The one message of a stream that has no more.
async fn only_message<M: ConnectMessage>(codec: MessageCodec, body: Incoming) -> Result<M, ConnectError> {
    let message = MessageFrames::new(codec, body).only().await?;
    message.ok_or_else(|| ConnectError::invalid("the request has no message"))
}

fn start_exec(
    request: StartRequest,
    everywhere: &BTreeMap<String, String>,
    user: Option<String>,
    timeout: Option<Duration>,
) -> Result<StartExec, ServiceFailure> {
    let process = request.process.unwrap_or_default();
    if process.cmd.is_empty() {
        return Err(ConnectError::invalid("the command is missing").into());
    }
    let argv: Vec<Vec<u8>> = std::iter::once(process.cmd)
        .chain(process.args)
        .map(String::into_bytes)
        .collect();
    if request.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
        let text = format!("the tag has more than {MAX_TAG} bytes");
        return Err(ConnectError::invalid(text).into());
    }
    if is_driver_tag(request.tag.as_deref()) {
        return Err(ConnectError::invalid("such a tag is that of an interpreter; another one can be given").into());
    }
    if argv.iter().any(|argument| argument.contains(&0)) {
        return Err(ConnectError::invalid("an argument contains a NUL byte").into());
    }
    if let Some((name, _)) = process.envs.iter().find(|(name, value)| !is_variable(name, value)) {
        let text = format!("`{}` cannot be a variable of the environment", name.escape_debug());
        return Err(ConnectError::invalid(text).into());
    }
    // Those of the command win.
    let mut env = everywhere.clone();
    env.extend(process.envs);
    let cwd = match PathStart::parse(process.cwd.unwrap_or_default().as_bytes())? {
        PathStart::Home(rest) if rest.is_empty() => None,
        PathStart::Absolute(path) | PathStart::Home(path) => Some(path),
    };
    let tty = request.pty.map(terminal_size).transpose()?;
    Ok(StartExec {
        argv,
        env: env
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value.into_bytes()))
            .collect(),
        cwd,
        user,
        tty,
        stdin: tty.is_some() || request.stdin.unwrap_or(true),
        tag: request.tag,
        timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

fn terminal_size(pty: Pty) -> Result<(u16, u16), ConnectError> {
    let size = pty.size.unwrap_or_default();
    let characters = |given: u32, usual: u16| match given {
        0 => Ok(usual),
        given => u16::try_from(given)
            .map_err(|_| ConnectError::invalid(format!("a terminal cannot have {given} rows or columns"))),
    };
    Ok((characters(size.rows, ROWS)?, characters(size.cols, COLUMNS)?))
}

fn not_started(error: SupervisorError, command: &str, cwd: Option<String>) -> ServiceFailure {
    let (command, cwd) = (command.escape_debug(), cwd.unwrap_or_default());
    let text = match &error {
        SupervisorError::Directory { errno: 2 } => format!("cwd '{}' does not exist", cwd.escape_debug()),
        SupervisorError::Directory { .. } => format!("cwd '{}': {error}", cwd.escape_debug()),
        SupervisorError::NotFound | SupervisorError::NotExecutable { .. } => {
            format!("error starting process '{command}': {error}")
        }
        _ => return error.into(),
    };
    let told = ConnectError::invalid(text);
    match error.exit_code() {
        Some(code) => told.with_exit_code(code).into(),
        None => told.into(),
    }
}

async fn update(supervisor: &SupervisorClient, request: UpdateRequest) -> Result<UpdateResponse, ServiceFailure> {
    let which = selector(request.process)?;
    let Some(pty) = request.pty else {
        return Ok(UpdateResponse {});
    };
    let (rows, columns) = terminal_size(pty)?;
    let resized = supervisor.resize(&which, rows, columns).await;
    resized.map_err(|error| no_process(error, &which))?;
    Ok(UpdateResponse {})
}

async fn send_input(
    supervisor: &SupervisorClient,
    request: SendInputRequest,
) -> Result<SendInputResponse, ServiceFailure> {
    let which = selector(request.process)?;
    give(supervisor, &which, request.input).await?;
    Ok(SendInputResponse {})
}

async fn give(
    supervisor: &SupervisorClient,
    which: &Selector,
    input: Option<ProcessInput>,
) -> Result<(), ServiceFailure> {
    let bytes = input.and_then(|input| input.stdin.or(input.pty));
    let bytes = bytes.ok_or_else(|| ConnectError::new(ConnectCode::Unimplemented, "invalid input type"))?;
    supervisor
        .input(which, bytes)
        .await
        .map_err(|error| no_process(error, which))
}

async fn stream_input(
    sandbox: &SandboxAccess,
    call: ConnectCall,
    fields: &HeaderMap,
    body: Incoming,
) -> Response<Body> {
    let taken = take_stream(&sandbox.supervisor, MessageFrames::new(call.codec, body));
    match in_time(fields, taken).await {
        Ok(()) => stream(call.codec, |outgoing| async move {
            Ok(outgoing.send(&StreamInputResponse {}).await?)
        }),
        Err(ServiceFailure::Gone) => gone(&sandbox.id),
        Err(ServiceFailure::Told(error)) => refuse(call, &error),
    }
}

async fn take_stream(supervisor: &SupervisorClient, mut frames: MessageFrames<Incoming>) -> Result<(), ServiceFailure> {
    let mut which = None;
    while let Some(request) = frames.next::<StreamInputRequest>().await? {
        if let Some(start) = request.start {
            let selected = selector(start.process)?;
            if running(&supervisor.processes().await?, &selected).is_none() {
                return Err(no_process(SupervisorError::NoProcess, &selected));
            }
            which = Some(selected);
        } else if let Some(data) = request.data {
            let which = which
                .as_ref()
                .ok_or_else(|| ConnectError::invalid("data comes before the start"))?;
            give(supervisor, which, data.input).await?;
        } else if request.keepalive.is_none() {
            return Err(ConnectError::new(ConnectCode::Unimplemented, "invalid event type").into());
        }
    }
    Ok(())
}

async fn send_signal(
    supervisor: &SupervisorClient,
    request: SendSignalRequest,
) -> Result<SendSignalResponse, ServiceFailure> {
    let which = selector(request.process)?;
    let signal = match request.signal {
        signal @ (SIGHUP | SIGINT | SIGQUIT | SIGKILL | SIGTERM) => signal,
        other => {
            let text = format!("invalid signal: {other}");
            return Err(ConnectError::new(ConnectCode::Unimplemented, text).into());
        }
    };
    supervisor
        .signal(&which, signal)
        .await
        .map_err(|error| no_process(error, &which))?;
    Ok(SendSignalResponse {})
}

async fn close_stdin(
    supervisor: &SupervisorClient,
    request: CloseStdinRequest,
) -> Result<CloseStdinResponse, ServiceFailure> {
    let which = selector(request.process)?;
    supervisor
        .close_input(&which)
        .await
        .map_err(|error| no_process(error, &which))?;
    Ok(CloseStdinResponse {})
}

fn selector(selector: Option<ProcessSelector>) -> Result<Selector, ConnectError> {
    match selector.unwrap_or_default() {
        ProcessSelector { pid: Some(pid), .. } => Ok(Selector::Pid(pid)),
        ProcessSelector { tag: Some(tag), .. } => Ok(Selector::Tag(tag)),
        _ => Err(ConnectError::invalid("a process must be selected by pid or tag")),
    }
}

fn running<'a>(processes: &'a [Running], which: &Selector) -> Option<&'a Running> {
    processes.iter().rfind(|process| match which {
        Selector::Pid(pid) => process.pid == *pid,
        Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
    })
}

fn no_process(error: SupervisorError, which: &Selector) -> ServiceFailure {
    let text = match (&error, which) {
        (SupervisorError::NoProcess, Selector::Pid(pid)) => format!("process with pid {pid} not found"),
        (SupervisorError::NoProcess, Selector::Tag(tag)) => {
            format!("process with tag {} not found", tag.escape_debug())
        }
        _ => return error.into(),
    };
    ConnectError::new(ConnectCode::NotFound, text).into()
}

fn too_late(text: &str) -> ConnectError {
    ConnectError::new(ConnectCode::DeadlineExceeded, text)
}

#[cfg(test)]
mod tests;
