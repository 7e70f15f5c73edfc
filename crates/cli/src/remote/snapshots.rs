//! Snapshots of the daemon's sandboxes, checkpoints, and putting a sandbox back.

use std::process::ExitCode;

use offleash_api::client::{Client, encoded};
use offleash_core::id::SandboxName;
use serde_json::{Value, json};

use super::table::Table;
use super::{archive, field, line, print_json, text};
use crate::args::{
    CheckpointArgs, CheckpointsArgs, RestoreArgs, SnapshotCommand, SnapshotCreateArgs, SnapshotIdsArgs, SnapshotLsArgs,
};
use crate::failure::Failure;
use crate::server_at::ServerAt;

pub(crate) fn snapshot(command: &SnapshotCommand, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    match command {
        SnapshotCommand::Create(arguments) => create(&client, arguments),
        SnapshotCommand::Ls(arguments) => ls(&client, arguments),
        SnapshotCommand::Rm(arguments) => rm(&client, arguments),
        SnapshotCommand::Inspect(arguments) => inspect(&client, arguments),
        SnapshotCommand::Export(arguments) => archive::export(&client, arguments),
        SnapshotCommand::Import(arguments) => archive::import(&client, arguments),
    }
}

pub(super) fn path_of(which: &str) -> String {
    format!("/v1/snapshots/{}", encoded(which))
}

fn create(client: &Client, arguments: &SnapshotCreateArgs) -> Result<ExitCode, Failure> {
    let id = client.id_of(&arguments.id)?;
    let path = format!("/v1/sandboxes/{}/snapshots", encoded(&id));
    let body = json!({
        "name": arguments.name.as_ref().map(SandboxName::as_str),
        "contexts": arguments.contexts,
    });
    let made = client.known(&id, client.post(&path, &body))?;
    line(text(&made, "id"))
}

fn ls(client: &Client, arguments: &SnapshotLsArgs) -> Result<ExitCode, Failure> {
    let sandbox = arguments.sandbox.as_deref().unwrap_or_default();
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!(
            "/v1/snapshots?sandbox={}&nextToken={}",
            encoded(sandbox),
            encoded(&next)
        );
        let page = client.get(&path)?;
        all.extend(page["snapshots"].as_array().cloned().unwrap_or_default());
        match page["next"].as_str() {
            Some(token) => next = token.to_owned(),
            None => break,
        }
    }
    match arguments.json {
        true => print_json(&all).map(|()| ExitCode::SUCCESS),
        false => table(&all, "SANDBOX", |one| field(one, "sandbox")).print(),
    }
}

fn table(all: &[Value], column: &'static str, value: impl Fn(&Value) -> String) -> Table {
    let mut table = Table::new(&["ID", "NAME", "KEY", column, "TEMPLATE", "FILES", "MIB", "MADE"]);
    for one in all {
        let number = |name: &str| one[name].as_u64().unwrap_or_default();
        table.row([
            field(one, "id"),
            field(one, "name"),
            field(one, "key"),
            value(one),
            field(one, "template"),
            number("files").to_string(),
            number("bytes").div_ceil(1 << 20).to_string(),
            field(one, "created_at"),
        ]);
    }
    table
}

fn rm(client: &Client, arguments: &SnapshotIdsArgs) -> Result<ExitCode, Failure> {
    for id in &arguments.ids {
        client.delete(&path_of(id))?;
        line(offleash_core::text::Text::from(id.as_str()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(client: &Client, arguments: &SnapshotIdsArgs) -> Result<ExitCode, Failure> {
    let all: Result<Vec<Value>, _> = arguments.ids.iter().map(|id| client.get(&path_of(id))).collect();
    print_json(&all?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn checkpoint(arguments: &CheckpointArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    let body = json!({ "name": arguments.name.as_ref().map(SandboxName::as_str) });
    let made = client.known(&id, client.post(&checkpoints_of(&id), &body))?;
    line(text(&made, "id"))
}

fn checkpoints_of(id: &str) -> String {
    format!("/v1/sandboxes/{}/checkpoints", encoded(id))
}

pub(crate) fn checkpoints(arguments: &CheckpointsArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    if let Some(which) = &arguments.rm {
        client.delete(&format!("{}/{}", checkpoints_of(&id), encoded(which)))?;
        return line(offleash_core::text::Text::from(which.as_str()));
    }
    let found = client.known(&id, client.get(&checkpoints_of(&id)))?;
    if arguments.json {
        print_json(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all = found["checkpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    table(all, "PARENT", |one| field(one, "parent")).print()
}

pub(crate) fn restore(arguments: &RestoreArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    let id = client.id_of(&arguments.id)?;
    let path = format!("/v1/sandboxes/{}/restore", encoded(&id));
    let restored = client.post(&path, &json!({ "checkpoint": arguments.checkpoint }))?;
    line(text(&restored, "id"))
}
