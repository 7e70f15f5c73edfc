//! The tools that sandboxes of a server may have.

use std::time::Duration;

use offleash_core::tool::ToolGrant;
use offleash_daemon::ToolsConfig;
use offleash_supervisor::tools::ToolDesk;

use super::keys::ToolKeys;
use super::set;
use super::written::Wrong;
use crate::specify::read_policy;

/// What the table says.
///
/// # Errors
/// When the policy cannot be read or its tools not be offered, and when a template's grants are more than they are.
pub(super) fn tools(table: &ToolKeys, config: &mut ToolsConfig) -> Result<(), Wrong> {
    const POLICY: &str = "tools.policy";
    if table.ask_timeout_seconds == Some(0) {
        return Err(Wrong::new("tools.ask_timeout_seconds", "nobody can answer in no time"));
    }
    set(
        &mut config.ask_timeout,
        table.ask_timeout_seconds.map(Duration::from_secs),
    );
    if let Some(file) = &table.policy {
        let policy = read_policy(file).map_err(|failure| Wrong::new(POLICY, failure))?;
        if policy.tool_grants.is_some() {
            let why = "its `tool_grants` are for runs; keys and `tools.templates` say what sandboxes have";
            return Err(Wrong::new(POLICY, why));
        }
        // Whether they can be offered is said now, and not to the first who asks for one.
        ToolDesk::new(policy.tools.clone(), None).map_err(|error| Wrong::new(POLICY, error))?;
        config.tools = policy.tools;
    }
    let owned: Vec<ToolGrant> = config.tools.iter().map(|tool| tool.grant.clone()).collect();
    for (template, texts) in table.templates.iter().flatten() {
        let wrong =
            |number, error: &dyn std::fmt::Display| Wrong::item(format!("tools.templates.{template}"), number, error);
        let mut grants = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            grants.push(text.parse::<ToolGrant>().map_err(|error| wrong(number, &error))?);
        }
        let narrowed = ToolGrant::narrowed(&grants, &owned).map_err(|error| wrong(0, &error))?;
        config.templates.insert(template.clone(), narrowed);
    }
    Ok(())
}
