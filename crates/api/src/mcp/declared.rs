//! The owner's declared tools, for an agent host outside of any sandbox: judged and counted as calls from inside are.

use std::sync::Arc;
use std::time::Duration;

use offleash_supervisor::tools::{CallFailure, OfferedTool, ToolBench};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;

use super::asking;

/// The tools of a conversation.
#[derive(Debug)]
pub(super) struct DeclaredTools {
    bench: Arc<ToolBench>,
    ask_timeout: Duration,
}

impl DeclaredTools {
    pub(super) fn new(bench: Arc<ToolBench>, ask_timeout: Duration) -> Self {
        Self { bench, ask_timeout }
    }

    /// Asks the host's user about a call, if the host can; nobody else can be asked here.
    async fn ask(&self, peer: &Peer<RoleServer>, tool: &str, parameters: &Value) -> Result<(), String> {
        if !asking::can_ask(peer) {
            return Err("this agent host cannot ask one (elicitation)".to_owned());
        }
        let answer = asking::ask(peer, tool, &parameters.to_string(), self.ask_timeout).await;
        match answer.allows() {
            true => Ok(()),
            false => Err(answer.to_string()),
        }
    }
}

impl ServerHandler for DeclaredTools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let own_name = Implementation::new("offleash-tools", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(own_name)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.bench.list().into_iter().map(shown).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parameters = Value::Object(request.arguments.unwrap_or_default());
        let ask = async |tool: &str, parameters: &Value| self.ask(&context.peer, tool, parameters).await;
        match self.bench.call(&request.name, parameters, ask).await {
            Ok(result) => Ok(CallToolResult::success(vec![ContentBlock::text(text_of(&result))]).into()),
            Err(CallFailure::Unknown(_)) => {
                let name: String = request.name.chars().take(60).collect();
                let message = format!("there is no tool `{}`", name.escape_debug());
                Err(ErrorData::invalid_params(message, None))
            }
            Err(failure) => {
                let said = format!("{}: {failure}", failure.kind());
                Ok(CallToolResult::error(vec![ContentBlock::text(said)]).into())
            }
        }
    }
}

fn shown(tool: OfferedTool) -> Tool {
    let mut schema = match tool.parameters {
        Value::Object(schema) => schema,
        _ => serde_json::Map::new(),
    };
    // Hosts want it said.
    schema.entry("type").or_insert_with(|| "object".into());
    Tool::new(tool.name, tool.description, Arc::new(schema))
}

fn text_of(result: &Value) -> String {
    match result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
