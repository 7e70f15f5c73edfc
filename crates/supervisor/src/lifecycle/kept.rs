//! The record of a sandbox that was held for one program, with everything that ran in it, as that of a run.

use std::ffi::OsString;
use std::time::Instant;

use offleash_core::plan::Plan;
use offleash_core::record::{AlertRecord, DenialRecord, Outcome, ToolUse};
use offleash_gateway::Account;
use offleash_isolation::sandbox::EnforcementReport;

use super::making::SandboxSetup;
use super::report::{RecordFacts, all_hits, held_back_by_rule, limit_outcome};
use super::{LifecycleError, RunReport, audit, network};
use crate::capture::Capture;
use crate::service::message::{EndReason, Ended};

/// A sandbox that has ended, and what it leaves.
pub(crate) struct KeptSandbox<'a> {
    pub(crate) setup: SandboxSetup,
    pub(crate) command: Vec<OsString>,
    pub(crate) enforcement: EnforcementReport,
    pub(crate) began: Instant,
    pub(crate) ended: &'a Ended,
    pub(crate) denials: Vec<DenialRecord>,
    pub(crate) account: Option<Account>,
    pub(crate) tools: Vec<ToolUse>,
    pub(crate) alerts: Vec<AlertRecord>,
}

/// Keeps or writes back what changed in the workspace, and puts the sandbox on record as a run.
///
/// # Errors
/// When the audit log cannot be written.
pub(crate) fn record_kept(kept: KeptSandbox<'_>) -> Result<RunReport, LifecycleError> {
    let mut ended = kept.setup.end();
    let outcome = outcome(kept.ended, &ended.plan);
    let settled = ended.settle(held_back_by_rule(&outcome));
    let published = std::mem::take(&mut ended.published);
    let facts = RecordFacts {
        command: &kept.command,
        began: kept.began,
        limits_hit: all_hits(kept.ended.limits_hit.clone(), Vec::new(), &outcome),
        outcome,
        enforcement: kept.enforcement,
        output: Capture::default(),
        usage: kept.ended.usage.clone(),
        denials: kept.denials,
        changes: settled.changes,
        network: kept.account.map(|account| network::told(account, published)),
        tools: kept.tools,
        alerts: kept.alerts,
    };
    let record = facts.into_record(&ended);
    audit::ended(&ended.state, &record)?;
    Ok(RunReport {
        record,
        notes: ended.notes,
        held_back: settled.held_back,
        unkept: settled.unkept,
        failure: None,
    })
}

/// A sandbox that was ended as it was meant to be has succeeded, whatever ran in it.
fn outcome(ended: &Ended, plan: &Plan) -> Outcome {
    match &ended.reason {
        EndReason::Killed => Outcome::Exited { code: 0 },
        EndReason::Limit(hit) => limit_outcome(hit),
        EndReason::Rule(rule) => Outcome::EndedByRule { rule: rule.clone() },
        EndReason::Lost if ended.out_of_memory => Outcome::OutOfMemory {
            limit: plan.limits.memory.map_or(0, |memory| memory.0),
        },
        EndReason::Lost => failed("the sandbox's first process ended by itself"),
        EndReason::Failed(reason) => failed(reason),
    }
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed {
        message: message.to_owned(),
    }
}
