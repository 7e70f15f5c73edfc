//! Room for memory that is reserved and hardly used.
//!
//! Where no cgroup bounds memory, the limit of data does, and it counts what can be written whether it is used or not: the
//! shadow of a sanitizer is fourteen terabytes. Who reserves so much gets that much more of the limit, and from then on
//! what it uses is the watcher's to bound.

use offleash_sys::rlimit::{self, LimitedResource};
use offleash_sys::seccomp::{CallNotification, NotifyListener};
use rustix::process::Pid;

/// From this size on it is for address space and not for use.
const LARGE: u64 = 64 << 20;

/// The address space of a process; more than that is never reserved.
const ADDRESS_SPACE: u64 = 1 << 47;

/// Makes room for so many bytes in the process that calls, if it still waits; answers whether it was to be made.
pub(super) fn make_room(listener: &NotifyListener, call: &CallNotification, bytes: u64) -> bool {
    let caller = i32::try_from(call.pid).ok().and_then(Pid::from_raw);
    let Some(caller) = caller.filter(|_| (LARGE..ADDRESS_SPACE).contains(&bytes)) else {
        return false;
    };
    if !listener.still_waits_for(call) {
        return false;
    }
    // Where that is not ours to do, the call fails, as it would have before.
    rlimit::raise_soft_of(caller, LimitedResource::Data, bytes).is_ok()
}
