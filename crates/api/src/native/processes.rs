//! The processes in a sandbox, in the native REST: as the kernel shows them outside, or the commands that were started in it.

use http::{Response, StatusCode};
use offleash_core::text::one_line;
use offleash_daemon::SeenProcesses;
use offleash_supervisor::process_list::{MAX_COMMAND, MAX_PROCESSES, ProcessEntry, ProcessList};
use offleash_supervisor::service::message::ProcessInfo;
use rustix::process::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::ApiRequest;
use crate::http::answer::{self, ApiRefusal};
use crate::http::body::Body;
use crate::http::destination::PathSegments;
use crate::http::json::RequestBody;

/// Signals that can be sent, by their names.
const SIGNALS: [(&str, Signal); 9] = [
    ("SIGTERM", Signal::TERM),
    ("SIGKILL", Signal::KILL),
    ("SIGINT", Signal::INT),
    ("SIGHUP", Signal::HUP),
    ("SIGQUIT", Signal::QUIT),
    ("SIGSTOP", Signal::STOP),
    ("SIGCONT", Signal::CONT),
    ("SIGUSR1", Signal::USR1),
    ("SIGUSR2", Signal::USR2),
];

/// The processes in a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProcessList")]
pub(crate) struct ProcessesAnswer {
    /// Where they are seen: `kernel`, all of them, or `commands`, those that were started through the server, without what these
    /// started in turn.
    seen_by: &'static str,
    /// By number, 1000 at most.
    processes: Vec<ProcessAnswer>,
    /// How many there were beyond those.
    more: u64,
}

/// A process in a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
struct ProcessAnswer {
    /// Its number inside.
    pid: u32,
    /// That of its parent; 0 for one that came from outside.
    parent: u32,
    /// What it does, a letter as `ps` has it: `R`, `S`, `D`, `T`, `Z`; not of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// Its name, in one line.
    name: String,
    /// Program and arguments, each in one line; empty where there are none any more.
    command: Vec<String>,
    /// Whether arguments are missing in that, beyond 4096 bytes.
    cut: bool,
    /// Its threads; not of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<u64>,
    /// CPU time so far, milliseconds; not of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ms: Option<u64>,
    /// Memory that it has, bytes; what is shared counts for each. Not of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// When it was started, in ticks: tells it from a later one with its number. 0 of commands.
    started: u64,
}

/// A signal for a process.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalBody {
    /// `SIGTERM`, `SIGKILL`, `SIGINT`, `SIGHUP`, `SIGQUIT`, `SIGSTOP`, `SIGCONT`, `SIGUSR1` or `SIGUSR2`.
    signal: String,
    /// When the process was started, as the list tells it.
    started: u64,
}

impl From<SeenProcesses> for ProcessesAnswer {
    fn from(seen: SeenProcesses) -> Self {
        match seen {
            SeenProcesses::Kernel(list) => list.into(),
            SeenProcesses::Commands(commands) => Self {
                seen_by: "commands",
                more: commands.len().saturating_sub(MAX_PROCESSES) as u64,
                processes: commands
                    .into_iter()
                    .take(MAX_PROCESSES)
                    .map(ProcessAnswer::from)
                    .collect(),
            },
        }
    }
}

impl From<ProcessList> for ProcessesAnswer {
    fn from(list: ProcessList) -> Self {
        Self {
            seen_by: "kernel",
            processes: list.processes.into_iter().map(ProcessAnswer::from).collect(),
            more: u64::try_from(list.more).unwrap_or(u64::MAX),
        }
    }
}

impl From<ProcessEntry> for ProcessAnswer {
    fn from(entry: ProcessEntry) -> Self {
        Self {
            pid: entry.pid,
            parent: entry.parent,
            state: Some(entry.state.to_string()),
            name: one_line(entry.name.as_bytes()).into_owned(),
            command: entry
                .command
                .iter()
                .map(|argument| one_line(argument.as_bytes()).into_owned())
                .collect(),
            cut: entry.is_cut,
            threads: Some(entry.threads),
            cpu_ms: Some(entry.cpu_ms),
            memory_bytes: Some(entry.memory_bytes),
            started: entry.start_ticks,
        }
    }
}

impl From<ProcessInfo> for ProcessAnswer {
    fn from(command: ProcessInfo) -> Self {
        let words = command.argv.iter().map(|word| one_line(word).into_owned());
        let mut all: Vec<String> = words.collect();
        let mut length = 0;
        let kept = all.iter().take_while(|word| {
            length += word.len();
            length <= MAX_COMMAND
        });
        let kept = kept.count();
        let cut = kept < all.len();
        all.truncate(kept);
        Self {
            pid: command.pid,
            parent: 0,
            state: None,
            name: command
                .tag
                .as_deref()
                .map_or_else(String::new, |tag| one_line(tag.as_bytes()).into_owned()),
            command: all,
            cut,
            threads: None,
            cpu_ms: None,
            memory_bytes: None,
            started: 0,
        }
    }
}

pub(crate) async fn list(asked: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, ApiRefusal> {
    let found = asked.daemon().processes(&asked.caller, asked.sandbox_id(id)?).await;
    let found = found.map_err(|error| asked.refused(&error))?;
    Ok(answer::json(StatusCode::OK, &ProcessesAnswer::from(found)))
}

pub(crate) async fn signal(
    asked: &ApiRequest<'_>,
    [id, pid, _]: PathSegments<'_>,
    body: RequestBody,
) -> Result<Response<Body>, ApiRefusal> {
    let SignalBody { signal, started } = body.read().await?;
    let known = SIGNALS.iter().find(|(name, _)| *name == signal);
    let unknown = || ApiRefusal::bad_request("signal: it is none that can be sent");
    let (_, signal) = *known.ok_or_else(unknown)?;
    let id = asked.sandbox_id(id)?;
    let pid = pid
        .parse()
        .map_err(|_| ApiRefusal::not_found("there is no such process"))?;
    let sent = asked
        .daemon()
        .signal_process(&asked.caller, id, (pid, started), signal)
        .await;
    sent.map_err(|error| asked.refused(&error))?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
