//! What is called for a tool.

pub(crate) mod client;
mod http;
mod mcp;
mod program;

use std::sync::Arc;

use offleash_core::tool::{DeclaredTool, ToolCaller};
use serde_json::Value;

use crate::answer::CallFailure;

pub(crate) use mcp::McpServers;

use self::client::ToolClients;

/// Makes the calls of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct ToolCallers {
    servers: McpServers,
    clients: Arc<ToolClients>,
}

impl ToolCallers {
    /// Callers of which `clients` are those over the API.
    pub(crate) fn with_clients(clients: Arc<ToolClients>) -> Self {
        Self {
            servers: McpServers::default(),
            clients,
        }
    }

    /// Calls a tool, and gives up after its time.
    pub(crate) async fn call(&self, tool: &DeclaredTool, parameters: &Value) -> Result<Value, CallFailure> {
        let called = async {
            match &tool.caller {
                ToolCaller::Program { argv } => program::call(argv, parameters).await,
                ToolCaller::Http { url, headers } => http::call(url, headers, parameters).await,
                ToolCaller::Mcp { argv, tool } => self.servers.call(argv, tool, parameters).await,
                ToolCaller::Client => self.clients.call(tool.name.as_str(), parameters).await,
            }
        };
        let time = std::time::Duration::from_millis(tool.timeout.0);
        match tokio::time::timeout(time, called).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CallFailure::TimedOut(tool.timeout)),
        }
    }
}

/// What bytes of an answer mean: JSON where they are that, text otherwise.
fn value_of(bytes: &[u8]) -> Result<Value, CallFailure> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Value::String(text.trim_end_matches('\n').to_owned())),
        Err(_) => Err(CallFailure::Failed(
            "the tool's answer is neither JSON nor UTF-8".to_owned(),
        )),
    }
}

/// An answer longer than there may be.
fn too_long() -> CallFailure {
    CallFailure::Failed(format!(
        "the tool's answer is longer than {} MiB",
        offleash_protocol::tools::MAX_ANSWER >> 20
    ))
}
