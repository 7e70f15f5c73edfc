//! The guest's start: the first process of a pid namespace, in the tree, with what level `process` leaves it.

use core::ffi::CStr;

use offleash_protocol::vm::Begin;
use offleash_sys::spawn::{SpawnUser, become_user_keeping, fork_process};
use offleash_sys::{filter, machine};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::boot::write_file;
use super::mounts;
use super::tree::TREE;
use super::{VmFailure, step};

/// The name that the guest has among processes, as at the other levels.
const NAME: &CStr = c"offleash-guest";

/// As many processes as there can be numbers (`PID_MAX_LIMIT`); the kernel takes no higher bound.
const MAX_PROCESSES: u64 = 4 << 20;

/// The guest's process, and the other end of its control socket.
pub(super) struct StartedGuest {
    pub(super) pid: i32,
    pub(super) control: OwnedFd,
    /// What went wrong before the guest's program ran: a step's number and an error. Its end when it runs.
    pub(super) report: OwnedFd,
}

/// Starts the guest.
pub(super) fn start(begin: &Begin) -> Result<StartedGuest, VmFailure> {
    make_group(begin).map_err(step("bound memory and processes"))?;
    let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (control, theirs) = pair().map_err(step("make the guest's control socket"))?;
    let (report, says) = pair().map_err(step("make a socket for the guest's start"))?;
    machine::enclose_next_child().map_err(step("make a namespace of processes"))?;
    let started = fork_process(|| {
        let failure = become_guest(begin, &theirs);
        let mut line = failure.errno.raw_os_error().to_ne_bytes().to_vec();
        line.extend_from_slice(failure.step.as_bytes());
        let _ = rustix::net::send(&says, &line, SendFlags::NOSIGNAL);
        1
    });
    let pid = started.map_err(step("start the guest"))?;
    Ok(StartedGuest { pid, control, report })
}

/// The bounds are the guest kernel's own, by a cgroup: unlike `RLIMIT_NPROC` it holds for root too, and for all users together. It
/// counts what it kills and refuses, too.
fn make_group(begin: &Begin) -> Result<(), Errno> {
    let directory = Mode::from_raw_mode(0o755);
    rustix::fs::mkdir(c"/cgroup", directory)?;
    rustix::mount::mount(c"cgroup2", c"/cgroup", c"cgroup2", MountFlags::empty(), None)?;
    write_file(c"/cgroup/cgroup.subtree_control", b"+pids +memory")?;
    rustix::fs::mkdir(c"/cgroup/sandbox", directory)?;
    if let Some(most) = begin.max_processes {
        write_file(
            c"/cgroup/sandbox/pids.max",
            &mounts::number(most.min(MAX_PROCESSES), 10),
        )?;
    }
    match begin.max_memory {
        Some(most) => write_file(c"/cgroup/sandbox/memory.max", &mounts::number(most, 10)),
        None => Ok(()),
    }
}

/// Does all that comes before the guest's first instruction; answers what failed.
fn become_guest(begin: &Begin, control: &OwnedFd) -> VmFailure {
    match prepare(begin, control) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn prepare(begin: &Begin, control: &OwnedFd) -> Result<core::convert::Infallible, VmFailure> {
    write_file(c"/proc/self/oom_score_adj", b"0").map_err(step("set the score for when memory runs out"))?;
    write_file(c"/cgroup/sandbox/cgroup.procs", b"0").map_err(step("enter the group of processes"))?;
    let counts = [c"/cgroup/sandbox/memory.events", c"/cgroup/sandbox/pids.events"];
    let [memory_events, process_events] =
        counts.map(|file| rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    let memory_events = memory_events.map_err(step("open what counts kills"))?;
    let process_events = process_events.map_err(step("open what counts refused processes"))?;
    machine::separate_mounts().map_err(step("make a namespace of mounts"))?;
    rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("keep mounts apart"))?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(step("open /dev/null"))?;
    mounts::mount_all(&begin.mounts)?;
    if begin.read_only_root {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let tree = rustix::fs::open(TREE, flags, Mode::empty()).and_then(|tree| mounts::make_read_only(&tree));
        tree.map_err(step("make the tree read-only"))?;
    }
    // From here on the program itself, whose file the guest could be reached through, cannot be written by way of this mount.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(c"/", flags, c"").map_err(step("make the initramfs read-only"))?;
    let program =
        rustix::fs::open(c"/init", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(step("open the guest"))?;
    enter_tree().map_err(step("enter the tree"))?;
    for limit in &begin.limits {
        machine::set_limit(limit.resource, limit.soft, limit.hard).map_err(step("set a resource limit"))?;
    }
    let user = SpawnUser {
        uid: begin.user.uid,
        gid: begin.user.gid,
    };
    become_user_keeping(user, begin.capabilities).map_err(step("become the guest's user"))?;
    if !begin.filter.is_empty() {
        filter::install(&begin.filter).map_err(step("install the system call filter"))?;
    }
    let null = null.as_fd();
    // As `limit_counts` takes them.
    let descriptors = [
        null,
        null,
        null,
        control.as_fd(),
        memory_events.as_fd(),
        process_events.as_fd(),
    ];
    let errno = machine::become_program(&program, NAME, &descriptors);
    Err(step("execute the guest")(errno))
}

/// Makes the tree the root. The initramfs cannot be left otherwise (pivot_root(2)); it is below the tree, where no path leads.
fn enter_tree() -> Result<(), Errno> {
    rustix::process::chdir(TREE)?;
    rustix::mount::mount_move(c".", c"/")?;
    rustix::process::chroot(c".")?;
    rustix::process::chdir(c"/")
}
