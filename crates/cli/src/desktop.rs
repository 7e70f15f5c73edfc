//! `offleash desktop`: desktops in sandboxes of the daemon.

use std::process::ExitCode;

use offleash_api::client::{Client, encoded};
use offleash_core::text::Text;
use offleash_daemon::Resolution;
use serde_json::{Value, json};

use crate::args::{DesktopCommand, DesktopCreateArgs, DesktopListArgs, DesktopUrlArgs};
use crate::failure::Failure;
use crate::remote::table::Table;
use crate::remote::{assignments, line, print_json, seconds, text};
use crate::server_at::ServerAt;

pub(crate) fn desktop(command: &DesktopCommand, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    match command {
        DesktopCommand::Create(arguments) => create(&client, arguments),
        DesktopCommand::Ls(how) => ls(&client, how),
        DesktopCommand::Url(which) => url(&client, which),
        DesktopCommand::Release(which) => release(&client, &which.ids),
    }
}

fn create(client: &Client, arguments: &DesktopCreateArgs) -> Result<ExitCode, Failure> {
    let resolution = arguments.resolution.as_deref().map(str::parse::<Resolution>);
    let resolution = resolution
        .transpose()
        .map_err(|error| Failure::new(format!("--resolution: {error}")))?;
    let timeout = arguments.timeout.as_ref().map(|text| seconds("--timeout", text));
    let body = json!({
        "template": arguments.template,
        "width": resolution.map(Resolution::width),
        "height": resolution.map(Resolution::height),
        "dpi": arguments.dpi,
        "timeout_seconds": timeout.transpose()?,
        "allow": arguments.allow,
        "deny": arguments.deny_host,
        "limits": { "memory_mib": arguments.memory_mib },
        "record": arguments.record,
        "metadata": assignments("--label", &arguments.label)?,
    });
    let made = client.post("/v1/desktops", &body)?;
    if arguments.json {
        return print_json(&made).map(|()| ExitCode::SUCCESS);
    }
    line(text(&made, "stream_url"))
}

fn ls(client: &Client, how: &DesktopListArgs) -> Result<ExitCode, Failure> {
    let answer = client.get("/v1/desktops")?;
    if how.json {
        return print_json(&answer["desktops"]).map(|()| ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["DESKTOP", "STATUS", "TEMPLATE", "SCREEN", "STARTED", "ENDS"]);
    for one in answer["desktops"].as_array().into_iter().flatten() {
        let field = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let end = match field("ended_at") {
            end if end.is_empty() => field("expires_at"),
            end => end,
        };
        table.row([
            field("id"),
            field("status"),
            field("template"),
            format!("{}x{}", one["width"], one["height"]),
            field("created_at"),
            end,
        ]);
    }
    table.print()
}

fn url(client: &Client, which: &DesktopUrlArgs) -> Result<ExitCode, Failure> {
    let desktop = client.get(&format!("/v1/desktops/{}", encoded(&which.id)))?;
    let field = match (which.view_only, which.websocket) {
        (false, false) => "stream_url",
        (false, true) => "connect_url",
        (true, false) => "view_only_url",
        (true, true) => "view_only_connect_url",
    };
    match desktop.get(field) {
        Some(_) => line(text(&desktop, field)),
        None => Err(Failure::new(format!(
            "desktop {} has ended: {}",
            Text::from(which.id.as_str()),
            text(&desktop, "reason")
        ))),
    }
}

fn release(client: &Client, ids: &[String]) -> Result<ExitCode, Failure> {
    for id in ids {
        let released = client.post(&format!("/v1/desktops/{}/release", encoded(id)), &json!({}))?;
        line(text(&released, "id"))?;
    }
    Ok(ExitCode::SUCCESS)
}
