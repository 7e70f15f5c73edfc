//! A person who is asked about calls of tools by way of the agent host, if that can ask (elicitation).

use std::collections::BTreeMap;
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_core::text::Text;
use offleash_supervisor::tools::{OpenApproval, ToolsClient};
use rmcp::RoleServer;
use rmcp::model::{ElicitRequestParams, ElicitationAction, ElicitationSchema};
use rmcp::service::Peer;
use tokio::time::sleep;

/// How often it is looked whether there is a question, while something runs that may have asked it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whether the host can ask its user.
pub(super) fn can_ask(peer: &Peer<RoleServer>) -> bool {
    peer.peer_info()
        .is_some_and(|info| info.capabilities.elicitation.is_some())
}

/// What the host's user says to one call of a tool, which is shown whole.
pub(super) async fn ask(peer: &Peer<RoleServer>, tool: &str, parameters: &str, time: Duration) -> ApprovalAnswer {
    let (tool, parameters) = (Text::from(tool.as_bytes()), Text::from(parameters.as_bytes()));
    let question = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("Allow one call of tool {tool} with {parameters}?"),
        requested_schema: ElicitationSchema::new(BTreeMap::new()),
    };
    match peer.create_elicitation_with_timeout(question, Some(time)).await {
        Ok(answer) if answer.action == ElicitationAction::Accept => ApprovalAnswer::Once,
        Ok(_) => ApprovalAnswer::Denied,
        Err(_) => ApprovalAnswer::Timeout,
    }
}

/// What comes of `work`, which runs in the sandbox whose tools these are; the host's user is asked meanwhile about calls, if the host
/// can ask. Otherwise questions wait for whoever answers at the door.
pub(super) async fn with_answers<T>(peer: &Peer<RoleServer>, tools: &ToolsClient, work: impl Future<Output = T>) -> T {
    if !can_ask(peer) || !tools.is_there() {
        return work.await;
    }
    tokio::select! {
        done = work => done,
        () = answer_questions(peer, tools) => std::future::pending().await,
    }
}

/// Never ends.
async fn answer_questions(peer: &Peer<RoleServer>, tools: &ToolsClient) {
    loop {
        // One that does not answer has ended, which the work finds out.
        for open in tools.approvals().await.unwrap_or_default() {
            let OpenApproval { id, about, left_ms, .. } = open;
            if let ApprovalSubject::ToolCall { tool, parameters } = about {
                let answer = ask(peer, &tool, &parameters, Duration::from_millis(left_ms)).await;
                // Somebody else may have answered meanwhile.
                let _decided = tools.decide(id, answer).await;
            }
        }
        sleep(LOOK_EVERY).await;
    }
}
