//! The first process of a sandbox of this level, from the fork to the exec of the guest.
//!
//! It starts with all that its supervisor may do and takes that away step by step. Until the exec it runs our code only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use offleash_core::plan::Plan;
use offleash_sys::landlock::{self, GrantAccess, LandlockRestriction, PathGrant};
use offleash_sys::seccomp::{self, FilterOptions};
use offleash_sys::{cgroup, credentials, mount, process, rlimit};
use rustix::fs::Mode;
use rustix::process::Signal;

use crate::limits::{self, HeldByGroup};
use crate::process::child::{keep_to_cpus, place_control, place_guest, step, unexpected, use_null_streams};
use crate::process::handshake::{ChildEnd, FromParent, HandedDescriptors, StepFailure};

/// What the child gets from the process that it is a copy of.
#[derive(Debug)]
pub(super) struct InheritedDescriptors<'a> {
    pub(super) plan: &'a Plan,
    pub(super) channel: &'a ChildEnd,
    /// The guest's end of the control socket.
    pub(super) control: BorrowedFd<'a>,
    /// Descriptors that belong to the parent alone.
    pub(super) parents: &'a [BorrowedFd<'a>],
    pub(super) grants: &'a [(PathBuf, GrantAccess)],
    pub(super) rlimits: &'a [(rlimit::LimitedResource, u64)],
    pub(super) held: HeldByGroup,
    /// To how many CPUs to keep.
    pub(super) affinity: Option<usize>,
    /// Whether that is all that bounds how many are used.
    pub(super) kept_to_cpus: bool,
}

/// Runs the child; returns, with an exit code, only if something failed.
pub(super) fn run(inherited: &InheritedDescriptors<'_>) -> i32 {
    for &descriptor in inherited.parents {
        process::close_inherited(descriptor);
    }
    match become_guest(inherited) {
        Ok(never) => match never {},
        Err(failure) => {
            inherited.channel.failed(&failure);
            125
        }
    }
}

fn become_guest(inherited: &InheritedDescriptors<'_>) -> Result<std::convert::Infallible, StepFailure> {
    process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
    rustix::process::setsid().map_err(|error| step("starting a session")(error.into()))?;
    rustix::process::umask(Mode::from(0o022));
    use_null_streams().map_err(step("opening /dev/null"))?;
    let guest = wait_for_start(inherited.channel)?;
    let mut report = Vec::new();
    // Here and not for each command, since `/proc` cannot be written from inside.
    if limits::prefer_to_kill("self", limits::OOM_SCORE).is_ok() {
        report.push((
            '+',
            "oom_score",
            "the kernel prefers the sandbox when memory runs out".to_owned(),
        ));
    }
    limit(inherited)?;
    if credentials::isolate_core().is_ok() {
        report.push(('+', "core_scheduling", "a core scheduling cookie of its own".to_owned()));
    }
    give_up_privileges()?;
    report.push(restrict_paths(inherited)?);
    place_control(inherited.control).map_err(step("placing the control socket"))?;
    process::close_from_at_exec(4).map_err(step("closing inherited descriptors"))?;
    let filter = seccomp::compile(&FilterOptions {
        allow_ptrace: inherited.plan.allow_ptrace,
        notify: true,
        observe_connect: false,
        // Memory files are not bounded by rlimits.
        deny_memfd: !inherited.held.memory,
        host_namespaces: true,
        superuser: false,
        allow_set_id: false,
        hands_out: false,
        // Files of the host show the host's memory here, and this call would be alone in saying otherwise.
        show_memory: false,
        watch_reservations: inherited.plan.limits.memory.is_some() && !inherited.held.memory,
        kept_to_cpus: inherited.kept_to_cpus,
        // Nothing here is an overlay.
        offer_renames: false,
        count_forks: inherited.plan.limits.pids.is_some() && !inherited.held.pids,
    });
    report.push((
        '+',
        "seccomp",
        format!("allow-list, {} instructions", filter.instructions()),
    ));
    let listener = filter
        .install_with_listener()
        .map_err(step("installing the system call filter"))?;
    let handed = HandedDescriptors {
        listener: Some(listener.as_fd()),
        ..HandedDescriptors::default()
    };
    inherited
        .channel
        .ready(&report, &handed)
        .map_err(step("reporting to the supervisor"))?;
    drop(listener);
    let error = process::exec_descriptor(guest.as_fd(), c"offleash-guest", Some(c"subreaper"));
    Err(step("starting the guest")(error))
}

fn wait_for_start(channel: &ChildEnd) -> Result<OwnedFd, StepFailure> {
    match channel.next().map_err(step("hearing from the supervisor"))? {
        FromParent::Start { guest, entrances, .. } => {
            cgroup::enter(&entrances).map_err(step("entering the cgroup"))?;
            place_guest(guest)
        }
        _ => Err(unexpected()),
    }
}

fn limit(inherited: &InheritedDescriptors<'_>) -> Result<(), StepFailure> {
    for (resource, value) in inherited.rlimits {
        rlimit::lower(*resource, *value).map_err(|error| step("setting resource limits")(error.source.into()))?;
    }
    match inherited.affinity {
        Some(count) => keep_to_cpus(count).map_err(step("setting the CPU affinity")),
        None => Ok(()),
    }
}

fn give_up_privileges() -> Result<(), StepFailure> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    credentials::become_user(uid, gid).map_err(step("dropping supplementary groups"))?;
    credentials::give_up_capabilities().map_err(step("dropping capabilities"))?;
    // Not SIGKILL: what the guest started would outlive it. When its supervisor is gone, the guest sees the socket
    // close and kills everything; this wakes it should a program have stopped it. After the change of ids, which
    // clears it.
    rustix::process::set_parent_process_death_signal(Some(Signal::CONT))
        .map_err(|error| step("tying the first process to its supervisor")(error.into()))
}

/// The first wall at this level: what may be read, written and executed.
fn restrict_paths(inherited: &InheritedDescriptors<'_>) -> Result<(char, &'static str, String), StepFailure> {
    let mut places = Vec::new();
    for (path, access) in inherited.grants {
        match mount::open_place(path) {
            Ok(place) => places.push((place, *access)),
            // Not there, or not for this user: then it is not for the sandbox either.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(source) => return Err(StepFailure::new("opening for Landlock", path.to_string_lossy(), source)),
        }
    }
    let grants: Vec<PathGrant<'_>> = places
        .iter()
        .map(|(place, access)| PathGrant {
            fd: place.as_fd(),
            access: *access,
        })
        .collect();
    let restriction = LandlockRestriction {
        grants: &grants,
        scope_signals: true,
        scope_abstract_sockets: true,
        deny_tcp: true,
    };
    let enforced = landlock::restrict_self(&restriction).map_err(step("restricting paths with Landlock"))?;
    Ok((
        '+',
        "landlock",
        format!("version {}, {} rules", enforced.abi, grants.len()),
    ))
}
