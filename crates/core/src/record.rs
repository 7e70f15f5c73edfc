//! The record of one run: what `--json` and `--report` write and what an audit line sums up.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::approval::ApprovalAnswer;
use crate::id::RunId;
use crate::level::Level;
use crate::limits::LimitName;
use crate::monitor::{MonitorAction, MonitorFigure};
use crate::text::{Text, one_line};
use crate::units::Millis;

/// The version of the record's form; a field that changes its meaning raises it.
pub const RECORD_VERSION: u32 = 1;

/// One run, from start to end.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RunRecord {
    /// Version of this form.
    pub version: u32,
    /// The run's id.
    pub id: RunId,
    /// Program and arguments.
    pub command: Vec<Text>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// Level that held the code.
    pub level: Level,
    /// What was enforced, by name, and by which means.
    pub enforced: BTreeMap<String, String>,
    /// What was asked for and could not be enforced, each with its reason.
    pub not_enforced: BTreeMap<String, String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The exit code of offleash itself.
    pub exit_code: u8,
    /// What the command wrote to standard output; the empty text when it was not captured.
    pub stdout: CapturedOutput,
    /// What the command wrote to standard error.
    pub stderr: CapturedOutput,
    /// What was used.
    pub usage: RunUsage,
    /// Limits that were hit, whether they ended the run or only refused a request. What the kernel refuses to a single
    /// process without counting it (one more descriptor, too long a file, more memory without a cgroup) is told if the command
    /// fails and says so at its end, or if a shell passes on that a process below it was ended (153).
    pub limits_hit: Vec<LimitHit>,
    /// What was refused, and by which rule. Paths and commands are refused by the kernel, which tells the program alone.
    pub denials: Vec<DenialRecord>,
    /// Changes in the workspace; absent without one.
    pub changes: Option<ChangeSummary>,
    /// What was asked of the network; absent when there was none.
    pub network: Option<NetworkUse>,
    /// Tools that were offered, and how often each was called; empty when there were none.
    pub tools: Vec<ToolUse>,
    /// The image that the root directory was of; absent when it was of none.
    pub image: Option<ImageUse>,
    /// Rules of monitoring that fired, in the order in which they did.
    pub alerts: Vec<AlertRecord>,
}

/// A rule of monitoring that fired, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AlertRecord {
    /// When, RFC 3339, UTC.
    pub at: String,
    /// The name of the rule.
    pub rule: String,
    /// What it watches, such as `refused-connections`.
    pub watch: MonitorFigure,
    /// What the figure was, in its unit.
    pub value: u64,
    /// From which value on the rule fires.
    pub threshold: u64,
    /// Over which time, in milliseconds.
    pub window_ms: u64,
    /// What the rule asks for: `log`, `alert`, `throttle`, `pause`, `snapshot-and-pause` or `kill`.
    pub action: MonitorAction,
    /// Why that was not done; absent when it was.
    pub not_done: Option<String>,
    /// What was among it: hosts, names or paths, a few at most; code inside chose these words.
    pub evidence: Vec<String>,
}

impl AlertRecord {
    /// The line that tells of it, fit for a terminal.
    pub fn line(&self) -> String {
        let Self {
            rule,
            watch,
            value,
            threshold,
            window_ms,
            action,
            ..
        } = self;
        let window = Millis(*window_ms);
        let mut line = format!(
            "rule `{rule}` fired: {watch} {value} {} within {window} (from {threshold} on)",
            watch.unit()
        );
        if let Some(first) = self.evidence.first() {
            let first = one_line(first.as_bytes());
            line = format!("{line}, such as `{first}`");
        }
        match (&self.not_done, action) {
            (Some(why), _) => format!("{line}; `{action}` was not done: {why}"),
            (None, MonitorAction::Kill) => format!("{line}; the sandbox is ended"),
            (None, MonitorAction::Throttle) => format!("{line}; the sandbox is slowed down"),
            (None, action) if action.pauses() => format!("{line}; the sandbox is paused"),
            (None, _) => line,
        }
    }
}

