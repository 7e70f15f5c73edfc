//! Workers: copies of this process that go on with one piece of work, without execve.
//!
//! A worker has one descriptor, a session of its own, its signals at their default actions, and dies with the process
//! that made it. Only for a program of one thread, whose heap and buffers are in order whenever it calls.

use core::ffi::{c_int, c_long};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use super::children;
use super::raw;
use super::user::{SpawnUser, become_user};

/// Exit code of a worker that did not come to its work, or out of it.
const BROKEN: u8 = 101;

/// Starts a copy of this process that runs `work` with `socket`, and ends with the code that it answers; answers the
/// worker's process id. The parent's copy of the socket is closed.
///
/// `work` is told what came of becoming the user ([`become_user`]). Signals that writing raises (`SIGPIPE`, `SIGXFSZ`)
/// stay blocked, so that it gets an error instead. The worker cannot be looked into by others of its user.
///
/// # Errors
/// `EDEADLK` if this process has more than one thread, `EAGAIN` or `ENOMEM` if there can be no more processes.
pub fn fork_worker(
    socket: OwnedFd,
    user: Option<SpawnUser>,
    work: impl FnOnce(Result<(), Errno>, OwnedFd) -> u8,
) -> Result<i32, Errno> {
    let parent = rustix::process::getpid();
    fork(|| match settle(&socket, parent) {
        Ok(()) => {
            let became = settle_as(user, parent);
            work(became, socket)
        }
        Err(_) => BROKEN,
    })
}

/// Starts a copy of this process, with all that is open, that runs `work` in a session of its own, with its signals at their
/// default actions, and ends with the code that it answers; answers its process id. It cannot be looked into.
///
/// # Errors
/// As [`fork_worker`].
pub fn fork_process(work: impl FnOnce() -> u8) -> Result<i32, Errno> {
    fork(|| {
        let has_settled = rustix::process::setsid().is_ok()
            && rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok();
        reset_signals(0);
        match has_settled {
            true => work(),
            false => BROKEN,
        }
    })
}

fn fork(work: impl FnOnce() -> u8) -> Result<i32, Errno> {
    // Every thread is a directory in `task`, and a directory's link count is two more than its subdirectories.
    if rustix::fs::stat(c"/proc/self/task")?.st_nlink != 3 {
        return Err(Errno::DEADLK);
    }
    let flags = usize::try_from(libc::SIGCHLD).unwrap_or(0);
    // SAFETY: no address is passed; without `CLONE_VM` the child goes on here with a copy of our memory, in which
    // nothing is half done, because the one thread is this one (clone(2)).
    let answer = unsafe { raw::call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]) };
    let pid = raw::checked(answer)?;
    if pid != 0 {
        return Ok(i32::try_from(pid).unwrap_or(0));
    }
    // From here on in the copy, which never returns to what its copy of the stack holds.
    let ends = WorkerEnd;
    let code = work();
    core::mem::forget(ends);
    exit(code)
}

/// Ends the worker should its work panic in a program that unwinds.
struct WorkerEnd;

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        exit(BROKEN);
    }
}

fn exit(code: u8) -> ! {
    loop {
        call(libc::SYS_exit_group, [usize::from(code), 0, 0, 0]);
    }
}

/// Calls the kernel; every address among the arguments is of a local variable of the type that the call takes.
fn call(number: c_long, [a, b, c, d]: [usize; 4]) -> isize {
    // SAFETY: private to this file, see above; what is closed here is owned by nothing that is used again.
    unsafe { raw::call(number, [a, b, c, d, 0, 0]) }
}

/// Makes the copy a process of its own.
fn settle(socket: &OwnedFd, parent: rustix::process::Pid) -> Result<(), Errno> {
    rustix::process::setsid()?;
    die_with(parent)?;
    let socket = usize::try_from(socket.as_raw_fd()).map_err(|_| Errno::BADF)?;
    if let Some(below) = socket.checked_sub(1) {
        raw::checked(call(libc::SYS_close_range, [0, below, 0, 0]))?;
    }
    raw::checked(call(libc::SYS_close_range, [socket + 1, raw::LAST_DESCRIPTOR, 0, 0]))?;
    let bit = |signal: c_int| 1_u64 << (signal - 1);
    reset_signals(bit(libc::SIGPIPE) | bit(libc::SIGXFSZ));
    Ok(())
}

/// Becomes the user, which undoes what was asked for the parent's end and for being looked into.
fn settle_as(user: Option<SpawnUser>, parent: rustix::process::Pid) -> Result<(), Errno> {
    if let Some(user) = user {
        become_user(user)?;
        die_with(parent)?;
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

fn die_with(parent: rustix::process::Pid) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // It may have ended before.
    match rustix::process::getppid() == Some(parent) {
        true => Ok(()),
        false => Err(Errno::SRCH),
    }
}

/// Gives every signal its default action, and leaves those of the set `blocked` alone blocked.
fn reset_signals(blocked: u64) {
    // The kernel's `struct sigaction`, all zeroes for `SIG_DFL`.
    let default = [0_usize; 4];
    for signal in 1..=64 {
        // SIGKILL and SIGSTOP are refused, which is no harm.
        call(
            libc::SYS_rt_sigaction,
            [signal, default.as_ptr().addr(), 0, size_of::<u64>()],
        );
    }
    children::restore_signals(blocked);
}
