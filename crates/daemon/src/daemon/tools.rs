//! What callers have to do with calls of tools: questions that wait for them, and calls that they answer themselves.
//!
//! The process that takes a sandbox's calls has all of it, and outlives the daemon; here it is found, for whom it is for.

use std::io;

use offleash_core::approval::ApprovalAnswer;
use offleash_supervisor::tools::{CallOutcome, DoorReply, ToolCalls};

use super::Daemon;
use crate::allowed_hosts::{self, AllowedHost};
use crate::approvals::{ApprovalView, OF_DAEMON, OF_NETWORK, open_approvals};
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::sandbox_tools;
use crate::sandboxes::SandboxEntry;

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
    /// The questions that wait for the caller: of its own sandboxes, and with the scope
    /// `admin` of all.
    ///
    /// # Errors
    /// `Forbidden`.
    pub async fn approvals(&self, caller: &Caller) -> Result<Vec<ApprovalView>, DaemonError> {
        caller.require(Scope::Read)?;
        let core = &self.services.core;
        let mut all = Vec::new();
        for entry in core.sandboxes.all() {
            if caller.sees(entry.row().key_id.as_deref()) {
                all.extend(open_approvals(core, &entry).await);
            }
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

    /// The hosts that were allowed for good: for the caller's own sandboxes, and with the scope `admin` for all.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub fn allowed_hosts(&self, caller: &Caller) -> Result<Vec<AllowedHost>, DaemonError> {
        allowed_hosts::list(&self.services.core, caller)
    }

    /// Has a host asked about again, in sandboxes that are made from now on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownAllowedHost`, `Store`.
    pub async fn forget_allowed_host(&self, caller: &Caller, id: &str) -> Result<(), DaemonError> {
        allowed_hosts::forget(&self.services.core, caller, id).await
    }

    /// Answers a question. What is allowed for good is on record before.
    ///
    /// # Errors
    /// `Forbidden`, also where a rule of the owner's asks and the caller has not the scope `admin`; `UnknownApproval` where it is
    /// not open, or of a sandbox that is not the caller's; `Unsupported` to allow for good what is no connection.
    pub async fn decide(&self, caller: &Caller, id: &str, answer: ApprovalAnswer) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        let unknown = || DaemonError::UnknownApproval { id: id.to_owned() };
        let (sandbox, number) = id.rsplit_once('-').ok_or_else(unknown)?;
        let of_network = number.strip_prefix(OF_NETWORK);
        let of_daemon = number.strip_prefix(OF_DAEMON);
        let number = of_network.or(of_daemon).unwrap_or(number);
        let number: u64 = number.parse().map_err(|_| unknown())?;
        let entry = self
            .services
            .core
            .sandboxes
            .find(caller, sandbox)
            .map_err(|_| unknown())?;
        let core = &self.services.core;
        if of_daemon.is_some() && core.questions.is_owners(entry.name(), number).ok_or_else(unknown)? {
            caller.require(Scope::Admin)?;
        }
        let kept = match answer {
            ApprovalAnswer::Always => {
                let open = open_approvals(core, &entry).await;
                let question = open.iter().find(|open| open.id == id).ok_or_else(unknown)?;
                Some(allowed_hosts::keep(core, &entry, &question.about).await?)
            }
            _ => None,
        };
        let decided = match of_daemon {
            Some(_) => Ok(core.questions.decide(entry.name(), number, answer)),
            None => self.answer_question(&entry, of_network.is_some(), number, answer).await,
        };
        if let Some(kept) = kept.filter(|_| !matches!(decided, Ok(true))) {
            allowed_hosts::take_back(core, kept).await?;
        }
        match decided? {
            true => Ok(()),
            false => Err(unknown()),
        }
    }

    /// Answers it where it waits; whether it was open.
    async fn answer_question(
        &self,
        entry: &SandboxEntry,
        is_of_network: bool,
        number: u64,
        answer: ApprovalAnswer,
    ) -> Result<bool, DaemonError> {
        let host = &self.services.core.host;
        match is_of_network {
            true => host
                .supervisor(entry.id())
                .decide(number, answer)
                .await
                .map_err(|error| DaemonError::of_supervisor("answer a question", entry.name(), error)),
            false => host.tools(entry.id()).decide(number, answer).await.map_err(no_answer),
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

fn no_answer(error: io::Error) -> DaemonError {
    DaemonError::supervisor("take calls of its tools", error)
}
