//! What the child does between clone and execve.
//!
//! It shares its parent's memory and the parent sleeps, so it does nothing but system calls and writes to its
//! [`ChildPlan`]: no allocation, no lock, no thread-local variable, no panic.

use core::ffi::{c_int, c_long, c_void};

use super::raw;
use super::starter::{ChildStarter, reset_signal_actions};
use super::user::{SpawnUser, become_user_with};

/// Everything the child needs, made ready by the parent, and what it tells the parent in return.
pub(crate) struct ChildPlan {
    /// Null-terminated; the arguments.
    pub(crate) argv: *const *const u8,
    /// Null-terminated; the environment.
    pub(crate) envp: *const *const u8,
    /// Null-terminated; the paths to try in turn.
    pub(crate) candidates: *const *const u8,
    /// Whether the candidates come from `PATH`, where a directory does not count.
    pub(crate) searched: bool,
    /// The arguments for `/bin/sh`; the second is filled in with the script's path.
    pub(crate) shell_argv: *mut *const u8,
    /// Null, or the directory to enter.
    pub(crate) cwd: *const u8,
    /// Descriptors that become 0, 1, 2 …; all are numbered at least `descriptor_count`.
    pub(crate) descriptors: *const c_int,
    pub(crate) descriptor_count: usize,
    pub(crate) new_session: bool,
    /// Whether descriptor 0 becomes the session's terminal.
    pub(crate) terminal: bool,
    pub(crate) die_with_parent: bool,
    pub(crate) user: Option<SpawnUser>,
    /// What the starter knows of itself.
    pub(crate) starter: Option<ChildStarter>,

    /// Answer: which step failed, if the child comes to its end without execve.
    pub(crate) failed: ChildStep,
    /// Answer: why.
    pub(crate) errno: i32,
}

/// The steps that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildStep {
    None,
    Session,
    DieWithParent,
    User,
    Terminal,
    Descriptors,
    Close,
    Directory,
    NotFound,
    Execute,
}

/// Runs in the child on its own stack.
///
/// # Safety
/// `plan` points to a [`ChildPlan`] that the sleeping parent lent exclusively, with all of its pointers valid.
pub(crate) unsafe extern "C" fn run(plan: *mut c_void) -> ! {
    // SAFETY: as the caller promises.
    let plan = unsafe { &mut *plan.cast::<ChildPlan>() };
    // SAFETY: as the caller promises.
    let (failed, errno) = unsafe { prepare(plan) };
    plan.failed = failed;
    plan.errno = errno;
    loop {
        call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]);
    }
}

/// Calls the kernel with arguments that [`run`]'s contract makes valid.
fn call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: private to this file, where every address comes from the plan, from a constant or from a local
    // variable; the calls write only into memory of the size that they are given.
    unsafe { raw::call(number, arguments) }
}

/// A small non-negative number as an argument.
#[expect(
    clippy::cast_sign_loss,
    reason = "flags, requests and descriptors, which are not negative"
)]
const fn word(value: c_int) -> usize {
    value as usize
}

/// Does every step up to execve, which does not return; answers what failed.
///
/// # Safety
/// All pointers of the plan are valid.
unsafe fn prepare(plan: &mut ChildPlan) -> (ChildStep, i32) {
    if plan.starter.is_none() {
        reset_signal_actions();
    }
    if plan.new_session {
        let answer = call(libc::SYS_setsid, [0; 6]);
        if answer < 0 {
            return (ChildStep::Session, raw::errno(answer));
        }
    }
    let answer = die_with_parent(plan);
    if answer < 0 {
        return (ChildStep::DieWithParent, raw::errno(answer));
    }
    // SAFETY: as the caller promises.
    let answer = unsafe { place_descriptors(plan) };
    if answer < 0 {
        return (ChildStep::Descriptors, raw::errno(answer));
    }
    let answer = call(
        libc::SYS_close_range,
        [plan.descriptor_count, raw::LAST_DESCRIPTOR, 0, 0, 0, 0],
    );
    if answer < 0 {
        return (ChildStep::Close, raw::errno(answer));
    }
    if plan.terminal {
        // Only now that it is descriptor 0: the request names the terminal of the session just made (tty_ioctl(4)).
        let answer = call(libc::SYS_ioctl, [0, terminal_request(), 0, 0, 0, 0]);
        if answer < 0 {
            return (ChildStep::Terminal, raw::errno(answer));
        }
    }
    if let Some(user) = plan.user {
        let bounding = plan.starter.map(|starter| starter.bounding);
        if let Err(errno) = become_user_with(user, bounding) {
            return (ChildStep::User, errno.raw_os_error());
        }
        // Changing the user has undone it (prctl(2)).
        let answer = die_with_parent(plan);
        if answer < 0 {
            return (ChildStep::DieWithParent, raw::errno(answer));
        }
    }
    if !plan.cwd.is_null() {
        let answer = call(libc::SYS_chdir, [plan.cwd.addr(), 0, 0, 0, 0, 0]);
        if answer < 0 {
            return (ChildStep::Directory, raw::errno(answer));
        }
    }
    unblock_signals();
    // SAFETY: as the caller promises.
    unsafe { execute(plan) }
}

