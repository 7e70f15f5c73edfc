//! System calls, as far as a run makes any before it has a C library: each asks the kernel and touches nothing else.
//!
//! Errors are the kernel's numbers. Structures that the kernel fills are read where they are: none is moved.

use core::ffi::{CStr, c_int, c_long};
use core::mem::MaybeUninit;

use crate::buffer::Buffer;

/// The current directory, for paths.
pub(crate) const HERE: c_int = libc::AT_FDCWD;
const AF_UNIX: libc::sa_family_t = 1;
/// Asks for the settings of a terminal; a file that is none does not have them.
const TCGETS: usize = 0x5401;

/// Calls the kernel.
///
/// # Safety
/// The arguments must be what system call `number` takes: every address among them valid for what the call does.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Result<usize, i32> {
    let result: isize;
    // SAFETY: the x86_64 convention (syscall(2)); the kernel changes rax, rcx and r11 only. The rest is the caller's.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") 0_usize,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    checked(result)
}

/// Calls the kernel.
///
/// # Safety
/// The arguments must be what system call `number` takes: every address among them valid for what the call does.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Result<usize, i32> {
    let result: isize;
    // SAFETY: the arm64 convention (syscall(2)); the kernel changes x0 only. The rest is the caller's.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") 0_usize,
            options(nostack),
        );
    }
    checked(result)
}

#[inline(always)]
fn checked(answer: isize) -> Result<usize, i32> {
    usize::try_from(answer).map_err(|_| i32::try_from(-answer).unwrap_or(libc::EIO))
}

/// A number as a register has it.
const fn register(number: c_int) -> usize {
    (number as isize).cast_unsigned()
}

/// The address of what the kernel is to read.
fn address<T: ?Sized>(of: &T) -> usize {
    (&raw const *of).cast::<u8>().expose_provenance()
}

/// The address of what the kernel is to write.
fn address_of_room<T: ?Sized>(of: &mut T) -> usize {
    (&raw mut *of).cast::<u8>().expose_provenance()
}

/// Bytes up to the first that is zero, as paths are passed. The standard's functions for this are called and not compiled in.
pub(crate) fn zero_ended(text: &[u8]) -> Option<&CStr> {
    let length = text.iter().position(|byte| *byte == 0)?;
    let text = text.get(..=length)?;
    // SAFETY: the last byte is the first one that is zero.
    Some(unsafe { CStr::from_bytes_with_nul_unchecked(text) })
}

/// What is open, until this is dropped.
#[derive(Debug)]
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    pub(crate) const fn number(&self) -> c_int {
        self.0
    }

    fn new(answer: usize) -> Result<Self, i32> {
        c_int::try_from(answer).map(Self).map_err(|_| libc::EBADF)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: takes a number; the descriptor is this structure's own.
        let _closed = unsafe { call(libc::SYS_close, [register(self.0), 0, 0, 0, 0]) };
    }
}

/// Opens for reading; closed on exec.
pub(crate) fn open(at: c_int, path: &CStr, flags: c_int) -> Result<Descriptor, i32> {
    let flags = register(libc::O_RDONLY | libc::O_CLOEXEC | flags);
    // SAFETY: the path ends with a zero byte (openat(2)).
    let opened = unsafe { call(libc::SYS_openat, [register(at), address(path), flags, 0, 0]) };
    Descriptor::new(opened?)
}

/// Reads once.
pub(crate) fn read(from: &Descriptor, room: &mut [u8]) -> Result<usize, i32> {
    let length = room.len();
    // SAFETY: the kernel writes at most as much as there is room for (read(2)).
    unsafe { call(libc::SYS_read, [register(from.0), address_of_room(room), length, 0, 0]) }
}

/// Adds the contents of a file.
pub(crate) fn read_file(path: &CStr, text: &mut Buffer<'_>) -> Result<(), i32> {
    let file = open(HERE, path, 0)?;
    text.fill(|room| read(&file, room))
}

/// Adds entries of a directory, as getdents64(2) writes them, as many as find room at once.
pub(crate) fn list(directory: &Descriptor, text: &mut Buffer<'_>) -> Result<(), i32> {
    let mut is_first = true;
    text.fill(|room| {
        if !core::mem::take(&mut is_first) {
            return Ok(0);
        }
        let length = room.len();
        // SAFETY: the kernel writes at most as much as there is room for.
        unsafe {
            call(
                libc::SYS_getdents64,
                [register(directory.0), address_of_room(room), length, 0, 0],
            )
        }
    })
}

