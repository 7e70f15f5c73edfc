//! Starts programs and waits for them.
//!
//! A program gets exactly the descriptors, the environment and the directory that it is given, with every signal at
//! its default action and unblocked; nothing of the starter's leaks into it. The child is made with
//! `CLONE_VM | CLONE_VFORK` on a stack of its own, which copies no page tables, and tells why it could not start
//! through the memory that it shares. Works without a C library, because the guest has none. Deliberately not here:
//! namespaces and what else makes a sandbox.

mod child;
mod children;
pub(crate) mod raw;
mod starter;
mod strings;
mod user;
mod worker;

use alloc::vec::Vec;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use child::{ChildPlan, ChildStep};
pub use children::{
    EndedAs, EndedChild, SignalQueue, SignalTarget, adopt_descriptor, append_decimal, copy_descriptor, reap, signal,
};
pub use starter::ChildStarter;
use strings::CStringArray;
pub use user::{SpawnUser, become_user, become_user_keeping};
pub use worker::{fork_process, fork_worker};

/// A program to start.
#[derive(Debug, Clone, Copy)]
pub struct SpawnCommand<'a> {
    /// Program and arguments; a program without a slash is looked up in the `PATH` of `env`.
    pub argv: &'a [Vec<u8>],
    /// The whole environment.
    pub env: &'a [(Vec<u8>, Vec<u8>)],
    /// Directory to enter first; the starter's own if `None`.
    pub cwd: Option<&'a [u8]>,
    /// What becomes descriptor 0, 1, 2 and so on; every other one is closed.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// In which session it runs.
    pub session: SessionChoice,
    /// What happens when the thread that starts it ends.
    pub orphaned: OrphanFate,
    /// As whom it runs ([`become_user`]); as the starter if `None`. The directory is entered as that user.
    pub user: Option<SpawnUser>,
}

/// In which session a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionChoice {
    /// The starter's, in its process group.
    Same,
    /// A new one without a terminal.
    New,
    /// A new one, with descriptor 0 as its terminal.
    WithTerminal,
}

/// What happens to a program when the thread that started it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanFate {
    /// It goes on.
    Lives,
    /// The kernel kills it (`PR_SET_PDEATHSIG`).
    Dies,
}

/// A program that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpawnedChild {
    /// Its process id; not reaped yet.
    pub pid: i32,
}

/// Why a program could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpawnError {
    /// No such program.
    #[error("not found")]
    NotFound,
    /// It exists and cannot be executed.
    #[error("cannot be executed: {errno}")]
    NotExecutable {
        /// `EISDIR` for a directory, `EACCES` without an execute bit, `ENOEXEC` for an unknown format, `ENOENT` when
        /// the interpreter or loader that it names is missing, `E2BIG` …
        errno: Errno,
    },
    /// The working directory cannot be entered.
    #[error("cannot enter the working directory: {errno}")]
    Directory {
        /// What the kernel said.
        errno: Errno,
    },
    /// Another call failed.
    #[error("{step}: {errno}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Where a program without a slash is looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// Longest name of a file and longest path (limits.h), beyond which nothing can be found.
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;

/// The child's stack. It holds a `stat`, a short buffer and a few frames; the rest is margin.
const STACK: usize = 32 * 1024;

/// Starts a program and returns once it has been exec'd.
///
/// A file without a known format that is text is run by `/bin/sh`, as shells do. A `PATH` entry that is empty is
/// passed over: it would mean the working directory.
///
/// # Errors
/// As the variants say. The child of a failed start has been reaped.
pub fn spawn(request: &SpawnCommand<'_>) -> Result<SpawnedChild, SpawnError> {
    spawn_by(None, None, request)
}

/// As [`spawn`], of the program at the path `file`, whatever its name among the arguments is: the one that lists of processes
/// show.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_file(file: &[u8], request: &SpawnCommand<'_>) -> Result<SpawnedChild, SpawnError> {
    spawn_by(None, Some(file), request)
}

