//! Privileges of the calling process: taken away, and proved to be gone.

use std::io;

use rustix::io::Errno;
pub use rustix::thread::CapabilitySet;
use rustix::thread::{CapabilitySets, Gid, Uid};

/// Becomes `uid` and `gid`, without supplementary groups where the kernel lets us drop them.
///
/// In a user namespace whose `setgroups` is denied (one made without privilege), the groups stay; they are not mapped
/// and give access to nothing that is not in the sandbox's tree anyway.
///
/// # Errors
/// `EINVAL` when an id is not mapped.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    drop_groups()?;
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

/// Drops the supplementary groups, where the kernel lets us.
///
/// # Errors
/// What the kernel answered, unless it is that they may not be dropped here.
pub fn drop_groups() -> io::Result<()> {
    match rustix::thread::set_thread_groups(&[]) {
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What the superuser of a sandbox keeps over the sandbox's own user namespace, and nothing over the host's: what it
/// takes to install packages and to start programs for other users of the sandbox.
///
/// Deliberately not here: everything over mounts, networks, devices, modules, tracing and time; `CAP_SETFCAP`, without
/// which package managers fall back to setuid bits; `CAP_DAC_READ_SEARCH`, which opens files by number; `CAP_MKNOD`.
pub const SUPERUSER: CapabilitySet = CapabilitySet::CHOWN // package managers and tar give files to users
    .union(CapabilitySet::DAC_OVERRIDE) // they write in directories of other users, such as apt's of `_apt`
    .union(CapabilitySet::FOWNER) // they set modes and times of files that they gave away
    .union(CapabilitySet::FSETID) // they keep the setgid bit of directories of other groups
    .union(CapabilitySet::SETUID) // the guest starts commands of other users; apt downloads as `_apt`
    .union(CapabilitySet::SETGID) // as SETUID
    .union(CapabilitySet::SETPCAP) // the guest empties the bounding set of commands of other users; it only takes away
    .union(CapabilitySet::KILL) // the guest and root end programs of other users
    .union(CapabilitySet::NET_BIND_SERVICE) // servers on ports below 1024 of the sandbox's own network
    .union(CapabilitySet::SYS_CHROOT); // OpenSSH's privilege separation, `dpkg --root`

/// Drops every capability from every set, for ever, and checks that none is left.
///
/// # Errors
/// `EPERM` if a capability is still held or could come back.
pub fn drop_capabilities() -> io::Result<()> {
    drop_capabilities_but(CapabilitySet::empty())
}

/// Drops every capability but those of `kept`, for ever, and checks that no other is left. Those that are kept stay at
/// exec as long as the user id is 0 (capabilities(7), "Programs that are executed by root").
///
/// # Errors
/// `EPERM` if another capability is still held or could come back.
pub fn drop_capabilities_but(kept: CapabilitySet) -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    // The bounding set comes first: it takes CAP_SETPCAP, which may go with the rest.
    for number in (0..64_u32).filter(|number| !is_in(kept, *number)) {
        match bounding_set(BoundingSet::Drop, number) {
            Ok(_) => {}
            // The first number that the kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    let held = rustix::thread::capabilities(None)?.permitted & kept;
    let sets = CapabilitySets {
        effective: held,
        permitted: held,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    if has_capabilities_but(kept)? {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

fn is_in(set: CapabilitySet, number: u32) -> bool {
    set.bits() & (1 << number) != 0
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
    has_capabilities_but(CapabilitySet::empty())
}

fn has_capabilities_but(kept: CapabilitySet) -> io::Result<bool> {
    let held = rustix::thread::capabilities(None)?;
    let others = (held.effective | held.permitted) - kept;
    if !(others | held.inheritable).is_empty() {
        return Ok(true);
    }
    for number in (0..64_u32).filter(|number| !is_in(kept, *number)) {
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
