//! The arguments of the commands that ask a daemon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use offleash_core::id::SandboxName;
use offleash_core::units::{Bytes, CpuCount};

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What the sandbox is made from.
    #[arg(long, value_name = "NAME", default_value = "base")]
    pub(crate) template: String,
    /// Image of containers that it is of instead, such as `python:3.12-slim`. The server must have it (`offleash image pull`), or
    /// its configuration let it pull.
    #[arg(long, value_name = "NAME", conflicts_with = "template")]
    pub(crate) image: Option<String>,
    /// The snapshot that the sandbox is made of, by its id or its name, instead of a template.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "image"])]
    pub(crate) snapshot: Option<String>,
    /// Have it so much of the tools that the server declares, as in `pay where amount < 5 calls 3`; `NAME` is all that may be had
    /// of one.
    #[arg(long, value_name = "GRANT")]
    pub(crate) tool_grant: Vec<String>,
    /// What it is called: stands for its id. No other that lives has the name; label `offleash.name` says it.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// How long it lives, such as 90s, 5m or 2h. [default: the daemon's]
    #[arg(long, visible_alias = "wall-time", value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Memory it may use, such as 512M or 2G; in whole MiB. [default: the daemon's]
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,
    /// CPUs it may use at once, in whole ones. [default: the daemon's]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<WholeCpus>,
    /// Disk it may use, such as 2G; in whole MiB. [default: the daemon's]
    #[arg(long, visible_alias = "workspace-size", value_name = "SIZE")]
    pub(crate) disk: Option<Bytes>,
    /// Mount a volume of yours in the daemon, to be written to unless `:ro` stands behind it. Volumes of `offleash volume
    /// create` are those of whoever started the server.
    #[arg(long, short = 'v', value_name = "NAME:DST[:ro|:rw]")]
    pub(crate) volume: Vec<OsString>,
    /// Processes and threads it may have. [default: the daemon's]
    #[arg(long, visible_alias = "pids-limit", value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// Pause it when its time is up, instead of ending it.
    #[arg(long)]
    pub(crate) auto_pause: bool,
    /// With `--auto-pause`: keep its files alone then, not its memory and processes.
    #[arg(long, requires = "auto_pause")]
    pub(crate) no_memory: bool,
    /// Resume it when somebody uses it while it is paused.
    #[arg(long, requires = "auto_pause")]
    pub(crate) auto_resume: bool,
    /// Have it sleep when nobody used it for so long, such as 10m; its next use wakes it. 0 is never. Label `offleash.idle` says
    /// it, too. [default: the daemon's]
    #[arg(long, value_name = "TIME")]
    pub(crate) idle: Option<String>,
    /// Keep its memory and processes while it sleeps, not its files alone.
    #[arg(long)]
    pub(crate) idle_memory: bool,
    /// Make a checkpoint of it so often, such as 10m, if it was used. 0 is never. [default: the daemon's]
    #[arg(long, value_name = "TIME")]
    pub(crate) checkpoint_every: Option<String>,
    /// Make a checkpoint before such a command is started, as in 'rm -rf' or 'git reset --hard'. That is a convenience: what
    /// programs start by themselves is not seen. [default: the daemon's]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) checkpoint_before: Vec<String>,
    /// How many of these checkpoints are kept; the oldest go. [default: the daemon's]
    #[arg(long, value_name = "N")]
    pub(crate) checkpoint_keep: Option<u64>,
    /// Have a person asked (`offleash approvals`) before such a command is started, as in 'git push'. What programs start by
    /// themselves is not seen.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ask_before: Vec<String>,
    /// Have a person asked before it is put back to a checkpoint.
    #[arg(long)]
    pub(crate) ask_before_restore: bool,
    /// Policy file of which `[lifecycle]` says what the seven flags above do where they are not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// A label.
    #[arg(long, short = 'l', value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// A variable for every command in it.
    #[arg(long, short = 'e', value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Allow debuggers: programs in it may trace and look into each other. Whoever started the server always may. Others may only where its
    /// configuration says `sandboxes.allow_ptrace`; label `offleash.allow_ptrace` says it.
    #[arg(long)]
    pub(crate) allow_ptrace: bool,
    /// Isolation level, where it is to be another than the server's: `simulated`, `process`, `container` or `microvm`;
    /// label `offleash.level` says it.
    #[arg(long, value_name = "LEVEL", value_parser = ["simulated", "process", "container", "microvm"])]
    pub(crate) level: Option<String>,
    /// Let it reach nothing on the internet but what `--allow` names.
    #[arg(long)]
    pub(crate) no_internet: bool,
    /// `none`: it reaches nothing.
    #[arg(long, visible_alias = "net", value_name = "none", value_parser = ["none"], hide_possible_values = true,
        conflicts_with = "allow")]
    pub(crate) network: Option<String>,
    /// Changes nothing: a sandbox is always removed when it ends.
    #[arg(long)]
    pub(crate) rm: bool,
    /// Let it reach a name, `*.` before a name, an address or a network, whatever else is closed to it; with `--no-internet` also
    /// at some ports only, as in 192.0.2.1:443 or example.com:8000-8100.
    #[arg(long, value_name = "HOST[:PORTS]")]
    pub(crate) allow: Vec<String>,
    /// Let it not reach an address or a network.
    #[arg(long, value_name = "NETWORK")]
    pub(crate) deny_host: Vec<String>,
    /// Have somebody asked (`offleash approvals`) when it connects to a host.
    #[arg(long, value_name = "HOST[:PORTS]")]
    pub(crate) ask: Vec<String>,
}

