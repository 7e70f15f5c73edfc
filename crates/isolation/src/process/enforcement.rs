//! What of a plan is enforced, and what must be.

use offleash_core::level::{DegradeMode, Level};
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;

use super::handshake::ChildReport;
use super::identity::IdMaps;
use crate::error::IsolationError;
use crate::sandbox::EnforcementReport;

/// What holds, whatever the machine.
pub(super) fn describe(plan: &Plan, identity: &IdMaps, report: &ChildReport, enforcement: &mut EnforcementReport) {
    enforcement.holds("namespaces", "user, pid, mount, network, ipc, uts, cgroup");
    enforcement.holds(
        "root",
        if plan.has_own_root() {
            "a writable layer over a built tree, entered with pivot_root"
        } else {
            "a built tree, entered with pivot_root"
        },
    );
    enforcement.holds(
        "capabilities",
        if plan.has_superuser() {
            "ten of the sandbox's own user namespace for its superuser, none for others"
        } else {
            "none, in any set"
        },
    );
    enforcement.holds(
        "network",
        if plan.network {
            "a network namespace in which every connection leads to the gateway"
        } else {
            "an empty network namespace"
        },
    );
    if !plan.written_volumes().is_empty() {
        for limit in [LimitName::Volume, LimitName::VolumeInodes] {
            enforcement.holds_limit(limit, "a watcher on each volume that is written to");
        }
    }
    enforcement.holds("uid", format!("{} on the host", identity.outside.0));
    enforcement.gives_gpu(plan);
    for (control, means) in &report.holding {
        enforcement.holds(control, means);
    }
    for (control, reason) in &report.lacking {
        enforcement.lacks(control, reason);
    }
}

/// Refuses what cannot be enforced, unless the caller allows it.
pub(super) fn require(plan: &Plan, enforcement: &EnforcementReport) -> Result<(), IsolationError> {
    match enforcement.not_enforced.first_key_value() {
        Some((what, reason)) if plan.degrade == DegradeMode::Refuse => Err(IsolationError::NotEnforceable {
            level: Level::Process,
            what: what.clone(),
            reason: reason.clone(),
            hint: "`offleash doctor` says how to mend this; `--degrade allow` runs without it and reports that"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}
