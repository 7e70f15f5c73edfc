//! How a process that was started elsewhere comes into a running sandbox: a copy of a zygote's, which takes on everything
//! that a command of the guest has, and is proved to have before it runs anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use offleash_core::exec::{ExecRequest, Stdin, UserIds};
use offleash_core::plan::Plan;
use offleash_sys::namespaces::{IdMap, number_of};
use offleash_sys::rlimit::LimitedResource;
use offleash_sys::seccomp::NotifyListener;
use offleash_sys::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, pidfd_send_signal};

use super::census::{CAPABILITIES, NAMESPACES, OtherProcesses, ProcessAudit};
use super::grouping::ControlGroup;
use super::identity::IdMaps;
use crate::entered::EnteredProcess;
use crate::limits;

/// How long a zygote may take; after that it is not to be waited for. It takes milliseconds, and starting an interpreter instead
/// takes less than this.
const TIMEOUT: Duration = Duration::from_secs(3);
/// What a zygote is sent, with [`MADE_IN`] and without a byte that is the sandbox's own: all later copies have whatever it
/// was ever given. The copy takes what follows.
const ENTER: &[u8] = b"enter";
/// The namespaces in which a copy is made, and those that it enters.
const MADE_IN: [&str; 2] = ["user", "pid"];
const ENTERS: [&str; 5] = ["mnt", "net", "ipc", "uts", "cgroup"];
/// What a copy is told first, with the entrances of the sandbox's cgroup. The order follows.
const GROUP: &[u8] = b"group";
/// What a copy says, with a descriptor of itself, when it is there; with the listener of its filter, when it is in the
/// sandbox; then, when it has that no more and may be traced as any process there; and what that waits for.
const WAITING: &[u8] = b"waiting";
const ENTERED: &[u8] = b"entered";
const BARE: &[u8] = b"bare";
const GO: &[u8] = b"go";
/// `SECCOMP_MODE_FILTER`, as `/proc/PID/status` says it.
const FILTERED: &str = "2";
/// The links of `/proc/PID/task` of a process with one thread: two, and one for each.
const LINKS_OF_ONE: u64 = 3;

/// What the sandbox was made with that a process has to take on.
#[derive(Debug)]
pub(crate) struct JoinSpec {
    pub(super) first: Pid,
    /// Who is there.
    pub(super) census: ProcessAudit,
    pub(super) ruleset: Option<OwnedFd>,
    /// The system call filter, as the kernel takes it.
    pub(super) filter: Vec<u8>,
    pub(super) rlimits: Vec<(LimitedResource, u64)>,
    /// Whether it is kept to some CPUs, which its first process knows.
    pub(super) kept_to_cpus: bool,
    pub(super) uid_map: Vec<IdMap>,
    pub(super) gid_map: Vec<IdMap>,
    /// The user of commands for which no other is asked.
    pub(super) user: UserIds,
}

/// A copy of a zygote's process that was asked for, and waits for its order or is still being made.
#[derive(Debug)]
pub(crate) struct PendingFork {
    zygote: OwnedFd,
    /// The sandbox's first process.
    first: Pid,
}

impl PendingFork {
    /// Has the zygote at the other end of `zygote` make a copy among the processes of that first one, which needs to be no
    /// more yet. Does not wait for it.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(super) fn ask(zygote: OwnedFd, first: Pid) -> io::Result<Self> {
        bound_waiting(zygote.as_fd())?;
        let namespaces = namespaces(first, &MADE_IN)?;
        let namespaces: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
        socket::send(zygote.as_fd(), ENTER, &namespaces)?;
        Ok(Self { zygote, first })
    }

    /// Has it enter the cgroup of its sandbox, before which it writes to no more memory than it must: pages are counted where
    /// they were written to first.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(super) fn enter(&self, group: Option<&ControlGroup>) -> io::Result<()> {
        let entrances = group.map(ControlGroup::entrances_to_all).transpose();
        let entrances = entrances.map_err(io::Error::other)?.unwrap_or_default();
        let entrances: Vec<_> = entrances.iter().map(AsFd::as_fd).collect();
        socket::send(self.zygote.as_fd(), GROUP, &entrances)
    }

    /// Waits until it is there; answers its pidfd and process id. Nothing is done to a process that is not the sandbox's,
    /// whichever the zygote names.
    fn arrive(&self) -> io::Result<(OwnedFd, Pid)> {
        let mut buffer = [0; 1024];
        let (length, descriptors) = socket::receive(self.zygote.as_fd(), &mut buffer)?;
        let pidfd = match (buffer.get(..length).unwrap_or_default(), descriptors.into_iter().next()) {
            (WAITING, Some(pidfd)) => pidfd,
            (said, _) => return Err(unexpected(said)),
        };
        let pid = number_of(&pidfd)?;
        if namespace_of(pid, "pid")? != namespace_of(self.first, "pid")? {
            return Err(io::Error::other(
                "the zygote names a process that is not in the sandbox",
            ));
        }
        Ok((pidfd, pid))
    }

    /// Ends it, and waits for its end: it has nothing of the sandbox yet that would hold it.
    fn turn_away(self) {
        // Without an order it ends by itself, whenever it comes to be.
        if let Ok((pidfd, _)) = self.arrive() {
            end(&pidfd);
        }
    }
}

