//! The first process of a sandbox whose user and process ids are those of another sandbox's, once more divided.
//!
//! A process without any capability may enter the namespaces of a sandbox if it is in the user namespace above that and
//! its user made it (user_namespaces(7)). So the namespaces are made from there, by that user: a helper enters both
//! namespaces, and a second one, which is really in them (a process changes its process ids only for its children), makes
//! the new ones. The first process is made a sibling each time, so that it is a child of ours all the same.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};
use rustix::thread::ThreadNameSpaceType;

use super::{ForkedChild, IdMap, NamespaceSet, caught, clone3, exit_now, thread_count, write_id_maps};
use crate::{credentials, socket};

/// Below which sandbox a process is to start, and how.
#[derive(Debug)]
pub struct NestedStart<'a> {
    /// The other sandbox's first process, by its pidfd; over its user namespace we have every capability.
    pub first: BorrowedFd<'a>,
    /// The user and group that the new namespaces belong to, as the other sandbox counts them.
    pub owner: (u32, u32),
    /// User ids, with those of the other sandbox as the outer ones.
    pub uid_map: &'a [IdMap],
    /// Group ids, likewise.
    pub gid_map: &'a [IdMap],
    /// As for [`write_id_maps`].
    pub deny_setgroups: bool,
}

/// From a helper: the other one's process id in our namespace.
const HELPER: u8 = b'H';
/// The first process is there, and its ids are mapped; its pidfd goes with it.
const MADE: u8 = b'M';
/// It failed; the error's number follows, and with it may go the pidfd of a process that is of no use.
const FAILED: u8 = b'F';

/// As [`fork_into`](super::fork_into) for a process below another sandbox, with a user and process ids of its own among
/// those that `namespaces` names. Its ids are mapped when it starts.
///
/// `setns` with a pidfd since Linux 5.8 (setns(2)).
///
/// # Errors
/// As [`fork_into`](super::fork_into); `ESRCH` when the other sandbox is gone, `EPERM` when it is none of ours.
pub fn fork_below(
    below: &NestedStart<'_>,
    namespaces: NamespaceSet,
    body: impl FnOnce() -> i32,
) -> io::Result<ForkedChild> {
    if thread_count()? != 1 {
        return Err(Errno::DEADLK.into());
    }
    let (ours, theirs) = socket::message_pair()?;
    let mut unused = -1;
    let first_helper = match clone3(0, None, &mut unused)? {
        None => {
            drop(ours);
            exit_now(match enter(below, namespaces, theirs, body) {
                Ok(never) => match never {},
                Err(code) => code,
            })
        }
        Some(pid) => pid,
    };
    drop(theirs);
    drop(taken(unused));
    let made = hear(&ours);
    drop(ours);
    reap(first_helper);
    made
}

/// The pidfd of a process that [`clone3`] made, once.
fn taken(pidfd: RawFd) -> OwnedFd {
    // SAFETY: the kernel stored a new descriptor here that nobody else owns (CLONE_PIDFD, clone(2)).
    unsafe { OwnedFd::from_raw_fd(pidfd) }
}

fn reap(pid: Pid) {
    // It fails only if somebody else reaped it.
    let _reaped = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
}

/// What the helpers say, until one of them is done; reaps the second one.
fn hear(socket: &OwnedFd) -> io::Result<ForkedChild> {
    let (mut second, mut made) = (None, None);
    // In either order, and the first helper may be the only one.
    while second.is_none() || made.is_none() {
        let mut buffer = [0; 8];
        let Ok((length, descriptors)) = socket::receive(socket.as_fd(), &mut buffer) else {
            break;
        };
        let pidfd = descriptors.into_iter().next();
        match (buffer.get(..length).unwrap_or_default(), pidfd) {
            (&[HELPER, a, b, c, d], None) => second = Pid::from_raw(i32::from_ne_bytes([a, b, c, d])),
            ([MADE], Some(pidfd)) => made = Some(number_of(&pidfd).map(|pid| ForkedChild { pid, pidfd })),
            (&[FAILED, a, b, c, d], useless) => {
                useless.into_iter().for_each(end);
                made = Some(Err(io::Error::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]))));
            }
            // Both are gone.
            _ => break,
        }
    }
    second.into_iter().for_each(reap);
    made.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
}

fn end(useless: OwnedFd) {
    // It fails only if it has ended; the kernel reaps for us should the rest fail.
    let _killed = rustix::process::pidfd_send_signal(&useless, Signal::KILL);
    if let Ok(pid) = number_of(&useless) {
        reap(pid);
    }
}

/// The process id, in our namespace, of a process that was not reaped.
///
/// # Errors
/// `ESRCH` for one that is in none below ours, or is gone.
pub fn number_of(pidfd: &OwnedFd) -> io::Result<Pid> {
    let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = number
        .and_then(|number| number.trim().parse().ok())
        .filter(|pid| *pid > 0);
    Ok(number.and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
}

/// The first helper: enters both namespaces, and starts the second one in them.
fn enter(
    below: &NestedStart<'_>,
    namespaces: NamespaceSet,
    socket: OwnedFd,
    body: impl FnOnce() -> i32,
) -> Result<std::convert::Infallible, i32> {
    let both = ThreadNameSpaceType::USER | ThreadNameSpaceType::PROCESS_ID;
    let entered = rustix::thread::move_into_thread_name_spaces(below.first, both).map_err(io::Error::from);
    let mut unused = -1;
    match entered.and_then(|()| clone3(libc::CLONE_PARENT, None, &mut unused)) {
        Ok(None) => match make(below, namespaces, &socket) {
            Ok(Some(pidfd)) => {
                // Nobody is left to be told if this fails; the supervisor then sees the socket close.
                let _told = socket::send(socket.as_fd(), &[MADE], &[pidfd.as_fd()]);
                Err(0)
            }
            Ok(None) => {
                drop(socket);
                Err(caught(body))
            }
            Err(error) => Err(tell_failure(&socket, &error, None)),
        },
        Ok(Some(second)) => {
            let message = [&[HELPER], second.as_raw_pid().to_ne_bytes().as_slice()].concat();
            let _told = socket::send(socket.as_fd(), &message, &[]);
            Err(0)
        }
        Err(error) => Err(tell_failure(&socket, &error, None)),
    }
}

fn tell_failure(socket: &OwnedFd, error: &io::Error, useless: Option<&OwnedFd>) -> i32 {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let message = [&[FAILED], errno.to_ne_bytes().as_slice()].concat();
    let useless: Vec<BorrowedFd<'_>> = useless.iter().map(|useless| useless.as_fd()).collect();
    let _told = socket::send(socket.as_fd(), &message, &useless);
    125
}

/// The second helper: makes the first process, in which `None` is answered, and maps its ids.
fn make(below: &NestedStart<'_>, namespaces: NamespaceSet, socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let (uid, gid) = below.owner;
    credentials::become_user(uid, gid)?;
    // The files in `/proc` of what follows would otherwise belong to the host's root, who is nobody here.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let mut pidfd = -1;
    match clone3(namespaces.clone_flags() | libc::CLONE_PARENT, None, &mut pidfd)? {
        None => Ok(None),
        Some(_in_theirs) => {
            let pidfd = taken(pidfd);
            // What is mounted at `/proc` counts processes as the supervisor does.
            let mapped = number_of(&pidfd)
                .and_then(|pid| write_id_maps(pid, below.uid_map, below.gid_map, below.deny_setgroups));
            match mapped {
                Ok(()) => Ok(Some(pidfd)),
                Err(error) => exit_now(tell_failure(socket, &error, Some(&pidfd))),
            }
        }
    }
}