fn spawn_by(
    starter: Option<ChildStarter>,
    file: Option<&[u8]>,
    request: &SpawnCommand<'_>,
) -> Result<SpawnedChild, SpawnError> {
    let invalid = |step| SpawnError::Step {
        step,
        errno: Errno::INVAL,
    };
    let program = request
        .argv
        .first()
        .filter(|program| !program.is_empty())
        .ok_or(SpawnError::NotFound)?;
    let argv = CStringArray::new(request.argv.iter().map(|argument| [&argument[..]])).ok_or(invalid("arguments"))?;
    let env = environment(request.env).ok_or(invalid("environment"))?;
    let cwd = CStringArray::new(request.cwd.iter().map(|path| [*path]))
        .ok_or(SpawnError::Directory { errno: Errno::INVAL })?;
    let searched = file.is_none() && !program.contains(&b'/');
    let candidates = candidates(file.unwrap_or(program), searched, request.env).ok_or(SpawnError::NotFound)?;
    let mut shell_argv = vec_of_shell(&argv);
    let sources =
        DescriptorSources::new(request.descriptors).map_err(|errno| SpawnError::Step { step: "dup", errno })?;

    let mut plan = ChildPlan {
        argv: argv.as_ptr(),
        envp: env.as_ptr(),
        candidates: candidates.as_ptr(),
        searched,
        shell_argv: shell_argv.as_mut_ptr(),
        // SAFETY: the array has at least the null pointer at its end.
        cwd: unsafe { *cwd.as_ptr() },
        descriptors: sources.numbers.as_ptr(),
        descriptor_count: sources.numbers.len(),
        new_session: request.session != SessionChoice::Same,
        terminal: request.session == SessionChoice::WithTerminal,
        die_with_parent: request.orphaned == OrphanFate::Dies,
        user: request.user,
        starter,
        failed: ChildStep::None,
        errno: 0,
    };
    let pid = start(&mut plan).map_err(|errno| SpawnError::Step { step: "clone", errno })?;
    if plan.failed == ChildStep::None {
        return Ok(SpawnedChild { pid });
    }
    children::wait_for(pid);
    Err(failure(plan.failed, plan.errno))
}

/// Makes the child, and sleeps until it has been exec'd or has failed.
fn start(plan: &mut ChildPlan) -> Result<i32, Errno> {
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(STACK / size_of::<u128>());
    // SAFETY: one past the end of the allocation; of type `u128`, hence aligned to 16 bytes.
    let top = unsafe { stack.as_mut_ptr().add(stack.capacity()) };
    // Blocked until the child has reset its actions: a handler must not run in the child, on memory of the parent.
    let before = children::block_all_signals();
    // SAFETY: the stack is ours alone and lives until the call returns; `child::run` keeps the rules of such a child,
    // and the plan, with all that it points to, is borrowed by our caller meanwhile.
    let answer = unsafe { raw::clone_and_wait(top.cast(), child::run, ptr::from_mut(plan).cast()) };
    children::restore_signals(before);
    raw::checked(answer).map(|pid| i32::try_from(pid).unwrap_or(0))
}

fn failure(step: ChildStep, errno: i32) -> SpawnError {
    let errno = Errno::from_raw_os_error(errno);
    match step {
        ChildStep::NotFound => SpawnError::NotFound,
        ChildStep::Execute => SpawnError::NotExecutable { errno },
        ChildStep::Directory => SpawnError::Directory { errno },
        ChildStep::Session => SpawnError::Step { step: "setsid", errno },
        ChildStep::DieWithParent => SpawnError::Step {
            step: "prctl(PR_SET_PDEATHSIG)",
            errno,
        },
        ChildStep::Terminal => SpawnError::Step {
            step: "ioctl(TIOCSCTTY)",
            errno,
        },
        ChildStep::User => SpawnError::Step {
            step: "change the user",
            errno,
        },
        ChildStep::Descriptors => SpawnError::Step { step: "dup3", errno },
        ChildStep::Close => SpawnError::Step {
            step: "close_range",
            errno,
        },
        ChildStep::None => SpawnError::Step { step: "execve", errno },
    }
}

