//! Volumes, templates and keys of a server at a URL: of this machine's, the same commands read the state directory itself.

use std::process::ExitCode;

use offleash_api::client::{Client, encoded};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use serde_json::{Value, json};

use super::table::Table;
use super::{field, line, print_json, text};
use crate::args::{KeyCommand, KeyCreateArgs, TemplateCommand, VolumeCommand, VolumeCreateArgs};
use crate::failure::Failure;
use crate::server_at::ServerAt;
use crate::terminal;

const STATE_ALONE: Option<&str> = Some("it works on the state directory of the server's own machine");

/// `offleash volume` at a server; `None` for one that is here.
pub(crate) fn volume(command: &VolumeCommand, at: &ServerAt<'_>) -> Result<Option<ExitCode>, Failure> {
    let ServerAt::There(_) = at else { return Ok(None) };
    let done = match command {
        VolumeCommand::Create(arguments) => create_volume(&at.client()?, arguments),
        VolumeCommand::Ls(how) => {
            let answer = at.client()?.get("/v1/volumes")?;
            let all = listed(&answer, "volumes");
            if how.json {
                print_json(&all)?;
                return Ok(Some(ExitCode::SUCCESS));
            }
            let mut table = Table::new(&["ID", "NAME", "SIZE", "INODES", "WRITERS", "CREATED", "STATE"]);
            for one in all {
                let size = one["size_mib"].as_u64().unwrap_or_default();
                table.row([
                    field(one, "id"),
                    field(one, "name"),
                    Bytes(size.saturating_mul(1 << 20)).to_string(),
                    one["inodes"].to_string(),
                    if one["shared"] == true { "many" } else { "one" }.to_owned(),
                    field(one, "created_at"),
                    if one["in_use"] == true { "used" } else { "ready" }.to_owned(),
                ]);
            }
            table.print()
        }
        VolumeCommand::Inspect(which) => shown(&at.client()?, "/v1/volumes", &which.names),
        VolumeCommand::Rm(which) => removed(&at.client()?, "/v1/volumes", &which.names),
        VolumeCommand::Cp(_) => refuse(at, "volume cp"),
        VolumeCommand::Resize(_) => refuse(at, "volume resize"),
        VolumeCommand::Prune(_) => refuse(at, "volume prune"),
        VolumeCommand::Sync(_) => refuse(at, "volume sync"),
    };
    done.map(Some)
}

/// `offleash template` at a server; `None` for one that is here.
pub(crate) fn template(command: &TemplateCommand, at: &ServerAt<'_>) -> Result<Option<ExitCode>, Failure> {
    let ServerAt::There(_) = at else { return Ok(None) };
    let done = match command {
        TemplateCommand::Ls(how) => {
            let answer = at.client()?.get("/templates")?;
            if how.json {
                print_json(&answer)?;
                return Ok(Some(ExitCode::SUCCESS));
            }
            let mut table = Table::new(&["NAME", "ID", "STATE", "CREATED"]);
            for one in answer.as_array().map(Vec::as_slice).unwrap_or_default() {
                table.row([
                    one["names"][0].as_str().unwrap_or_default().to_owned(),
                    field(one, "templateID"),
                    field(one, "buildStatus"),
                    field(one, "createdAt"),
                ]);
            }
            table.print()
        }
        TemplateCommand::Inspect(which) => shown(&at.client()?, "/v1/templates", &which.names),
        TemplateCommand::Rm(which) => removed(&at.client()?, "/v1/templates", &which.names),
        TemplateCommand::Build(_) => refuse(at, "template build"),
        TemplateCommand::Prune(_) => refuse(at, "template prune"),
    };
    done.map(Some)
}

