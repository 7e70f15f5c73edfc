//! The first process of a sandbox, from its first instruction to the exec of the guest.
//!
//! It starts with every capability over its own namespaces and none over the host's. It ends with none at all, behind
//! Landlock and seccomp, as the guest. Until then it runs our code only.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use offleash_core::limits::Limits;
use offleash_core::plan::{Plan, PlanNode};
use offleash_core::spec::{MountAccess, ZygoteRole};
use offleash_sys::landlock::{self, GrantAccess, LandlockRestriction, LandlockRuleset, PathGrant};
use offleash_sys::seccomp::{self, FilterOptions, SeccompFilter};
use offleash_sys::{cgroup, credentials, mount, namespaces, process, rlimit};
use rustix::fs::{Mode, OFlags};

use super::handshake::{ChildEnd, FromParent, HandedDescriptors, StepFailure};
use super::network::{self, RedirectWay};
use super::network_namespace::NetworkNamespace;
use super::tree::{self, TreeGiver};
use crate::limits::{self, HeldByGroup};

/// Where the guest expects its control socket.
pub(crate) const CONTROL: i32 = 3;

/// What the child gets from the process that it is a copy of.
#[derive(Debug)]
pub(super) struct InheritedDescriptors<'a> {
    pub(super) channel: &'a ChildEnd,
    /// The guest's end of the control socket.
    pub(super) control: BorrowedFd<'a>,
    /// Whether it is a zygote, on whose user namespace everything below is counted too.
    pub(super) hands_out: bool,
    /// Descriptors that belong to the parent alone.
    pub(super) parents: &'a [BorrowedFd<'a>],
    /// What it becomes in place of the guest.
    pub(super) housed: Option<&'a dyn HousedProgram>,
}

/// A program that a sandbox's first process becomes in place of the guest, which it then starts itself: it lives in a small
/// root of its own, of which the sandbox's tree is one directory.
pub(crate) trait HousedProgram: std::fmt::Debug {
    /// Takes from the host's tree what it needs, before that goes.
    fn fetch(&self, plan: &Plan, given: &mut dyn TreeGiver) -> Result<Vec<OwnedFd>, StepFailure>;

    /// Makes its own root, and enters it; the present one is the sandbox's tree. Answers a file in which it tells what goes wrong.
    fn house(&self, plan: &Plan, held: HeldByGroup, fetched: &[OwnedFd]) -> Result<OwnedFd, StepFailure>;

    /// Takes away what it does not need, with what the supervisor is told of that.
    fn confine(&self, plan: &Plan) -> Result<Vec<ReportLine>, StepFailure>;

    /// Becomes it.
    fn exec(&self, plan: &Plan, fetched: &[OwnedFd]) -> io::Error;
}

/// What the child is told to become; sent to it, since it starts before that is known.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ChildOrder<P> {
    /// A [`Plan`], or a reference to one, which is sent as the same bytes.
    pub(super) plan: P,
    /// Trees that the parent makes, by number.
    pub(super) from_parent: Vec<usize>,
}

/// What the child is told at last, since it builds its file system while the parent finds this out.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct ChildBounds {
    /// What a cgroup bounds; for the rest rlimits do what they can.
    pub(super) held: HeldByGroup,
    /// Whether being kept to some CPUs is all that bounds how many are used.
    pub(super) kept_to_cpus: bool,
}

impl ChildBounds {
    /// The system call filter: refused calls are told to the parent, and so is where programs want to connect to.
    pub(super) fn filter(&self, plan: &Plan) -> SeccompFilter {
        seccomp::compile(&FilterOptions {
            allow_ptrace: plan.allow_ptrace,
            // A copy that is handed out has the other sandbox's supervisor, and the kernel lets it have one only.
            notify: plan.descent != ZygoteRole::Zygote,
            // A gateway sees more of them, and without making them wait.
            observe_connect: !plan.network && plan.descent != ZygoteRole::Zygote,
            // Memory files are not bounded by rlimits.
            deny_memfd: !self.held.memory,
            host_namespaces: false,
            superuser: plan.has_superuser(),
            // In a layer of the sandbox's own nobody outside comes to run what it makes.
            allow_set_id: plan.has_own_root() && !plan.writes_for_others(),
            // What is handed out takes the processors of where it goes.
            kept_to_cpus: self.kept_to_cpus && plan.descent != ZygoteRole::Zygote,
            show_memory: plan.limits.memory.is_some() && plan.descent != ZygoteRole::Zygote,
            watch_reservations: plan.limits.memory.is_some() && !self.held.memory && plan.descent != ZygoteRole::Zygote,
            count_forks: false,
            offer_renames: plan.has_overlay(),
            hands_out: plan.descent == ZygoteRole::Zygote,
        })
    }
}