/// `None` if a name or value cannot be in an environment.
fn environment(env: &[(Vec<u8>, Vec<u8>)]) -> Option<CStringArray> {
    if env.iter().any(|(name, _)| name.is_empty() || name.contains(&b'=')) {
        return None;
    }
    CStringArray::new(env.iter().map(|(name, value)| [&name[..], b"=", value]))
}

/// The paths to try; `None` if there cannot be such a program.
fn candidates(program: &[u8], searched: bool, env: &[(Vec<u8>, Vec<u8>)]) -> Option<CStringArray> {
    if !searched {
        return CStringArray::new([[program]].into_iter());
    }
    if program.len() > NAME_MAX {
        return None;
    }
    let path = env
        .iter()
        .find(|(name, _)| name == b"PATH")
        .map_or(DEFAULT_PATH, |(_, path)| path);
    let directories = path.split(|byte| *byte == b':').filter(|directory| {
        !directory.is_empty() && directory.len() + 1 + program.len() < PATH_MAX && !directory.contains(&0)
    });
    CStringArray::new(directories.map(|directory| [directory, b"/", program]))
}

/// `sh`, a place for the script's path, and the arguments behind the program's name.
fn vec_of_shell(argv: &CStringArray) -> Vec<*const u8> {
    let mut shell = Vec::with_capacity(argv.len() + 2);
    shell.push(c"sh".as_ptr().cast());
    shell.push(ptr::null());
    shell.extend_from_slice(argv.rest());
    shell
}

/// Descriptors that are numbered high enough for none to be overwritten while they are put in their places.
struct DescriptorSources {
    numbers: Vec<c_int>,
    #[expect(dead_code, reason = "holds the copies open until the child has its own")]
    copies: Vec<OwnedFd>,
}

impl DescriptorSources {
    fn new(descriptors: &[BorrowedFd<'_>]) -> Result<Self, Errno> {
        let lowest = c_int::try_from(descriptors.len()).map_err(|_| Errno::MFILE)?;
        let (mut numbers, mut copies) = (Vec::with_capacity(descriptors.len()), Vec::new());
        for descriptor in descriptors {
            if descriptor.as_raw_fd() >= lowest {
                numbers.push(descriptor.as_raw_fd());
            } else {
                let copy = rustix::io::fcntl_dupfd_cloexec(descriptor, lowest)?;
                numbers.push(copy.as_raw_fd());
                copies.push(copy);
            }
        }
        Ok(Self { numbers, copies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_tried_in_each_named_directory() {
        let long = "d".repeat(PATH_MAX);
        let path = alloc::format!(":/a::{long}:b/c:");
        let env = [
            (b"PATH".to_vec(), path.into_bytes()),
            (b"PATH".to_vec(), b"/second".to_vec()),
        ];
        assert_eq!(candidates(b"x", true, &env).expect("no zero byte").len(), 2);
        assert_eq!(candidates(b"./x", false, &env).expect("no zero byte").len(), 1);
        assert_eq!(candidates(b"x", true, &[]).expect("no zero byte").len(), 3);
        assert!(candidates(&[b'x'; 256], true, &env).is_none());
        assert!(candidates(b"x\0y", true, &env).is_none());
    }

    #[test]
    fn strings_are_laid_out_for_execve() {
        let strings = CStringArray::new([[&b"A"[..], b"=1"], [b"", b""]].into_iter()).expect("no zero byte");
        let first = strings.as_ptr();
        // SAFETY: there are two strings and the null pointer.
        let pointers = unsafe { core::slice::from_raw_parts(first, 3) };
        // SAFETY: ended by a zero byte, and `strings` lives on.
        assert_eq!(unsafe { core::ffi::CStr::from_ptr(pointers[0].cast()) }, c"A=1");
        // SAFETY: as above.
        assert_eq!(unsafe { core::ffi::CStr::from_ptr(pointers[1].cast()) }, c"");
        assert!(pointers[2].is_null() && strings.len() == 2 && strings.rest() == &pointers[1..]);
    }
}
