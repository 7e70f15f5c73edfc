//! What this level enforces, and what the level `process` has beyond that: said in every record.

use offleash_core::level::{DegradeMode, Level};
use offleash_core::limits::LimitName;
use offleash_core::plan::Plan;

use super::grants::GrantLayout;
use super::places::PathPairs;
use crate::error::IsolationError;
use crate::process::handshake::ChildReport;
use crate::sandbox::EnforcementReport;

/// What of Landlock this level cannot be safe without; the owner may go on without by `degrade = "allow"`.
const NEEDS: [(u32, &str, &str); 2] = [
    (
        3,
        "file truncation",
        "before Linux 6.2 Landlock does not govern it: any file of this user can be emptied by path",
    ),
    (
        6,
        "signals",
        "before Linux 6.12 Landlock does not govern them: other processes of this user can be killed",
    ),
];

/// Says what cannot be, and refuses unless the owner accepts that.
pub(super) fn check(
    plan: &Plan,
    layout: &GrantLayout,
    enforcement: &mut EnforcementReport,
) -> Result<(), IsolationError> {
    enforcement.gives_gpu(plan);
    let mut lacking = layout.impossible.clone();
    let abi = offleash_sys::landlock::abi().ok().flatten().unwrap_or(0);
    if abi == 0 {
        return Err(refused(
            "what code may read and write",
            "this kernel has no Landlock, or it is switched off",
            "start the kernel with `landlock` in its `lsm=` list (Linux 5.13)",
        ));
    }
    for (needed, what, reason) in NEEDS {
        if abi < needed {
            lacking.push((what.to_owned(), format!("{reason} (Landlock version {abi})")));
        }
    }
    for (what, reason) in lacking {
        if plan.degrade == DegradeMode::Refuse {
            return Err(refused(
                &what,
                &reason,
                "`--level process` can; `--degrade allow` runs without it and reports that",
            ));
        }
        enforcement.lacks(what, reason);
    }
    Ok(())
}

/// Refuses a limit or another control that [`EnforcementReport`] lists as lacking already.
pub(super) fn require(plan: &Plan, enforcement: &EnforcementReport) -> Result<(), IsolationError> {
    match enforcement.not_enforced.first_key_value() {
        Some((what, reason)) if plan.degrade == DegradeMode::Refuse => Err(refused(
            what,
            reason,
            "`--degrade allow` runs without it and reports that",
        )),
        _ => Ok(()),
    }
}

/// An error that says what cannot be enforced.
pub(super) fn refused(what: &str, reason: &str, hint: &str) -> IsolationError {
    IsolationError::NotEnforceable {
        level: Level::ProcessLandlock,
        what: what.to_owned(),
        reason: reason.to_owned(),
        hint: hint.to_owned(),
    }
}

/// How limits are held here that the level `process` holds by its namespaces.
pub(super) fn limits(plan: &Plan, group_bounds_pids: bool, enforcement: &mut EnforcementReport) {
    if plan.limits.pids.is_some() && !group_bounds_pids {
        let means = "counted by the supervisor, which the filter asks before each new one (no cgroup)";
        enforcement.holds_limit(LimitName::Pids, means);
    }
    if plan.limits.tmp.is_some() {
        enforcement.holds_limit(
            LimitName::Tmp,
            "temporary files and the home are on disk and count as workspace",
        );
    }
}

/// What is held, and what this level lacks by its nature.
pub(super) fn nature(
    layout: &GrantLayout,
    places: &PathPairs,
    report: &ChildReport,
    enforcement: &mut EnforcementReport,
) {
    for (control, means) in [
        ("capabilities", "none held, and none to be gained by exec"),
        (
            "network",
            "no socket can be opened but pairs (seccomp), no TCP (Landlock)",
        ),
        (
            "attributes",
            "modes and times are changed by the supervisor, where files may be written; owners and extended attributes not at all",
        ),
        (
            "ipc",
            "no System V objects, no message queues, no abstract sockets of others",
        ),
    ] {
        enforcement.holds(control, means);
    }
    for (control, means) in &report.holding {
        enforcement.holds(control, means);
    }
    let uid = rustix::process::geteuid().as_raw();
    for (control, reason) in [
        (
            "namespaces",
            "none of its own: user, pid, mount, network, ipc, uts, cgroup and time are the host's".to_owned(),
        ),
        (
            "proc",
            "the host's processes are visible, their names and arguments; not their memory, files and environment"
                .to_owned(),
        ),
        (
            "root",
            "the host's tree: whether a path exists, and its size, owner and times, can be asked for any path"
                .to_owned(),
        ),
        ("uid", format!("code runs as uid {uid} of the host")),
        (
            "tmp",
            format!(
                "`/tmp`, `/dev/shm` and the account files do not exist; TMPDIR and HOME are in `{}`",
                places.writable().display()
            ),
        ),
    ] {
        enforcement.lacks(control, reason);
    }
    if let Some(copy) = layout.copies.first() {
        enforcement.lacks(
            "workspace.path",
            format!("the workspace is a copy at `{}`", copy.directory().display()),
        );
    }
    if layout.git_is_read_only {
        enforcement.lacks(
            "workspace.git",
            "the git directory outside of the workspace can only be read",
        );
    }
}
