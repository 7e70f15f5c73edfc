//! The JSON of the native REST.

use std::collections::BTreeMap;

use offleash_daemon::{EventKind, KeyRow, Lifecycle, Quota, SandboxLimits, SandboxView};
use offleash_supervisor::service::message::SupervisorUsage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::volumes::VolumeMountAnswer;
use crate::control::listing::state_word;
use crate::control::tools::NewTools;
use crate::control::volumes::NewVolumeMount;
use crate::http::time;

/// A command that is run, and the sandbox that is made for it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRun {
    /// The command.
    pub(crate) command: NewCommand,
    /// The sandbox; every default if absent.
    pub(crate) sandbox: Option<NewSandbox>,
    /// Whether the sandbox is kept when the command has ended; it is killed if absent.
    pub(crate) keep: Option<bool>,
}

/// A command that is run in a sandbox.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCommand {
    /// Program and arguments; either this or `shell`.
    pub(crate) argv: Option<Vec<String>>,
    /// A line for `/bin/bash -l -c`; either this or `argv`.
    pub(crate) shell: Option<String>,
    /// What the command reads from standard input; nothing if absent. At most 512 KiB.
    pub(crate) stdin: Option<String>,
    /// Variables of the command's own.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Working directory; the user's home if absent, or what the image names.
    pub(crate) cwd: Option<String>,
    /// As whom; `user` if absent, or who the image names.
    pub(crate) user: Option<String>,
    /// After how many milliseconds the command is killed, at least 1; with the sandbox's own time if absent.
    pub(crate) timeout_ms: Option<u64>,
}

/// A sandbox that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSandbox {
    /// The template; `base` if absent. `image:NAME` is the image NAME.
    pub(crate) template: Option<String>,
    /// The image of containers that it is of instead of a template, such as `python:3.12-slim`.
    pub(crate) image: Option<String>,
    /// The snapshot that it is made of, by id or name; its template, and its limits and variables where nothing is said, are
    /// those of the snapshot.
    pub(crate) snapshot: Option<String>,
    /// What it is called: label `offleash.name`, which no other sandbox of the key may have.
    pub(crate) name: Option<String>,
    /// How long it may live, seconds; 300 if absent.
    pub(crate) timeout_seconds: Option<u64>,
    /// Labels.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Variables for every command in it.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Whether it is paused when its time is up; it is killed if absent.
    pub(crate) pause_on_timeout: Option<bool>,
    /// What is kept of it then: `full`, memory and processes, or `filesystem`, files alone; `full` if absent.
    pub(crate) pause_mode: Option<String>,
    /// Whether traffic resumes it when it is paused; not if absent.
    pub(crate) auto_resume: Option<bool>,
    /// After how long it sleeps while nobody uses it, seconds; 0 is never, and if absent it is as the server's configuration
    /// says.
    pub(crate) idle_seconds: Option<u64>,
    /// What its sleep keeps: `filesystem` or `full`; as the server's configuration says if absent.
    pub(crate) idle_mode: Option<String>,
    /// How often a checkpoint of it is made by itself, seconds; 0 is never, and if absent it is as the server's configuration
    /// says.
    pub(crate) checkpoint_every_seconds: Option<u64>,
    /// Commands before which one is made, such as `rm -rf` or `git reset --hard`; those of the server's configuration if
    /// absent.
    pub(crate) checkpoint_before: Option<Vec<String>>,
    /// How many checkpoints that were made by themselves are kept; as the server's configuration says if absent.
    pub(crate) checkpoint_keep: Option<u64>,
    /// Commands before which a person is asked, such as `git push`, beside those of the server's configuration.
    pub(crate) ask_before: Option<Vec<String>>,
    /// Whether a person is asked before it is put back to a checkpoint; not if absent, unless the server's configuration says so.
    pub(crate) ask_before_restore: Option<bool>,
    /// Volumes that it has.
    pub(crate) volumes: Option<Vec<NewVolumeMount>>,
    /// What it may use.
    pub(crate) limits: Option<NewLimits>,
    /// What it may reach, and who may reach it.
    pub(crate) policy: Option<NewPolicy>,
    /// The tools that code in it may call.
    pub(crate) tools: Option<NewTools>,
}