/// How often a tool was called.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ToolUse {
    /// Its name.
    pub tool: String,
    /// Calls that were made, whatever came of them.
    pub calls: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Calls that were refused: by no grant, or for their parameters.
    pub refused: u64,
}

/// The image of a run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageUse {
    /// Its whole name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
}

/// What a run asked of the network.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct NetworkUse {
    /// Connections, in the order in which they ended; the first 10,000.
    pub connections: Vec<ConnectionRecord>,
    /// How many there were beyond those.
    pub more_connections: u64,
    /// Names that were asked for and do not exist for the sandbox, each with how often; the first 1,000.
    pub refused_names: BTreeMap<String, u64>,
    /// How many questions for other such names there were.
    pub more_refused_names: u64,
    /// Ports of the sandbox that were published.
    pub published: Vec<PublishedPort>,
    /// Connections from outside to those, in the order in which they ended; the first 10,000.
    pub inbound: Vec<InboundConnection>,
    /// How many there were beyond those.
    pub more_inbound: u64,
    /// Secrets that were put into requests, and those whose placeholder was sent where it may not be; the first 1,000
    /// that differ.
    pub secrets: Vec<SecretUse>,
    /// How many requests with secrets there were beyond those.
    pub more_secrets: u64,
    /// How the gateway was lost through which all of it goes; absent unless it was. The sandbox had no network from then on,
    /// and what was on its way then may be missing here.
    pub lost: Option<NetworkLoss>,
}

/// The end of a gateway that nobody had ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NetworkLoss {
    /// When, RFC 3339, UTC.
    pub at: String,
    /// `signaled` when a signal ended its process, `exited` when that ended by itself, `misbehaved` when offleash ended it
    /// because it did not answer or said what no gateway says.
    pub cause: NetworkLossCause,
    /// The signal; absent unless one ended it.
    pub signal: Option<i32>,
    /// Its exit code; absent unless it ended by itself.
    pub code: Option<i32>,
}

/// How a gateway came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkLossCause {
    /// By a signal.
    Signaled,
    /// By itself.
    Exited,
    /// By us.
    Misbehaved,
}

impl NetworkLoss {
    /// The line that tells of it.
    pub fn line(&self) -> String {
        let how = match (self.cause, self.signal, self.code) {
            (NetworkLossCause::Signaled, Some(signal), _) => format!("was killed by signal {signal}"),
            (NetworkLossCause::Exited, _, Some(code)) => format!("ended by itself with code {code}"),
            (NetworkLossCause::Misbehaved, ..) => "was ended because it did not do what it is there for".to_owned(),
            _ => "has ended".to_owned(),
        };
        format!("the gateway of the sandbox's network {how}; there is no network any more")
    }
}

/// A secret in requests to one host.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SecretUse {
    /// Its name; the value is in no record.
    pub secret: String,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `allowed` when its value was sent, `refused` when its placeholder stood where it may not.
    pub verdict: ConnectionVerdict,
    /// Why it was refused.
    pub reason: Option<String>,
    /// In how many requests.
    pub requests: u64,
}

/// A port of the sandbox to which programs outside could connect.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PublishedPort {
    /// Address and port on the host.
    pub host_address: String,
    /// The port in the sandbox.
    pub port: u16,
}

/// A connection that was made to the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InboundConnection {
    /// When, RFC 3339, UTC.
    pub at: String,
    /// Address and port of who made it.
    pub peer: String,
    /// Address and port on the host to which it was made.
    pub host_address: String,
    /// The port in the sandbox.
    pub port: u16,
    /// What became of it, as of others; `failed` when no program in the sandbox accepted it.
    pub verdict: ConnectionVerdict,
    /// Why it was refused, failed or was cut.
    pub reason: Option<String>,
    /// Bytes that the sandbox sent.
    pub sent_bytes: u64,
    /// Bytes that it received.
    pub received_bytes: u64,
    /// How long it lasted, in milliseconds.
    pub duration_ms: u64,
}

