//! What comes from a sandbox.

use serde::Deserialize;
use serde_json::Value;

/// A request, in one of its forms.
#[derive(Debug, Deserialize)]
#[serde(tag = "form", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ToolRequest {
    /// Of the command that has the tool's name.
    Command {
        /// The tool.
        tool: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Its standard input, where an argument asks for that.
        input: Option<String>,
    },
    /// Of a program that has the parameters.
    Json {
        /// The tool.
        tool: String,
        /// The parameters; none when absent.
        #[serde(default)]
        parameters: Option<Value>,
    },
    /// What tools there are.
    List {},
}