/// How a sandbox goes on.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Resume")]
pub(crate) struct ResumeBody {
    /// How long it may live from now on, seconds; as long as it had left when it was paused if absent, or the default time
    /// where that was nothing. The time of one that runs is only extended.
    pub(crate) timeout_seconds: Option<u64>,
    /// `filesystem`: it goes on with its files alone, also if its memory was kept; otherwise `full`.
    pub(crate) mode: Option<String>,
}

/// Labels that a sandbox has from now on.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMetadata {
    /// All of its labels. Those that begin with `offleash.` stay as they are: one may be missing here, or be as it is.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// How a sandbox is paused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pause")]
pub(crate) struct PauseBody {
    /// What is kept of it: `full`, memory and processes, or `filesystem`, files alone; `full` if absent.
    pub(crate) mode: Option<String>,
}

/// Forks of a sandbox that are asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewForks {
    /// How many, 1 to 20; one if absent.
    pub(crate) count: Option<u32>,
    /// What the fork is called, as in `NewSandbox`; of several each has its number behind that, from `NAME-1` on.
    pub(crate) name: Option<String>,
    /// How long each may live, seconds; 300 if absent.
    pub(crate) timeout_seconds: Option<u64>,
    /// What they have of contexts of code: `all`, and nothing is forked where something cannot be carried; what is
    /// `possible`; `none`. `all` if absent.
    pub(crate) contexts: Option<String>,
}

/// What a sandbox may use; the server's defaults for what is absent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLimits {
    /// CPUs at once.
    pub(crate) cpus: Option<u32>,
    /// Memory, MiB.
    pub(crate) memory_mib: Option<u64>,
    /// Disk, MiB.
    pub(crate) disk_mib: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: Option<u32>,
}

/// What a sandbox may reach, and who may reach it. A list that is absent is empty.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPolicy {
    /// Whether any public address may be reached; yes if absent.
    pub(crate) internet: Option<bool>,
    /// Addresses, networks, names and `*.names` that may be reached whatever `deny` says; where `internet` is false, some
    /// ports of them alone are `HOST:PORTS`.
    pub(crate) allow: Option<Vec<String>>,
    /// Addresses and networks that may not be reached.
    pub(crate) deny: Option<Vec<String>>,
    /// `HOST[:PORTS]` about which somebody is asked (`/v1/approvals`) when they are connected to.
    pub(crate) ask: Option<Vec<String>>,
    /// Whether its ports are open to whoever can reach the server; yes if absent.
    pub(crate) public_ports: Option<bool>,
}

/// A key that is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKey {
    /// The owner's name for it.
    pub(crate) name: String,
    /// What it may do: `admin`, `create`, `read`, `overview`; `create` if absent.
    pub(crate) scopes: Option<Vec<String>>,
    /// How much it may have at a time; without limit if absent.
    pub(crate) quota: Option<NewQuota>,
    /// What it is granted of the owner's tools, a grant each; what a template has of them if absent. A key can grant no more than
    /// it was granted.
    pub(crate) tools: Option<Vec<String>>,
}

/// How much a key may have at a time; without limit where nothing is said.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewQuota {
    /// Sandboxes, paused ones too.
    pub(crate) sandboxes: Option<u32>,
    /// CPUs of its running sandboxes together.
    pub(crate) cpus: Option<u32>,
    /// Memory limits of its sandboxes together, MiB.
    pub(crate) memory_mib: Option<u64>,
    /// Disk limits of its sandboxes together, MiB.
    pub(crate) disk_mib: Option<u64>,
}

/// What the server is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Version")]
pub(crate) struct VersionAnswer {
    /// Its version.
    pub(crate) version: String,
    /// The version of the file and process services of its sandboxes, in E2B's count.
    pub(crate) envd_version: String,
    /// What clients on its machine call it.
    pub(crate) url: String,
}

/// What a command did.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunResult {
    /// The sandbox.
    pub(crate) sandbox: String,
    /// Whether the sandbox is still there.
    pub(crate) kept: bool,
    /// The command's exit code; `null` when a signal ended it.
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Whether that was because the sandbox had no memory left.
    pub(crate) out_of_memory: bool,
    /// Whether it was killed because its time was up.
    pub(crate) timed_out: bool,
    /// What it wrote to standard output; what is no UTF-8 is replaced.
    pub(crate) stdout: String,
    /// What it wrote to standard error; what is no UTF-8 is replaced.
    pub(crate) stderr: String,
    /// Whether it wrote more than 1 MiB to one of them, which is left out.
    pub(crate) truncated: bool,
    /// How long it ran, milliseconds.
    pub(crate) took_ms: u64,
    /// The same without the ways to the sandbox and back, microseconds, as the process that holds it saw it; `null`
    /// where nothing was started.
    pub(crate) took_us: Option<u64>,
}

