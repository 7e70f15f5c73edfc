//! What the owner declares: a tool's name, its parameters, and what is called.

use std::fmt;
use std::str::FromStr;

use crate::units::Millis;

use super::grant::ToolGrant;

/// Most tools of one sandbox.
pub const MAX_TOOLS: usize = 64;
/// Longest description, bytes.
pub const MAX_DESCRIPTION: usize = 4096;
/// Longest schema, bytes.
pub const MAX_SCHEMA: usize = 64 << 10;
/// Longest name, bytes.
const MAX_NAME: usize = 64;

/// The name of a tool, which is a command inside as well: a letter, then letters, digits, `_`, `-` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(String);

/// A tool that code in a sandbox may call.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeclaredTool {
    /// Its name.
    pub name: ToolName,
    /// What it does, for whoever writes the code.
    pub description: String,
    /// JSON schema of its parameters, as JSON; they are an object.
    pub parameters: String,
    /// What is called.
    pub caller: ToolCaller,
    /// How long a call may take.
    pub timeout: Millis,
    /// Who may call it, with what.
    pub grant: ToolGrant,
}

/// What is called for a tool, outside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ToolCaller {
    /// A program of the owner's, which reads the parameters as JSON on standard input and answers on standard output.
    Program {
        /// Its file and arguments.
        argv: Vec<String>,
    },
    /// An HTTP endpoint to which the parameters are posted as JSON.
    Http {
        /// Where.
        url: String,
        /// Headers: a name, and the value or where it is (`env:VARIABLE`, `file:PATH`).
        headers: Vec<(String, String)>,
    },
    /// A tool of an MCP server that is started for it and spoken to over its standard streams.
    Mcp {
        /// The server's program and arguments.
        argv: Vec<String>,
        /// The tool's name there.
        tool: String,
    },
    /// Whoever made the sandbox, over the API.
    Client,
}

/// A text that names no tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no name of a tool: a letter, then up to 63 letters, digits, `_`, `-` and `.`", .0.escape_debug())]
pub struct ToolNameError(pub String);

impl ToolName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same as a name of a function in Python and JavaScript.
    pub fn as_identifier(&self) -> String {
        self.0.replace(['-', '.'], "_")
    }
}

impl FromStr for ToolName {
    type Err = ToolNameError;

    fn from_str(text: &str) -> Result<Self, ToolNameError> {
        let belongs = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
        let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.len() <= MAX_NAME
            && text.chars().all(belongs);
        match is_name {
            true => Ok(Self(text.to_owned())),
            false => Err(ToolNameError(text.to_owned())),
        }
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ToolName {
    type Error = ToolNameError;

    fn try_from(text: String) -> Result<Self, ToolNameError> {
        text.parse()
    }
}

impl From<ToolName> for String {
    fn from(name: ToolName) -> Self {
        name.0
    }
}
