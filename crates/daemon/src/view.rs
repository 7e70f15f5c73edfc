//! What the daemon tells of sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use offleash_core::log_level::LogLevel;

use crate::lifecycle::{Lifecycle, PauseMode};
use crate::registry::EventKind;
use crate::request::{NetworkSettings, OnTimeout};
use crate::volume_mounts::SandboxVolume;

/// What a sandbox does, as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VisibleState {
    /// It runs.
    Running,
    /// It is frozen with all that is in it, or its files alone are there.
    Paused,
}

/// A sandbox, as its owner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxView {
    /// Its id, 20 characters of `[a-z0-9]`, the first an `i`.
    pub id: String,
    /// Its template, or the name of its image behind [`crate::IMAGE_PREFIX`].
    pub template: String,
    /// The digest of the manifest of its image; `None` where it is of a template.
    pub image_digest: Option<String>,
    /// Where commands start in it that are not told where.
    pub cwd: String,
    /// What it does.
    pub state: VisibleState,
    /// When it was handed out.
    pub started_at: SystemTime,
    /// When its time is up.
    pub end_at: SystemTime,
    /// Its labels.
    pub metadata: BTreeMap<String, String>,
    /// Variables for every command in it.
    pub env: BTreeMap<String, String>,
    /// What its file and process services ask for; `None` if they ask for nothing.
    pub access_token: Option<String>,
    /// What its other ports ask for; `None` if they are open.
    pub traffic_token: Option<String>,
    /// What happens when its time is up.
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it.
    pub auto_resume: bool,
    /// What is kept of it, if it is paused.
    pub pause_mode: Option<PauseMode>,
    /// Whether it is paused because nobody used it, so that the next use wakes it.
    pub asleep: bool,
    /// When it sleeps, and when checkpoints of it are made by themselves.
    pub lifecycle: Lifecycle,
    /// What it may reach, and who may reach it.
    pub network: NetworkSettings,
    /// The volumes that it has.
    pub volumes: Vec<SandboxVolume>,
    /// What it may use.
    pub limits: SandboxLimits,
    /// How it is isolated, as in `process`.
    pub level: String,
    /// What was asked for and is not enforced on this machine, with the reason.
    pub not_enforced: BTreeMap<String, String>,
    /// How contexts of Python come to be in it.
    pub interpreter: InterpreterOrigin,
    /// The sandbox that it was forked from, which may be gone. Whoever may know of the fork may know of that: a key forks
    /// what it sees.
    pub fork_of: Option<String>,
    /// The snapshot that it was made of, or the checkpoint that it was put back to.
    pub snapshot: Option<String>,
    /// Which version of the file and process services it has, in E2B's count.
    pub envd_version: &'static str,
}

/// How contexts of Python come to be in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InterpreterOrigin {
    /// As copies of one that has imported everything, as long as that is there.
    Forked,
    /// As programs that are started.
    Started,
}

impl InterpreterOrigin {
    /// As in `forked`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forked => "forked",
            Self::Started => "started",
        }
    }
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SandboxLimits {
    /// CPUs at once.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Disk, MiB.
    pub disk_mib: u64,
    /// Processes and threads.
    pub pids: u32,
}

impl SandboxLimits {
    /// The least that anybody may ask for.
    pub const LEAST: Self = Self {
        cpus: 1,
        memory_mib: 64,
        disk_mib: 64,
        pids: 16,
    };
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxPage {
    /// The sandboxes.
    pub sandboxes: Vec<SandboxView>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<String>,
    /// How many of the caller's sandboxes run.
    pub total_running: usize,
}

/// What the data plane must know of a sandbox before it lets anybody in.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessRules {
    /// The sandbox.
    pub id: String,
    /// Whose it is.
    pub key_id: String,
    /// What it does now.
    pub state: VisibleState,
    /// Whether traffic resumes it, or wakes it.
    pub auto_resume: bool,
    /// What its file and process services ask for.
    pub access_token: Option<String>,
    /// What its other ports ask for.
    pub traffic_token: Option<String>,
    /// What its ports see as `Host`.
    pub mask_request_host: Option<String>,
    /// Its ports where programs speak TLS.
    pub https_ports: BTreeSet<u16>,
    /// Variables for every command in it.
    pub env: BTreeMap<String, String>,
    /// The limits it has.
    pub limits: SandboxLimits,
}

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsageSample {
    /// When.
    pub at: SystemTime,
    /// CPUs that it may use at once.
    pub cpus: u32,
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

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxEvent {
    /// Its number; later ones have higher numbers.
    pub number: i64,
    /// The sandbox, which may be gone.
    pub sandbox: String,
    /// What it was called.
    pub name: Option<String>,
    /// Its template.
    pub template: String,
    /// When.
    pub at: SystemTime,
    /// What.
    pub kind: EventKind,
    /// Why, where it has ended, was paused or goes on.
    pub reason: Option<String>,
}

/// A line about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// When.
    pub at: SystemTime,
    /// How serious it is.
    pub level: LogLevel,
    /// The line.
    pub line: String,
}

/// How many sandboxes there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxCounts {
    /// Running ones.
    pub running: usize,
    /// Paused ones.
    pub paused: usize,
    /// Those that are being made or ended.
    pub changing: usize,
    /// Those that wait in the warm pool.
    pub pooled: usize,
    /// How many were created since the daemon was started.
    pub created: u64,
    /// How many of them came out of the warm pool.
    pub created_warm: u64,
    /// How many creates failed.
    pub failed: u64,
}

/// What has a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameMatches {
    /// The id of the caller's own.
    pub own: Option<String>,
    /// Those of others of which the caller may know, where it has none of its own.
    pub others: Vec<String>,
}

/// Which version of the file and process services sandboxes have, in E2B's count: SDKs choose what they use by it.
pub const ENVD_VERSION: &str = "0.6.13";
