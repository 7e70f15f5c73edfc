//! The JSON of the native REST.

use std::collections::BTreeMap;

use offleash_manager::daemon::{EventKind, KeyRow, Quota, SandboxView};
use offleash_manager::keeper::message::KeeperUsage;

use super::schema::objects;
use crate::control::state_word;
use crate::time;

objects! {
    request
    /// A command that is run, and the sandbox that is made for it.
    NewRun {
        /// The command.
        command: NewCommand,
        /// The sandbox; every default if absent.
        sandbox: Option<NewSandbox>,
        /// Whether the sandbox is kept when the command has ended; it is killed if absent.
        keep: Option<bool>,
    }

    request
    /// A command that is run in a sandbox.
    NewCommand {
        /// Program and arguments; either this or `shell`.
        argv: Option<Vec<String>>,
        /// A line for `/bin/bash -l -c`; either this or `argv`.
        shell: Option<String>,
        /// What the command reads from standard input; nothing if absent. At most 512 KiB.
        stdin: Option<String>,
        /// Variables of the command's own.
        env: Option<BTreeMap<String, String>>,
        /// Working directory; the user's home if absent.
        cwd: Option<String>,
        /// As whom; `user` if absent.
        user: Option<String>,
        /// After how many milliseconds the command is killed, at least 1; with the sandbox's own time if absent.
        timeout_ms: Option<u64>,
    }

    request
    /// A sandbox that is asked for.
    NewSandbox {
        /// The template; `base` if absent.
        template: Option<String>,
        /// What it is called: label `offleash.name`, which no other sandbox of the key may have.
        name: Option<String>,
        /// How long it may live, seconds; 300 if absent.
        timeout_seconds: Option<u64>,
        /// Labels.
        metadata: Option<BTreeMap<String, String>>,
        /// Variables for every command in it.
        env: Option<BTreeMap<String, String>>,
        /// Whether it is paused when its time is up; it is killed if absent.
        pause_on_timeout: Option<bool>,
        /// Whether traffic resumes it when it is paused; not if absent.
        auto_resume: Option<bool>,
        /// What it may use.
        limits: Option<NewLimits>,
        /// What it may reach, and who may reach it.
        policy: Option<NewPolicy>,
    }

    request
    /// How a sandbox goes on.
    Resume {
        /// How long it may live from now on, seconds; as long as it had left when it was paused if absent, or the default time
        /// where that was nothing. The time of one that runs is only extended.
        timeout_seconds: Option<u64>,
    }

    request
    /// Forks of a sandbox that are asked for.
    NewForks {
        /// How many, 1 to 20; one if absent.
        count: Option<u32>,
        /// What the fork is called, as in `NewSandbox`; of several each has its number behind that, from `NAME-1` on.
        name: Option<String>,
        /// How long each may live, seconds; 300 if absent.
        timeout_seconds: Option<u64>,
        /// What they have of contexts of code: `all`, and nothing is forked where something cannot be carried; what is
        /// `possible`; `none`. `all` if absent.
        contexts: Option<String>,
    }

    request
    /// What a sandbox may use; the server's defaults for what is absent.
    NewLimits {
        /// CPUs at once.
        cpus: Option<u32>,
        /// Memory, MiB.
        memory_mib: Option<u64>,
        /// Disk, MiB.
        disk_mib: Option<u64>,
        /// Processes and threads.
        pids: Option<u32>,
    }

    request
    /// What a sandbox may reach, and who may reach it. A list that is absent is empty.
    NewPolicy {
        /// Whether any public address may be reached; yes if absent.
        internet: Option<bool>,
        /// Addresses, networks, names and `*.names` that may be reached whatever `deny` says; where `internet` is false, some
        /// ports of them alone are `HOST:PORTS`.
        allow: Option<Vec<String>>,
        /// Addresses and networks that may not be reached.
        deny: Option<Vec<String>>,
        /// Whether its ports are open to whoever can reach the server; yes if absent.
        public_ports: Option<bool>,
    }

    request
    /// A key that is asked for.
    NewKey {
        /// The owner's name for it.
        name: String,
        /// What it may do: `admin`, `create`, `read`; `create` if absent.
        scopes: Option<Vec<String>>,
        /// How much it may have at a time; without limit if absent.
        quota: Option<NewQuota>,
    }

    request
    /// How much a key may have at a time; without limit where nothing is said.
    NewQuota {
        /// Sandboxes, paused ones too.
        sandboxes: Option<u32>,
        /// CPUs of its running sandboxes together.
        cpus: Option<u32>,
        /// Memory limits of its sandboxes together, MiB.
        memory_mib: Option<u64>,
        /// Disk limits of its sandboxes together, MiB.
        disk_mib: Option<u64>,
    }

    answer
    /// What the server is.
    Version {
        /// Its version.
        version: String,
        /// The version of the file and process services of its sandboxes, in E2B's count.
        envd_version: String,
        /// What clients on its machine call it.
        url: String,
    }

    answer
    /// What a command did.
    RunResult {
        /// The sandbox.
        sandbox: String,
        /// Whether the sandbox is still there.
        kept: bool,
        /// The command's exit code; `null` when a signal ended it.
        exit_code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// Whether that was because the sandbox had no memory left.
        out_of_memory: bool,
        /// Whether it was killed because its time was up.
        timed_out: bool,
        /// What it wrote to standard output; what is no UTF-8 is replaced.
        stdout: String,
        /// What it wrote to standard error; what is no UTF-8 is replaced.
        stderr: String,
        /// Whether it wrote more than 1 MiB to one of them, which is left out.
        truncated: bool,
        /// How long it ran, milliseconds.
        took_ms: u64,
        /// The same without the ways to the sandbox and back, microseconds, as the process that holds it saw it; `null`
        /// where nothing was started.
        took_us: Option<u64>,
    }

    answer
    /// Several sandboxes.
    SandboxList {
        /// The sandboxes.
        sandboxes: Vec<Sandbox>,
        /// What `after` must be for those that follow; `null` when these are the last.
        next: Option<String>,
    }

    answer
    /// A sandbox.
    Sandbox {
        /// Its id.
        id: String,
        /// Its template.
        template: String,
        /// `running` or `paused`.
        state: String,
        /// How it is isolated, as in `process`.
        level: String,
        /// What was asked for and is not enforced on this machine, with the reason.
        not_enforced: BTreeMap<String, String>,
        /// How contexts of Python come to be: `forked`, as copies of an interpreter that is ready, or `started`.
        interpreter: String,
        /// The sandbox that it was forked from, which may be gone; `null` if it is no fork.
        fork_of: Option<String>,
        /// When it was handed out.
        started_at: String,
        /// When its time is up.
        ends_at: String,
        /// Whether it is paused then, instead of killed.
        pause_on_timeout: bool,
        /// Whether traffic resumes it when it is paused.
        auto_resume: bool,
        /// Its labels.
        metadata: BTreeMap<String, String>,
        /// What it may use.
        limits: Limits,
        /// What it may reach, and who may reach it.
        policy: Policy,
        /// What its file and process services ask for.
        access_token: Option<String>,
        /// What its ports ask for.
        traffic_token: Option<String>,
    }

    answer
    /// What a sandbox may use.
    Limits {
        /// CPUs at once.
        cpus: u32,
        /// Memory, MiB.
        memory_mib: u64,
        /// Disk, MiB.
        disk_mib: u64,
        /// Processes and threads.
        pids: u32,
    }

    answer
    /// What a sandbox may reach, and who may reach it.
    Policy {
        /// Whether any public address may be reached.
        internet: bool,
        /// Addresses, networks, names and `*.names` that may be reached whatever `deny` says.
        allow: Vec<String>,
        /// Addresses and networks that may not be reached.
        deny: Vec<String>,
        /// Whether its ports are open to whoever can reach the server.
        public_ports: bool,
    }

    answer
    /// What a sandbox uses now.
    SandboxUsage {
        /// CPU time since it was made, microseconds.
        cpu_us: u64,
        /// Memory, bytes.
        memory_bytes: u64,
        /// The most memory that it had, bytes.
        memory_peak_bytes: u64,
        /// Its limit, bytes.
        memory_limit_bytes: u64,
        /// Disk, bytes.
        disk_bytes: u64,
        /// Its limit, bytes.
        disk_limit_bytes: u64,
        /// Processes and threads.
        pids: u64,
    }

    answer
    /// What a name stands for.
    Called {
        /// The caller's own sandbox; `null` if none of its own has the name.
        id: Option<String>,
        /// Where it has none: those of other keys, which only a caller with the scope `admin` sees. The name does not stand for
        /// them.
        others: Vec<String>,
    }

    answer
    /// How many sandboxes there are.
    Usage {
        /// Running ones of the caller's.
        running: u64,
        /// How much the caller may have at a time.
        quota: KeyQuota,
    }

    answer
    /// What happened.
    Audit {
        /// The events.
        events: Vec<AuditEvent>,
    }

    answer
    /// Something that happened to a sandbox.
    AuditEvent {
        /// Its number; later ones have higher numbers.
        number: i64,
        /// When.
        at: String,
        /// The sandbox, which may be gone.
        sandbox: String,
        /// What it was called.
        name: Option<String>,
        /// Its template.
        template: String,
        /// `created`, `updated`, `paused`, `resumed`, `timed_out`, `killed` or `died`.
        kind: String,
        /// Why, where it has ended.
        reason: Option<String>,
    }

    answer
    /// Keys.
    KeyList {
        /// The keys, revoked ones too, the oldest first.
        keys: Vec<Key>,
    }

    answer
    /// A key, except for its secret.
    Key {
        /// Its id.
        id: String,
        /// The owner's name for it.
        name: String,
        /// How it begins.
        prefix: String,
        /// What it may do.
        scopes: Vec<String>,
        /// How much it may have at a time.
        quota: KeyQuota,
        /// When it was made, milliseconds since 1970.
        created_ms: i64,
        /// When it was revoked, milliseconds since 1970.
        revoked_ms: Option<i64>,
    }

    answer
    /// A key that was made.
    MadeKey {
        /// The key itself, which nobody will be shown again.
        key: String,
        /// What it is.
        about: Key,
    }

    answer
    /// How much a key may have at a time; `null` is without limit.
    KeyQuota {
        /// Sandboxes, paused ones too.
        sandboxes: Option<u32>,
        /// CPUs of its running sandboxes together.
        cpus: Option<u32>,
        /// Memory limits of its sandboxes together, MiB.
        memory_mib: Option<u64>,
        /// Disk limits of its sandboxes together, MiB.
        disk_mib: Option<u64>,
    }

    answer
    /// What came of the forks that were asked for.
    ForkList {
        /// One for each.
        forks: Vec<Fork>,
    }

    answer
    /// What came of one fork: a sandbox or an error.
    Fork {
        /// The sandbox, if it was made.
        sandbox: Option<Sandbox>,
        /// Why not, otherwise.
        error: Option<Refused>,
    }

    answer
    /// Why a request was refused.
    Refused {
        /// The status.
        code: u16,
        /// Why.
        message: String,
    }
}