/// Several sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxList {
    /// The sandboxes.
    pub(crate) sandboxes: Vec<SandboxAnswer>,
    /// What `after` must be for those that follow; `null` when these are the last.
    pub(crate) next: Option<String>,
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sandbox")]
pub(crate) struct SandboxAnswer {
    /// Its id.
    pub(crate) id: String,
    /// Its template, or the name of its image behind `image:`.
    pub(crate) template: String,
    /// The digest of the manifest of its image; `null` where it is of a template.
    pub(crate) image_digest: Option<String>,
    /// `running` or `paused`.
    pub(crate) state: String,
    /// How it is isolated, as in `process`.
    pub(crate) level: String,
    /// What was asked for and is not enforced on this machine, with the reason.
    pub(crate) not_enforced: BTreeMap<String, String>,
    /// How contexts of Python come to be: `forked`, as copies of an interpreter that is ready, or `started`.
    pub(crate) interpreter: String,
    /// The sandbox that it was forked from, which may be gone; `null` if it is no fork.
    pub(crate) fork_of: Option<String>,
    /// The snapshot that it was made of, or the checkpoint that it was put back to; `null` if neither.
    pub(crate) snapshot: Option<String>,
    /// When it was handed out.
    pub(crate) started_at: String,
    /// When its time is up.
    pub(crate) ends_at: String,
    /// Whether it is paused then, instead of killed.
    pub(crate) pause_on_timeout: bool,
    /// Whether traffic resumes it when it is paused.
    pub(crate) auto_resume: bool,
    /// What is kept of it while it is paused: `full` or `filesystem`; `null` while it runs.
    pub(crate) pause_mode: Option<String>,
    /// Whether it is paused because nobody used it: its next use wakes it.
    pub(crate) asleep: bool,
    /// When it sleeps, and when checkpoints of it are made by themselves.
    pub(crate) lifecycle: LifecycleAnswer,
    /// Its labels.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Volumes that it has.
    pub(crate) volumes: Vec<VolumeMountAnswer>,
    /// What it may use.
    pub(crate) limits: LimitsAnswer,
    /// What it may reach, and who may reach it.
    pub(crate) policy: PolicyAnswer,
    /// What its file and process services ask for.
    pub(crate) access_token: Option<String>,
    /// What its ports ask for.
    pub(crate) traffic_token: Option<String>,
}

/// When a sandbox sleeps, and when checkpoints of it are made by themselves.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Lifecycle")]
pub(crate) struct LifecycleAnswer {
    /// What is kept of it when it is paused because its time was up: `full` or `filesystem`.
    pub(crate) timeout_mode: String,
    /// After how long it sleeps while nobody uses it, seconds; `null` if never.
    pub(crate) idle_seconds: Option<f64>,
    /// What its sleep keeps: `filesystem` or `full`.
    pub(crate) idle_mode: String,
    /// How often a checkpoint of it is made by itself, seconds; `null` if never.
    pub(crate) checkpoint_every_seconds: Option<f64>,
    /// Commands before which one is made.
    pub(crate) checkpoint_before: Vec<String>,
    /// How many of those are kept.
    pub(crate) checkpoint_keep: u64,
    /// Commands before which a person is asked, beside those of the server's configuration.
    pub(crate) ask_before: Vec<String>,
    /// Whether a person is asked before it is put back to a checkpoint.
    pub(crate) ask_before_restore: bool,
}

impl From<Lifecycle> for LifecycleAnswer {
    fn from(lifecycle: Lifecycle) -> Self {
        Self {
            timeout_mode: lifecycle.timeout_mode.as_str().to_owned(),
            idle_seconds: lifecycle.idle.map(|time| time.as_secs_f64()),
            idle_mode: lifecycle.idle_mode.as_str().to_owned(),
            checkpoint_every_seconds: lifecycle.checkpoint_every.map(|time| time.as_secs_f64()),
            checkpoint_before: lifecycle.checkpoint_before.iter().map(ToString::to_string).collect(),
            checkpoint_keep: lifecycle.checkpoint_keep,
            ask_before: lifecycle.ask_before.iter().map(ToString::to_string).collect(),
            ask_before_restore: lifecycle.ask_before_restore,
        }
    }
}