/// Adds the path of the current directory, without the zero byte behind it.
pub(crate) fn current_directory(text: &mut Buffer<'_>) -> Result<(), i32> {
    let mut is_first = true;
    text.fill(|room| {
        if !core::mem::take(&mut is_first) {
            return Ok(0);
        }
        let length = room.len();
        // SAFETY: the kernel writes at most as much as there is room for (getcwd(2)).
        let length = unsafe { call(libc::SYS_getcwd, [address_of_room(room), length, 0, 0, 0]) }?;
        // One that cannot be reached from our root directory begins otherwise.
        match room.first() {
            Some(b'/') => Ok(length - 1),
            _ => Err(libc::ENOENT),
        }
    })
}

/// What is known of a file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) size: u64,
    /// When it was written and when it was changed: seconds and nanoseconds of both.
    pub(crate) changed: [u64; 4],
}

/// Looks at a file; an empty path is what `at` has open.
pub(crate) fn stat(at: c_int, path: &CStr) -> Result<File, i32> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    let flags = match path.is_empty() {
        true => libc::AT_EMPTY_PATH,
        false => 0,
    };
    let arguments = [
        register(at),
        address(path),
        address_of_room(&mut found),
        register(flags),
        0,
    ];
    // SAFETY: the path ends with a zero byte, and there is room for the structure (newfstatat(2)).
    unsafe { call(libc::SYS_newfstatat, arguments) }?;
    // SAFETY: the kernel has filled it in.
    let found = unsafe { found.assume_init_ref() };
    Ok(File {
        device: found.st_dev,
        inode: found.st_ino,
        mode: found.st_mode,
        owner: found.st_uid,
        size: found.st_size.cast_unsigned(),
        changed: [
            found.st_mtime.cast_unsigned(),
            found.st_mtime_nsec.cast_unsigned(),
            found.st_ctime.cast_unsigned(),
            found.st_ctime_nsec.cast_unsigned(),
        ],
    })
}

/// Which directory of which mount a path leads to: both halves of the device's number, inode and mount.
pub(crate) fn mounted(path: &CStr) -> Result<[u64; 4], i32> {
    /// `STATX_BASIC_STATS | STATX_MNT_ID` (statx(2)).
    const WANTED: usize = 0x17ff;
    let mut found = MaybeUninit::<libc::statx>::uninit();
    let arguments = [register(HERE), address(path), 0, WANTED, address_of_room(&mut found)];
    // SAFETY: the path ends with a zero byte, and there is room for the structure.
    unsafe { call(libc::SYS_statx, arguments) }?;
    // SAFETY: the kernel has filled it in.
    let found = unsafe { found.assume_init_ref() };
    Ok([
        found.stx_dev_major.into(),
        found.stx_dev_minor.into(),
        found.stx_ino,
        found.stx_mnt_id,
    ])
}

/// The soft and the hard limit of a resource.
pub(crate) fn limits(resource: u32) -> Result<[u64; 2], i32> {
    let mut found = [0_u64; 2];
    let arguments = [0, resource as usize, 0, address_of_room(&mut found), 0];
    // SAFETY: nothing is set, and there is room for two numbers of 64 bits (prlimit(2)); 0 is this process.
    unsafe { call(libc::SYS_prlimit64, arguments) }?;
    Ok(found)
}

/// Scheduling policy and nice value, priority of input and output, and personality.
pub(crate) fn scheduling() -> [u64; 4] {
    /// `IOPRIO_WHO_PROCESS` (ioprio_get(2)).
    const PROCESS: usize = 1;
    /// Asks for the personality and sets none (personality(2)).
    const ONLY_ASK: usize = 0xffff_ffff;
    // SAFETY: takes numbers; 0 is this process (sched_getscheduler(2)).
    let policy = unsafe { call(libc::SYS_sched_getscheduler, [0; 5]) };
    // SAFETY: takes numbers; 0 is this process (getpriority(2)).
    let nice = unsafe { call(libc::SYS_getpriority, [0; 5]) };
    // SAFETY: takes numbers; 0 is this process (ioprio_get(2)).
    let ioprio = unsafe { call(libc::SYS_ioprio_get, [PROCESS, 0, 0, 0, 0]) };
    // SAFETY: this value changes nothing (personality(2)).
    let personality = unsafe { call(libc::SYS_personality, [ONLY_ASK, 0, 0, 0, 0]) };
    [policy, nice, ioprio, personality].map(|found| found.unwrap_or(usize::MAX) as u64)
}

/// The effective user id.
pub(crate) fn user() -> u32 {
    // SAFETY: takes nothing.
    let user = unsafe { call(libc::SYS_geteuid, [0; 5]) };
    user.ok().and_then(|user| u32::try_from(user).ok()).unwrap_or(u32::MAX)
}