impl From<SandboxView> for Sandbox {
    fn from(view: SandboxView) -> Self {
        Self {
            id: view.id,
            template: view.template,
            state: state_word(view.state).to_owned(),
            level: view.level,
            not_enforced: view.not_enforced,
            interpreter: view.interpreter.as_str().to_owned(),
            fork_of: view.fork_of,
            started_at: time::text(view.started_at),
            ends_at: time::text(view.end_at),
            pause_on_timeout: view.on_timeout == offleash_manager::daemon::OnTimeout::Pause,
            auto_resume: view.auto_resume,
            metadata: view.metadata,
            limits: Limits {
                cpus: view.limits.cpus,
                memory_mib: view.limits.memory_mib,
                disk_mib: view.limits.disk_mib,
                pids: view.limits.pids,
            },
            policy: Policy {
                internet: view.network.internet.unwrap_or(true),
                allow: view.network.allow_out,
                deny: view.network.deny_out,
                public_ports: view.network.allow_public_traffic.unwrap_or(true),
            },
            access_token: view.access_token,
            traffic_token: view.traffic_token,
        }
    }
}

impl From<KeeperUsage> for SandboxUsage {
    fn from(usage: KeeperUsage) -> Self {
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

impl From<offleash_manager::daemon::Event> for AuditEvent {
    fn from(event: offleash_manager::daemon::Event) -> Self {
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

impl From<KeyRow> for Key {
    fn from(row: KeyRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            prefix: row.prefix,
            scopes: row.scopes.0.iter().map(ToString::to_string).collect(),
            quota: row.quota.into(),
            created_ms: row.created_ms,
            revoked_ms: row.revoked_ms,
        }
    }
}
