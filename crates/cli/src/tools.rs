//! `offleash tools`: what a policy offers to code in sandboxes.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use offleash_core::tool::ToolGrant;
use offleash_store::{AuditEvent, AuditLog};
use offleash_supervisor::lifecycle::open_state;
use offleash_supervisor::tools::{CommandAnswer, MAX_REQUEST, ToolBench, ToolsOrder, call_once};
use serde_json::{Value, json};

use crate::args::{ToolCallArgs, ToolSourceArgs, ToolsCommand};
use crate::end_signal::end_signal;
use crate::failure::Failure;
use crate::specify::{read_policy, tool_grants};
use crate::terminal;

pub(crate) fn tools(command: &ToolsCommand, state: Option<&Path>) -> Result<ExitCode, Failure> {
    match command {
        ToolsCommand::Ls(source) => list(source),
        ToolsCommand::Call(arguments) => call(arguments),
        ToolsCommand::Serve(source) => serve(source, state),
    }
}

fn order(source: &ToolSourceArgs) -> Result<ToolsOrder, Failure> {
    let policy = read_policy(&source.policy)?;
    Ok(ToolsOrder {
        grants: tool_grants(&source.tool_grant)?.or(policy.tool_grants),
        tools: policy.tools,
        ask_timeout: offleash_core::approval::ASK_TIMEOUT,
        ledger: None,
        has_door: false,
    })
}

fn list(source: &ToolSourceArgs) -> Result<ExitCode, Failure> {
    let order = order(source)?;
    // Whether they can be offered is what is asked.
    let _desk = order
        .clone()
        .desk()
        .map_err(|error| Failure::new(format!("tools cannot be offered: {error}")))?;
    let granted = |tool: &offleash_core::tool::DeclaredTool| -> Vec<String> {
        match &order.grants {
            None => vec![tool.grant.to_string()],
            Some(grants) => {
                let names = |grant: &&ToolGrant| grant.tools.iter().any(|pattern| pattern.covers(&tool.name));
                grants.iter().filter(names).map(ToString::to_string).collect()
            }
        }
    };
    let mut lines = String::new();
    for tool in &order.tools {
        let grants = granted(tool);
        if source.json {
            let parameters: Value = serde_json::from_str(&tool.parameters).unwrap_or_default();
            let line = json!({
                "name": tool.name.as_str(), "description": tool.description, "parameters": parameters, "grants": grants,
            });
            lines.push_str(&format!("{line}\n"));
        } else {
            let shown = if grants.is_empty() {
                "not granted".to_owned()
            } else {
                grants.join("; ")
            };
            let about = tool.description.lines().next().unwrap_or_default();
            lines.push_str(&format!("{}\t{shown}\t{about}\n", tool.name));
        }
    }
    terminal::print(lines.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What became of the calls goes into the audit log when the conversation ends.
fn serve(source: &ToolSourceArgs, state: Option<&Path>) -> Result<ExitCode, Failure> {
    let order = order(source)?;
    let ask_timeout = order.ask_timeout;
    let desk = order
        .desk()
        .map_err(|error| Failure::new(format!("tools cannot be offered: {error}")))?;
    let bench = Arc::new(ToolBench::new(desk));
    let log = open_state(state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start an event loop: {error}")))?;
    let spoken = runtime.block_on(async {
        let end = end_signal()?;
        let (input, output) = terminal::conversation();
        let spoken = tokio::select! {
            spoken = offleash_api::mcp::speak_tools(Arc::clone(&bench), ask_timeout, input, output) => spoken,
            _ = end => Ok(()),
        };
        spoken.map_err(|error| {
            Failure::from_error(&error)
                .with_hint("`offleash tools serve` is started by an agent host, which speaks first")
        })
    });
    // Nobody waits for what may still be read.
    runtime.shutdown_background();
    let noted = AuditLog::new(&log).append(&AuditEvent {
        event: "tools_served".to_owned(),
        run: None,
        data: json!({ "tools": bench.uses() }),
    });
    spoken?;
    noted.map_err(|error| Failure::from_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn call(arguments: &ToolCallArgs) -> Result<ExitCode, Failure> {
    let Some((tool, words)) = arguments.call.split_first() else {
        return Err(Failure::new("expected the name of a tool"));
    };
    let mut request = json!({ "form": "command", "tool": tool, "arguments": words });
    if words.iter().any(|word| word == "-") {
        let mut input = String::new();
        let most = u64::try_from(MAX_REQUEST).unwrap_or(u64::MAX);
        let read = std::io::stdin().take(most).read_to_string(&mut input);
        read.map_err(|error| Failure::new(format!("reading standard input: {error}")))?;
        request["input"] = json!(input);
    }
    let answer = call_once(order(&arguments.source)?, request.to_string().as_bytes());
    let answer = answer.map_err(|error| Failure::from_error(&error))?;
    let answer = CommandAnswer::of(&answer).ok_or_else(|| Failure::new("the tool's answer makes no sense"))?;
    terminal::print(answer.stdout)?;
    terminal::complain_at_length(answer.stderr);
    Ok(ExitCode::from(answer.status))
}