/// Runs the child; returns, with an exit code, only if something failed.
pub(super) fn run(inherited: &InheritedDescriptors<'_>) -> i32 {
    for &descriptor in inherited.parents {
        process::close_inherited(descriptor);
    }
    reserve_control(inherited.control);
    match become_guest(inherited) {
        Ok(never) => match never {},
        Err(failure) => {
            inherited.channel.failed(&failure);
            125
        }
    }
}

fn become_guest(inherited: &InheritedDescriptors<'_>) -> Result<std::convert::Infallible, StepFailure> {
    process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
    rustix::process::setsid().map_err(|error| step("starting a session")(error.into()))?;
    let network_namespace = NetworkNamespace::begin()?;
    let mut arrivals = ParentMessages {
        channel: inherited.channel,
        expected: Vec::new(),
        waiting: Vec::new(),
    };
    if let Some((uid, gid)) = arrivals.wait_until_mapped()? {
        credentials::become_user(uid, gid).map_err(step("becoming the sandbox's user"))?;
        process::die_with_parent().map_err(step("tying the first process to its supervisor"))?;
    }
    if !inherited.hands_out {
        bound_inotify().map_err(step("bounding inotify instances"))?;
    }
    rustix::process::umask(Mode::from(0o022));
    let foundation = tree::lay_foundation()?;

    let order = receive_order(inherited.control)?;
    let plan = &order.plan;
    arrivals.expected.clone_from(&order.from_parent);
    let housed = match inherited.housed {
        Some(program) => Some((program, program.fetch(plan, &mut arrivals)?)),
        None => None,
    };
    rustix::system::sethostname(plan.hostname.as_bytes())
        .map_err(|error| step("setting the host name")(error.into()))?;
    let processors = ProcessorSet::of(plan).map_err(step("choosing processors"))?;
    let entered = foundation.enter(plan, &processors, &mut arrivals)?;
    network_namespace.enter()?;
    let (network, led) = match plan.network {
        true => {
            network::make(&plan.network_ports, &plan.network_doors).map(|(sockets, led)| (Some(sockets), Some(led)))?
        }
        false => (None, None),
    };
    use_null_streams().map_err(step("opening /dev/null"))?;

    let (sent, bounds) = arrivals.wait_for_start()?;
    let guest = place_guest(entered.guest.or(sent))?;
    if let Some((program, fetched)) = &housed {
        let network = network.as_ref().map(network::in_order).unwrap_or_default();
        return become_housed(inherited, *program, fetched, plan, bounds.held, &network);
    }
    // In our cgroup by now, so that the namespace's root is that one (THREATS P4).
    namespaces::unshare_cgroup().map_err(step("making a cgroup namespace"))?;
    if inherited.hands_out {
        // By it the census tells what a zygote started from the rest. A kernel without such namespaces has nothing that does.
        let _marked = namespaces::unshare_time();
    }
    let mut report = Vec::new();
    if let Some(RedirectWay::ByListeners(missing)) = led {
        let means = format!("a network namespace in which the ports of the rules lead to the gateway ({missing})");
        report.push(('+', "network", means));
    }
    if credentials::isolate_core().is_ok() {
        report.push(('+', "core_scheduling", "a core scheduling cookie of its own".to_owned()));
    }
    take_capabilities_away(plan).map_err(step("dropping capabilities"))?;
    let ruleset = match plan.descent {
        ZygoteRole::Zygote => {
            keep_apart()?;
            report.push((
                '+',
                "landlock",
                "no process outside can be traced, looked into or signalled".to_owned(),
            ));
            None
        }
        ZygoteRole::Alone | ZygoteRole::Below(_) => {
            let (said, ruleset) = restrict_paths(plan, guest.as_fd())?;
            report.push(said);
            ruleset
        }
    };
    // Not before: descriptors that are open only while the sandbox is made count, too.
    limit(plan, &bounds, &processors)?;
    place_control(inherited.control).map_err(step("placing the control socket"))?;
    process::close_from_at_exec(4).map_err(step("closing inherited descriptors"))?;
    let filter = bounds.filter(plan);
    report.push((
        '+',
        "seccomp",
        format!("allow-list, {} instructions", filter.instructions()),
    ));
    let installing = step("installing the system call filter");
    let listener = match plan.descent {
        ZygoteRole::Zygote => filter.install().map(|()| None).map_err(installing)?,
        ZygoteRole::Alone | ZygoteRole::Below(_) => filter.install_with_listener().map(Some).map_err(installing)?,
    };
    let handed = HandedDescriptors {
        listener: listener.as_ref().map(|listener| listener.as_fd()),
        ruleset: ruleset.as_ref().map(OwnedFd::as_fd),
        shown: entered.shown.as_ref().map(OwnedFd::as_fd),
        network: network.as_ref().map(network::in_order).unwrap_or_default(),
    };
    inherited
        .channel
        .ready(&report, &handed)
        .map_err(step("reporting to the supervisor"))?;
    drop((listener, ruleset, network, entered.shown));
    let error = process::exec_descriptor(guest.as_fd(), c"offleash-guest", None);
    Err(step("starting the guest")(error))
}