/// A process that has come in, and waits.
#[derive(Debug)]
pub(crate) struct JoinedProcess {
    /// Its process id outside.
    pub(crate) pid: Pid,
    /// Where its refused system calls arrive.
    pub(crate) listener: NotifyListener,
    pub(crate) process: EnteredProcess,
    zygote: OwnedFd,
}

impl JoinSpec {
    /// What a process has to take on in the sandbox of `plan`.
    ///
    /// # Errors
    /// When it cannot be seen who is there.
    pub(super) fn new(
        plan: &Plan,
        first: Pid,
        identity: &IdMaps,
        bounds: &super::child::ChildBounds,
    ) -> io::Result<Self> {
        Ok(Self {
            first,
            census: ProcessAudit::of(first)?,
            ruleset: None,
            filter: bounds.filter(plan).to_bytes(),
            rlimits: limits::rlimits(&plan.limits, bounds.held),
            kept_to_cpus: plan.limits.cpus.is_some(),
            uid_map: identity.uid_map.clone(),
            gid_map: identity.gid_map.clone(),
            user: plan.user.ids(),
        })
    }

    /// Who is there now, beside whom a copy that is asked for from now on may come in.
    ///
    /// # Errors
    /// When that cannot be seen.
    pub(super) fn others(&self) -> io::Result<OtherProcesses> {
        Ok(OtherProcesses::These(self.census.now()?))
    }

    /// Ends a copy that was asked for ahead, and whatever its zygote put there with it: nothing else ran there yet.
    pub(super) fn turn_away(&self, coming: PendingFork) {
        coming.turn_away();
        // What was found is of no use to anybody.
        let _ended = self.end_strangers(None, &OtherProcesses::Nobody);
    }

    /// Moves a copy of a zygote's process here, as the user and with the environment of `request`, where nobody but `others`
    /// may be. Waits for it.
    ///
    /// # Errors
    /// What the kernel or the zygote answered, what the process lacks of what it has to have, or that others came with it;
    /// they are killed then.
    pub(super) fn let_in(
        &self,
        request: &ExecRequest,
        coming: PendingFork,
        others: &OtherProcesses,
        group: Option<&ControlGroup>,
    ) -> io::Result<JoinedProcess> {
        let arrived = self.take_on(request, coming, group).and_then(|arrived| {
            match self.end_strangers(Some(arrived.process.number()), others)? {
                0 => Ok(arrived),
                count => {
                    end(arrived.process.descriptor());
                    Err(io::Error::other(format!(
                        "the zygote has put {count} other processes into the sandbox"
                    )))
                }
            }
        });
        arrived.or_else(|error| {
            self.end_strangers(None, others)?;
            Err(error)
        })
    }