/// Nanoseconds since some moment.
pub(crate) fn now() -> u64 {
    let mut time = [0_u64; 2];
    let arguments = [register(libc::CLOCK_MONOTONIC), address_of_room(&mut time), 0, 0, 0];
    // SAFETY: there is room for seconds and nanoseconds, 64 bits each (clock_gettime(2)).
    let _cannot_fail = unsafe { call(libc::SYS_clock_gettime, arguments) };
    let [seconds, nanoseconds] = time;
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds)
}

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    let mut settings = MaybeUninit::<libc::termios>::uninit();
    // SAFETY: there is more room than the kernel's own structure takes (ioctl_tty(2)).
    unsafe { call(libc::SYS_ioctl, [0, TCGETS, address_of_room(&mut settings), 0, 0]) }.is_ok()
}

/// Memory, all zeroes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    start: usize,
    length: usize,
}

impl Memory {
    pub(crate) fn new(length: usize) -> Result<Self, i32> {
        const READ_WRITE: usize = register(libc::PROT_READ | libc::PROT_WRITE);
        const PRIVATE: usize = register(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping takes the place of none; the last argument, an offset, is zero (mmap(2)).
        let start = unsafe { call(libc::SYS_mmap, [0, length, READ_WRITE, PRIVATE, usize::MAX]) }?;
        Ok(Self { start, length })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let start = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping is this long, initialised, nobody else's, and there as long as this is.
        unsafe { core::slice::from_raw_parts_mut(start, self.length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody has borrowed it any more (munmap(2)).
        let _unmapped = unsafe { call(libc::SYS_munmap, [self.start, self.length, 0, 0, 0]) };
    }
}

/// Opens `/dev/null` as each standard stream that is closed, as the standard library does at its start: what is opened here
/// must not be taken for one.
pub(crate) fn open_standard_streams() {
    for stream in 0..3 {
        // SAFETY: takes numbers (fcntl(2)).
        let flags = unsafe { call(libc::SYS_fcntl, [stream, register(libc::F_GETFD), 0, 0, 0]) };
        if flags == Err(libc::EBADF) {
            let (path, flags) = (address(c"/dev/null"), register(libc::O_RDWR));
            // It stays open, and has the number of the lowest that is closed, which is this one.
            // SAFETY: the path ends with a zero byte (openat(2)).
            let _opened = unsafe { call(libc::SYS_openat, [register(HERE), path, flags, 0, 0]) };
        }
    }
}

/// Connects to the socket at `path`; nothing that is sent waits longer than some seconds to be heard.
pub(crate) fn connect(path: &[u8], seconds: u64) -> Result<Descriptor, i32> {
    let mut address_of = libc::sockaddr_un {
        sun_family: AF_UNIX,
        sun_path: [0; 108],
    };
    // With the zero byte behind it.
    if path.len() >= address_of.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    let name = address_of.sun_path.iter_mut();
    name.zip(path).for_each(|(to, from)| *to = from.cast_signed());
    let flags = register(libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    // SAFETY: takes numbers (socket(2)).
    let socket = unsafe { call(libc::SYS_socket, [usize::from(AF_UNIX), flags, 0, 0, 0]) };
    let socket = Descriptor::new(socket?)?;
    let patience = [seconds, 0];
    let (level, option) = (register(libc::SOL_SOCKET), register(libc::SO_SNDTIMEO));
    let arguments = [
        register(socket.0),
        level,
        option,
        address(&patience),
        size_of_val(&patience),
    ];
    // SAFETY: the value is seconds and microseconds, 64 bits each (setsockopt(2)).
    unsafe { call(libc::SYS_setsockopt, arguments) }?;
    let arguments = [register(socket.0), address(&address_of), size_of_val(&address_of), 0, 0];
    // SAFETY: the address is as long as said, and its path ends with a zero byte (connect(2)).
    unsafe { call(libc::SYS_connect, arguments) }?;
    Ok(socket)
}

/// The user id of whoever listened at the other end.
pub(crate) fn peer(socket: &Descriptor) -> Result<u32, i32> {
    // Process, user and group (unix(7)).
    let mut found = [0_u32; 3];
    let mut length = 12_u32;
    let (level, option) = (register(libc::SOL_SOCKET), register(libc::SO_PEERCRED));
    let room = address_of_room(&mut found);
    let arguments = [register(socket.0), level, option, room, address_of_room(&mut length)];
    // SAFETY: there is room for as many bytes as said (getsockopt(2)).
    unsafe { call(libc::SYS_getsockopt, arguments) }?;
    let [_, user, _] = found;
    Ok(user)
}

/// Sends a byte, the descriptors with it, and then `text`, or as much of it as goes at once; how many bytes went.
pub(crate) fn send_with(socket: &Descriptor, byte: u8, text: &[u8], descriptors: [c_int; 4]) -> Result<usize, i32> {
    /// A control message with four descriptors (cmsg(3)).
    #[repr(C)]
    struct Control {
        length: usize,
        level: c_int,
        kind: c_int,
        descriptors: [c_int; 4],
    }
    /// A vector of two parts (readv(2)).
    #[repr(C)]
    struct Part {
        start: usize,
        length: usize,
    }
    /// `struct msghdr` (sendmsg(2)) as the kernel has it: lengths take a whole register.
    #[repr(C)]
    struct Message {
        name: usize,
        name_length: usize,
        parts: usize,
        count: usize,
        control: usize,
        control_length: usize,
        flags: usize,
    }
    let control = Control {
        length: size_of::<Control>(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptors,
    };
    let first = [byte];
    let parts = [
        Part {
            start: address(&first),
            length: 1,
        },
        Part {
            start: address(text),
            length: text.len(),
        },
    ];
    let message = Message {
        name: 0,
        name_length: 0,
        parts: address(&parts),
        count: parts.len(),
        control: address(&control),
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let flags = register(libc::MSG_NOSIGNAL);
    // SAFETY: all that the message points to is as long as it says, and is there until the call is over.
    unsafe { call(libc::SYS_sendmsg, [register(socket.0), address(&message), flags, 0, 0]) }
}

/// Sends bytes, as many as go at once.
pub(crate) fn send(socket: &Descriptor, text: &[u8]) -> Result<usize, i32> {
    let flags = register(libc::MSG_NOSIGNAL);
    // SAFETY: the kernel reads as much as there is; without an address, the last argument is zero (sendto(2)).
    unsafe {
        call(
            libc::SYS_sendto,
            [register(socket.0), address(text), text.len(), flags, 0],
        )
    }
}

/// Waits until one of two can be read, or the other end of it is gone, at most for some seconds; whether the first one can.
pub(crate) fn wait(first: &Descriptor, second: Option<&Descriptor>, seconds: Option<u64>) -> Result<[bool; 2], i32> {
    let on = |descriptor: c_int| libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // What is negative is not looked at.
    let mut waiting = [on(first.0), on(second.map_or(-1, Descriptor::number))];
    // The kernel writes what is left of it.
    let mut limit = [seconds.unwrap_or_default(), 0];
    let limit = match seconds {
        Some(_) => address_of_room(&mut limit),
        None => 0,
    };
    let count = waiting.len();
    // SAFETY: there are as many as said, and the time is seconds and nanoseconds, 64 bits each, or not there (ppoll(2)).
    unsafe { call(libc::SYS_ppoll, [address_of_room(&mut waiting), count, limit, 0, 8]) }?;
    Ok(waiting.map(|one| one.revents != 0))
}

/// Says that nothing is read from a socket any more.
pub(crate) fn close_for_reading(socket: &Descriptor) -> Result<(), i32> {
    // SAFETY: takes numbers (shutdown(2)).
    unsafe {
        call(
            libc::SYS_shutdown,
            [register(socket.0), register(libc::SHUT_RD), 0, 0, 0],
        )
    }
    .map(drop)
}

/// Blocks signals and opens a queue of them.
pub(crate) fn queue(signals: &[c_int]) -> Result<Descriptor, i32> {
    /// The length of a set of signals.
    const LENGTH: usize = 8;
    let set = signals.iter().fold(0_u64, |set, signal| set | 1 << (signal - 1));
    let arguments = [register(libc::SIG_BLOCK), address(&set), 0, LENGTH, 0];
    // SAFETY: the set is as long as said, and the old one is not asked for (rt_sigprocmask(2)).
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) }?;
    let flags = register(libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
    // SAFETY: the set is as long as said (signalfd(2)).
    let queue = unsafe { call(libc::SYS_signalfd4, [usize::MAX, address(&set), LENGTH, flags, 0]) };
    Descriptor::new(queue?)
}

/// The next signal's number; `None` when there is none now.
pub(crate) fn next_signal(queue: &Descriptor) -> Result<Option<u8>, i32> {
    // The number comes first (signalfd(2)).
    let mut record = MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let arguments = [
        register(queue.0),
        address_of_room(&mut record),
        size_of_val(&record),
        0,
        0,
    ];
    // SAFETY: there is room for one record.
    match unsafe { call(libc::SYS_read, arguments) } {
        // SAFETY: the kernel writes whole records, and has written one.
        Ok(_) => Ok(u8::try_from(unsafe { record.assume_init_ref() }.ssi_signo).ok()),
        Err(libc::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends the process.
pub(crate) fn exit(code: u8) -> ! {
    loop {
        // SAFETY: takes a number and does not return.
        let _never = unsafe { call(libc::SYS_exit_group, [code.into(), 0, 0, 0, 0]) };
    }
}
