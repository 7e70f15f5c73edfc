//! What the registry holds, row by row.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use offleash_core::log_level::LogLevel;
use offleash_core::tool::ToolGrant;
use offleash_supervisor::clock::UnixMs;
use serde::{Deserialize, Serialize};

/// A sandbox as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its id, which is also the name of its directory in `sandboxes` of the state directory.
    pub id: String,
    /// Whose it is; `None` for one that waits in the warm pool.
    pub key_id: Option<String>,
    /// Where in its life it is.
    pub state: SandboxState,
    /// The name of its template.
    pub template: String,
    /// What was asked for, as JSON; the daemon knows what is in it.
    pub spec: String,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// When it was handed out, or made if it has not been.
    pub started_ms: UnixMs,
    /// When its time is up.
    pub end_ms: UnixMs,
    /// Whether it is paused then; killed otherwise.
    pub auto_pause: bool,
    /// Whether traffic resumes it.
    pub auto_resume: bool,
    /// What its file and process services ask for.
    pub access_token: Option<String>,
    /// What its other ports ask for.
    pub traffic_token: Option<String>,
    /// The process that holds it.
    pub supervisor: Option<SupervisorProcess>,
    /// Counts the writes of this row.
    pub generation: i64,
    /// What its creator called the request, so that a repeated one makes no second sandbox.
    pub idempotency_key: Option<String>,
}

/// A process, told from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupervisorProcess {
    /// Its process id.
    pub pid: i32,
    /// When it was started, in the kernel's ticks since boot (proc_pid_stat(5), `starttime`).
    pub start_ticks: u64,
    /// Since which boot they are counted; `None` where the kernel does not say.
    pub boot: Option<BootId>,
}

/// One boot of the machine, told from every other: a UUID (`/proc/sys/kernel/random/boot_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootId(u128);

impl FromStr for BootId {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        let unknown = || UnknownWord {
            what: "boot id",
            word: text.to_owned(),
        };
        let lengths = text.split('-').map(str::len);
        let is_digit = |byte: u8| byte == b'-' || byte.is_ascii_hexdigit();
        if !lengths.eq([8, 4, 4, 4, 12]) || !text.bytes().all(is_digit) {
            return Err(unknown());
        }
        let number = u128::from_str_radix(&text.replace('-', ""), 16);
        number.map(Self).map_err(|_| unknown())
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        f.write_str(&parts.join("-"))
    }
}

/// Where in its life a sandbox is. What is going to be done is written before it is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It is being made.
    Creating,
    /// It runs.
    Running,
    /// It is being paused.
    Pausing,
    /// It is paused.
    Paused,
    /// It is being resumed.
    Resuming,
    /// Its processes are being ended, and its files stay.
    PuttingAway,
    /// Its files are there, and nothing else.
    PutAway,
    /// It is being made again, in its place and with its files.
    Waking,
    /// It is being made anew in its place, with the files of a checkpoint.
    Restoring,
    /// It is being killed.
    Killing,
}

/// An API key as the registry has it. The key itself is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Names it in lists and in `key rm`.
    pub id: String,
    /// The owner's name for it.
    pub name: String,
    /// Its first characters, for lists and for finding it.
    pub prefix: String,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// What it may do.
    pub scopes: Scopes,
    /// How much it may have at a time.
    pub quota: Quota,
    /// What it was granted of the owner's tools, if anything was said.
    pub tools: Option<Vec<ToolGrant>>,
    /// When it was made.
    pub created_ms: UnixMs,
    /// When it was revoked.
    pub revoked_ms: Option<UnixMs>,
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything, with everybody's sandboxes.
    Admin,
    /// Make sandboxes, and everything with its own.
    Create,
    /// Look at its own.
    Read,
    /// Learn the ids of all sandboxes, whosever they are, and nothing else.
    Overview,
}

/// Several scopes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scopes(pub Vec<Scope>);

