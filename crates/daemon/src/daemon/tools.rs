//! What callers have to do with calls of tools: questions that wait for them, and calls that they answer themselves.
//!
//! The process that takes a sandbox's calls has all of it, and outlives the daemon; here it is found, for whom it is for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalSubject};
use offleash_supervisor::tools::{CallOutcome, DoorReply, OpenApproval, ToolCalls};

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::sandbox_tools;
use crate::sandboxes::SandboxEntry;

/// A question about a call of a tool, which waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// The sandbox that calls.
    pub sandbox: String,
    /// The tool.
    pub tool: String,
    /// What it would be called with, as JSON.
    pub parameters: String,
    /// How long the question waits still.
    pub left: Duration,
}

/// A call that is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCall {
    /// A new one.
    Call {
        /// Its number in the sandbox.
        id: u64,
        /// The tool.
        tool: String,
        /// What it is called with, as JSON.
        parameters: String,
    },
    /// One that needs no answer any more.
    Withdrawn(u64),
}

/// Calls of one sandbox that the holder is to answer; dropped, those fail that were not.
#[derive(Debug)]
pub struct ClientCalls(ToolCalls);

impl ClientCalls {
    /// What there is to know next; `None` once another client hears of the calls, and when the sandbox has ended.
    pub async fn next(&mut self) -> Option<ClientCall> {
        match self.0.next().await {
            Ok(Some(DoorReply::Call { id, tool, parameters })) => Some(ClientCall::Call { id, tool, parameters }),
            Ok(Some(DoorReply::Withdrawn(id))) => Some(ClientCall::Withdrawn(id)),
            Ok(Some(_) | None) | Err(_) => None,
        }
    }
}

impl Daemon {
    /// The questions about calls of tools that wait for the caller: of its own sandboxes, and with the scope `admin` of all.
    ///
    /// # Errors
    /// `Forbidden`.
    pub async fn approvals(&self, caller: &Caller) -> Result<Vec<ApprovalView>, DaemonError> {
        caller.require(Scope::Read)?;
        let core = &self.services.core;
        let has_tools = |entry: &Arc<SandboxEntry>| {
            caller.sees(entry.row().key_id.as_deref()) && !entry.specification().tools.is_empty()
        };
        let mut all = Vec::new();
        for entry in core.sandboxes.all().into_iter().filter(has_tools) {
            // One that does not answer has nothing to be decided.
            let open = core.host.tools(entry.id()).approvals().await.unwrap_or_default();
            all.extend(open.into_iter().filter_map(|open| view(entry.name(), open)));
        }
        all.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(all)
    }

    /// That the caller may grant these to a key.
    ///
    /// # Errors
    /// `Invalid` for text that is no grant; `ToolsNotGranted` for more than the caller has.
    pub fn grants_of(&self, caller: &Caller, grants: &[String]) -> Result<(), DaemonError> {
        let grants = sandbox_tools::parsed(grants)?;
        sandbox_tools::check_granted(caller, &grants)
    }

    /// Answers a question.
    ///
    /// # Errors
    /// `Forbidden`; `UnknownApproval` where it is not open, or of a sandbox that is not the caller's.
    pub async fn decide(&self, caller: &Caller, id: &str, answer: ApprovalAnswer) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        let unknown = || DaemonError::UnknownApproval { id: id.to_owned() };
        let (sandbox, number) = id.rsplit_once('-').ok_or_else(unknown)?;
        let number: u64 = number.parse().map_err(|_| unknown())?;
        let entry = self
            .services
            .core
            .sandboxes
            .find(caller, sandbox)
            .map_err(|_| unknown())?;
        let decided = self.services.core.host.tools(entry.id()).decide(number, answer).await;
        match decided.map_err(no_answer)? {
            true => Ok(()),
            false => Err(unknown()),
        }
    }

    /// Hears of a sandbox's calls that its clients answer, in place of whoever did before.
    ///
    /// # Errors
    /// `Forbidden`, `NotFound`; `Conflict` for one that has no tools.
    pub async fn client_calls(&self, caller: &Caller, id: &str) -> Result<ClientCalls, DaemonError> {
        caller.require(Scope::Create)?;
        let entry = self.services.core.sandboxes.find(caller, id)?;
        let calls = self.services.core.host.tools(entry.id()).calls().await;
        let calls = calls.map_err(no_answer)?;
        calls
            .map(ClientCalls)
            .ok_or_else(|| DaemonError::conflict(entry.name(), "has no tools, or does not run"))
    }

    /// Answers a call of a sandbox: with a result, as JSON, or with why there is none.
    ///
    /// # Errors
    /// `Forbidden`, `NotFound`; `UnknownCall` where nobody waits for it.
    pub async fn answer_call(
        &self,
        caller: &Caller,
        id: &str,
        call: u64,
        outcome: Result<String, String>,
    ) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        let entry = self.services.core.sandboxes.find(caller, id)?;
        let outcome = match outcome {
            Ok(result) => CallOutcome::Result(result),
            Err(why) => CallOutcome::Error(why),
        };
        let answered = self.services.core.host.tools(entry.id()).answer(call, outcome).await;
        match answered.map_err(no_answer)? {
            true => Ok(()),
            false => Err(DaemonError::UnknownCall {
                id: id.to_owned(),
                call,
            }),
        }
    }
}

fn view(sandbox: &str, open: OpenApproval) -> Option<ApprovalView> {
    let ApprovalSubject::ToolCall { tool, parameters } = open.about else {
        return None;
    };
    Some(ApprovalView {
        id: format!("{sandbox}-{}", open.id),
        sandbox: sandbox.to_owned(),
        tool,
        parameters,
        left: Duration::from_millis(open.left_ms),
    })
}

fn no_answer(error: io::Error) -> DaemonError {
    DaemonError::supervisor("take calls of its tools", error)
}