/// The rest of the way to a program that starts the guest itself.
fn become_housed(
    inherited: &InheritedDescriptors<'_>,
    program: &dyn HousedProgram,
    fetched: &[OwnedFd],
    plan: &Plan,
    held: HeldByGroup,
    network: &[BorrowedFd<'_>],
) -> Result<std::convert::Infallible, StepFailure> {
    let told = program.house(plan, held, fetched)?;
    namespaces::unshare_cgroup().map_err(step("making a cgroup namespace"))?;
    let report = program.confine(plan)?;
    rustix::stdio::dup2_stderr(&told).map_err(|error| step("placing standard error")(error.into()))?;
    place_control(inherited.control).map_err(step("placing the control socket"))?;
    process::close_from_at_exec(4).map_err(step("closing inherited descriptors"))?;
    let handed = HandedDescriptors {
        shown: Some(told.as_fd()),
        network: network.to_vec(),
        ..HandedDescriptors::default()
    };
    inherited
        .channel
        .ready(&report, &handed)
        .map_err(step("reporting to the supervisor"))?;
    Err(step("starting the runtime")(program.exec(plan, fetched)))
}

fn take_capabilities_away(plan: &Plan) -> io::Result<()> {
    if !plan.has_superuser() {
        return credentials::drop_capabilities();
    }
    credentials::drop_groups()?;
    credentials::drop_capabilities_but(credentials::SUPERUSER)
}

/// Sends an order over a control socket that no guest has yet.
pub(super) fn send_order(control: BorrowedFd<'_>, order: &ChildOrder<&Plan>) -> io::Result<()> {
    let bytes = postcard::to_allocvec(order).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut message = length.to_le_bytes().to_vec();
    message.extend(bytes);
    let mut rest = message.as_slice();
    while !rest.is_empty() {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(control, rest, flags))?;
        rest = rest.get(sent..).unwrap_or_default();
    }
    Ok(())
}

fn receive_order(control: BorrowedFd<'_>) -> Result<ChildOrder<Plan>, StepFailure> {
    let received = read_exactly::<4>(control).and_then(|length| {
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        fill(control, &mut bytes)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    });
    received.map_err(step("hearing what to become"))
}

fn read_exactly<const LENGTH: usize>(from: BorrowedFd<'_>) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    fill(from, &mut bytes)?;
    Ok(bytes)
}

fn fill(from: BorrowedFd<'_>, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(from, &mut *bytes))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes = bytes.get_mut(length..).unwrap_or_default(),
        }
    }
    Ok(())
}

fn limit(plan: &Plan, bounds: &ChildBounds, processors: &ProcessorSet) -> Result<(), StepFailure> {
    for (resource, value) in limits::rlimits(&limits_of_each(plan), bounds.held) {
        rlimit::lower(resource, value).map_err(|error| step("setting resource limits")(error.source.into()))?;
    }
    match processors.are_some_of_all {
        true => keep_to(&processors.usable).map_err(step("setting the CPU affinity")),
        false => Ok(()),
    }
}

/// What bounds each process by itself; of a zygote only what all sandboxes have, since a copy can only lower what it has.
fn limits_of_each(plan: &Plan) -> Limits {
    let own = super::limits_of_itself(plan);
    match plan.descent {
        ZygoteRole::Alone | ZygoteRole::Below(_) => own,
        ZygoteRole::Zygote => Limits {
            workspace: None,
            file_size: None,
            ..own
        },
    }
}

pub(crate) fn step(what: &'static str) -> impl FnOnce(io::Error) -> StepFailure {
    move |source| StepFailure::new(what, "", source)
}

/// What the parent sends, in the order in which it is needed here.
struct ParentMessages<'a> {
    channel: &'a ChildEnd,
    expected: Vec<usize>,
    waiting: Vec<(usize, OwnedFd)>,
}

