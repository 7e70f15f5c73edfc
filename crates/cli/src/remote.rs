//! The commands that ask a daemon: Docker's verbs for its sandboxes.

mod archive;
mod arrival;
mod copy;
mod create;
mod drain;
mod exec;
pub(crate) mod holders;
mod logs;
mod port_forward;
pub(crate) mod resources;
pub(crate) mod snapshots;
mod sync;
pub(crate) mod table;
pub(crate) mod top;

use std::process::ExitCode;

use offleash_api::client::{Client, Ended, encoded};
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_core::id::SandboxName;
use offleash_core::text::Text;
use offleash_core::units::Millis;
use offleash_daemon::{NAME_LABEL, PauseMode};
use serde_json::{Map, Value, json};

use crate::args::{
    CpArgs, CreateArgs, ExecArgs, ForkArgs, IdsArgs, LogsArgs, LsArgs, PauseArgs, PortArgs, PortForwardArgs,
    ResumeArgs, RmArgs, StatsArgs, SyncArgs,
};
use crate::failure::Failure;
use crate::server_at::ServerAt;
use crate::terminal;

pub(crate) use drain::drain;
use table::Table;

pub(crate) fn create(arguments: &CreateArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    create::create(&at.client()?, arguments)
}

pub(crate) fn ls(arguments: &LsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let mut path = "/v2/sandboxes?limit=100".to_owned();
    if !arguments.label.is_empty() {
        let labels = assignments("--label", &arguments.label)?;
        let pairs: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value.as_str().unwrap_or_default())))
            .collect();
        path = format!("{path}&metadata={}", encoded(&pairs.join("&")));
    }
    let client = at.client()?;
    let mut all = listed(&client, &path)?;
    if arguments.all {
        all.extend(client.all_ended()?.iter().rev().map(described));
    }
    if arguments.json {
        print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.quiet {
        let ids: String = all.iter().map(|one| format!("{}\n", text(one, "sandboxID"))).collect();
        terminal::print(ids.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["ID", "NAME", "TEMPLATE", "STATE", "STARTED", "ENDS", "LABELS"]);
    for one in &all {
        let template = one
            .get("alias")
            .map_or_else(|| field(one, "templateID"), |_| field(one, "alias"));
        let mut labels = one
            .get("metadata")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let name = labels.remove(NAME_LABEL);
        let name = name.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        table.row([
            field(one, "sandboxID"),
            name,
            template,
            field(one, "state"),
            field(one, "startedAt"),
            match field(one, "endAt") {
                end if end.is_empty() => field(one, "endedAt"),
                end => end,
            },
            labels.join(","),
        ]);
    }
    table.print()
}

/// A list of sandboxes, and on standard error whose are not in it.
fn listed(client: &Client, path: &str) -> Result<Vec<Value>, Failure> {
    let listing = client.list(path)?;
    if let Some(line) = without_nodes(&listing.missing_nodes) {
        terminal::complain(&line);
    }
    Ok(listing.entries)
}

/// That servers behind a front are not in a list; nothing where all are.
fn without_nodes(missing: &[String]) -> Option<String> {
    let names: Vec<String> = missing
        .iter()
        .map(|name| format!("`{}`", Text::from(name.as_str())))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "offleash: the list lacks the sandboxes of {}, of which the front has no answer",
            names.join(", ")
        )
    })
}

pub(crate) fn exec(mut arguments: ExecArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    arguments.id = client.id_of(&arguments.id)?;
    exec::exec(&client, arguments)
}

pub(crate) fn cp(arguments: &CpArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    copy::copy(&at.client()?, arguments)
}

pub(crate) fn logs(arguments: &LogsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    logs::logs(&client, &client.id_of(&arguments.id)?, arguments.follow)
}

/// Ends sandboxes, running or paused.
pub(crate) fn stop(arguments: &IdsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    each(&client, &arguments.ids, |id| kill(&client, id))
}

/// Removes sandboxes: those that are paused, and with force those that run.
pub(crate) fn rm(arguments: &RmArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    each(&client, &arguments.ids, |id| {
        let detail = client.known(id, client.get(&format!("/sandboxes/{}", encoded(id))))?;
        if text(&detail, "state") == "running" && !arguments.force {
            return Err(Failure::new(format!("sandbox {} is running", Text::from(id)))
                .with_hint("`offleash rm -f` removes it all the same"));
        }
        kill(&client, id)
    })
}

