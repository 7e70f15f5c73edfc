//! `offleash create`: a sandbox of the daemon.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::process::ExitCode;

use offleash_api::client::{Client, ClientError};
use offleash_core::policy::LifecyclePolicy;
use offleash_core::spec::MountAccess;
use offleash_core::text::Text;
use offleash_core::units::{Bytes, Millis};
use offleash_daemon::{ALLOW_PTRACE_LABEL, LEVEL_LABEL, PauseMode};
use serde_json::{Value, json};

use super::{assignments, line, seconds, text};
use crate::args::CreateArgs;
use crate::failure::Failure;
use crate::specify::{read_policy, volume_of};

/// How sizes are written.
const SIZES: &str = "sizes are such as 512M or 2G: units K, M, G and T (or KiB, MiB …) are powers of 1024, KB, MB, GB and TB of 1000, and \
                     a number without one is bytes";

/// What the daemon calls what these flags say.
const FLAGS: [(&str, &str); 17] = [
    ("tools", "--tool-grant"),
    ("image", "--image"),
    ("allowOut", "--allow"),
    ("denyOut", "--deny-host"),
    ("cpuCount", "--cpus"),
    ("memoryMB", "--memory"),
    ("diskSizeMB", "--disk"),
    ("pids", "--pids"),
    ("timeout", "--timeout"),
    ("envVars", "--env"),
    ("metadata", "--label"),
    ("name", "--name"),
    ("idle", "--idle"),
    ("checkpoint_every", "--checkpoint-every"),
    ("checkpoint_before", "--checkpoint-before"),
    ("checkpoint_keep", "--checkpoint-keep"),
    ("ask_before", "--ask-before"),
];

pub(super) fn create(client: &Client, arguments: &CreateArgs) -> Result<ExitCode, Failure> {
    check_allowed(arguments)?;
    let mut body = json!({
        "metadata": assignments("--label", &arguments.label)?,
        "env": assignments("--env", &arguments.env)?,
        "pause_on_timeout": arguments.auto_pause,
        "pause_mode": PauseMode::of_memory(!arguments.no_memory).as_str(),
        "auto_resume": arguments.auto_resume,
        "limits": {
            "cpus": arguments.cpus.map(|cpus| cpus.0),
            "memory_mib": arguments.memory.map(mebibytes),
            "disk_mib": arguments.disk.map(mebibytes),
            "pids": arguments.pids,
        },
    });
    match &arguments.image {
        Some(image) => body["image"] = json!(image),
        None => body["template"] = json!(arguments.template),
    }
    if arguments.allow_ptrace {
        body["metadata"][ALLOW_PTRACE_LABEL] = json!("true");
    }
    if let Some(level) = &arguments.level {
        body["metadata"][LEVEL_LABEL] = json!(level);
    }
    if let Some(snapshot) = &arguments.snapshot {
        body["snapshot"] = json!(snapshot);
    }
    if let Some(name) = &arguments.name {
        body["name"] = json!(name.as_str());
    }
    if let Some(text) = &arguments.timeout {
        body["timeout_seconds"] = json!(seconds("--timeout", text)?);
    }
    if !arguments.tool_grant.is_empty() {
        body["tools"] = json!({ "grants": arguments.tool_grant });
    }
    lifecycle(arguments, &mut body)?;
    let mut volumes = Vec::new();
    for given in &arguments.volume {
        volumes.push(volume(given)?);
    }
    body["volumes"] = json!(volumes);
    let mut policy = json!({ "allow": arguments.allow, "deny": arguments.deny_host, "ask": arguments.ask });
    if arguments.no_internet || arguments.network.is_some() {
        policy["internet"] = json!(false);
    }
    body["policy"] = policy;
    let made = client.post("/v1/sandboxes", &body).map_err(in_our_words)?;
    line(text(&made, "id"))
}

