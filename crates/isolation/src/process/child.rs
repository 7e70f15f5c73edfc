//! The first process of a sandbox, from its first instruction to the exec of the guest.
//!
//! It starts with every capability over its own namespaces and none over the host's. It ends with none at all, behind
//! Landlock and seccomp, as the guest. Until then it runs our code only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_core::plan::{Node, Plan};
use offleash_core::spec::Access;
use offleash_sys::landlock::{self, Grant, GrantAccess, Restriction};
use offleash_sys::{credentials, mount, namespaces, process, rlimit, seccomp, socket};
use rustix::fs::{Mode, OFlags};

use super::handshake::{ChildEnd, FromParent, StepFailure};
use super::tree::{self, Given};
use crate::limits;

/// Where the guest expects its control socket.
const CONTROL: i32 = 3;

/// What the child gets from the process that it is a copy of.
#[derive(Debug)]
pub(super) struct Inherited<'a> {
    pub(super) plan: &'a Plan,
    pub(super) channel: &'a ChildEnd,
    /// The guest's end of the control socket.
    pub(super) control: BorrowedFd<'a>,
    /// Descriptors that belong to the parent alone.
    pub(super) parents: &'a [BorrowedFd<'a>],
    /// Trees that the parent makes, by number.
    pub(super) from_parent: &'a [usize],
    pub(super) filter: &'a seccomp::Filter,
    /// Whether refused system calls are told to the parent.
    pub(super) notify: bool,
    /// Whether the id to become is not the one that we have.
    pub(super) change_user: bool,
    /// Whether a cgroup bounds memory; otherwise rlimits do what they can.
    pub(super) group_bounds_memory: bool,
    /// To how many CPUs to keep, where no cgroup measures them out.
    pub(super) affinity: Option<usize>,
}

/// Runs the child; returns, with an exit code, only if something failed.
pub(super) fn run(inherited: &Inherited<'_>) -> i32 {
    for &descriptor in inherited.parents {
        process::close_inherited(descriptor);
    }
    match become_guest(inherited) {
        Ok(never) => match never {},
        Err(failure) => {
            inherited.channel.failed(&failure);
            125
        }
    }
}

fn become_guest(inherited: &Inherited<'_>) -> Result<std::convert::Infallible, StepFailure> {
    let plan = inherited.plan;
    process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
    rustix::process::setsid().map_err(|error| step("starting a session")(error.into()))?;
    namespaces::unshare_network().map_err(step("making network namespaces"))?;
    socket::loopback_up().map_err(step("turning the loopback interface on"))?;
    rustix::system::sethostname(plan.hostname.as_bytes()).map_err(|error| step("setting the host name")(error.into()))?;

    let mut arrivals = Arrivals { channel: inherited.channel, expected: inherited.from_parent, waiting: Vec::new() };
    arrivals.wait_until_mapped()?;
    if inherited.change_user {
        credentials::become_user(plan.user.uid, plan.user.gid).map_err(step("becoming the sandbox's user"))?;
        process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
    }
    rustix::process::umask(Mode::from(0o022));
    tree::enter(plan, &mut arrivals)?;
    use_null_streams().map_err(step("opening /dev/null"))?;

    let mut report = Vec::new();
    let guest = arrivals.wait_for_start()?;
    // After the parent put us into our cgroup, so that the namespace's root is that one (THREATS P4).
    namespaces::unshare_cgroup().map_err(step("making a cgroup namespace"))?;
    for (resource, value) in limits::rlimits(&plan.limits, inherited.group_bounds_memory) {
        rlimit::lower(resource, value).map_err(|error| step("setting resource limits")(error.source.into()))?;
    }
    if let Some(count) = inherited.affinity {
        keep_to_cpus(count).map_err(step("setting the CPU affinity"))?;
    }
    if credentials::isolate_core().is_ok() {
        report.push(('+', "core_scheduling", "a core scheduling cookie of its own".to_owned()));
    }
    credentials::drop_capabilities().map_err(step("dropping capabilities"))?;
    report.push(restrict_paths(plan)?);
    place_control(inherited.control).map_err(step("placing the control socket"))?;
    process::close_from_at_exec(4).map_err(step("closing inherited descriptors"))?;
    let listener = filter_calls(inherited)?;
    report.push(('+', "seccomp", format!("allow-list, {} instructions", inherited.filter.instructions())));
    inherited
        .channel
        .ready(&report, listener.as_ref().map(AsFd::as_fd))
        .map_err(step("reporting to the supervisor"))?;
    drop(listener);
    let error = process::exec_descriptor(guest.as_fd(), c"offleash-guest", None);
    Err(step("starting the guest")(error))
}

fn step(what: &'static str) -> impl FnOnce(io::Error) -> StepFailure {
    move |source| StepFailure::new(what, "", source)
}

/// What the parent sends, in the order in which it is needed here.
struct Arrivals<'a> {
    channel: &'a ChildEnd,
    expected: &'a [usize],
    waiting: Vec<(usize, OwnedFd)>,
}