fn kill(client: &Client, id: &str) -> Result<(), Failure> {
    Ok(client.known(id, client.delete(&format!("/sandboxes/{}", encoded(id))))?)
}

pub(crate) fn inspect(arguments: &IdsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let mut all = Vec::new();
    for given in &arguments.ids {
        let id = &client.id_of(given)?;
        let mut detail = match client.get(&format!("/sandboxes/{}", encoded(id))) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                client.ended(id)?.as_ref().map(described).ok_or(error)?
            }
            found => found?,
        };
        if text(&detail, "state") != "ended" {
            // What the API of E2B has no words for.
            let native = client.get(&format!("/v1/sandboxes/{}", encoded(id)))?;
            detail["level"] = native["level"].clone();
            detail["notEnforced"] = native["not_enforced"].clone();
            detail["interpreter"] = native["interpreter"].clone();
            detail["forkOf"] = native["fork_of"].clone();
            detail["asleep"] = native["asleep"].clone();
            for (name, value) in native["lifecycle"].as_object().into_iter().flatten() {
                detail["lifecycle"][name] = value.clone();
            }
        }
        // It opens the sandbox, and what is inspected is pasted into reports.
        if let Some(fields) = detail.as_object_mut() {
            fields.remove("envdAccessToken");
            fields.remove("trafficAccessToken");
        }
        all.push(detail);
    }
    print_json(&all)?;
    Ok(ExitCode::SUCCESS)
}

/// What there is to say of a sandbox that has ended.
fn described(ended: &Ended) -> Value {
    let mut described = json!({
        "sandboxID": ended.id,
        "templateID": ended.template,
        "state": "ended",
        "endedAt": ended.at,
        "end": ended.end,
        "reason": ended.reason,
    });
    if let Some(name) = &ended.name {
        described["metadata"] = json!({ NAME_LABEL: name });
    }
    described
}

pub(crate) fn stats(arguments: &StatsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let ids = if arguments.ids.is_empty() {
        let running = listed(&client, "/v2/sandboxes?limit=100&state=running")?;
        running.iter().map(|one| text(one, "sandboxID")).collect()
    } else {
        let ids = arguments.ids.iter().map(|given| client.id_of(given));
        ids.collect::<Result<Vec<String>, _>>()?
    };
    let mut latest = Map::new();
    let mut table = Table::new(&["ID", "CPU", "MEMORY", "DISK"]);
    for id in ids {
        let samples = client.known(&id, client.get(&format!("/sandboxes/{}/metrics", encoded(&id))))?;
        let Some(sample) = samples.as_array().and_then(|samples| samples.last()) else {
            table.row([id, "-".to_owned(), "-".to_owned(), "-".to_owned()]);
            continue;
        };
        let number = |name: &str| sample.get(name).and_then(Value::as_u64).unwrap_or(0);
        let of = |used: &str, total: &str| format!("{} of {}", mebibytes(number(used)), mebibytes(number(total)));
        let cpu = sample.get("cpuUsedPct").and_then(Value::as_f64).unwrap_or(0.0);
        table.row([
            id.clone(),
            format!("{cpu:.1} %"),
            of("memUsed", "memTotal"),
            of("diskUsed", "diskTotal"),
        ]);
        latest.insert(id, sample.clone());
    }
    if arguments.json {
        print_json(&latest)?;
        return Ok(ExitCode::SUCCESS);
    }
    table.print()
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// What a pause keeps, or with what it is gone on.
fn mode(no_memory: bool) -> &'static str {
    PauseMode::of_memory(!no_memory).as_str()
}

pub(crate) fn pause(arguments: &PauseArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    each(&client, &arguments.ids, |id| {
        let path = format!("/v1/sandboxes/{}/pause", encoded(id));
        client.known(id, client.post(&path, &json!({ "mode": mode(arguments.no_memory) })))?;
        Ok(())
    })
}

pub(crate) fn resume(arguments: &ResumeArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let timeout = arguments.timeout.as_ref().map(|text| seconds("--timeout", text));
    let body = json!({ "timeout_seconds": timeout.transpose()?, "mode": mode(arguments.no_memory) });
    each(&client, &arguments.ids, |id| {
        let path = format!("/v1/sandboxes/{}/resume", encoded(id));
        client.known(id, client.post(&path, &body))?;
        Ok(())
    })
}