    /// As [`ProcessAudit::end_strangers`]; where they do not end, the sandbox does.
    fn end_strangers(&self, copy: Option<u32>, others: &OtherProcesses) -> io::Result<usize> {
        self.census.end_strangers(copy, others).inspect_err(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                // Not reaped yet, so its number is its own; it fails only if it has ended.
                let _killed = rustix::process::kill_process(self.first, Signal::KILL);
            }
        })
    }

    fn take_on(
        &self,
        request: &ExecRequest,
        coming: PendingFork,
        group: Option<&ControlGroup>,
    ) -> io::Result<JoinedProcess> {
        let user = request.user.unwrap_or(self.user);
        if user.uid == 0 || request.tty.is_some() {
            // A superuser keeps capabilities that are not taken on here, and a terminal is the guest's.
            coming.turn_away();
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (given_input, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let (output, given_output) = pipe_with(PipeFlags::CLOEXEC)?;
        let (errors, given_errors) = pipe_with(PipeFlags::CLOEXEC)?;
        let owner = |map: &[IdMap], id: u32| {
            outer(map, id).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the user has no id here"))
        };
        let (uid, gid) = (owner(&self.uid_map, user.uid)?, owner(&self.gid_map, user.gid)?);
        for stream in [&given_input, &given_output, &given_errors] {
            // So that they can be opened again by name. It fails where we are that user, or may not give things away.
            let raw = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
            let _given = rustix::fs::fchown(stream, Some(raw.0), Some(raw.1));
        }
        // Not the first process, which a zygote may not look into.
        let namespaces = namespaces(self.first, &ENTERS)?;
        let mut descriptors: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
        descriptors.extend([given_input.as_fd(), given_output.as_fd(), given_errors.as_fd()]);
        descriptors.extend(self.ruleset.iter().map(AsFd::as_fd));
        let order = self.order(request, user)?;
        socket::send(coming.zygote.as_fd(), order.as_bytes(), &descriptors)?;
        drop((given_input, given_output, given_errors));
        let (pidfd, pid) = coming.arrive()?;
        let zygote = coming.zygote;
        let listener = match answer(zygote.as_fd()) {
            Ok(listener) => listener,
            Err(error) => {
                end(&pidfd);
                return Err(error);
            }
        };
        // Like all commands; where we may not, it is as likely as others.
        let _preferred = limits::prefer_to_kill(&pid.to_string(), limits::COMMAND_OOM_SCORE);
        // An older kernel does not let it do that itself.
        let joined = match group {
            Some(group) if of_kernel(pid, "cgroup")? != of_kernel(self.first, "cgroup")? => group
                .join_version_2(pid.as_raw_pid().cast_unsigned())
                .map_err(io::Error::other),
            _ => Ok(()),
        };
        let proved = joined.and_then(|()| self.prove(pid, (uid, gid))).and_then(|()| {
            for stream in [&input, &output, &errors] {
                rustix::io::ioctl_fionbio(stream, true)?;
            }
            let inside = innermost_number(pid)?;
            let told = rustix::io::fcntl_dupfd_cloexec(&zygote, 0)?;
            let stdin = (request.stdin == Stdin::Stream).then_some(input);
            Ok(EnteredProcess::new(
                rustix::io::fcntl_dupfd_cloexec(&pidfd, 0)?,
                inside,
                stdin,
                [output, errors],
                told,
            ))
        });
        match proved {
            Ok(process) => Ok(JoinedProcess {
                pid,
                listener: NotifyListener::from(listener),
                process,
                zygote,
            }),
            Err(error) => {
                end(&pidfd);
                Err(error)
            }
        }
    }

    /// What the copy takes on: lines of a word and its values; what may hold any bytes is in hexadecimal.
    fn order(&self, request: &ExecRequest, user: UserIds) -> io::Result<String> {
        let mut lines = vec![
            format!("uid {}", user.uid),
            format!("gid {}", user.gid),
            format!("cwd {}", hexadecimal(request.cwd.as_os_str().as_bytes())),
            format!("filter {}", hexadecimal(&self.filter)),
            format!("ruleset {}", u8::from(self.ruleset.is_some())),
        ];
        let variable = |name: &[u8], value: &[u8]| format!("env {} {}", hexadecimal(name), hexadecimal(value));
        lines.extend(
            request
                .env
                .iter()
                .map(|(name, value)| variable(name.as_bytes(), value.as_bytes())),
        );
        lines.extend(
            self.rlimits
                .iter()
                .map(|(resource, value)| format!("limit {} {value}", resource.name())),
        );
        if self.kept_to_cpus {
            let numbers: Vec<String> = cpus_of(self.first)?.iter().map(usize::to_string).collect();
            lines.push(format!("cpus {}", numbers.join(" ")));
        }
        Ok(lines.join("\n"))
    }

    /// Finds in the kernel's own account that the process is in the sandbox as its commands are.
    fn prove(&self, pid: Pid, (uid, gid): (u32, u32)) -> io::Result<()> {
        let lacks = |what: &str| io::Error::other(format!("the process that came in has not {what} of the sandbox"));
        for name in NAMESPACES {
            if namespace_of(pid, name)? != namespace_of(self.first, name)? {
                return Err(lacks(&format!("the namespace `{name}`")));
            }
        }
        let root = |pid: Pid| rustix::fs::stat(format!("/proc/{}/root", pid.as_raw_pid()));
        let (its, ours) = (root(pid)?, root(self.first)?);
        if (its.st_dev, its.st_ino) != (ours.st_dev, ours.st_ino) {
            return Err(lacks("the root directory"));
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()))?;
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim).unwrap_or_default()
        };
        let all = |name: &str, id: u32| field(name).split_whitespace().all(|one| one.parse() == Ok(id));
        if !all("Uid", uid) || !all("Gid", gid) {
            return Err(lacks("the user"));
        }
        if CAPABILITIES
            .iter()
            .any(|set| u64::from_str_radix(field(set), 16) != Ok(0))
        {
            return Err(lacks("the want of capabilities"));
        }
        if field("NoNewPrivs") != "1" || field("Seccomp") != FILTERED {
            return Err(lacks("the system call filter"));
        }
        for (file, what) in [("cgroup", "the cgroup"), ("limits", "the limits")] {
            if of_kernel(pid, file)? != of_kernel(self.first, file)? {
                return Err(lacks(what));
            }
        }
        if self.kept_to_cpus && cpus_of(pid)? != cpus_of(self.first)? {
            return Err(lacks("the CPUs"));
        }
        // After all else, which is said of its first thread: one that it has from now on has the same.
        // Not by `stat` itself, whose count has another type on aarch64.
        let tasks = std::fs::metadata(format!("/proc/{}/task", pid.as_raw_pid()))?;
        if tasks.nlink() != LINKS_OF_ONE {
            return Err(lacks("the one thread"));
        }
        Ok(())
    }
}