/// A connection that the sandbox made or tried to make.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConnectionRecord {
    /// When, RFC 3339, UTC; of several the first.
    pub at: String,
    /// How many there were: connections that were only refused, and for the same reason, are told together.
    pub times: u64,
    /// The name, or the address where none was used.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// What became of it: `allowed`, `refused`, `failed` when it was allowed and could not be made, or `cut` when it was
    /// made and a limit ended it.
    pub verdict: ConnectionVerdict,
    /// Why it was refused, failed or was cut.
    pub reason: Option<String>,
    /// The rule that decided; absent when none was about it.
    pub rule: Option<String>,
    /// How it was decided when it was asked about: `once`, `run` or `always`, which allow, or `denied`, `timeout`,
    /// `no_terminal` or `too_many`, which refuse. Absent when nobody had to be asked.
    pub asked: Option<ApprovalAnswer>,
    /// Bytes that the sandbox sent.
    pub sent_bytes: u64,
    /// Bytes that it received.
    pub received_bytes: u64,
    /// How long it lasted, in milliseconds.
    pub duration_ms: u64,
    /// The requests on it, where rules for requests, headers or secrets are about the host, in the order in which they
    /// began; the first 1,000, and of all connections together the first 20,000.
    pub requests: Vec<RequestSeen>,
    /// How many there were beyond those.
    pub more_requests: u64,
}

impl ConnectionRecord {
    /// One of which no more is known than what became of it.
    pub fn seen(host: &str, port: u16, verdict: ConnectionVerdict) -> Self {
        Self {
            at: String::new(),
            times: 1,
            host: host.to_owned(),
            port,
            address: None,
            verdict,
            reason: None,
            rule: None,
            asked: None,
            sent_bytes: 0,
            received_bytes: 0,
            duration_ms: 0,
            requests: Vec::new(),
            more_requests: 0,
        }
    }
}

/// A request that the sandbox made on a connection.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RequestSeen {
    /// The method.
    pub method: String,
    /// The path without the query; the first 256 characters.
    pub path: String,
    /// The status of the answer, the gateway's own answers included; absent where there was none.
    pub status: Option<u16>,
    /// What became of it: `allowed`, `refused`, or `failed` when it was let through and the server did not answer.
    pub verdict: ConnectionVerdict,
    /// Why it was refused or failed.
    pub reason: Option<String>,
    /// The rule that decided; absent when none was about it.
    pub rule: Option<String>,
    /// The names of the secrets that were put into it.
    pub secrets: Vec<String>,
    /// Bytes of its body.
    pub sent_bytes: u64,
    /// Bytes of the answer's body.
    pub received_bytes: u64,
    /// How long it took until the answer had ended, in milliseconds.
    pub duration_ms: u64,
}

/// What became of a connection or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionVerdict {
    /// It was made.
    Allowed,
    /// It was refused.
    Refused,
    /// It was allowed and could not be made.
    Failed,
    /// It was made, and ended by a limit.
    Cut,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The command returned.
    Exited {
        /// Its code.
        code: u8,
    },
    /// A signal ended the command.
    Signaled {
        /// Number.
        signal: i32,
        /// Name, such as `SIGTERM`.
        name: String,
    },
    /// A limit ended the run.
    LimitExceeded {
        /// Which.
        limit: LimitName,
        /// Its value in its unit (bytes, milliseconds, count).
        value: u64,
    },
    /// The kernel, or our watcher, ended it, or a process in it, for using more memory than allowed, whatever the command made of that.
    OutOfMemory {
        /// The limit in bytes.
        limit: u64,
    },
    /// No such command inside.
    CommandNotFound {
        /// Where it exists on the host, if it does.
        hint: Option<String>,
    },
    /// The command is not executable.
    NotExecutable {
        /// Why.
        reason: String,
    },
    /// A rule of monitoring ended the run.
    EndedByRule {
        /// The name of the rule.
        rule: String,
    },
    /// A rule of the policy refused the command.
    CommandDenied {
        /// The rule.
        rule: String,
    },
    /// The user interrupted it.
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The sandbox could not be made or was lost. A request that cannot be carried out, or a machine on which there are no
    /// sandboxes of its level, has no record: standard error says why, and the exit code is 125.
    Failed {
        /// Why.
        message: String,
    },
}