/// `offleash key` at a server, which needs a key of the scope `admin`; `None` for one that is here.
pub(crate) fn key(command: &KeyCommand, at: &ServerAt<'_>) -> Result<Option<ExitCode>, Failure> {
    let ServerAt::There(_) = at else { return Ok(None) };
    let client = at.client()?;
    let done = match command {
        KeyCommand::Create(arguments) => create_key(&client, arguments, at),
        KeyCommand::Ls(how) => {
            let answer = client.get("/v1/keys")?;
            let mut out = String::new();
            for one in listed(&answer, "keys") {
                if how.json {
                    out.push_str(&format!("{one}\n"));
                } else if one["revoked_ms"].is_null() {
                    let scopes: Vec<&str> = one["scopes"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(Value::as_str)
                        .collect();
                    let scopes = Text::from(scopes.join(",").as_str()).to_string();
                    out.push_str(&format!(
                        "{}  {}…  {scopes}  {}\n",
                        text(one, "id"),
                        text(one, "prefix"),
                        text(one, "name")
                    ));
                }
            }
            terminal::print(out.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        KeyCommand::Rm(which) => {
            let id = key_id(&client, &which.key)?;
            client.delete(&format!(
                "/v1/keys/{}?stop_sandboxes={}",
                encoded(&id),
                which.stop_sandboxes
            ))?;
            line(Text::from(id.as_str()))
        }
    };
    done.map(Some)
}

fn create_volume(client: &Client, arguments: &VolumeCreateArgs) -> Result<ExitCode, Failure> {
    let mut body = json!({
        "name": arguments.name.to_string(),
        "size_mib": arguments.size.map(|size| size.0.div_ceil(1 << 20)),
        "inodes": arguments.inodes,
        "shared": arguments.shared,
    });
    if let Some(url) = &arguments.bucket {
        body["bucket"] = json!({
            "url": url,
            "endpoint": arguments.endpoint,
            "region": arguments.region,
            "secret": arguments.secret,
            "read_only": arguments.read_only,
        });
    }
    let made = client.post("/v1/volumes", &body)?;
    line(text(&made, "name"))
}

fn create_key(client: &Client, arguments: &KeyCreateArgs, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    if arguments.key_file.is_some() {
        return refuse(at, "key create --key-file");
    }
    let tools = Some(&arguments.tool_grant).filter(|grants| !grants.is_empty());
    let body = json!({
        "name": arguments.name,
        "scopes": arguments.scope,
        "tools": tools,
        "quota": {
            "sandboxes": arguments.max_sandboxes,
            "cpus": arguments.max_cpus,
            "memory_mib": arguments.max_memory,
            "disk_mib": arguments.max_disk,
        },
    });
    let made = client.post("/v1/keys", &body)?;
    line(text(&made, "key"))?;
    terminal::complain(&format!(
        "key {} was made; it is not shown again",
        text(&made["about"], "id")
    ));
    Ok(ExitCode::SUCCESS)
}

/// The id of the key that has it or is called so.
fn key_id(client: &Client, given: &str) -> Result<String, Failure> {
    let answer = client.get("/v1/keys")?;
    let is_it = |one: &&Value| one["id"] == given || one["revoked_ms"].is_null() && one["name"] == given;
    let found: Vec<&Value> = listed(&answer, "keys").iter().filter(is_it).collect();
    match found.as_slice() {
        [one] => Ok(field(one, "id")),
        [] => Err(Failure::new(format!("there is no key `{}`", Text::from(given)))
            .with_hint("`offleash key ls` lists them with their ids, with `--json` removed ones, too")),
        _ => Err(Failure::new(format!("several keys are called `{}`", Text::from(given)))
            .with_hint("say the id of one: `offleash key ls` lists them")),
    }
}

fn listed<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn shown(client: &Client, path: &str, names: &[String]) -> Result<ExitCode, Failure> {
    let all: Result<Vec<Value>, _> = names
        .iter()
        .map(|name| client.get(&format!("{path}/{}", encoded(name))))
        .collect();
    print_json(&all?)?;
    Ok(ExitCode::SUCCESS)
}

fn removed(client: &Client, path: &str, names: &[String]) -> Result<ExitCode, Failure> {
    for name in names {
        client.delete(&format!("{path}/{}", encoded(name)))?;
        line(Text::from(name.as_str()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse(at: &ServerAt<'_>, command: &'static str) -> Result<ExitCode, Failure> {
    at.here(command, STATE_ALONE).map(|_| ExitCode::SUCCESS)
}