fn die_with_parent(plan: &ChildPlan) -> isize {
    if !plan.die_with_parent {
        return 0;
    }
    call(
        libc::SYS_prctl,
        [word(libc::PR_SET_PDEATHSIG), word(libc::SIGKILL), 0, 0, 0, 0],
    )
}

#[expect(clippy::cast_possible_truncation, reason = "a 16-bit request")]
const fn terminal_request() -> usize {
    libc::TIOCSCTTY as usize
}

fn unblock_signals() {
    let none = 0_u64;
    let address = (&raw const none).addr();
    call(
        libc::SYS_rt_sigprocmask,
        [word(libc::SIG_SETMASK), address, 0, size_of::<u64>(), 0, 0],
    );
}

/// # Safety
/// `descriptors` points to `descriptor_count` numbers.
unsafe fn place_descriptors(plan: &ChildPlan) -> isize {
    let mut place = 0;
    while place < plan.descriptor_count {
        // SAFETY: `place` is below the count, as the caller promises.
        let from = unsafe { plan.descriptors.add(place) };
        // SAFETY: inside the array, see above.
        let from = unsafe { *from };
        // None of those still to come is overwritten, because they are all numbered above.
        let answer = call(libc::SYS_dup3, [word(from), place, 0, 0, 0, 0]);
        if answer < 0 {
            return answer;
        }
        place += 1;
    }
    0
}

#[expect(
    clippy::cast_sign_loss,
    reason = "the kernel reads it back as a signed 32-bit number"
)]
const AT_FDCWD: usize = libc::AT_FDCWD as usize;

/// Tries the candidates as a shell does: what is missing, is a directory or may not be executed is passed over, and
/// the last refusal is remembered.
///
/// # Safety
/// All pointers of the plan are valid.
unsafe fn execute(plan: &mut ChildPlan) -> (ChildStep, i32) {
    let mut refused = (ChildStep::NotFound, libc::ENOENT);
    let mut next = plan.candidates;
    loop {
        // SAFETY: the array ends with a null pointer, which is not passed.
        let candidate = unsafe { *next };
        if candidate.is_null() {
            return refused;
        }
        let answer = call(
            libc::SYS_execve,
            [candidate.addr(), plan.argv.addr(), plan.envp.addr(), 0, 0, 0],
        );
        match raw::errno(answer) {
            // There, but the interpreter or the loader that it names is not.
            libc::ENOENT if file_type(candidate).is_some() => return (ChildStep::Execute, libc::ENOENT),
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES if file_type(candidate) == Some(libc::S_IFDIR) => {
                if !plan.searched {
                    return (ChildStep::Execute, libc::EISDIR);
                }
            }
            libc::EACCES => refused = (ChildStep::Execute, libc::EACCES),
            libc::ENOEXEC if is_text(candidate) => {
                // SAFETY: as the caller promises; the array has at least two places.
                return (ChildStep::Execute, unsafe { execute_with_shell(plan, candidate) });
            }
            errno => return (ChildStep::Execute, errno),
        }
        // SAFETY: this was not the null pointer at the end.
        next = unsafe { next.add(1) };
    }
}

/// # Safety
/// `shell_argv` has at least two places and ends with a null pointer.
unsafe fn execute_with_shell(plan: &mut ChildPlan, script: *const u8) -> i32 {
    // SAFETY: as the caller promises.
    let place = unsafe { plan.shell_argv.add(1) };
    // SAFETY: as the caller promises.
    unsafe { *place = script };
    let shell = c"/bin/sh";
    let answer = call(
        libc::SYS_execve,
        [shell.as_ptr().addr(), plan.shell_argv.addr(), plan.envp.addr(), 0, 0, 0],
    );
    raw::errno(answer)
}

/// The type of what the path leads to, if there is anything.
fn file_type(path: *const u8) -> Option<libc::mode_t> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    let answer = call(
        libc::SYS_newfstatat,
        [AT_FDCWD, path.addr(), (&raw mut status).expose_provenance(), 0, 0, 0],
    );
    (answer == 0).then_some(status.st_mode & libc::S_IFMT)
}

/// Whether a file of unknown format is a script: no zero byte in its first line, which is the test that shells apply.
fn is_text(path: *const u8) -> bool {
    // It was a regular file a moment ago; should it be a FIFO now, opening must not wait for a writer.
    let flags = word(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = call(libc::SYS_openat, [AT_FDCWD, path.addr(), flags, 0, 0, 0]);
    let Ok(file) = usize::try_from(file) else {
        return false;
    };
    let mut start = [0_u8; 128];
    let length = call(
        libc::SYS_read,
        [file, start.as_mut_ptr().expose_provenance(), start.len(), 0, 0, 0],
    );
    call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    let Some(start) = usize::try_from(length).ok().and_then(|length| start.get(..length)) else {
        return false;
    };
    !start.iter().take_while(|byte| **byte != b'\n').any(|byte| *byte == 0)
}