impl Arrivals<'_> {
    fn next(&self) -> Result<FromParent, StepFailure> {
        self.channel.next().map_err(step("hearing from the supervisor"))
    }

    fn wait_until_mapped(&self) -> Result<(), StepFailure> {
        match self.next()? {
            FromParent::Mapped => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn wait_for_start(&self) -> Result<OwnedFd, StepFailure> {
        match self.next()? {
            // Out of the way of the number that the control socket gets.
            FromParent::Start { guest } => rustix::io::fcntl_dupfd_cloexec(&guest, CONTROL + 7)
                .map_err(|error| step("placing the guest's program")(error.into())),
            _ => Err(unexpected()),
        }
    }
}

impl Given for Arrivals<'_> {
    fn tree(&mut self, number: usize) -> Result<Option<OwnedFd>, StepFailure> {
        if !self.expected.contains(&number) {
            return Ok(None);
        }
        loop {
            if let Some(position) = self.waiting.iter().position(|(waiting, _)| *waiting == number) {
                return Ok(Some(self.waiting.swap_remove(position).1));
            }
            match self.next()? {
                FromParent::Tree { index, tree } => self.waiting.push((index, tree)),
                _ => return Err(unexpected()),
            }
        }
    }
}

fn unexpected() -> StepFailure {
    StepFailure::new("hearing from the supervisor", "", io::ErrorKind::UnexpectedEof.into())
}

fn use_null_streams() -> io::Result<()> {
    let null = rustix::fs::openat(rustix::fs::CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Keeps this process and all that it starts to `count` of the CPUs that it may use now.
fn keep_to_cpus(count: usize) -> io::Result<()> {
    let present = rustix::thread::sched_getaffinity(None)?;
    let mut kept = rustix::thread::CpuSet::new();
    let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| present.is_set(*cpu));
    for cpu in allowed.take(count) {
        kept.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &kept)?)
}

/// Puts the control socket at descriptor 3, which stays open at exec.
fn place_control(control: BorrowedFd<'_>) -> io::Result<()> {
    process::duplicate_to(control, CONTROL)
}

/// The second wall: what of the tree may be read, written and executed, whatever the mounts say.
fn restrict_paths(plan: &Plan) -> Result<(char, &'static str, String), StepFailure> {
    let mut places = Vec::new();
    let mut open = |path: &Path, access: GrantAccess| -> Result<(), StepFailure> {
        match mount::open_place(path) {
            Ok(place) => places.push((place, access)),
            // Covered by a rule, or below something that is.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            Err(source) => return Err(StepFailure::new("opening for Landlock", tree::shown(path), source)),
        }
        Ok(())
    };
    open(Path::new("/"), GrantAccess::List)?;
    open(Path::new("/etc"), GrantAccess::Read)?;
    let may_execute = plan.executables.is_empty();
    for (path, access) in grants(plan, may_execute) {
        open(&path, access)?;
    }
    for executable in &plan.executables {
        open(executable, GrantAccess::Execute)?;
    }
    let grants: Vec<Grant<'_>> =
        places.iter().map(|(place, access)| Grant { fd: place.as_fd(), access: *access }).collect();
    let restriction = Restriction { grants: &grants, scope_signals: true, scope_abstract_sockets: true, deny_tcp: false };
    match landlock::restrict_self(&restriction) {
        Ok(enforced) => Ok(('+', "landlock", format!("ABI {}, {} rules", enforced.abi, grants.len()))),
        Err(error) if plan.executables.is_empty() && is_absent(&error) => {
            Ok(('-', "landlock", "this kernel has no Landlock; mounts alone hold the file system".to_owned()))
        }
        Err(error) => Err(step("restricting paths with Landlock")(error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
}

fn grants(plan: &Plan, may_execute: bool) -> impl Iterator<Item = (PathBuf, GrantAccess)> + '_ {
    let executable = move |with: GrantAccess, without: GrantAccess| if may_execute { with } else { without };
    plan.entries.iter().filter_map(move |entry| {
        let access = match &entry.node {
            Node::Bind { access: Access::Ro, .. } => executable(GrantAccess::ReadExecute, GrantAccess::Read),
            Node::Bind { access: Access::Rw, .. } | Node::Overlay { .. } | Node::Tmpfs { .. } => {
                executable(GrantAccess::WriteExecute, GrantAccess::Write)
            }
            Node::Proc | Node::Dev => GrantAccess::Write,
            Node::Directory | Node::Symlink { .. } | Node::File { .. } | Node::Hidden { .. } => return None,
        };
        // Below `/etc` everything may be read already; a rule for each file would only cost time.
        (!entry.target.starts_with("/etc")).then(|| (entry.target.clone(), access))
    })
}

fn filter_calls(inherited: &Inherited<'_>) -> Result<Option<OwnedFd>, StepFailure> {
    let installed = if inherited.notify {
        inherited.filter.install_with_listener().map(|listener| Some(listener.into()))
    } else {
        inherited.filter.install().map(|()| None)
    };
    installed.map_err(step("installing the system call filter"))
}
