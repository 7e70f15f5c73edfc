//! Processes: exec from a descriptor, signals by pidfd, waiting with the resources that were used.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// Replaces this process by the program in `program`, with one argument (its name) and an empty environment.
///
/// Returns only if it fails (execveat(2), `AT_EMPTY_PATH`).
pub fn exec_descriptor(program: BorrowedFd<'_>, name: &CStr, argument: Option<&CStr>) -> io::Error {
    let arguments: Vec<&CStr> = std::iter::once(name).chain(argument).collect();
    exec_with(program, &arguments)
}

/// As [`exec_descriptor`], with any arguments, of which the first is its name.
pub fn exec_with(program: BorrowedFd<'_>, arguments: &[&CStr]) -> io::Error {
    let arguments: Vec<*const libc::c_char> = arguments
        .iter()
        .map(|argument| argument.as_ptr())
        .chain([std::ptr::null()])
        .collect();
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: `program` is open, the path is an empty C string, both arrays end with a null pointer and all that they
    // point to outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Asks the kernel to kill this process when the thread that made it ends.
///
/// Must be called after every change of user id, which clears it (prctl(2), `PR_SET_PDEATHSIG`).
///
/// # Errors
/// What the kernel answered.
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Marks every descriptor from `first` on to be closed at exec.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn close_from_at_exec(first: u32) -> io::Result<()> {
    // SAFETY: only a flag of descriptors is changed; none is closed while this program runs (close_range(2)).
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has the kernel make room for so many descriptors of this process now, which must have one thread.
///
/// When a table of descriptors that several threads share grows, at 64 and each time that it doubles, whoever opens the next
/// one waits until every processor has been elsewhere (`synchronize_rcu` in the kernel's `expand_fdtable`): 10 to 20 ms were
/// measured on a machine that is mostly idle. The table never shrinks. Where less is allowed, nothing happens.
pub fn reserve_descriptors(count: u16) {
    // One is made at the end of them, and closed.
    let _reserved = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), i32::from(count.saturating_sub(1)));
}

/// Sends SIGKILL to the process of a pidfd. A process that is gone already is no error.
///
/// # Errors
/// `EPERM`.
pub fn kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends a signal to the process group that the process of a pidfd leads, or only to that process before Linux 6.9. One that
/// is gone already is no error.
///
/// # Errors
/// `EPERM`.
pub fn signal_group(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    /// `PIDFD_SIGNAL_PROCESS_GROUP` (include/uapi/linux/pidfd.h).
    const PROCESS_GROUP: libc::c_uint = 1 << 2;
    let send = |flags: libc::c_uint| {
        // SAFETY: `pidfd` is open, and no information about the signal is given (pidfd_send_signal(2), Linux 5.1).
        let result = unsafe {
            let none = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, flags)
        };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        }
    };
    match send(PROCESS_GROUP) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => send(0),
        sent => sent,
    }
}

/// What a process and all its waited-for descendants used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceUsage {
    /// CPU time in user mode, µs.
    pub user_us: u64,
    /// CPU time in the kernel, µs.
    pub system_us: u64,
    /// Largest resident set of any one process, KiB.
    pub max_rss_kib: u64,
    /// Blocks of 512 bytes read from storage.
    pub blocks_read: u64,
    /// Blocks of 512 bytes written to storage.
    pub blocks_written: u64,
}

/// Waits until the child `pid` has ended, and reaps it.
///
/// # Errors
/// `ECHILD` if it is not our child.
pub fn reap(pid: Pid) -> io::Result<ResourceUsage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let mut status = 0;
    loop {
        // SAFETY: both pointers are to memory of the right type that outlives the call (wait4(2)).
        let result = unsafe { libc::wait4(pid.as_raw_pid(), &raw mut status, libc::__WALL, usage.as_mut_ptr()) };
        if result >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all of it was zeroed above, and zero is a valid value of every field.
    let usage = unsafe { usage.assume_init() };
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let micros = |time: libc::timeval| number(time.tv_sec) * 1_000_000 + number(time.tv_usec);
    Ok(ResourceUsage {
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kib: number(usage.ru_maxrss),
        blocks_read: number(usage.ru_inblock),
        blocks_written: number(usage.ru_oublock),
    })
}

/// Whether the process of a pidfd has ended; it is left to be reaped.
///
/// # Errors
/// `ECHILD` if it is not our child.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options)?.is_some())
}

