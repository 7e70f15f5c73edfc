//! New namespaces, and the process that starts in them.
//!
//! [`fork_into`] is the one place that makes a sandbox's first process. Deliberately not here: what that process does
//! (`isolation::process` assembles its file system) and which ids it gets (a plan says so).

mod below;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

pub use below::{NestedStart, fork_below, number_of};

/// Which namespaces a process starts in of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceSet {
    /// User ids; gives the child every capability over the other new namespaces.
    pub user: bool,
    /// Process ids; the child is PID 1 and everything in it dies with it.
    pub pid: bool,
    /// Mounts.
    pub mount: bool,
    /// Network.
    pub network: bool,
    /// System V IPC and POSIX message queues.
    pub ipc: bool,
    /// Host name.
    pub uts: bool,
}

impl NamespaceSet {
    fn clone_flags(self) -> i32 {
        let flag = |wanted: bool, flag: i32| if wanted { flag } else { 0 };
        flag(self.user, libc::CLONE_NEWUSER)
            | flag(self.pid, libc::CLONE_NEWPID)
            | flag(self.mount, libc::CLONE_NEWNS)
            | flag(self.network, libc::CLONE_NEWNET)
            | flag(self.ipc, libc::CLONE_NEWIPC)
            | flag(self.uts, libc::CLONE_NEWUTS)
    }
}

/// A child that was started by [`fork_into`].
#[derive(Debug)]
pub struct ForkedChild {
    /// Its process id in our namespace.
    pub pid: Pid,
    /// A descriptor that names it for as long as we hold it, whatever becomes of the number.
    pub pidfd: OwnedFd,
}

/// Starts a process in new namespaces (and, on cgroup v2, inside `cgroup`) and runs `body` in it.
///
/// The child is a copy of this process, as after `fork`; it ends with the code that `body` returns, or 125 if `body`
/// panics. No destructor of the caller and no exit handler runs in it. `clone3` since Linux 5.3 (clone(2)).
///
/// # Errors
/// `EDEADLK` if this process has more than one thread, because the copy could then wait for ever for a lock that
/// another thread held; `EPERM` or `ENOSPC` where user namespaces are forbidden or used up.
pub fn fork_into(
    namespaces: NamespaceSet,
    cgroup: Option<BorrowedFd<'_>>,
    body: impl FnOnce() -> i32,
) -> io::Result<ForkedChild> {
    if thread_count()? != 1 {
        return Err(Errno::DEADLK.into());
    }
    let mut pidfd: RawFd = -1;
    match clone3(namespaces.clone_flags(), cgroup, &mut pidfd)? {
        None => exit_now(caught(body)),
        Some(pid) => {
            // SAFETY: the kernel stored a new descriptor here that nobody else owns (CLONE_PIDFD, clone(2)).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(ForkedChild { pid, pidfd })
        }
    }
}

fn caught(body: impl FnOnce() -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(125)
}

/// Tries to make the namespaces that a sandbox needs, in a child that ends at once.
///
/// # Errors
/// What the kernel answered, `EPERM` above all.
pub fn try_create() -> io::Result<()> {
    let all = NamespaceSet {
        user: true,
        pid: true,
        mount: true,
        network: true,
        ipc: true,
        uts: true,
    };
    let mut pidfd: RawFd = -1;
    match clone3(all.clone_flags(), None, &mut pidfd)? {
        // AppArmor's restriction (Ubuntu 24.04) lets the namespace be made and takes its capabilities away, so the
        // child tries one thing that needs them.
        None => exit_now(i32::from(rustix::system::sethostname(b"probe").is_err())),
        Some(pid) => {
            // SAFETY: as in `fork_into`.
            drop(unsafe { OwnedFd::from_raw_fd(pidfd) });
            let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                _ => Err(Errno::PERM.into()),
            }
        }
    }
}

/// A new user namespace with the given maps, for id-mapped mounts.
#[derive(Debug)]
pub struct UserNamespace {
    descriptor: OwnedFd,
    /// The process that it was made by, which is being killed; it is reaped when this is dropped, so that nobody
    /// waits for its end before.
    maker: NamespaceMaker,
}