/// CPUs of a sandbox of the daemon, which it counts in whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WholeCpus(pub(crate) u32);

impl FromStr for WholeCpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if let (true, Ok(whole)) = (digits, text.parse()) {
            return Ok(Self(whole));
        }
        match CpuCount::from_str(text) {
            Ok(given) => Err(format!(
                "the daemon counts whole CPUs, at least one: `{}` would do",
                given.millis.div_ceil(1000).max(1)
            )),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Those that have ended, too, as far as they are still known.
    #[arg(long, short = 'a', conflicts_with = "label")]
    pub(crate) all: bool,
    /// Only those with this label.
    #[arg(long, short = 'l', value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// Only ids, a line each.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print the list as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Pass standard input on.
    #[arg(long, short = 'i')]
    pub(crate) interactive: bool,
    /// Give the command a terminal.
    #[arg(long, short = 't')]
    pub(crate) tty: bool,
    /// As whom: `user` or `root`. [default: user]
    #[arg(long, short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Working directory inside. [default: the user's home]
    #[arg(long, short = 'w', visible_aliases = ["cwd", "chdir"], value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// A variable.
    #[arg(long, short = 'e', value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// The sandbox, by its id or its name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Command and arguments.
    #[arg(
        value_name = "COMMAND",
        trailing_var_arg = true,
        required = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// As whom: `user` or `root`. [default: user]
    #[arg(long, short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The most that is copied from a sandbox in all; a file or directory in a directory counts 4 KiB more.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub(crate) max_bytes: Bytes,
    /// From where: a path here, or ID:PATH; a name stands for the id.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// To where: a path here, or ID:PATH.
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: PathBuf,
}

/// One sandbox or several.
#[derive(Debug, Args)]
pub(crate) struct IdsArgs {
    /// The sandboxes, by id or name.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Keep files alone: memory and processes are gone, and take no room. What contexts of code can save is kept.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// The sandboxes, by id or name.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Remove it although it runs.
    #[arg(long, short = 'f')]
    pub(crate) force: bool,
    /// The sandboxes, by id or name.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// How long it lives from now on, such as 90s, 5m or 2h. [default: what it had left when it was paused]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Go on with files alone, also if memory was kept.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// The sandboxes, by id or name.
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// How many, 1 to 20.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) count: u32,
    /// What the fork is called; of several each has its number behind that: NAME-1, NAME-2 …
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// How long each lives, such as 90s, 5m or 2h. [default: the daemon's]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// What they have of contexts of code: `all`, and nothing is forked where something cannot be carried; what is
    /// `possible`; `none`.
    #[arg(long, value_name = "WHICH", value_parser = ["all", "possible", "none"], default_value = "all")]
    pub(crate) contexts: String,
    /// The sandbox, by its id or its name; it must run.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print the samples as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The sandboxes, by id or name. [default: all that run]
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print once and end, as it does where the output is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
    /// How often to look; the daemon samples every 5 s unless told otherwise. [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Go on with what happens, until the sandbox has ended.
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
    /// The sandbox, by its id or its name; it may have ended a while ago.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// The sandbox, by its id or its name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The port on which a program inside listens.
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
}
