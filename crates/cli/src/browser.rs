//! `offleash browser`: browsers in sandboxes of the daemon.

use std::process::ExitCode;

use offleash_api::client::{Client, encoded};
use offleash_core::error::ErrorKind;
use offleash_core::network::upstream_proxy::{ProxyError, ProxySource};
use offleash_core::text::Text;
use offleash_daemon::Viewport;
use serde_json::{Value, json};

use crate::args::{BrowserCommand, BrowserCreateArgs, BrowserListArgs};
use crate::failure::Failure;
use crate::remote::table::Table;
use crate::remote::{assignments, line, print_json, seconds, text};
use crate::server_at::ServerAt;
use crate::terminal;

pub(crate) fn browser(command: &BrowserCommand, at: &ServerAt<'_>) -> Result<ExitCode, Failure> {
    let client = at.client()?;
    match command {
        BrowserCommand::Create(arguments) => create(&client, arguments),
        BrowserCommand::Ls(how) => ls(&client, how),
        BrowserCommand::Url(which) => url(&client, &which.id),
        BrowserCommand::Release(which) => release(&client, &which.ids),
        BrowserCommand::Logs(which) => logs(&client, &which.id),
        BrowserCommand::Har(which) => har(&client, &which.id),
        BrowserCommand::Contexts(how) => contexts(&client, how),
        BrowserCommand::Forget(which) => forget(&client, &which.names),
    }
}

fn create(client: &Client, arguments: &BrowserCreateArgs) -> Result<ExitCode, Failure> {
    let mut settings = json!({ "recordSession": arguments.record });
    if let Some(text) = &arguments.viewport {
        let viewport: Viewport = text
            .parse()
            .map_err(|error| Failure::new(format!("--viewport: {error}")))?;
        settings["viewport"] = json!({ "width": viewport.width(), "height": viewport.height() });
    }
    if let Some(name) = &arguments.context {
        make_context(client, name)?;
        settings["context"] = json!({ "id": name, "persist": !arguments.read_context });
    }
    let timeout = arguments.timeout.as_ref().map(|text| seconds("--timeout", text));
    let body = json!({
        "template": arguments.template,
        "browserSettings": settings,
        "timeout": timeout.transpose()?,
        "userAgent": arguments.user_agent,
        "locale": arguments.locale,
        "timezone": arguments.timezone,
        "allow": arguments.allow,
        "deny": arguments.deny_host,
        "proxyUrl": arguments.proxy.as_deref().map(proxy_url).transpose()?,
        "limits": { "memory_mib": arguments.memory_mib },
        "userMetadata": assignments("--label", &arguments.label)?,
    });
    let made = client.post("/v1/sessions", &body)?;
    if arguments.json {
        return print_json(&made).map(|()| ExitCode::SUCCESS);
    }
    line(text(&made, "connectUrl"))
}

/// The URL of a proxy, from wherever it is.
fn proxy_url(given: &str) -> Result<String, Failure> {
    let failed = |why: String| Failure::new(format!("--proxy: {why}"));
    let source: ProxySource = given.parse().map_err(|error: ProxyError| failed(error.to_string()))?;
    let url = match &source {
        ProxySource::Url(_) => given.to_owned(),
        ProxySource::Variable(name) => std::env::var(name).map_err(|error| failed(format!("{source}: {error}")))?,
        ProxySource::File(path) => {
            std::fs::read_to_string(path).map_err(|error| failed(format!("{source}: {error}")))?
        }
        ProxySource::Environment => return Err(failed("name a proxy, a variable or a file".to_owned())),
    };
    Ok(url.trim().to_owned())
}

/// Makes a context, unless there is one of that name.
fn make_context(client: &Client, name: &str) -> Result<(), Failure> {
    match client.post("/v1/contexts", &json!({ "name": name })) {
        Err(offleash_api::client::ClientError::Refused {
            kind: ErrorKind::Conflict,
            ..
        }) => Ok(()),
        made => Ok(made.map(drop)?),
    }
}

fn ls(client: &Client, how: &BrowserListArgs) -> Result<ExitCode, Failure> {
    let answer = client.get("/v1/sessions")?;
    if how.json {
        return print_json(&answer["sessions"]).map(|()| ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["SESSION", "STATUS", "TEMPLATE", "STARTED", "ENDS", "CONTEXT"]);
    for one in answer["sessions"].as_array().into_iter().flatten() {
        let field = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let end = match field("endedAt") {
            end if end.is_empty() => field("expiresAt"),
            end => end,
        };
        table.row([
            field("id"),
            field("status"),
            field("template"),
            field("startedAt"),
            end,
            field("contextId"),
        ]);
    }
    table.print()
}

fn url(client: &Client, id: &str) -> Result<ExitCode, Failure> {
    let session = client.get(&format!("/v1/sessions/{}", encoded(id)))?;
    match session.get("connectUrl") {
        Some(_) => line(text(&session, "connectUrl")),
        None => Err(Failure::new(format!(
            "session {} has ended: {}",
            Text::from(id),
            text(&session, "reason")
        ))),
    }
}

fn release(client: &Client, ids: &[String]) -> Result<ExitCode, Failure> {
    for id in ids {
        let released = client.post(&format!("/v1/sessions/{}/release", encoded(id)), &json!({}))?;
        line(text(&released, "id"))?;
        let told = text(&released, "message");
        // What was not saved is worth more than a field of an answer.
        if told.contains("was not saved") {
            terminal::complain(&format!("offleash: {told}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn logs(client: &Client, id: &str) -> Result<ExitCode, Failure> {
    let answer = client.get(&format!("/v1/sessions/{}/logs", encoded(id)))?;
    let entries = answer["logs"].as_array().into_iter().flatten();
    for entry in entries {
        let line = terminal::json_line(entry)?;
        terminal::print(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn har(client: &Client, id: &str) -> Result<ExitCode, Failure> {
    print_json(&client.get(&format!("/v1/sessions/{}/har", encoded(id)))?).map(|()| ExitCode::SUCCESS)
}

fn contexts(client: &Client, how: &BrowserListArgs) -> Result<ExitCode, Failure> {
    let answer = client.get("/v1/contexts")?;
    if how.json {
        return print_json(&answer["contexts"]).map(|()| ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["CONTEXT", "NAME", "SAVED", "BYTES"]);
    for one in answer["contexts"].as_array().into_iter().flatten() {
        let field = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let bytes = one.get("bytes").and_then(Value::as_u64).unwrap_or_default();
        table.row([field("id"), field("name"), field("updatedAt"), bytes.to_string()]);
    }
    table.print()
}

fn forget(client: &Client, names: &[String]) -> Result<ExitCode, Failure> {
    for name in names {
        client.delete(&format!("/v1/contexts/{}", encoded(name)))?;
        line(Text::from(name.as_str()))?;
    }
    Ok(ExitCode::SUCCESS)
}
