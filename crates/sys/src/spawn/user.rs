//! Becoming another user, in a process that has one thread: between clone and execve, or in a worker.
//!
//! Nothing but system calls, because the child of [`super::spawn`] shares its parent's memory.

use core::ffi::{c_int, c_long};

use rustix::io::Errno;

use super::raw;

/// A user and its group; there are no further groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpawnUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// `struct __user_cap_header_struct` (capget(2)).
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: c_int,
}

/// `struct __user_cap_data_struct`, of which version 3 takes two: effective, permitted, inheritable.
type CapSets = [[u32; 3]; 2];

/// `_LINUX_CAPABILITY_VERSION_3` (linux/capability.h).
const VERSION_3: u32 = 0x2008_0522;

const EMPTY: CapSets = [[0; 3]; 2];

/// Becomes the user in all of its ids. A user other than root keeps no capability in any set, as far as the bounding
/// set can be emptied (which takes `CAP_SETPCAP`); root keeps what there is. Whoever is the user already changes nothing.
///
/// Clears what `PR_SET_PDEATHSIG` asked for.
///
/// # Errors
/// `EINVAL` when an id is none or is not mapped, `EPERM` without the capabilities that it takes, or when groups or
/// capabilities would be left.
pub fn become_user(user: SpawnUser) -> Result<(), Errno> {
    become_user_with(user, None)
}

/// As [`become_user`], by a process that had no more than `bounding` in its bounding set, if that is known.
pub(super) fn become_user_with(user: SpawnUser, bounding: Option<BoundingBits>) -> Result<(), Errno> {
    // To the kernel this number means "leave it as it is".
    if user.uid == u32::MAX || user.gid == u32::MAX {
        return Err(Errno::INVAL);
    }
    let is_root = user.uid == 0;
    if is_already(user) {
        return match is_root || capabilities()? == EMPTY {
            true => Ok(()),
            false => {
                empty_outer_sets(bounding);
                give_up_capabilities()
            }
        };
    }
    // Nothing puts anything back into them.
    if !is_root {
        empty_outer_sets(bounding);
    }
    let (uid, gid) = (wide(user.uid), wide(user.gid));
    drop_groups()?;
    call(libc::SYS_setresgid, [gid, gid, gid, 0])?;
    call(libc::SYS_setresuid, [uid, uid, uid, 0])?;
    if !is_already(user) {
        return Err(Errno::PERM);
    }
    match is_root {
        true => Ok(()),
        false => give_up_capabilities(),
    }
}

/// As [`become_user`], by a process that is to gain nothing beyond `kept`, a bit for each capability: root keeps those of them
/// that it has. Sets `no_new_privs`.
///
/// # Errors
/// As [`become_user`].
pub fn become_user_keeping(user: SpawnUser, kept: u64) -> Result<(), Errno> {
    let BoundingBits(held) = bounding_set();
    empty_outer_sets(Some(BoundingBits(held & !kept)));
    become_user_with(user, None)?;
    if user.uid == 0 {
        let [low, high] = capabilities()?.map(|[_, permitted, _]| permitted);
        let left = [low & low_half(kept), high & low_half(kept >> 32)];
        let (header, sets) = (own_capabilities(), left.map(|bits| [bits, bits, 0]));
        let addresses = [
            (&raw const header).expose_provenance(),
            (&raw const sets).expose_provenance(),
        ];
        call(libc::SYS_capset, [addresses[0], addresses[1], 0, 0])?;
        let BoundingBits(bounding) = bounding_set();
        if capabilities()? != sets || bounding & !kept != 0 {
            return Err(Errno::PERM);
        }
    }
    rustix::thread::set_no_new_privs(true)
}

/// Calls the kernel; every address among the arguments is of a local variable of the type that the call takes.
fn call(number: c_long, [a, b, c, d]: [usize; 4]) -> Result<usize, Errno> {
    // SAFETY: private to this file, see above.
    raw::checked(unsafe { raw::call(number, [a, b, c, d, 0, 0]) })
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn low_half(bits: u64) -> u32 {
    bits as u32
}

const fn wide(number: u32) -> usize {
    number as usize
}

fn is_already(user: SpawnUser) -> bool {
    let has = |number, wanted| {
        let mut ids = [0_u32; 3];
        let [real, effective, saved] = &mut ids;
        let places = [real, effective, saved].map(|id| core::ptr::from_mut(id).expose_provenance());
        call(number, [places[0], places[1], places[2], 0]).is_ok() && ids == [wanted; 3]
    };
    has(libc::SYS_getresuid, user.uid) && has(libc::SYS_getresgid, user.gid)
}

fn drop_groups() -> Result<(), Errno> {
    match call(libc::SYS_setgroups, [0; 4]) {
        Ok(_) => Ok(()),
        // Where groups may not be set, having none is as good.
        Err(Errno::PERM) if call(libc::SYS_getgroups, [0; 4]) == Ok(0) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Capabilities by number, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundingBits(u64);

/// Which capabilities are in this thread's bounding set.
///
/// To drop one takes several times as long as to ask, even one that is not there.
pub(super) fn bounding_set() -> BoundingBits {
    let mut bits = 0;
    for capability in 0..64 {
        match call(libc::SYS_prctl, [option(libc::PR_CAPBSET_READ), capability, 0, 0]) {
            Ok(0) => {}
            Ok(_) => bits |= 1 << capability,
            // The first number that the kernel does not know.
            Err(_) => break,
        }
    }
    BoundingBits(bits)
}

/// Empties the bounding and the ambient set as far as that is allowed; what stays is of no use to a program that may
/// not gain privileges by exec.
fn empty_outer_sets(bounding: Option<BoundingBits>) {
    let BoundingBits(mut left) = bounding.unwrap_or_else(bounding_set);
    while left != 0 {
        let capability = wide(left.trailing_zeros());
        if call(libc::SYS_prctl, [option(libc::PR_CAPBSET_DROP), capability, 0, 0]).is_err() {
            break;
        }
        left &= left - 1;
    }
    let _ = call(
        libc::SYS_prctl,
        [
            option(libc::PR_CAP_AMBIENT),
            option(libc::PR_CAP_AMBIENT_CLEAR_ALL),
            0,
            0,
        ],
    );
}

/// An option of prctl(2) as an argument.
fn option(option: c_int) -> usize {
    usize::try_from(option).unwrap_or(0)
}

fn give_up_capabilities() -> Result<(), Errno> {
    let (header, none) = (own_capabilities(), EMPTY);
    let addresses = [
        (&raw const header).expose_provenance(),
        (&raw const none).expose_provenance(),
    ];
    call(libc::SYS_capset, [addresses[0], addresses[1], 0, 0])?;
    match capabilities()? == EMPTY {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

fn capabilities() -> Result<CapSets, Errno> {
    let (mut header, mut sets) = (own_capabilities(), EMPTY);
    let addresses = [
        (&raw mut header).expose_provenance(),
        (&raw mut sets).expose_provenance(),
    ];
    call(libc::SYS_capget, [addresses[0], addresses[1], 0, 0])?;
    Ok(sets)
}

const fn own_capabilities() -> CapHeader {
    CapHeader {
        version: VERSION_3,
        pid: 0,
    }
}
