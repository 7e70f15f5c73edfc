//! `[[tool]]`: a tool as a policy declares it.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::tool::{Constraint, DeclaredTool, ToolCaller, ToolGrant, ToolName};
use crate::units::Millis;
use crate::written::{WrongText, one, wrong};

/// How long a call may take where nothing else is said, milliseconds.
const TIMEOUT: u64 = 60_000;
/// The parameters of a tool that does not say what it takes.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ToolEntry {
    name: Spanned<String>,
    #[serde(default)]
    description: String,
    parameters: Option<toml::Table>,
    program: Option<Spanned<Vec<String>>>,
    url: Option<Spanned<String>>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    mcp: Option<Spanned<Vec<String>>>,
    mcp_tool: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
    #[serde(rename = "where")]
    constraint: Option<Spanned<String>>,
    calls: Option<Spanned<i64>>,
    #[serde(default)]
    ask: bool,
}

impl ToolEntry {
    pub(super) fn into_tool(self) -> Result<DeclaredTool, WrongText> {
        let name: ToolName = one(&self.name)?;
        let constraint: Option<Constraint> = self.constraint.as_ref().map(one).transpose()?;
        let timeout: Option<Millis> = self.timeout.as_ref().map(one).transpose()?;
        let calls = match &self.calls {
            Some(calls) => {
                let number = u64::try_from(*calls.get_ref());
                Some(number.map_err(|_| wrong(calls, &"it is a number from 0 on"))?)
            }
            None => None,
        };
        let caller = self.caller()?;
        let parameters = match &self.parameters {
            Some(table) => serde_json::to_string(table).map_err(|error| wrong(&self.name, &error))?,
            None => ANY_OBJECT.to_owned(),
        };
        Ok(DeclaredTool {
            grant: ToolGrant {
                constraint: constraint.unwrap_or(Constraint::Always),
                calls,
                ask: self.ask,
                ..ToolGrant::of(&name)
            },
            name,
            description: self.description,
            parameters,
            caller,
            timeout: timeout.unwrap_or(Millis(TIMEOUT)),
        })
    }

    fn caller(&self) -> Result<ToolCaller, WrongText> {
        let some = |words: &Spanned<Vec<String>>| match words.get_ref().is_empty() {
            true => Err(wrong(words, &"it names no program")),
            false => Ok(words.get_ref().clone()),
        };
        let wrong_url = |url: &Spanned<String>| {
            let is_one = url.get_ref().starts_with("https://") || url.get_ref().starts_with("http://");
            if is_one {
                Ok(url.get_ref().clone())
            } else {
                Err(wrong(url, &"it is no address with http or https"))
            }
        };
        let caller = match (&self.program, &self.url, &self.mcp) {
            (Some(program), None, None) => ToolCaller::Program { argv: some(program)? },
            (None, Some(url), None) => ToolCaller::Http {
                url: wrong_url(url)?,
                headers: self.headers.clone().into_iter().collect(),
            },
            (None, None, Some(server)) => ToolCaller::Mcp {
                argv: some(server)?,
                tool: self.mcp_tool.as_ref().unwrap_or(&self.name).get_ref().clone(),
            },
            _ => return Err(wrong(&self.name, &"a tool has one of `program`, `url` and `mcp`")),
        };
        match (&caller, &self.mcp_tool) {
            (ToolCaller::Mcp { .. }, _) | (_, None) => {}
            (_, Some(tool)) => return Err(wrong(tool, &"`mcp_tool` is for a tool with `mcp`")),
        }
        match caller {
            ToolCaller::Program { .. } | ToolCaller::Mcp { .. } if !self.headers.is_empty() => {
                Err(wrong(&self.name, &"`headers` are for a tool with `url`"))
            }
            caller => Ok(caller),
        }
    }
}