/// When a process was started (proc_pid_stat(5), field 22). The name in field 2 may hold anything. `None`
/// when there is no such process, or it has ended.
///
/// # Errors
/// When that cannot be read though the process may be there.
pub fn start_ticks(pid: i32) -> io::Result<Option<u64>> {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(start_ticks_in(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // One that ended while it was read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether this process has started the process `pid`, which nobody has reaped yet (proc_pid_stat(5), field 4).
pub fn is_own_child(pid: i32) -> bool {
    let parent = std::fs::read(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| fields_after_name(&stat)?.nth(1)?.parse::<u32>().ok());
    parent == Some(std::process::id())
}

/// The fields of a `stat` from the third on: the name before them may hold anything.
fn fields_after_name(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    Some(std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace())
}

fn start_ticks_in(stat: &[u8]) -> Option<u64> {
    let mut fields = fields_after_name(stat)?;
    let state = fields.next()?;
    // One that has ended and was not reaped yet still has a number.
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Gives back to the kernel what a start needed and a long wait does not: memory that was freed, of which the allocator
/// otherwise keeps a part, the stack as far as it is not in use, and the mappings of the program's own code, which come
/// back from the file page by page.
pub fn release_memory_of_start() {
    release_unused_stack();
    release_free_memory();
    unmap_code();
}

/// Drops the pages of this thread's stack below what is in use now.
// In a frame of its own, so that whatever its callers have lies above `here`.
#[inline(never)]
fn release_unused_stack() {
    /// More than what is called from here needs, in pages.
    const KEPT: usize = 2;
    let Some(lowest) = lowest_of_stack() else {
        return;
    };
    let page = rustix::param::page_size();
    let here = std::hint::black_box(0_u8);
    let end = ((&raw const here).addr() / page).saturating_sub(KEPT) * page;
    let start = lowest.next_multiple_of(page);
    let length = end.saturating_sub(start);
    if length > 0 {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is of this thread's stack and lies below everything that is in use of it, by more than the
        // call itself needs; what is written there later is written before it is read (madvise(2)). What of it is not
        // mapped yet is passed over.
        unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
    }
}

/// The lowest address that this thread's stack may reach (pthread_getattr_np(3)).
fn lowest_of_stack() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: it takes nothing and cannot fail.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread is the calling one, and the attributes are initialised by the call.
    if unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were initialised above, and both places outlive the call.
    let got = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) };
    // SAFETY: they were initialised above and are not used afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (got == 0).then(|| lowest.addr())
}

/// Gives back to the kernel what the allocator holds free, in all of its heaps.
pub fn release_free_memory() {
    // SAFETY: only memory that the allocator holds free is given back (malloc_trim(3)).
    unsafe { libc::malloc_trim(0) };
}

/// How many bytes of this process are in memory, beside those that somebody holds of the allocator's: its code, its stacks,
/// and what the allocator holds free and has not given back.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn memory_beside_allocations() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let resident = resident.ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: it takes nothing, and answers numbers of all heaps (mallinfo(3), since glibc 2.33).
    let info = unsafe { libc::mallinfo2() };
    let held = u64::try_from(info.uordblks.saturating_add(info.hblkhd)).unwrap_or(u64::MAX);
    Ok(resident.saturating_mul(1024).saturating_sub(held))
}

/// Drops the pages of our code from this process; the file still has them, and so has the kernel's cache of it.
fn unmap_code() {
    unsafe extern "C" {
        // Made by the linker; where the program's first segment begins and where its code ends.
        static __executable_start: u8;
        static etext: u8;
    }
    // A multiple of every size that pages have.
    const PAGES: usize = 64 * 1024;
    let start = (&raw const __executable_start).addr().next_multiple_of(PAGES);
    let end = (&raw const etext).addr() / PAGES * PAGES;
    let length = end.saturating_sub(start);
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range lies in the mappings of the program's file before its data, which are never written: what is
    // read there next is what was there (madvise(2), MADV_DONTNEED of a file's private mapping).
    unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
}

/// Lets the allocator of a short process keep what is freed, and take more at a time, from one heap for all threads.
///
/// By default it gives memory back as soon as 128 KiB are free at the end of the heap, only to ask for it again, and to
/// fault in every page of it anew. [`release_memory_of_start`] gives it back at a time of the caller's choice.
pub fn keep_free_memory() {
    const AT_A_TIME: libc::c_int = 256 * 1024;
    const KEPT: libc::c_int = 4 * 1024 * 1024;
    for (option, value) in [
        (libc::M_TOP_PAD, AT_A_TIME),
        (libc::M_TRIM_THRESHOLD, KEPT),
        (libc::M_MMAP_THRESHOLD, KEPT),
        (libc::M_ARENA_MAX, 1),
    ] {
        // SAFETY: the options are numbers, and the allocator takes a lock of its own (mallopt(3)).
        unsafe { libc::mallopt(option, value) };
    }
}