impl UserNamespace {
    /// The process that it was made by, which may still be there, but does nothing any more. Its number is its own as
    /// long as this is.
    pub fn maker(&self) -> Pid {
        self.maker.pid
    }

    /// Makes one.
    ///
    /// # Errors
    /// What the kernel answered to the clone or to the maps.
    pub fn new(uid_map: &[IdMap], gid_map: &[IdMap]) -> io::Result<Self> {
        let maker = NamespaceMaker::start()?;
        write_id_maps(maker.pid, uid_map, gid_map, false)?;
        let path = format!("/proc/{}/ns/user", maker.pid.as_raw_pid());
        let descriptor = openat(rustix::fs::CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::process::pidfd_send_signal(&maker.pidfd, rustix::process::Signal::KILL)?;
        Ok(Self { descriptor, maker })
    }
}

/// A process that is in a new user namespace and does nothing else.
///
/// It shares our memory, because copying that and taking the copy apart takes several times as long as the namespace.
#[derive(Debug)]
struct NamespaceMaker {
    pid: Pid,
    pidfd: OwnedFd,
    /// In use until the process has been reaped.
    _stack: Box<MakerStack>,
}

/// A few frames of system calls.
#[repr(align(16))]
#[derive(Debug)]
struct MakerStack([u8; 8 * 1024]);

impl NamespaceMaker {
    fn start() -> io::Result<Self> {
        let mut stack = Box::new(MakerStack([0; 8 * 1024]));
        let top = stack.0.as_mut_ptr_range().end;
        let mut pidfd: RawFd = -1;
        let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let parent = usize::try_from(rustix::process::getpid().as_raw_pid()).unwrap_or(0);
        let argument = std::ptr::without_provenance_mut(parent);
        // SAFETY: `wait_to_be_killed` uses only the stack that it is given, which lives until the process has been
        // reaped, and neither memory nor thread-local variables beside it; `pidfd` outlives the call (clone(2)).
        let pid = unsafe { libc::clone(wait_to_be_killed, top.cast(), flags, argument, &raw mut pidfd) };
        let Some(pid) = Pid::from_raw(pid.max(0)) else {
            return Err(io::Error::last_os_error());
        };
        // SAFETY: the kernel stored a new descriptor here that nobody else owns (CLONE_PIDFD, clone(2)).
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Self {
            pid,
            pidfd,
            _stack: stack,
        })
    }
}

impl Drop for NamespaceMaker {
    fn drop(&mut self) {
        // It fails only if it was killed before.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
        // It fails only if somebody else reaped it. Before, its stack must not go.
        let _reaped = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty())
        });
    }
}

/// Waits for the parent, which ends this process as soon as it holds its namespace; or the kernel does when the parent
/// dies. Nothing here may touch memory but its stack, which is why no function of libc is called.
extern "C" fn wait_to_be_killed(parent: *mut libc::c_void) -> libc::c_int {
    let killed = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let is_ours = rustix::process::getppid().is_some_and(|pid| usize::try_from(pid.as_raw_pid()) == Ok(parent.addr()));
    // A parent that died before the first line has left this process to another one.
    while killed.is_ok() && is_ours {
        rustix::event::pause();
    }
    1
}

impl AsFd for UserNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// One line of a `uid_map` or `gid_map` (user_namespaces(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdMap {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// Writes the id maps of a process's new user namespace.
///
/// `deny_setgroups` must be set when the caller has no privilege over the outside groups (user_namespaces(7)).
///
/// # Errors
/// `EPERM` when the caller may not map these ids.
pub fn write_id_maps(pid: Pid, uid_map: &[IdMap], gid_map: &[IdMap], deny_setgroups: bool) -> io::Result<()> {
    let path = format!("/proc/{}", pid.as_raw_pid());
    let directory = openat(
        rustix::fs::CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    write_file(directory.as_fd(), "uid_map", map_text(uid_map).as_bytes())?;
    if deny_setgroups {
        write_file(directory.as_fd(), "setgroups", b"deny")?;
    }
    write_file(directory.as_fd(), "gid_map", map_text(gid_map).as_bytes())
}

fn map_text(map: &[IdMap]) -> String {
    map.iter()
        .map(|line| format!("{} {} {}\n", line.inside, line.outside, line.count))
        .collect()
}

fn write_file(directory: BorrowedFd<'_>, name: &str, contents: &[u8]) -> io::Result<()> {
    let file = openat(directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let written = rustix::io::write(&file, contents)?;
    if written == contents.len() {
        Ok(())
    } else {
        Err(Errno::IO.into())
    }
}

/// Moves this process into a new network namespace.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` in the user namespace.
pub fn unshare_network() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

/// The network namespace of this thread; another one can [`enter_network`] it.
///
/// # Errors
/// What the kernel answered; `ENOENT` without procfs.
pub fn network_of_this_thread() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(
        rustix::fs::CWD,
        "/proc/thread-self/ns/net",
        flags,
        Mode::empty(),
    )?)
}