impl ParentMessages<'_> {
    fn next(&self) -> Result<FromParent, StepFailure> {
        self.channel.next().map_err(step("hearing from the supervisor"))
    }

    /// The uid and gid to change to, if we do not have them yet.
    fn wait_until_mapped(&self) -> Result<Option<(u32, u32)>, StepFailure> {
        match self.next()? {
            FromParent::Mapped { user } => Ok(user),
            _ => Err(unexpected()),
        }
    }

    /// Waits until everything is there, and enters the cgroup.
    fn wait_for_start(&self) -> Result<(Option<OwnedFd>, ChildBounds), StepFailure> {
        match self.next()? {
            FromParent::Start { guest, entrances, told } => {
                let hearing = step("hearing from the supervisor");
                let bounds = postcard::from_bytes(&told).map_err(|error| hearing(io::Error::other(error)))?;
                cgroup::enter(&entrances).map_err(step("entering the cgroup"))?;
                Ok((guest, bounds))
            }
            _ => Err(unexpected()),
        }
    }
}

/// The guest's program, out of the way of the number that the control socket gets.
pub(crate) fn place_guest(guest: Option<OwnedFd>) -> Result<OwnedFd, StepFailure> {
    let placing = step("placing the guest's program");
    let Some(guest) = guest else {
        return Err(placing(io::ErrorKind::NotFound.into()));
    };
    rustix::io::fcntl_dupfd_cloexec(&guest, CONTROL + 7).map_err(|error| placing(error.into()))
}

impl TreeGiver for ParentMessages<'_> {
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

pub(crate) fn unexpected() -> StepFailure {
    StepFailure::new("hearing from the supervisor", "", io::ErrorKind::UnexpectedEof.into())
}