/// When it sleeps, and when checkpoints of it are made: as flags say, then as a policy does.
fn lifecycle(arguments: &CreateArgs, body: &mut Value) -> Result<(), Failure> {
    let policy = match &arguments.policy {
        Some(path) => read_policy(path)?.lifecycle,
        None => LifecyclePolicy::default(),
    };
    let time = |flag: &str, given: &Option<String>, policy: Option<Millis>| match given {
        Some(text) => seconds(flag, text).map(Some),
        None => Ok(policy.map(|Millis(time)| time.div_ceil(1000))),
    };
    if let Some(idle) = time("--idle", &arguments.idle, policy.idle)? {
        body["idle_seconds"] = json!(idle);
    }
    let keeps_memory = arguments.idle_memory.then_some(true).or(policy.idle_memory);
    if let Some(keeps_memory) = keeps_memory {
        body["idle_mode"] = json!(PauseMode::of_memory(keeps_memory).as_str());
    }
    if let Some(every) = time(
        "--checkpoint-every",
        &arguments.checkpoint_every,
        policy.checkpoint_every,
    )? {
        body["checkpoint_every_seconds"] = json!(every);
    }
    let before: Vec<String> = policy.checkpoint_before.iter().map(ToString::to_string).collect();
    let before: Vec<&String> = before.iter().chain(&arguments.checkpoint_before).collect();
    if !before.is_empty() {
        body["checkpoint_before"] = json!(before);
    }
    if let Some(keep) = arguments.checkpoint_keep.or(policy.checkpoint_keep) {
        body["checkpoint_keep"] = json!(keep);
    }
    let asked: Vec<String> = policy.ask_before.iter().map(ToString::to_string).collect();
    let asked: Vec<&String> = asked.iter().chain(&arguments.ask_before).collect();
    if !asked.is_empty() {
        body["ask_before"] = json!(asked);
    }
    if arguments.ask_before_restore || policy.ask_before_restore {
        body["ask_before_restore"] = json!(true);
    }
    Ok(())
}

/// A volume of the caller's; a directory of the host nobody can have.
fn volume(given: &OsStr) -> Result<Value, Failure> {
    let found = volume_of(given)?.ok_or_else(|| {
        Failure::new(format!("`--volume {}` is a path of the host", Text::from(given))).with_hint(
            "a sandbox of the daemon sees no directory of the host; `offleash cp` copies files to it, and `offleash volume \
             cp` to a volume",
        )
    })?;
    Ok(json!({
        "volume": found.volume.to_string(),
        "path": found.target.to_string_lossy(),
        "read_only": found.access == MountAccess::Ro,
    }))
}

/// Whole ones, at least as much as was asked for.
fn mebibytes(size: Bytes) -> u64 {
    size.0.div_ceil(1 << 20)
}

/// Refuses a name, or an address with ports, that is allowed where not everything is closed: it would open nothing.
fn check_allowed(arguments: &CreateArgs) -> Result<(), Failure> {
    let is_closed = arguments.no_internet || arguments.deny_host.iter().any(|denied| denied == "0.0.0.0/0");
    let is_name = |text: &&String| {
        let address = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
        address.parse::<IpAddr>().is_err()
    };
    match arguments.allow.iter().find(is_name) {
        Some(name) if !is_closed => {
            let why = match arguments.deny_host.is_empty() {
                true => "opens nothing that is not open",
                false => "is a name or has a port, and those open something only where everything else is closed",
            };
            let message = format!("`--allow {}` {why}", Text::from(name.as_str()));
            Err(Failure::new(message)
                .with_hint("with `--no-internet`, what `--allow` names is reached and nothing else"))
        }
        _ => Ok(()),
    }
}

/// A refusal that names a field, with the flag that says it.
fn in_our_words(error: ClientError) -> Failure {
    let ClientError::Refused { message, kind } = error else {
        return error.into();
    };
    let message = message.as_str();
    let flag = message.split_once(": ").and_then(|(field, why)| {
        FLAGS
            .iter()
            .find(|(known, _)| *known == field)
            .map(|(_, flag)| (*flag, why))
    });
    let message = match flag {
        Some((flag, why)) => format!("{flag}: {why}"),
        None => message.to_owned(),
    };
    let failure = Failure::from(ClientError::Refused { message, kind });
    match flag {
        Some(("--memory" | "--disk", _)) => failure.with_hint(SIZES),
        _ => failure,
    }
}
