//! The record of a sandbox that was held for one program, with everything that ran in it, as that of a run.

use std::ffi::OsString;
use std::time::Instant;

use offleash_core::plan::Plan;
use offleash_core::record::{Denial, Outcome, RECORD_VERSION, RunRecord};
use offleash_core::spec::SandboxSpec;
use offleash_gateway::Account;
use offleash_isolation::sandbox::Enforcement;
use offleash_store::{LiveRun, StateDirectory};

use super::report::{all_hits, denials, limit_outcome, texts};
use super::{ManagerError, Outside, OwnRoot, RunReport, Settled, audit, network, settle};
use crate::capture::Capture;
use crate::keeper::message::{EndReason, Ended};
use offleash_core::error::with_causes;
use offleash_planner::{Host, grants_of_nothing};

/// A sandbox that has ended, and what it leaves.
pub(crate) struct Kept<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) state: StateDirectory,
    pub(crate) host: Host,
    pub(crate) plan: Plan,
    pub(crate) outside: Outside,
    pub(crate) command: Vec<OsString>,
    pub(crate) enforcement: Enforcement,
    pub(crate) began: Instant,
    pub(crate) ended: &'a Ended,
    pub(crate) denials: Vec<Denial>,
    pub(crate) account: Option<Account>,
    pub(crate) live: LiveRun,
    pub(crate) own_root: Option<OwnRoot>,
}

/// Keeps or writes back what changed in the workspace, and puts the sandbox on record as a run.
///
/// # Errors
/// When the audit log cannot be written.
pub(crate) fn record_kept(kept: Kept<'_>) -> Result<RunReport, ManagerError> {
    let started_at = kept.live.run().started_at().to_owned();
    let finished = kept.live.finish();
    let mut notes = Vec::from_iter(kept.own_root.as_ref().and_then(OwnRoot::note));
    if let Some(Err(error)) = kept.own_root.map(OwnRoot::discard) {
        notes.push(format!("the sandbox's layer was not removed: {}", with_causes(&error)));
    }
    notes.extend(grants_of_nothing(kept.spec, &kept.host));
    let Settled {
        changes,
        unkept,
        held_back,
    } = settle(finished, kept.spec.workspace.as_ref(), None, &mut notes);
    let outcome = outcome(kept.ended, &kept.plan);
    let withheld = kept.spec.env.withheld(&kept.host.env);
    let (stdout, stderr) = Capture::default().into_records();
    let mut usage = kept.ended.usage.clone();
    usage.wall_ms = u64::try_from(kept.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let record = RunRecord {
        version: RECORD_VERSION,
        id: kept.plan.id.clone(),
        command: texts(&kept.command),
        started_at,
        level: kept.plan.level,
        enforced: kept.enforcement.enforced,
        not_enforced: kept.enforcement.not_enforced,
        exit_code: outcome.exit_code(),
        limits_hit: all_hits(kept.ended.limits_hit.clone(), Vec::new(), &outcome),
        outcome,
        stdout,
        stderr,
        usage,
        denials: denials(withheld, kept.denials),
        changes,
        network: kept
            .account
            .map(|account| network::told(account, kept.outside.published)),
    };
    audit::ended(&kept.state, &record)?;
    Ok(RunReport {
        record,
        notes,
        held_back,
        unkept,
        failure: None,
    })
}

/// A sandbox that was ended as it was meant to be has succeeded, whatever ran in it.
fn outcome(ended: &Ended, plan: &Plan) -> Outcome {
    match &ended.reason {
        EndReason::Killed => Outcome::Exited { code: 0 },
        EndReason::Limit(hit) => limit_outcome(hit),
        EndReason::Lost if ended.out_of_memory => Outcome::OutOfMemory {
            limit: plan.limits.memory.map_or(0, |memory| memory.0),
        },
        EndReason::Lost => failed("the sandbox's first process ended by itself"),
        EndReason::NetworkLost => failed("the gateway of its network has ended"),
        EndReason::Failed(reason) => failed(reason),
    }
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed {
        message: message.to_owned(),
    }
}