/// Wipes the value that the environment of this process has for the variable `name`, where it lies: what `/proc` shows of it,
/// and what programs that are started later inherit. The variable stays, with a value of as many zero bytes, which is none.
///
/// To be called by the only thread there is: another could be reading it.
///
/// # Errors
/// `EDEADLK` if there is another.
pub fn wipe_variable(name: &[u8]) -> io::Result<()> {
    if crate::namespaces::thread_count()? != 1 {
        return Err(rustix::io::Errno::DEADLK.into());
    }
    unsafe extern "C" {
        // The C library's; ends with a null pointer (environ(7)).
        static mut environ: *mut *mut libc::c_char;
    }
    // SAFETY: no other thread is there that could change it.
    let mut next = unsafe { environ };
    if next.is_null() {
        return Ok(());
    }
    loop {
        // SAFETY: the array ends with a null pointer, which was not passed.
        let entry = unsafe { *next };
        if entry.is_null() {
            return Ok(());
        }
        // SAFETY: every entry is a string with a zero byte behind it, which nobody else writes meanwhile.
        let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let value = bytes.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(length) = value.map(<[u8]>::len) {
            let start = bytes.len() - length;
            for offset in start..bytes.len() {
                // SAFETY: inside the string, before the byte that ends it.
                let byte = unsafe { entry.add(offset) };
                // SAFETY: as above; the environment is the process's own memory and can be written. Nobody reads it again,
                // so that an ordinary write could be left out.
                unsafe { byte.write_volatile(0) };
            }
        }
        // SAFETY: this was not the null pointer at the end.
        next = unsafe { next.add(1) };
    }
}

/// Whether this process runs as root of the machine, that is, with uid 0 and privilege over the initial namespaces.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Closes, in a child that [`crate::namespaces::fork_into`] made, a descriptor that belongs to the parent.
///
/// The parent's owner of it was copied into the child and must not be used or dropped there afterwards; a child ends
/// by exec or `_exit`, so nothing is dropped.
pub fn close_inherited(descriptor: BorrowedFd<'_>) {
    // SAFETY: the child has its own descriptor table, in which nothing refers to this number afterwards (see above).
    unsafe { libc::close(descriptor.as_raw_fd()) };
}

