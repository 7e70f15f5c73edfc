//! Tools of a sandbox, as the native REST and E2B's control plane read them.

use offleash_daemon::{AnsweredTool, ToolsRequest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// The tools that a sandbox is to have.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTools {
    /// Which of those that the owner of the server declares, a grant each, as in `pay where amount < 5 calls 1`: no more than
    /// the key was granted. A name alone is all that may be had of it. What the template or the key has if absent.
    pub(crate) grants: Option<Vec<String>>,
    /// Those whose calls the client answers itself.
    pub(crate) answered: Option<Vec<NewAnsweredTool>>,
}

/// A tool whose calls a client answers, from `GET /v1/sandboxes/{id}/tools/calls` on.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAnsweredTool {
    /// Its name: a letter, then letters, digits, `_`, `-` and `.`.
    pub(crate) name: String,
    /// What it does.
    pub(crate) description: Option<String>,
    /// JSON schema of its parameters; any object if absent.
    pub(crate) parameters: Option<Value>,
    /// How long an answer may take, milliseconds, at most 600000; 60000 if absent.
    pub(crate) timeout_ms: Option<u64>,
    /// What its parameters have to be, how many calls there may be, and whether a person is asked, as in
    /// `where amount < 5 calls 3 ask`; anything if absent.
    pub(crate) grant: Option<String>,
}

/// What the daemon is asked for.
pub(crate) fn tools(asked: Option<NewTools>) -> ToolsRequest {
    let asked = asked.unwrap_or_default();
    let answered = |tool: NewAnsweredTool| AnsweredTool {
        name: tool.name,
        description: tool.description.unwrap_or_default(),
        parameters: tool.parameters.map(|schema| schema.to_string()),
        timeout_ms: tool.timeout_ms,
        grant: tool.grant,
    };
    ToolsRequest {
        grants: asked.grants,
        answered: asked.answered.unwrap_or_default().into_iter().map(answered).collect(),
    }
}
