//! Tools of MCP servers, which are started with the first call and spoken to over their standard streams.

use std::collections::HashMap;
use std::sync::Arc;

use rmcp::model::{CallToolRequestParams, ContentBlock};
use rmcp::service::{RoleClient, RunningService, ServiceExt as _};
use serde_json::Value;
use tokio::sync::Mutex;

use super::program::OwnGroup;
use crate::answer::CallFailure;

/// The servers that were started, by their command lines.
#[derive(Debug, Default)]
pub(crate) struct McpServers {
    started: Mutex<HashMap<Vec<String>, Arc<McpServer>>>,
}

struct McpServer {
    client: RunningService<RoleClient, ()>,
    /// Ends with it.
    _program: OwnGroup,
}

impl std::fmt::Debug for McpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpServer").finish_non_exhaustive()
    }
}

impl McpServers {
    pub(super) async fn call(&self, argv: &[String], tool: &str, parameters: &Value) -> Result<Value, CallFailure> {
        let failed = |reason: String| CallFailure::Failed(format!("the tool's server: {reason}"));
        let server = self.server(argv).await?;
        let mut call = CallToolRequestParams::new(tool.to_owned());
        call.arguments = parameters.as_object().cloned();
        let result = server.client.peer().call_tool(call).await;
        if result.is_err() && server.client.is_closed() {
            // The next call starts another.
            self.started.lock().await.remove(argv);
        }
        let result = result.map_err(|error| failed(error.to_string()))?;
        let texts: Vec<&str> = result.content.iter().filter_map(text_of).collect();
        if result.is_error == Some(true) {
            return Err(CallFailure::Failed(texts.join("\n")));
        }
        match result.structured_content {
            Some(value) => Ok(value),
            None if texts.len() == result.content.len() => super::value_of(texts.join("\n").as_bytes()),
            None => serde_json::to_value(&result.content).map_err(|error| failed(error.to_string())),
        }
    }

    async fn server(&self, argv: &[String]) -> Result<Arc<McpServer>, CallFailure> {
        let mut started = self.started.lock().await;
        if let Some(server) = started.get(argv) {
            return Ok(Arc::clone(server));
        }
        let mut program = OwnGroup::start(argv)?;
        let failed = |reason: &str| CallFailure::Failed(format!("the tool's server cannot be spoken to: {reason}"));
        let (Some(stdout), Some(stdin)) = (program.0.stdout.take(), program.0.stdin.take()) else {
            return Err(failed("it has no streams"));
        };
        // What it says beside is for nobody, and is not to fill a pipe.
        if let Some(mut stderr) = program.0.stderr.take() {
            tokio::spawn(async move { tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await });
        }
        let client = ().serve((stdout, stdin)).await.map_err(|error| failed(&error.to_string()))?;
        let server = Arc::new(McpServer {
            client,
            _program: program,
        });
        started.insert(argv.to_vec(), Arc::clone(&server));
        Ok(server)
    }
}

fn text_of(content: &ContentBlock) -> Option<&str> {
    content.as_text().map(|text| text.text.as_str())
}