/// What a sandbox may use.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Limits")]
pub(crate) struct LimitsAnswer {
    /// CPUs at once.
    pub(crate) cpus: u32,
    /// Memory, MiB.
    pub(crate) memory_mib: u64,
    /// Disk, MiB.
    pub(crate) disk_mib: u64,
    /// Processes and threads.
    pub(crate) pids: u32,
}

/// What a sandbox may reach, and who may reach it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
pub(crate) struct PolicyAnswer {
    /// Whether any public address may be reached.
    pub(crate) internet: bool,
    /// Addresses, networks, names and `*.names` that may be reached whatever `deny` says.
    pub(crate) allow: Vec<String>,
    /// Addresses and networks that may not be reached.
    pub(crate) deny: Vec<String>,
    /// Hosts about which somebody is asked.
    pub(crate) ask: Vec<String>,
    /// Whether its ports are open to whoever can reach the server.
    pub(crate) public_ports: bool,
}

/// What a sandbox uses now.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxUsage {
    /// CPU time since it was made, microseconds.
    pub(crate) cpu_us: u64,
    /// Memory, bytes.
    pub(crate) memory_bytes: u64,
    /// The most memory that it had, bytes.
    pub(crate) memory_peak_bytes: u64,
    /// Its limit, bytes.
    pub(crate) memory_limit_bytes: u64,
    /// Disk, bytes.
    pub(crate) disk_bytes: u64,
    /// Its limit, bytes.
    pub(crate) disk_limit_bytes: u64,
    /// Processes and threads.
    pub(crate) pids: u64,
}

/// What a name stands for.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Called")]
pub(crate) struct NameAnswer {
    /// The caller's own sandbox; `null` if none of its own has the name.
    pub(crate) id: Option<String>,
    /// Where it has none: those of other keys, which only a caller with the scope `admin` sees. The name does not stand for
    /// them.
    pub(crate) others: Vec<String>,
}

/// How many sandboxes there are.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub(crate) struct UsageAnswer {
    /// The id of the caller's key.
    pub(crate) key: String,
    /// What it may do: `admin`, `create`, `read`, `overview`.
    pub(crate) scopes: Vec<String>,
    /// Running ones of the caller's.
    pub(crate) running: u64,
    /// How much the caller may have at a time.
    pub(crate) quota: KeyQuota,
}

/// What happened.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Audit")]
pub(crate) struct AuditAnswer {
    /// The events.
    pub(crate) events: Vec<AuditEvent>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AuditEvent {
    /// Its number; later ones have higher numbers.
    pub(crate) number: i64,
    /// When.
    pub(crate) at: String,
    /// The sandbox, which may be gone.
    pub(crate) sandbox: String,
    /// What it was called.
    pub(crate) name: Option<String>,
    /// Its template.
    pub(crate) template: String,
    /// `created`, `updated`, `paused`, `resumed`, `timed_out`, `killed` or `died`.
    pub(crate) kind: String,
    /// Why, where it has ended.
    pub(crate) reason: Option<String>,
}

/// Keys.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyList {
    /// The keys, revoked ones too, the oldest first.
    pub(crate) keys: Vec<KeyAnswer>,
}

/// A key, except for its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(crate) struct KeyAnswer {
    /// Its id.
    pub(crate) id: String,
    /// The owner's name for it.
    pub(crate) name: String,
    /// How it begins.
    pub(crate) prefix: String,
    /// What it may do.
    pub(crate) scopes: Vec<String>,
    /// How much it may have at a time.
    pub(crate) quota: KeyQuota,
    /// What it was granted of the owner's tools; `null` if nothing was said.
    pub(crate) tools: Option<Vec<String>>,
    /// When it was made, milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// When it was revoked, milliseconds since 1970.
    pub(crate) revoked_ms: Option<i64>,
}

