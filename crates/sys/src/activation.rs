//! Sockets that the service manager made for us (sd_listen_fds(3)).

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first descriptor that is handed over.
const FIRST: i32 = 3;
/// More than any unit has; so many numbers are looked at.
const MAX_COUNT: i32 = 64;

/// Whether they were taken; a descriptor has one owner.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the sockets that `LISTEN_PID` and `LISTEN_FDS` speak of; none when they speak of another process, and none the
/// second time.
///
/// # Errors
/// `InvalidInput` when the variables make no sense or a descriptor is not open.
pub fn take_sockets() -> io::Result<Vec<OwnedFd>> {
    let for_us = variable("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    if !for_us || TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let count = variable("LISTEN_FDS").and_then(|count| count.parse::<i32>().ok());
    let count = count
        .filter(|count| (0..=MAX_COUNT).contains(count))
        .ok_or(io::ErrorKind::InvalidInput)?;
    (FIRST..FIRST + count).map(take).collect()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn take(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: whether it is open is asked before it is owned.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if open < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is open, the protocol says that it is ours, and `TAKEN` that nobody has taken it before.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // What is started later must not get it.
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}