pub(crate) fn use_null_streams() -> io::Result<()> {
    let null = rustix::fs::openat(
        rustix::fs::CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Leaves inotify instances to the host: the kernel counts them for the user who started the sandbox, too, and by
/// default allows 128 in all (inotify(7)).
fn bound_inotify() -> io::Result<()> {
    const INSTANCES: &[u8] = b"32";
    let path = "/proc/sys/user/max_inotify_instances";
    match rustix::fs::openat(rustix::fs::CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => {
            rustix::io::write(&file, INSTANCES)?;
            Ok(())
        }
        // Before Linux 4.13, or without inotify: nothing is counted per namespace.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The processors of a sandbox.
#[derive(Debug)]
pub(super) struct ProcessorSet {
    /// Those that it may use, in order.
    pub(super) usable: Vec<usize>,
    /// Whether it is kept from others that we may use.
    pub(super) are_some_of_all: bool,
}

impl ProcessorSet {
    /// Those of the sandbox of `plan`: whole ones, also where a cgroup measures out parts of them, since run-times start
    /// as many threads as they find processors.
    fn of(plan: &Plan) -> io::Result<Self> {
        let usable = allowed_cpus()?;
        let count = plan.limits.cpus.filter(|_| plan.descent != ZygoteRole::Zygote);
        let count = count.and_then(|cpus| usize::try_from(cpus.millis.div_ceil(1000)).ok());
        Ok(match count.filter(|count| *count < usable.len()) {
            Some(count) => Self {
                usable: some_of(&usable, count),
                are_some_of_all: true,
            },
            None => Self {
                usable,
                are_some_of_all: false,
            },
        })
    }
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    let present = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| present.is_set(*cpu))
        .collect())
}

/// So many of these CPUs in order, by chance, so that sandboxes do not meet on the same ones while others have nothing to do.
fn some_of(allowed: &[usize], count: usize) -> Vec<usize> {
    // Its keys are random, and differ from one another.
    let chance = usize::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(0);
    let first = chance.checked_rem(allowed.len()).unwrap_or(0);
    let chosen = allowed.iter().cycle().skip(first).take(count.min(allowed.len()));
    let mut chosen: Vec<usize> = chosen.copied().collect();
    chosen.sort_unstable();
    chosen
}

/// Keeps this process and all that it starts to these CPUs.
fn keep_to(cpus: &[usize]) -> io::Result<()> {
    let mut kept = rustix::thread::CpuSet::new();
    for cpu in cpus {
        kept.set(*cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &kept)?)
}

/// Keeps this process and all that it starts to `count` of the CPUs that it may use now.
pub(crate) fn keep_to_cpus(count: usize) -> io::Result<()> {
    keep_to(&some_of(&allowed_cpus()?, count))
}

/// Takes the number of the control socket if it is free, so that nothing that is made meanwhile gets it and is lost.
pub(crate) fn reserve_control(control: BorrowedFd<'_>) {
    if let Ok(reserved) = rustix::io::fcntl_dupfd_cloexec(control, CONTROL) {
        // Replaced by [`place_control`]; any other number is closed at exec.
        let _reserved = reserved.into_raw_fd();
    }
}

/// Puts the control socket at descriptor 3, which stays open at exec.
pub(crate) fn place_control(control: BorrowedFd<'_>) -> io::Result<()> {
    process::duplicate_to(control, CONTROL)
}

/// A line of the report.
pub(crate) type ReportLine = (char, &'static str, String);

/// The second wall: what of the tree may be read, written and executed, whatever the mounts say.
/// Answers it, too, where processes are to enter the sandbox later.
fn restrict_paths(plan: &Plan, guest: BorrowedFd<'_>) -> Result<(ReportLine, Option<OwnedFd>), StepFailure> {
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
    let may_execute = plan.executables.is_empty();
    if !plan.has_own_root() {
        // What is shown there of the limits.
        open(Path::new("/sys"), GrantAccess::Read)?;
        open(Path::new("/"), GrantAccess::List)?;
        open(Path::new("/etc"), GrantAccess::Read)?;
    }
    for (path, access) in grants(plan, may_execute) {
        open(&path, access)?;
    }
    for executable in &plan.executables {
        open(executable, GrantAccess::Execute)?;
    }
    let places = places.iter().map(|(place, access)| (place.as_fd(), *access));
    // A memory file needs no rule (and can have none), a file of the host does.
    let guest = plan.guest.is_some().then_some((guest, GrantAccess::Execute));
    let grants: Vec<PathGrant<'_>> = places
        .chain(guest)
        .map(|(fd, access)| PathGrant { fd, access })
        .collect();
    let restriction = LandlockRestriction {
        grants: &grants,
        scope_signals: true,
        scope_abstract_sockets: true,
        deny_tcp: false,
    };
    let restricted = LandlockRuleset::new(&restriction).and_then(|ruleset| ruleset.restrict_self().map(|()| ruleset));
    match restricted {
        Ok(ruleset) => {
            let said = format!("ABI {}, {} rules", ruleset.enforced().abi, grants.len());
            let kept = matches!(plan.descent, ZygoteRole::Below(_)).then(|| ruleset.into());
            Ok((('+', "landlock", said), kept))
        }
        Err(error) if plan.executables.is_empty() && is_absent(&error) => {
            let said = "this kernel has no Landlock; mounts alone hold the file system".to_owned();
            Ok((('-', "landlock", said), None))
        }
        Err(error) => Err(step("restricting paths with Landlock")(error)),
    }
}

/// Keeps a zygote from the first processes of sandboxes below it, which have their supervisor's memory and the host's files until
/// they are guests: its user owns their user namespaces, and so it has every capability there. Copies of it would be bound
/// to paths in every other sandbox, so that is all.
fn keep_apart() -> Result<(), StepFailure> {
    landlock::isolate_self().map_err(|error| {
        let told = match is_absent(&error) {
            true => io::Error::new(error.kind(), "it takes Landlock of Linux 6.12"),
            false => error,
        };
        step("keeping a zygote from looking into other processes")(told)
    })
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
}

fn grants(plan: &Plan, may_execute: bool) -> impl Iterator<Item = (PathBuf, GrantAccess)> + '_ {
    let executable = move |with: GrantAccess, without: GrantAccess| if may_execute { with } else { without };
    plan.entries.iter().filter_map(move |entry| {
        let access = match &entry.node {
            PlanNode::Bind {
                access: MountAccess::Ro,
                ..
            }
            | PlanNode::Volume {
                access: MountAccess::Ro,
                ..
            } => executable(GrantAccess::ReadExecute, GrantAccess::Read),
            // That of the root directory holds for all beneath it.
            PlanNode::Base { .. } if entry.target != Path::new("/") => return None,
            PlanNode::Bind {
                access: MountAccess::Rw,
                ..
            }
            | PlanNode::Volume {
                access: MountAccess::Rw,
                ..
            }
            | PlanNode::Overlay { .. }
            | PlanNode::Base { .. }
            | PlanNode::Tmpfs { .. } => executable(GrantAccess::WriteExecute, GrantAccess::Write),
            PlanNode::Proc | PlanNode::Dev => GrantAccess::Write,
            // Below `/dev`, of which the rule is.
            PlanNode::Device { .. }
            | PlanNode::Directory
            | PlanNode::Symlink { .. }
            | PlanNode::File { .. }
            | PlanNode::Hidden { .. }
            | PlanNode::Home { .. }
            | PlanNode::Guest => return None,
        };
        // Below `/etc` everything may be read already; a rule for each file would only cost time.
        (!entry.target.starts_with("/etc")).then(|| (entry.target.clone(), access))
    })
}