pub(crate) fn fork(arguments: &ForkArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    let path = format!("/v1/sandboxes/{}/fork", encoded(&id));
    let timeout = arguments.timeout.as_ref().map(|text| seconds("--timeout", text));
    let body = json!({
        "count": arguments.count,
        "timeout_seconds": timeout.transpose()?,
        "contexts": arguments.contexts,
        "name": arguments.name.as_ref().map(SandboxName::as_str),
    });
    let forks = client.known(&id, client.post(&path, &body))?;
    let forks = forks["forks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ids = forks.iter().filter_map(|fork| fork["sandbox"]["id"].as_str());
    terminal::print(ids.map(|id| format!("{id}\n")).collect::<String>().as_bytes())?;
    match forks.iter().find_map(|fork| fork["error"]["message"].as_str()) {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => {
            let failed = forks.iter().filter(|fork| fork["error"].is_object()).count();
            Err(Failure::new(format!(
                "{failed} of {} forks were not made: {why}",
                forks.len()
            )))
        }
    }
}

pub(crate) fn port(arguments: &PortArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    client.running(&id)?;
    let url = match at {
        ServerAt::Here(_) => text(&client.get("/v1/version")?, "url"),
        // What it calls itself on its own machine leads nowhere from here.
        ServerAt::There(server) => server.url.to_string(),
    };
    line(format!("{url}/_port/{id}/{}/", arguments.port))
}

pub(crate) fn port_forward(arguments: &PortForwardArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    port_forward::forward(&client, &id, &arguments.ports)
}

pub(crate) fn sync(arguments: &SyncArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    sync::sync(&at.client()?, arguments)
}

/// Does something for each sandbox and says which it was done for; what failed for one does not keep it from the others.
fn each(
    client: &Client,
    ids: &[String],
    mut act: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let mut last = None;
    for id in ids {
        match client.id_of(id).map_err(Failure::from).and_then(|id| act(&id)) {
            Ok(()) => terminal::print(format!("{}\n", Text::from(id.as_str())).as_bytes())?,
            Err(failure) => {
                if let Some(earlier) = last.replace(failure) {
                    terminal::complain(&earlier.to_string());
                }
            }
        }
    }
    last.map_or(Ok(ExitCode::SUCCESS), Err)
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let document = terminal::json_document(value);
    terminal::print(&document.map_err(|error| Failure::from_error(&error))?)
}

pub(crate) fn line(text: impl std::fmt::Display) -> Result<ExitCode, Failure> {
    terminal::print(format!("{text}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A field of an answer as text that drives no terminal.
pub(crate) fn text(value: &Value, name: &str) -> String {
    Text::from(field(value, name).as_str()).to_string()
}

/// A field of an answer as it came, for a table; nothing if it is not there.
fn field(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// `NAME=VALUE`.
fn assignment(flag: &str, text: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(
            Failure::new(format!("`{flag} {}` is not NAME_LABEL=VALUE", Text::from(text)))
                .with_hint(format!("write it as `{flag} NAME_LABEL=VALUE`")),
        ),
    }
}

pub(crate) fn assignments(flag: &str, texts: &[String]) -> Result<Map<String, Value>, Failure> {
    texts
        .iter()
        .map(|text| assignment(flag, text).map(|(name, value)| (name, Value::from(value))))
        .collect()
}

/// A time in whole seconds, at least one.
pub(crate) fn seconds(flag: &str, text: &str) -> Result<u64, Failure> {
    let time: Millis = text
        .parse()
        .map_err(|error| Failure::new(format!("`{flag} {}` is not a time: {error}", Text::from(text))))?;
    if time.0 == 0 {
        return Err(Failure::new(format!("`{flag} {}` is no time at all", Text::from(text)))
            .with_hint("give at least one second, or leave it out; `offleash stop` ends a sandbox"));
    }
    Ok(time.0.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_whose_sandboxes_are_not_listed_are_named() {
        assert_eq!(without_nodes(&[]), None);
        let line = without_nodes(&["a.example:80".to_owned(), "b\u{1b}c".to_owned()]).unwrap();
        assert!(line.contains("`a.example:80`, ") && !line.contains('\u{1b}'), "{line}");
    }
}