/// Runs one of the system's own programs to its end, with an empty environment and no input; answers whether it
/// succeeded and what it wrote to standard error.
///
/// # Errors
/// `NotFound` when there is no such program.
pub fn run_helper(program: &str, arguments: &[String]) -> io::Result<(bool, String)> {
    #[expect(clippy::disallowed_methods, reason = "this is the place that starts helper programs")]
    let output = std::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()?;
    Ok((
        output.status.success(),
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

/// Runs a helper program that the user has set up, with our environment; gives it `input` and answers whether it succeeded
/// and what it wrote to standard output, of which `limit` bytes are read. Its standard error is ours.
///
/// # Errors
/// `NotFound` when there is no such program; `TimedOut` when it has not ended after `patience`, and was killed.
pub fn ask_helper(
    program: &str,
    arguments: &[&str],
    input: &[u8],
    limit: usize,
    patience: std::time::Duration,
) -> io::Result<(bool, Vec<u8>)> {
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;
    #[expect(clippy::disallowed_methods, reason = "this is the place that starts helper programs")]
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // One that does not want its input says why in its answer.
    let _written = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    let Some(mut stdout) = child.stdout.take() else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let end = std::time::Instant::now() + patience;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    let mut ended = Ok(());
    while answer.len() < limit {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let left = rustix::event::Timespec::try_from(left).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut polled = [rustix::event::PollFd::new(&stdout, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => {
                ended = Err(io::ErrorKind::TimedOut.into());
                break;
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match stdout.read(&mut buffer)? {
            0 => break,
            read => answer.extend_from_slice(&buffer[..read]),
        }
    }
    drop(stdout);
    if ended.is_err() {
        // It may have ended just now.
        let _killed = child.kill();
    }
    let status = child.wait()?;
    ended.map(|()| (status.success(), answer))
}

/// Runs a program with nothing to read and nobody to write to, in our environment; answers whether it succeeded.
///
/// # Errors
/// `NotFound` when there is no such program; `TimedOut` when it has not ended after `patience`, and was killed.
pub fn try_helper(program: &str, arguments: &[&str], patience: std::time::Duration) -> io::Result<bool> {
    use std::process::Stdio;
    #[expect(clippy::disallowed_methods, reason = "this is the place that starts helper programs")]
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = Pid::from_child(&child);
    let left = rustix::event::Timespec::try_from(patience).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // The child is ours and was not waited for, so the number is its.
    let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).and_then(|pidfd| {
        let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&left))
    });
    if !matches!(ended, Ok(1..)) {
        let _killed = child.kill();
    }
    let status = child.wait()?;
    match ended? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(status.success()),
    }
}

/// Makes `number` refer to what `descriptor` refers to, open across exec; what was at `number` is closed.
///
/// Meant for a child right before exec: no owner of `number` may exist in this process.
///
/// # Errors
/// `EBADF`, `EBUSY`.
pub fn duplicate_to(descriptor: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    if descriptor.as_raw_fd() == number {
        return Ok(rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?);
    }
    // SAFETY: changes this process's descriptor table at a number that, by the contract above, nothing owns.
    let result = unsafe { libc::dup2(descriptor.as_raw_fd(), number) };
    if result == number {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_helper_is_asked_and_does_not_keep_us_waiting() {
        let ask = |script: &str, patience| {
            let patience = std::time::Duration::from_millis(patience);
            ask_helper("/bin/sh", &["-c", script], b"input", 100, patience)
        };
        assert_eq!(ask("cat; exit 3", 20_000).unwrap(), (false, b"input".to_vec()));
        assert_eq!(ask("echo said", 20_000).unwrap(), (true, b"said\n".to_vec()));
        let error = ask("exec sleep 300", 50).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let missing = ask_helper("/nonexistent/helper", &[], b"", 1, std::time::Duration::ZERO);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_program_is_tried_and_does_not_keep_us_waiting() {
        use std::time::Duration;
        let second = Duration::from_secs(1);
        assert!(try_helper("/bin/true", &[], 60 * second).unwrap());
        assert!(!try_helper("/bin/false", &[], 60 * second).unwrap());
        let slow = try_helper("/bin/sleep", &["60"], Duration::from_millis(20));
        assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            try_helper("/no/such", &[], second).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn there_is_room_for_descriptors_that_were_reserved() {
        let size = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let of = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            of.trim().parse::<u32>().unwrap()
        };
        reserve_descriptors(2000);
        assert!(size() >= 2000, "{}", size());
    }

    #[test]
    fn what_is_free_below_what_is_held_is_given_back() {
        const PIECE: usize = 16 * 1024;
        const PIECES: usize = 4096;
        // Other tests take and give at the same time; less than this.
        const OTHERS: u64 = 24 * 1024 * 1024;
        let mut pieces: Vec<Vec<u8>> = (0..PIECES)
            .map(|number| vec![if number == 0 { 1 } else { 2 }; PIECE])
            .collect();
        let held = pieces.pop();
        let while_used = memory_beside_allocations().unwrap();
        pieces.clear();
        let free = memory_beside_allocations().unwrap();
        release_free_memory();
        let released = memory_beside_allocations().unwrap();
        assert!(
            free > while_used + OTHERS,
            "{free} {while_used}: nothing was to be given back"
        );
        assert!(released + OTHERS < free, "{released} {free}");
        drop(held);
    }

    #[test]
    fn own_children_are_told_from_others() {
        #[expect(clippy::disallowed_methods, reason = "any child will do")]
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(is_own_child(pid) && !is_own_child(1) && !is_own_child(std::process::id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_own_child(pid));
    }

    #[test]
    fn a_variable_is_wiped_where_it_lies() {
        const CHILD: &str = "OFFLEASH_TEST_WIPED";
        if std::env::var_os(CHILD).is_some() {
            // The harness has a thread beside this one: nothing is wiped, and a copy of the process has one thread alone.
            assert_eq!(
                wipe_variable(CHILD.as_bytes()).unwrap_err().raw_os_error(),
                Some(libc::EDEADLK)
            );
            // SAFETY: the child reads a file and its environment, then leaves without running destructors; the C library's
            // allocator can be used after a fork.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_there = || {
                    let environment = std::fs::read("/proc/self/environ").unwrap_or_default();
                    environment.windows(9).any(|part| part == b"to-forget")
                };
                let was_there = is_there();
                let wiped = wipe_variable(CHILD.as_bytes()).is_ok();
                let is_gone = !is_there() && std::env::var(CHILD).as_deref() == Ok("");
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!(was_there && wiped && is_gone))) };
            }
            let mut status = 0;
            // SAFETY: `child` is an own child that nobody else waits for; the kernel writes into `status`.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the test program starts itself")]
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "process::tests::a_variable_is_wiped_where_it_lies";
        command
            .args([test, "--exact", "--test-threads=1"])
            .env(CHILD, "to-forget");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn what_was_written_stays_when_the_memory_of_the_start_goes() {
        static WRITTEN: AtomicU32 = AtomicU32::new(1);
        WRITTEN.store(7, Ordering::Relaxed);
        let text: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        for _ in 0..3 {
            release_memory_of_start();
        }
        assert_eq!(WRITTEN.load(Ordering::Relaxed), 7);
        assert_eq!(text.concat().len(), 2890);
    }
}