/// A key that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MadeKey {
    /// The key itself, which nobody will be shown again.
    pub(crate) key: String,
    /// What it is.
    pub(crate) about: KeyAnswer,
}

/// How much a key may have at a time; `null` is without limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyQuota {
    /// Sandboxes, paused ones too.
    pub(crate) sandboxes: Option<u32>,
    /// CPUs of its running sandboxes together.
    pub(crate) cpus: Option<u32>,
    /// Memory limits of its sandboxes together, MiB.
    pub(crate) memory_mib: Option<u64>,
    /// Disk limits of its sandboxes together, MiB.
    pub(crate) disk_mib: Option<u64>,
}

/// What came of the forks that were asked for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ForkList {
    /// One for each.
    pub(crate) forks: Vec<ForkAnswer>,
}

/// What came of one fork: a sandbox or an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Fork")]
pub(crate) struct ForkAnswer {
    /// The sandbox, if it was made.
    pub(crate) sandbox: Option<SandboxAnswer>,
    /// Why not, otherwise.
    pub(crate) error: Option<RefusalAnswer>,
}

/// Why a request was refused.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Refused")]
pub(crate) struct RefusalAnswer {
    /// The status.
    pub(crate) code: u16,
    /// Why.
    pub(crate) message: String,
}

impl From<SandboxLimits> for LimitsAnswer {
    fn from(limits: SandboxLimits) -> Self {
        Self {
            cpus: limits.cpus,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            pids: limits.pids,
        }
    }
}

impl From<SandboxView> for SandboxAnswer {
    fn from(view: SandboxView) -> Self {
        Self {
            id: view.id,
            template: view.template,
            image_digest: view.image_digest,
            state: state_word(view.state).to_owned(),
            level: view.level,
            not_enforced: view.not_enforced,
            interpreter: view.interpreter.as_str().to_owned(),
            fork_of: view.fork_of,
            snapshot: view.snapshot,
            started_at: time::text(view.started_at),
            ends_at: time::text(view.end_at),
            pause_on_timeout: view.on_timeout == offleash_daemon::OnTimeout::Pause,
            auto_resume: view.auto_resume,
            pause_mode: view.pause_mode.map(|mode| mode.as_str().to_owned()),
            asleep: view.asleep,
            lifecycle: LifecycleAnswer::from(view.lifecycle),
            metadata: view.metadata,
            volumes: view.volumes.into_iter().map(VolumeMountAnswer::from).collect(),
            limits: LimitsAnswer::from(view.limits),
            policy: PolicyAnswer {
                internet: view.network.internet.unwrap_or(true),
                allow: view.network.allow_out,
                deny: view.network.deny_out,
                ask: view.network.ask_out,
                public_ports: view.network.allow_public_traffic.unwrap_or(true),
            },
            access_token: view.access_token,
            traffic_token: view.traffic_token,
        }
    }
}

impl From<SupervisorUsage> for SandboxUsage {
    fn from(usage: SupervisorUsage) -> Self {
        Self {
            cpu_us: usage.cpu_us,
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.memory_peak_bytes,
            memory_limit_bytes: usage.memory_limit_bytes,
            disk_bytes: usage.disk_bytes,
            disk_limit_bytes: usage.disk_limit_bytes,
            pids: usage.pids,
        }
    }
}

impl From<offleash_daemon::SandboxEvent> for AuditEvent {
    fn from(event: offleash_daemon::SandboxEvent) -> Self {
        Self {
            number: event.number,
            at: time::text(event.at),
            sandbox: event.sandbox,
            name: event.name,
            template: event.template,
            kind: EventKind::as_str(event.kind).to_owned(),
            reason: event.reason,
        }
    }
}

impl From<Quota> for KeyQuota {
    fn from(quota: Quota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            cpus: quota.cpus,
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
        }
    }
}

impl From<NewQuota> for Quota {
    fn from(quota: NewQuota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            cpus: quota.cpus,
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
        }
    }
}

impl From<KeyRow> for KeyAnswer {
    fn from(row: KeyRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            prefix: row.prefix,
            scopes: row.scopes.0.iter().map(ToString::to_string).collect(),
            quota: row.quota.into(),
            tools: row.tools.map(|tools| tools.iter().map(ToString::to_string).collect()),
            created_ms: row.created_ms,
            revoked_ms: row.revoked_ms,
        }
    }
}