/// Moves this thread into a network namespace.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` over it.
pub fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(namespace, kind)?)
}

/// Moves this process, which must have one thread, into a user namespace that a process of its own user made. It has
/// every capability there.
///
/// # Errors
/// `EPERM` for a namespace of somebody else's, `EINVAL` for its own one and where there are more threads.
pub fn enter_user(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::User);
    Ok(rustix::thread::move_into_link_name_space(namespace, kind)?)
}

/// Gives this thread, and what it starts from now on, mounts of its own: copies of those that there are, whose later changes nobody
/// else sees and which see none of others.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` in the user namespace.
pub fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    crate::mount::make_private(crate::mount::open_place(std::path::Path::new("/"))?.as_fd())
}

/// Moves this process into a new cgroup namespace, whose root is the cgroup that it is in now.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` in the user namespace.
pub fn unshare_cgroup() -> io::Result<()> {
    unshare(UnshareFlags::NEWCGROUP)
}

/// Has what this process executes or starts from now on count time in a new namespace, whose clocks are those of this one.
///
/// Since Linux 5.6; a process that executes a program is in it since 6.2 (time_namespaces(7)).
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` in the user namespace, `EINVAL` in a kernel without such namespaces.
pub fn unshare_time() -> io::Result<()> {
    unshare(UnshareFlags::NEWTIME)
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only namespaces are unshared, never the descriptor table (`FILES`), which is what would be unsound.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

/// The number of threads of this process.
pub(crate) fn thread_count() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    // Every thread is a directory in `task`, and a directory's link count is two more than its subdirectories. Not by
    // `stat` itself, whose count has another type on aarch64.
    Ok(std::fs::metadata("/proc/self/task")?.nlink().saturating_sub(2))
}

fn clone3(flags: i32, cgroup: Option<BorrowedFd<'_>>, pidfd: &mut RawFd) -> io::Result<Option<Pid>> {
    use std::os::fd::AsRawFd as _;
    let mut arguments = CloneArguments {
        flags: u64::from((flags | libc::CLONE_PIDFD).cast_unsigned()),
        pidfd: std::ptr::from_mut(pidfd).expose_provenance() as u64,
        // A sibling has the signal that we have.
        exit_signal: match flags & libc::CLONE_PARENT {
            0 => u64::from(libc::SIGCHLD.cast_unsigned()),
            _ => 0,
        },
        ..CloneArguments::default()
    };
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: `arguments` is a complete `struct clone_args` of the size given, `pidfd` points to memory that outlives
    // the call, and without CLONE_VM and a stack the child continues on a copy of ours, as after fork (clone(2), 5.3).
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) };
    match result {
        0 => Ok(None),
        pid if pid > 0 => Ok(i32::try_from(pid).ok().and_then(Pid::from_raw)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `CLONE_INTO_CGROUP`, Linux 5.7; it does not fit the `int` of libc's constants.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` (linux/sched.h), version 2.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` ends the process without touching any memory of ours.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_cannot_fork_into_namespaces() {
        let error = std::thread::spawn(|| fork_into(NamespaceSet::default(), None, || 0))
            .join()
            .unwrap()
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDEADLK));
    }

    #[test]
    fn maps_are_lines_of_three_numbers() {
        let map = [
            IdMap {
                inside: 0,
                outside: 100_000,
                count: 1000,
            },
            IdMap {
                inside: 1000,
                outside: 4242,
                count: 1,
            },
        ];
        assert_eq!(map_text(&map), "0 100000 1000\n1000 4242 1\n");
    }
}