impl JoinedProcess {
    /// Lets it run.
    pub(crate) fn go(self) -> io::Result<(NotifyListener, EnteredProcess)> {
        socket::send(self.zygote.as_fd(), GO, &[])?;
        Ok((self.listener, self.process))
    }
}

/// Ends a process and waits for that.
fn end(pidfd: &OwnedFd) {
    // It fails only if it has ended.
    let _killed = pidfd_send_signal(pidfd, Signal::KILL);
    let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
    let patience = Timespec::try_from(TIMEOUT).unwrap_or_default();
    let _ended = retry_on_intr(|| poll(&mut ended, Some(&patience)));
}

/// Which namespace of that kind a process is in.
fn namespace_of(process: Pid, name: &str) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{}/ns/{name}", process.as_raw_pid()))
}

fn of_kernel(process: Pid, file: &str) -> io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{}/{file}", process.as_raw_pid()))
}

/// Namespaces of a process, to be handed on.
fn namespaces(process: Pid, names: &[&str]) -> io::Result<Vec<std::fs::File>> {
    let open = |name| std::fs::File::open(format!("/proc/{}/ns/{name}", process.as_raw_pid()));
    names.iter().map(open).collect()
}

/// Nobody waits longer than [`TIMEOUT`] at this socket.
fn bound_waiting(socket: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, direction, Some(TIMEOUT))?;
    }
    Ok(())
}

/// The listener of the filter of a copy that has taken on all that it was ordered.
fn answer(zygote: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut buffer = [0; 1024];
    let (length, descriptors) = socket::receive(zygote, &mut buffer)?;
    let said = buffer.get(..length).unwrap_or_default();
    match (said, descriptors.into_iter().next()) {
        (ENTERED, Some(listener)) => {
            let (length, _none) = socket::receive(zygote, &mut buffer)?;
            let said = buffer.get(..length).unwrap_or_default();
            (said == BARE).then_some(listener).ok_or_else(|| unexpected(said))
        }
        _ => Err(unexpected(said)),
    }
}

fn unexpected(said: &[u8]) -> io::Error {
    match said {
        b"" => io::ErrorKind::UnexpectedEof.into(),
        _ => io::Error::other(format!("the zygote says: {}", said.escape_ascii())),
    }
}

/// The CPUs that a process may use.
fn cpus_of(pid: Pid) -> io::Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(Some(pid))?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect())
}

/// The host's id of one inside.
fn outer(map: &[IdMap], id: u32) -> Option<u32> {
    let line = map
        .iter()
        .find(|line| id >= line.inside && id - line.inside < line.count)?;
    Some(line.outside + (id - line.inside))
}

/// The process id in the innermost namespace.
fn innermost_number(pid: Pid) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()))?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = numbers.and_then(|numbers| numbers.split_whitespace().next_back()?.parse().ok());
    last.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_a_map() {
        let line = |inside, outside, count| IdMap { inside, outside, count };
        let map = [line(0, 4242, 1), line(1, 100_000, 65_535)];
        assert_eq!(outer(&map, 0), Some(4242));
        assert_eq!(outer(&map, 1000), Some(100_999));
        assert_eq!(outer(&map, 65_536), None);
        assert_eq!(outer(&[], 0), None);
    }

    #[test]
    fn any_bytes_can_be_said() {
        assert_eq!(hexadecimal(b"a\n\xff\0"), "610aff00");
        assert_eq!(innermost_number(rustix::process::getpid()).unwrap(), std::process::id());
    }
}