impl Outcome {
    /// The exit code of offleash: the command's own; 124 wall time; 125 our failure; 126 and 127 as shells do;
    /// 128 + N by signal, to which every other limit belongs, because it kills.
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Exited { code } => *code,
            Outcome::Signaled { signal, .. } | Outcome::Interrupted { signal } => {
                128_u8.saturating_add(u8::try_from(*signal).unwrap_or(127))
            }
            Outcome::LimitExceeded {
                limit: LimitName::WallTime,
                ..
            } => 124,
            Outcome::LimitExceeded { .. } | Outcome::OutOfMemory { .. } | Outcome::EndedByRule { .. } => 137,
            Outcome::CommandNotFound { .. } => 127,
            Outcome::NotExecutable { .. } | Outcome::CommandDenied { .. } => 126,
            Outcome::Failed { .. } => 125,
        }
    }
}

/// Output kept for the record.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CapturedOutput {
    /// The text, or base64 of the bytes when they are not UTF-8: of what was written, the first MiB.
    pub data: String,
    /// `utf-8` or `base64`.
    pub encoding: String,
    /// How many bytes the command wrote.
    pub bytes: u64,
    /// Whether `data` holds fewer than that.
    pub truncated: bool,
}

/// What a run used.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RunUsage {
    /// From the request to the end, in milliseconds.
    pub wall_ms: u64,
    /// CPU time in user mode, in microseconds.
    pub user_cpu_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub system_cpu_us: u64,
    /// Largest memory use in bytes, where it can be known; without a cgroup the largest that was seen, now and then.
    pub peak_memory_bytes: Option<u64>,
    /// Largest number of processes and threads, where it can be known; without a cgroup as `peak_memory_bytes`.
    pub peak_pids: Option<u64>,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage.
    pub written_bytes: u64,
    /// Bytes that the changes in the workspace take.
    pub workspace_bytes: Option<u64>,
}

/// A limit that was hit.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LimitHit {
    /// Which.
    pub limit: LimitName,
    /// Its value in its unit.
    pub value: u64,
    /// `killed` when it ended the run, `refused` when single requests failed, `cut` when connections were ended, `slowed`
    /// when something had to wait, `ended` when processes were ended and the sandbox went on, `reported` when nobody counts
    /// what is refused and the command, which failed, said at its end that it was.
    pub effect: LimitEffect,
}

/// What hitting a limit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitEffect {
    /// The run was ended.
    Killed,
    /// Single requests failed with an error that the program saw.
    Refused,
    /// Connections were ended that had been made.
    Cut,
    /// Something had to wait.
    Slowed,
    /// Processes were ended; the sandbox went on.
    Ended,
    /// The command, which failed, says so itself.
    Reported,
}

/// Something that was refused.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DenialRecord {
    /// What kind of thing: `syscall`, `env`, `command`; at levels `simulated` and `wasm` also `limit` and `unsupported`.
    pub subject: String,
    /// The thing itself: a system call's name, a path, a variable, what was cut.
    pub name: Text,
    /// The rule that decided.
    pub rule: String,
    /// How often.
    pub count: u64,
}

/// Changes in the workspace, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ChangeSummary {
    /// New files, directories and links.
    pub added: u64,
    /// Files with other contents.
    pub modified: u64,
    /// Files, directories and links that are gone.
    pub deleted: u64,
    /// Permission changes only.
    pub mode: u64,
    /// Whether they were written back already.
    pub applied: bool,
    /// Protected names among them, which are not applied unless named.
    pub protected: Vec<Text>,
    /// Why they could not be read or kept; then nothing was counted.
    pub error: Option<String>,
}
