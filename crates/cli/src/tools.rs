//! `offleash tools`: what a policy offers to code in sandboxes.

use std::io::Read as _;
use std::process::ExitCode;

use offleash_core::tool::ToolGrant;
use offleash_supervisor::tools::{CommandAnswer, MAX_REQUEST, ToolsOrder, call_once};
use serde_json::{Value, json};

use crate::args::{ToolCallArgs, ToolSourceArgs, ToolsCommand};
use crate::failure::Failure;
use crate::specify::{read_policy, tool_grants};
use crate::terminal;

pub(crate) fn tools(command: &ToolsCommand) -> Result<ExitCode, Failure> {
    match command {
        ToolsCommand::Ls(source) => list(source),
        ToolsCommand::Call(arguments) => call(arguments),
    }
}

fn order(source: &ToolSourceArgs) -> Result<ToolsOrder, Failure> {
    let policy = read_policy(&source.policy)?;
    Ok(ToolsOrder {
        grants: tool_grants(&source.tool_grant)?.or(policy.tool_grants),
        tools: policy.tools,
        ask_timeout: offleash_core::approval::ASK_TIMEOUT,
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