/// How much one key may have at a time; `None` is without limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Sandboxes, paused ones too.
    pub sandboxes: Option<u32>,
    /// CPUs of its running sandboxes together.
    pub cpus: Option<u32>,
    /// Memory limits of its sandboxes together, MiB.
    pub memory_mib: Option<u64>,
    /// Disk limits of its sandboxes together, MiB.
    pub disk_mib: Option<u64>,
}

/// What a key may have, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeyAllowance {
    #[serde(flatten)]
    pub(super) quota: Quota,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<Vec<ToolGrant>>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Its number; later events have higher ones. Zero for one that is not written yet.
    pub number: i64,
    /// Whose sandbox it was.
    pub key_id: Option<String>,
    /// The sandbox.
    pub sandbox: String,
    /// What it was called.
    pub name: Option<String>,
    /// Its template.
    pub template: String,
    /// When it happened.
    pub at_ms: UnixMs,
    /// What happened.
    pub kind: EventKind,
    /// More about it, as JSON.
    pub detail: Option<String>,
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was made, or handed out.
    Created,
    /// Its timeout or its network was changed.
    Updated,
    /// It was paused.
    Paused,
    /// It was resumed.
    Resumed,
    /// Its time was up; what follows says whether it was paused or killed.
    TimedOut,
    /// Somebody killed it.
    Killed,
    /// It ended without being told to.
    Died,
    /// A rule of monitoring fired.
    Alert,
}

/// A line about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// Its number; zero for one that is not written yet.
    pub number: i64,
    /// The sandbox.
    pub sandbox: String,
    /// When it was written.
    pub at_ms: UnixMs,
    /// How serious it is.
    pub level: LogLevel,
    /// The line.
    pub line: String,
}

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricRow {
    /// When.
    pub at_ms: UnixMs,
    /// CPUs that it may use at once, in thousandths.
    pub cpu_milli: u32,
    /// How much of one CPU it used since the sample before, in percent; two CPUs are 200.
    pub cpu_used_pct: f64,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Its limit, bytes.
    pub memory_total: u64,
    /// Memory that caches files, bytes.
    pub memory_cache: u64,
    /// Disk in use, bytes.
    pub disk_used: u64,
    /// Its limit, bytes.
    pub disk_total: u64,
}

impl Scopes {
    /// Whether `scope`, or one that includes it, is among them.
    pub fn allow(&self, scope: Scope) -> bool {
        self.0.iter().any(|held| match scope {
            Scope::Admin => *held == Scope::Admin,
            Scope::Create => matches!(held, Scope::Admin | Scope::Create),
            Scope::Read => *held != Scope::Overview,
            Scope::Overview => matches!(held, Scope::Admin | Scope::Overview),
        })
    }
}

/// Gives an enum one word for each variant, both ways.
macro_rules! words {
    ($name:ident, $what:literal: $($variant:ident = $word:literal),+ $(,)?) => {
        impl $name {
            /// The word for it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::registry::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::registry::UnknownWord::new($what, word)),
                }
            }
        }
    };
}

/// A word that means nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a {what}", .word.escape_debug())]
pub struct UnknownWord {
    what: &'static str,
    word: String,
}

impl UnknownWord {
    pub(super) fn new(what: &'static str, word: &str) -> Self {
        Self {
            what,
            word: word.to_owned(),
        }
    }
}

words!(SandboxState, "state of a sandbox":
    Creating = "creating", Running = "running", Pausing = "pausing", Paused = "paused", Resuming = "resuming",
    PuttingAway = "putting_away", PutAway = "put_away", Waking = "waking", Restoring = "restoring", Killing = "killing");
words!(Scope, "scope (admin, create, read, overview)":
    Admin = "admin", Create = "create", Read = "read", Overview = "overview");
words!(EventKind, "kind of event":
    Created = "created", Updated = "updated", Paused = "paused", Resumed = "resumed", TimedOut = "timed_out",
    Killed = "killed", Died = "died", Alert = "alert");
