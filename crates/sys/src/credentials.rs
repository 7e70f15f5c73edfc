//! Privileges of the calling process: taken away, and proved to be gone.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// Becomes `uid` and `gid`, without supplementary groups where the kernel lets us drop them.
///
/// In a user namespace whose `setgroups` is denied (one made without privilege), the groups stay; they are not mapped
/// and give access to nothing that is not in the sandbox's tree anyway.
///
/// # Errors
/// `EINVAL` when an id is not mapped.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    match rustix::thread::set_thread_groups(&[]) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let gid = Gid::from_raw(gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    // Leaving uid 0 of the namespace would clear the capabilities that assembling the tree still needs.
    rustix::thread::set_keep_capabilities(true)?;
    let uid = Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let held = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: held.permitted,
            ..held
        },
    )?;
    Ok(())
}

/// Drops every capability from every set, for ever, and checks that none is left.
///
/// # Errors
/// `EPERM` if a capability is still held or could come back.
pub fn drop_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    // The bounding set is emptied first: it takes CAP_SETPCAP, which goes with the rest.
    for number in 0..64_u32 {
        match bounding_set(BoundingSet::Drop, number) {
            Ok(_) => {}
            // The first number that the kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    empty_capability_sets()?;
    rustix::thread::set_no_new_privs(true)?;
    if has_capabilities()? {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

/// Empties the sets of this thread; the bounding set is not one of them.
fn empty_capability_sets() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, sets).map_err(io::Error::from)
}

/// Drops every capability that is held and switches gaining any by exec off, for ever.
///
/// For a process without a user namespace of its own: only `CAP_SETPCAP` could empty the bounding set, so where that is
/// missing it stays, and `no_new_privs` keeps it from mattering (capabilities(7), prctl(2)).
///
/// # Errors
/// `EPERM` if a capability is still held.
pub fn give_up_capabilities() -> io::Result<()> {
    match drop_capabilities() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        done => return done,
    }
    rustix::thread::set_no_new_privs(true)?;
    empty_capability_sets()?;
    let held = rustix::thread::capabilities(None)?;
    let left = held.effective | held.permitted | held.inheritable;
    if left.is_empty() {
        Ok(())
    } else {
        Err(Errno::PERM.into())
    }
}

/// Whether this process holds, or could gain by exec, any capability.
///
/// # Errors
/// What the kernel answered.
pub fn has_capabilities() -> io::Result<bool> {
    let held = rustix::thread::capabilities(None)?;
    if !(held.effective | held.permitted | held.inheritable).is_empty() {
        return Ok(true);
    }
    for number in 0..64_u32 {
        match bounding_set(BoundingSet::Read, number) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(_) => break,
        }
    }
    Ok(false)
}

#[derive(Clone, Copy)]
enum BoundingSet {
    Read,
    Drop,
}

/// Reads or drops capability `number`. By number, because a kernel may know capabilities that our libraries do not.
fn bounding_set(action: BoundingSet, number: u32) -> io::Result<bool> {
    let option = match action {
        BoundingSet::Read => libc::PR_CAPBSET_READ,
        BoundingSet::Drop => libc::PR_CAPBSET_DROP,
    };
    // SAFETY: both options take one number and touch no memory of ours (prctl(2)).
    let result = unsafe { libc::prctl(option, libc::c_ulong::from(number), 0, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result == 1)
    }
}

/// Gives this process a core scheduling cookie of its own, so that no process outside shares a core with it while it
/// runs (prctl(2), `PR_SCHED_CORE`, Linux 5.14).
///
/// # Errors
/// `ENODEV` on a machine without SMT, where nothing is to be done.
pub fn isolate_core() -> io::Result<()> {
    let pid = rustix::process::getpid();
    Ok(rustix::thread::create_core_scheduling_cookie(
        pid,
        rustix::thread::CoreSchedulingScope::ThreadGroup,
    )?)
}
