//! Signals as data: blocked, and read from a descriptor in the same loop as everything else.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// The signals that a run passes on to what runs for it.
pub const PASSED_ON: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGWINCH,
];

/// A descriptor from which the given signals are read instead of being delivered.
#[derive(Debug)]
pub struct SignalQueue {
    descriptor: OwnedFd,
}

impl SignalQueue {
    /// Blocks `signals` in this thread and opens a queue of them (signalfd(2)).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = signal_set(signals);
        // SAFETY: `set` is initialised and only read; the old mask is not asked for.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: `set` is initialised and only read.
        let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor })
    }

    /// The next signal's number, or `None` when there is none now.
    ///
    /// # Errors
    /// What read(2) answers.
    pub fn next(&self) -> io::Result<Option<i32>> {
        let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.descriptor, &mut record) {
            // The signal's number is the first field (signalfd(2)).
            Ok(length) if length >= 4 => Ok(Some(i32::from_ne_bytes([record[0], record[1], record[2], record[3]]))),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Unblocks every signal and restores the default action of those that this process may have changed.
///
/// # Errors
/// What the kernel answered.
pub fn reset() -> io::Result<()> {
    for signal in 1..=31 {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            // SAFETY: `SIG_DFL` is a valid action of every signal that can be changed.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    let none = signal_set(&[]);
    // SAFETY: `none` is initialised and only read.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(result))
    }
}

/// Has a write beyond the size that files of this process may have fail (`EFBIG`), instead of ending it by SIGXFSZ. What it
/// starts in a sandbox has that signal's usual action.
pub fn outlive_file_sizes() {
    // SAFETY: `SIG_IGN` is a valid action of this signal, which is not waited for.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Stops this process as job control would, and returns when it is continued.
pub fn stop_self() {
    // SAFETY: raising a signal touches no memory of ours.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: the set was initialised above; an unknown number is refused without touching it.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: initialised by `sigemptyset`.
    unsafe { set.assume_init() }
}

/// The name of a signal, such as `SIGTERM`; `SIG64` style for those without one.
pub fn name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(signal)
        .ok()
        .and_then(|number| NAMES.get(number.wrapping_sub(1)))
    {
        Some(name) => format!("SIG{name}"),
        None => format!("SIG{signal}"),
    }
}
