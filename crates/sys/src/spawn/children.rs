//! The children of this process: their signals, and what is known of them once they ended.

use alloc::vec::Vec;

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use super::raw::{self, checked};

/// A child that ended and was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedChild {
    /// Its process id, which may be used again from now on.
    pub pid: i32,
    /// How it ended.
    pub how: EndedAs,
    /// CPU time in user mode in microseconds, with that of the descendants it waited for.
    pub user_us: u64,
    /// CPU time in the kernel, likewise.
    pub system_us: u64,
    /// Largest resident set in KiB, of it or of a descendant it waited for.
    pub max_rss_kib: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedAs {
    /// It returned this code.
    Exited(u8),
    /// This signal killed it.
    Signaled(i32),
}

/// Reaps one child that has ended; `None` if none has. A process that adopts orphans gets them here too.
///
/// # Errors
/// `ECHILD` if there are no children at all.
pub fn reap() -> Result<Option<EndedChild>, Errno> {
    wait4(-1, libc::WNOHANG | libc::__WALL)
}

/// Waits for a child that is about to end.
pub(super) fn wait_for(pid: i32) {
    while wait4(pid, libc::__WALL) == Err(Errno::INTR) {}
}

#[expect(
    clippy::cast_sign_loss,
    reason = "the kernel reads both back as signed 32-bit numbers"
)]
fn wait4(pid: i32, options: i32) -> Result<Option<EndedChild>, Errno> {
    let mut status = 0_i32;
    // SAFETY: all fields are integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    let places = [
        (&raw mut status).expose_provenance(),
        (&raw mut usage).expose_provenance(),
    ];
    // SAFETY: both addresses are of variables of the type that wait4(2) writes.
    let answer = unsafe {
        raw::call(
            libc::SYS_wait4,
            [pid as usize, places[0], options as usize, places[1], 0, 0],
        )
    };
    let pid = i32::try_from(checked(answer)?).unwrap_or(0);
    Ok((pid != 0).then(|| EndedChild {
        pid,
        how: ended_as(status),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    }))
}

fn ended_as(status: i32) -> EndedAs {
    if libc::WIFEXITED(status) {
        EndedAs::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    } else {
        EndedAs::Signaled(libc::WTERMSIG(status))
    }
}

fn micros(time: libc::timeval) -> u64 {
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    number(time.tv_sec) * 1_000_000 + number(time.tv_usec)
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalTarget {
    /// The process.
    Process(i32),
    /// Every process of the group.
    Group(i32),
    /// Every process that can be reached but the caller; in a pid namespace, all of it but its init.
    All,
}

/// Sends a signal (kill(2)).
///
/// # Errors
/// `ESRCH` if there is nobody, `EINVAL` for an unknown signal or a process id that is not positive.
#[expect(
    clippy::cast_sign_loss,
    reason = "the kernel reads both back as signed 32-bit numbers"
)]
pub fn signal(whom: SignalTarget, signal: i32) -> Result<(), Errno> {
    let target = match whom {
        SignalTarget::All => -1,
        // Zero and the negative numbers mean something else to the kernel, and a group 1 would be everything.
        SignalTarget::Process(pid) if pid > 0 => pid,
        SignalTarget::Group(group) if group > 1 => -group,
        SignalTarget::Process(_) | SignalTarget::Group(_) => return Err(Errno::INVAL),
    };
    // SAFETY: no address is passed.
    let answer = unsafe { raw::call(libc::SYS_kill, [target as usize, signal as usize, 0, 0, 0, 0]) };
    checked(answer).map(|_| ())
}

/// Takes over a descriptor that this program was started with, under a new number and closed at exec.
///
/// The old number is closed, so this is for the start of a program, before anything else owns it.
///
/// # Errors
/// `EBADF` if it is not open, `EMFILE`.
pub fn adopt_descriptor(number: RawFd) -> Result<OwnedFd, Errno> {
    let copy = copy_descriptor(number)?;
    let number = usize::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: no address is passed; nothing in this program owns the number, as the description demands.
    unsafe { raw::call(libc::SYS_close, [number, 0, 0, 0, 0, 0]) };
    Ok(copy)
}

/// A copy, closed at exec, of a descriptor that this program was started with, such as its standard streams.
///
/// # Errors
/// `EBADF` if it is not open, `EMFILE`.
pub fn copy_descriptor(number: RawFd) -> Result<OwnedFd, Errno> {
    let number = usize::try_from(number).map_err(|_| Errno::BADF)?;
    let command = usize::try_from(libc::F_DUPFD_CLOEXEC).unwrap_or(0);
    // SAFETY: no address is passed; a descriptor that is not open is an error.
    let copy = checked(unsafe { raw::call(libc::SYS_fcntl, [number, command, 3, 0, 0, 0]) })?;
    // SAFETY: the call above returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(copy).unwrap_or(-1)) })
}

/// Every signal as something to read: none is delivered any more, whatever its action.
#[derive(Debug)]
pub struct SignalQueue {
    descriptor: OwnedFd,
}

impl SignalQueue {
    /// Blocks every signal in this thread and opens a queue of them (signalfd(2)).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn of_all() -> Result<Self, Errno> {
        block_all_signals();
        let all = u64::MAX;
        let flags = usize::try_from(libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).unwrap_or(0);
        let arguments = [
            usize::MAX,
            (&raw const all).expose_provenance(),
            size_of::<u64>(),
            flags,
            0,
            0,
        ];
        // SAFETY: the address is of a set of the size that is passed.
        let descriptor = checked(unsafe { raw::call(libc::SYS_signalfd4, arguments) })?;
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(descriptor).unwrap_or(-1)) };
        Ok(Self { descriptor })
    }

    /// The next signal's number; `None` if there is none now.
    pub fn next(&self) -> Option<i32> {
        let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.descriptor, &mut record).ok()?;
        // The signal's number is the first field (signalfd(2)).
        let number = record.first_chunk::<4>().filter(|_| length == record.len())?;
        Some(i32::from_ne_bytes(*number))
    }

    /// Takes what is queued and forgets it.
    pub fn clear(&self) {
        let mut records = [0_u8; 8 * size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.descriptor, &mut records).is_ok_and(|length| length == records.len()) {}
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Blocks every signal and answers what was blocked before.
///
/// By system call, because the C library leaves two of its own unblocked.
pub(super) fn block_all_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0_u64);
    set_signal_mask(&all, &raw mut before);
    before
}

pub(super) fn restore_signals(before: u64) {
    set_signal_mask(&before, core::ptr::null_mut());
}

fn set_signal_mask(mask: &u64, before: *mut u64) {
    let how = usize::try_from(libc::SIG_SETMASK).unwrap_or(0);
    let addresses = [
        core::ptr::from_ref(mask).expose_provenance(),
        before.expose_provenance(),
    ];
    // SAFETY: the first address is of a set of the size that is passed; the second too, or is null.
    unsafe {
        raw::call(
            libc::SYS_rt_sigprocmask,
            [how, addresses[0], addresses[1], size_of::<u64>(), 0, 0],
        )
    };
}

/// Appends a number in decimal.
pub fn append_decimal(text: &mut Vec<u8>, number: u32) {
    if number >= 10 {
        append_decimal(text, number / 10);
    }
    text.push(b'0' + u8::try_from(number % 10).unwrap_or(0));
}
