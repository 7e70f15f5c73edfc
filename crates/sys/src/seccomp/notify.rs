//! The supervisor's end: refused calls arrive here, are recorded by the caller, and answered.
//!
//! A refused call is never let through: its arguments may point at memory that the program changes after we looked
//! (seccomp_unotify(2)), so [`NotifyListener::proceed`] is only for calls of which nothing depends on the answer. A call that
//! is left to the supervisor is carried out by it, on what it read itself ([`NotifyListener::complete`]).
//! Deliberately not here: the loop, the record, the policy.

use std::ffi::OsStr;
use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rule::{CallRefusal, CallRule};
use super::{conditions, low_half, table};

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE` (`include/uapi/linux/seccomp.h`).
const CONTINUE: u32 = 1;

/// Where the kernel tells of calls that the filter refuses or observes.
///
/// Readable when a call waits; hung up when no program is left under the filter.
#[derive(Debug)]
pub struct NotifyListener(OwnedFd);

impl AsFd for NotifyListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for NotifyListener {
    fn from(descriptor: OwnedFd) -> NotifyListener {
        NotifyListener(descriptor)
    }
}

impl From<NotifyListener> for OwnedFd {
    fn from(listener: NotifyListener) -> OwnedFd {
        listener.0
    }
}

impl NotifyListener {
    /// Lets whoever waits here, and the program after its answer, run on each other's processor: one of both has nothing to
    /// do at any time, and a call that is told takes half as long. A kernel before Linux 6.6 does not know of it.
    pub fn take_turns(&self) {
        const SET_FLAGS: libc::c_ulong = 0x4008_2104; // SECCOMP_IOCTL_NOTIF_SET_FLAGS (include/uapi/linux/seccomp.h)
        const SYNC_WAKE_UP: libc::c_ulong = 1; // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
        // SAFETY: the flags are the argument itself, and no memory is touched (kernel/seccomp.c, Linux 6.6). What a kernel
        // answers that does not know them changes nothing.
        let _known = unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Takes the next call that waits; never blocks.
    ///
    /// `None` if none waits, or if its program was killed in the meantime.
    ///
    /// # Errors
    /// What poll(2) and seccomp_unotify(2) answer; `NotConnected` on newer kernels when no program is left.
    pub fn receive(&self) -> io::Result<Option<CallNotification>> {
        if !self.call_waits()? {
            return Ok(None);
        }
        // SAFETY: `seccomp_notif` is plain data, for which all bits zero is a value; the kernel demands zeroes.
        let mut notif: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one `seccomp_notif`, whose size is part of the request's number, into `notif`
        // (seccomp_unotify(2), Linux 5.0).
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notif) };
        if result == 0 {
            return Ok(Some(CallNotification::from_kernel(&notif)));
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN | libc::EINTR)) => Ok(None),
            error => Err(error),
        }
    }

    /// Lets the call fail with the error that the table has for it.
    ///
    /// # Errors
    /// What seccomp_unotify(2) answers. A program that is gone is no error.
    pub fn refuse(&self, notification: &CallNotification) -> io::Result<()> {
        self.answer(notification, -notification.errno(), 0)
    }

    /// Lets the kernel carry the call out.
    ///
    /// Only for calls that the filter observes, offers or asks to admit; refuses the others whatever the caller meant.
    ///
    /// # Errors
    /// As [`NotifyListener::refuse`].
    pub fn proceed(&self, notification: &CallNotification) -> io::Result<()> {
        if !notification.observed() && !notification.forks() && !notification.offered() {
            return self.refuse(notification);
        }
        self.answer(notification, 0, CONTINUE)
    }

    /// Has a call that makes a process fail for now.
    ///
    /// # Errors
    /// As [`NotifyListener::refuse`].
    pub fn postpone(&self, notification: &CallNotification) -> io::Result<()> {
        if notification.forks() {
            self.answer(notification, -libc::EAGAIN, 0)
        } else {
            self.refuse(notification)
        }
    }

    /// Answers a call that the supervisor carried out itself: it succeeds with 0, or fails with this error.
    ///
    /// Only for calls that the filter leaves or offers to the supervisor; refuses the others whatever the caller meant.
    ///
    /// # Errors
    /// As [`NotifyListener::refuse`].
    pub fn complete(&self, notification: &CallNotification, outcome: Result<(), rustix::io::Errno>) -> io::Result<()> {
        match outcome {
            _ if !notification.mediated() && !notification.offered() => self.refuse(notification),
            Ok(()) => self.answer(notification, 0, 0),
            Err(error) => self.answer(notification, -error.raw_os_error(), 0),
        }
    }

    /// Answers a call of [`super::compile_hypervisor`] with a copy of `descriptor`, which stays open when the program
    /// becomes another.
    ///
    /// # Errors
    /// What seccomp_unotify(2) answers: `EINVAL` before Linux 5.14. A program that is gone is no error.
    pub fn supply(&self, notification: &CallNotification, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let flags = u32::try_from(libc::SECCOMP_ADDFD_FLAG_SEND).unwrap_or(0);
        let supplied = libc::seccomp_notif_addfd {
            id: notification.id,
            flags,
            srcfd: descriptor.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: 0,
        };
        // SAFETY: the kernel reads one `seccomp_notif_addfd`, whose size is part of the request's number, from `supplied`
        // (seccomp_unotify(2), Linux 5.9).
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const supplied) };
        if result >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        }
    }

    /// Answers a program that asks how much memory there is: what the kernel says of the machine, but for these figures.
    ///
    /// Writes into the memory of that program, where it asked for it. Where that cannot be, and without figures, the kernel
    /// answers what it says to everybody; nothing else depends on it.
    ///
    /// # Errors
    /// As [`NotifyListener::refuse`].
    pub fn tell_memory(&self, notification: &CallNotification, shown: Option<&MemoryFigures>) -> io::Result<()> {
        if !notification.asks_for_memory() {
            return self.refuse(notification);
        }
        let write = |shown| self.write_to_caller(notification, notification.args[0], &sysinfo_with(shown));
        match shown.is_some_and(write) {
            true => self.answer(notification, 0, 0),
            false => self.answer(notification, 0, CONTINUE),
        }
    }

    /// Writes into the memory of the program that waits; answers whether all of it was written.
    ///
    /// The memory is opened first, and is the caller's if that still waits then: a descriptor stays that of one memory,
    /// where the number of a process may become another's at any time.
    fn write_to_caller(&self, notification: &CallNotification, address: u64, bytes: &[u8]) -> bool {
        let path = format!("/proc/{}/mem", notification.pid);
        let opened = std::fs::OpenOptions::new().write(true).open(path);
        let memory = opened.ok().filter(|_| self.still_waits_for(notification));
        memory.is_some_and(|memory| memory.write_all_at(bytes, address).is_ok())
    }

    /// Whether the program still waits for the answer. If it does, what was found out about its process before this
    /// question was about that process, and not about another with its number.
    pub fn still_waits_for(&self, notification: &CallNotification) -> bool {
        self.still_waits(notification.id)
    }

    fn answer(&self, notification: &CallNotification, error: i32, flags: u32) -> io::Result<()> {
        let response = libc::seccomp_notif_resp {
            id: notification.id,
            val: 0,
            error,
            flags,
        };
        // SAFETY: the kernel reads one `seccomp_notif_resp` from `response` (seccomp_unotify(2), Linux 5.0).
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        }
    }

    fn call_waits(&self) -> io::Result<bool> {
        let mut listener = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut listener, Some(&now)) {
            Ok(_) => Ok(listener[0].revents().contains(PollFlags::IN)),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the program still waits in this call; until then its process id has not been given to another.
    fn still_waits(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one `u64` from `id` (seccomp_unotify(2), Linux 5.0).
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) };
        result == 0
    }
}

/// A call that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallNotification {
    /// The kernel's number for this call.
    pub id: u64,
    /// The calling thread, as the supervisor sees it; 0 if it cannot.
    pub pid: u32,
    /// The system call's number.
    pub number: u32,
    /// Its arguments, as the program passed them.
    pub args: [u64; 6],
}

impl CallNotification {
    fn from_kernel(notif: &libc::seccomp_notif) -> CallNotification {
        let number = notif.data.nr.cast_unsigned();
        CallNotification {
            id: notif.id,
            pid: notif.pid,
            number,
            args: notif.data.args,
        }
    }

    /// The call's name, as in its manual page.
    pub fn name(&self) -> &'static str {
        self.entry().map_or("unknown", |entry| entry.name)
    }

    /// What refused the call, for the record: `seccomp: mount (changes the mount table)`.
    pub fn rule(&self) -> String {
        format!("seccomp: {} ({})", self.name(), self.reason())
    }

    /// The error that [`NotifyListener::refuse`] gives to the program.
    pub fn errno(&self) -> i32 {
        self.refusal().map_or(libc::EPERM, |refusal| i32::from(refusal.errno))
    }

    /// Where a `connect` wants to go.
    ///
    /// For the record only: the program may change the address after this look at it. `None` if the call is not a
    /// `connect`, or if the program is gone.
    ///
    /// # Errors
    /// What process_vm_readv(2) answers: `PermissionDenied` for a process that the caller may not trace, `EFAULT` for
    /// a wrong pointer.
    pub fn peer_address(&self, listener: &NotifyListener) -> io::Result<Option<PeerAddress>> {
        if i64::from(self.number) != libc::SYS_connect {
            return Ok(None);
        }
        let mut bytes = [0_u8; size_of::<libc::sockaddr_storage>()];
        let wanted = usize::try_from(low_half(self.args[2]))
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let outcome = read_process(self.pid, self.args[1], &mut bytes[..wanted]);
        if !listener.still_waits(self.id) {
            return Ok(None);
        }
        outcome.map(|length| Some(PeerAddress::parse(&bytes[..length])))
    }

    /// Whether the supervisor is to carry the call out, or to refuse it.
    pub fn mediated(&self) -> bool {
        matches!(self.switched(), Some(CallRule::Mediate))
    }

    /// Whether the supervisor may carry the call out, a renaming, or else lets the kernel do it.
    pub fn offered(&self) -> bool {
        matches!(self.switched(), Some(CallRule::Offer))
    }

    /// Whether the call makes a process or a thread, which the supervisor is to admit.
    pub fn forks(&self) -> bool {
        matches!(self.switched(), Some(CallRule::Admit))
    }

    /// Whether a hypervisor opens what is its own alone (`O_CLOEXEC`), as it does a device, and not the file of its memory.
    pub fn opens_device(&self) -> bool {
        let flags = match i64::from(self.number) == libc::SYS_openat {
            true => self.args[2],
            false => self.args[1],
        };
        flags & u64::from(libc::O_CLOEXEC.cast_unsigned()) != 0
    }

    /// How many bytes the call reserves that can be written, if it is one of which the filter tells because of that.
    pub fn reserves(&self) -> Option<u64> {
        (i64::from(self.number) == libc::SYS_mmap && self.observed()).then_some(self.args[1])
    }

    /// Whether the program asks how much memory there is.
    pub fn asks_for_memory(&self) -> bool {
        i64::from(self.number) == libc::SYS_sysinfo && self.mediated()
    }

    /// The text, ended by a zero byte and at most as long as a path, to which an argument points.
    ///
    /// A copy: what the program does to its own afterwards does not change it.
    ///
    /// # Errors
    /// `EFAULT` for a wrong pointer, `ENAMETOOLONG`, `EPERM` for a process that the caller may not trace.
    pub fn text(&self, argument: usize) -> io::Result<Vec<u8>> {
        let address = self.args.get(argument).copied().unwrap_or(0);
        let mut bytes = vec![0; usize::try_from(libc::PATH_MAX).unwrap_or(4096)];
        let length = read_process(self.pid, address, &mut bytes)?;
        match bytes[..length].iter().position(|byte| *byte == 0) {
            Some(end) => {
                bytes.truncate(end);
                Ok(bytes)
            }
            None if length == bytes.len() => Err(rustix::io::Errno::NAMETOOLONG.into()),
            None => Err(rustix::io::Errno::FAULT.into()),
        }
    }

    /// The two times to which an argument points (utimensat(2)): seconds and nanoseconds each; `None` for a null pointer.
    ///
    /// # Errors
    /// As [`CallNotification::text`].
    pub fn times(&self, argument: usize) -> io::Result<Option<[(i64, i64); 2]>> {
        let address = self.args.get(argument).copied().unwrap_or(0);
        if address == 0 {
            return Ok(None);
        }
        let mut bytes = [0_u8; 32];
        if read_process(self.pid, address, &mut bytes)? < bytes.len() {
            return Err(rustix::io::Errno::FAULT.into());
        }
        let number = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..][..8]);
            i64::from_ne_bytes(word)
        };
        Ok(Some([(number(0), number(1)), (number(2), number(3))]))
    }

    fn reason(&self) -> &'static str {
        let Some(entry) = self.entry() else {
            return "not in the table";
        };
        let particular = self
            .refusal()
            .and_then(|refusal| refusal.reason)
            .unwrap_or(entry.reason);
        match i64::from(self.number) {
            libc::SYS_socket => conditions::family_reason(low_half(self.args[0])).unwrap_or(particular),
            _ => particular,
        }
    }

    fn entry(&self) -> Option<&'static super::rule::TableEntry> {
        table::by_number(usize::try_from(self.number).ok()?)
    }

    /// Whether the filter asks only for the record.
    fn observed(&self) -> bool {
        matches!(self.switched(), Some(CallRule::Observe))
    }

    /// What an option has decided about this call, if one has.
    fn switched(&self) -> Option<&'static CallRule> {
        let switch = self.entry()?.switch?;
        Some(switch.rule.decide(&self.args))
    }

    /// The refusal that the table has for this call; `None` for calls that are only observed.
    ///
    /// The options are not known here. That is sound because an option can only matter to a call that it allows, and
    /// then the call is not told; or that it refuses, and then the switch's rule says how.
    fn refusal(&self) -> Option<&'static CallRefusal> {
        let entry = self.entry()?;
        let switched = entry.switch.map(|switch| switch.rule);
        [Some(entry.rule), switched]
            .into_iter()
            .flatten()
            .find_map(|rule| match rule.decide(&self.args) {
                CallRule::Refuse(refusal) => Some(refusal),
                _ => None,
            })
    }
}

/// Reads up to `into.len()` bytes at `address` in another process; fewer where its memory ends.
fn read_process(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: into.len(),
    };
    // SAFETY: `local` is exactly `into`, which outlives the call; `remote` is only an address in the other process,
    // where the kernel checks it (process_vm_readv(2), Linux 3.2).
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Figures of memory that a program is shown, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    /// All that it can have.
    pub total: u64,
    /// What of it nobody uses.
    pub free: u64,
    /// What of it holds the contents of files, and can be had again.
    pub cached: u64,
    /// Swap in all.
    pub swap_total: u64,
    /// Swap that nobody uses.
    pub swap_free: u64,
}

/// `struct sysinfo` of a 64-bit machine (`include/uapi/linux/sysinfo.h`) as the kernel has it for the machine, with other
/// figures of memory.
fn sysinfo_with(shown: &MemoryFigures) -> [u8; 112] {
    let machine = rustix::system::sysinfo();
    let words = [
        machine.uptime.cast_unsigned(),
        machine.loads[0],
        machine.loads[1],
        machine.loads[2],
        shown.total,
        shown.free,
        0, // shared
        0, // of block devices
        shown.swap_total,
        shown.swap_free,
        machine.procs.into(),
        0, // high memory, in all and free
        0,
        1, // bytes in a unit
    ];
    let mut bytes = [0; 112];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The address that a program passed to `connect`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAddress {
    /// Internet address and port.
    Internet(SocketAddr),
    /// A unix socket in the file system, as the sandbox names it.
    Unix(PathBuf),
    /// A unix socket without a file; the name may be any bytes.
    UnixAbstract(Vec<u8>),
    /// Another family, or an address too short for its family.
    Other {
        /// `AF_*`.
        family: u16,
    },
}

impl PeerAddress {
    /// Reads a `sockaddr`: two bytes of family in the machine's order, then what the family defines.
    fn parse(bytes: &[u8]) -> PeerAddress {
        let Some((family, rest)) = bytes.split_first_chunk::<2>() else {
            return PeerAddress::Other { family: 0 };
        };
        let family = u16::from_ne_bytes(*family);
        let known = match i32::from(family) {
            libc::AF_INET => internet(rest),
            libc::AF_INET6 => internet6(rest),
            libc::AF_UNIX => unix(rest),
            _ => None,
        };
        known.unwrap_or(PeerAddress::Other { family })
    }
}

/// `sockaddr_in` after the family: port and address in network order.
fn internet(bytes: &[u8]) -> Option<PeerAddress> {
    let (port, rest) = bytes.split_first_chunk::<2>()?;
    let address = Ipv4Addr::from(*rest.first_chunk::<4>()?);
    Some(PeerAddress::Internet(
        SocketAddrV4::new(address, u16::from_be_bytes(*port)).into(),
    ))
}

/// `sockaddr_in6` after the family: port, flow information, address; the scope id may be missing (ipv6(7)).
fn internet6(bytes: &[u8]) -> Option<PeerAddress> {
    let (port, rest) = bytes.split_first_chunk::<2>()?;
    let (flow, rest) = rest.split_first_chunk::<4>()?;
    let (address, rest) = rest.split_first_chunk::<16>()?;
    let scope = rest.first_chunk::<4>().map_or(0, |scope| u32::from_ne_bytes(*scope));
    let port = u16::from_be_bytes(*port);
    let address = SocketAddrV6::new(Ipv6Addr::from(*address), port, u32::from_be_bytes(*flow), scope);
    Some(PeerAddress::Internet(address.into()))
}

/// `sockaddr_un` after the family: an abstract name starts with a zero byte and has no end, a path ends at a zero.
fn unix(bytes: &[u8]) -> Option<PeerAddress> {
    let path = &bytes[..bytes.len().min(108)];
    if let [0, name @ ..] = path {
        return Some(PeerAddress::UnixAbstract(name.to_vec()));
    }
    let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
    Some(PeerAddress::Unix(Path::new(OsStr::from_bytes(path)).to_path_buf()))
}
