//! How a process that was started elsewhere comes into a running sandbox: a copy of a zygote's, which takes on everything
//! that a command of the guest has, and is proved to have before it runs anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use offleash_core::exec::{ExecRequest, Stdin, UserIds};
use offleash_core::plan::Plan;
use offleash_sys::namespaces::{IdMap, number_of};
use offleash_sys::rlimit::Resource;
use offleash_sys::seccomp::Listener;
use offleash_sys::socket;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::grouping::Group;
use super::identity::Identity;
use crate::entered::Entered;
use crate::limits;

/// How long a zygote may take; after that it is not to be waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a zygote is sent, with descriptors and without a byte that is the sandbox's own: all later copies have whatever it
/// was ever given. The copy takes what follows.
const ENTER: &[u8] = b"enter";
/// What a zygote says when its copy is in the sandbox, then when the copy has what it sent with that no more and may be
/// traced as any process there, and what that waits for.
const ENTERED: &[u8] = b"entered";
const BARE: &[u8] = b"bare";
const GO: &[u8] = b"go";
/// The namespaces of a sandbox, as `/proc/PID/ns` names them.
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
/// Every set of capabilities in `/proc/PID/status`.
const CAPABILITIES: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
/// `SECCOMP_MODE_FILTER`, as `/proc/PID/status` says it.
const FILTERED: &str = "2";

/// What the sandbox was made with that a process has to take on.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) first: Pid,
    pub(super) ruleset: Option<OwnedFd>,
    /// The system call filter, as the kernel takes it.
    pub(super) filter: Vec<u8>,
    pub(super) rlimits: Vec<(Resource, u64)>,
    /// Whether it is kept to some CPUs, which its first process knows.
    pub(super) kept_to_cpus: bool,
    /// Of its cgroup, where that is entered from the inside.
    pub(super) entrances: Vec<OwnedFd>,
    pub(super) uid_map: Vec<IdMap>,
    pub(super) gid_map: Vec<IdMap>,
    /// The user of commands for which no other is asked.
    pub(super) user: UserIds,
}

/// A process that has come in, and waits.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Its process id outside.
    pub(crate) pid: Pid,
    /// Where its refused system calls arrive.
    pub(crate) listener: Listener,
    pub(crate) process: Entered,
    zygote: OwnedFd,
}

impl Door {
    /// What a process has to take on in the sandbox of `plan`.
    pub(super) fn new(plan: &Plan, first: Pid, identity: &Identity, bounds: &super::child::Bounds) -> Self {
        Self {
            first,
            ruleset: None,
            filter: bounds.filter(plan).to_bytes(),
            rlimits: limits::rlimits(&plan.limits, bounds.held),
            kept_to_cpus: bounds.affinity.is_some(),
            entrances: Vec::new(),
            uid_map: identity.uid_map.clone(),
            gid_map: identity.gid_map.clone(),
            user: plan.user.ids(),
        }
    }

    /// Has the zygote at the other end of `zygote` move a copy of a process here, as the user and with the environment
    /// of `request`. Waits for it.
    ///
    /// # Errors
    /// What the kernel or the zygote answered, or what the process lacks of what it has to have; it is killed then.
    pub(super) fn let_in(&self, request: &ExecRequest, zygote: OwnedFd, group: Option<&Group>) -> io::Result<Arrived> {
        let user = request.user.unwrap_or(self.user);
        if user.uid == 0 || request.tty.is_some() {
            // A superuser keeps capabilities that are not taken on here, and a terminal is the guest's.
            return Err(io::ErrorKind::Unsupported.into());
        }
        bound_waiting(zygote.as_fd())?;
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
        let first = pidfd_open(self.first, PidfdFlags::empty())?;
        let mut descriptors = vec![
            first.as_fd(),
            given_input.as_fd(),
            given_output.as_fd(),
            given_errors.as_fd(),
        ];
        descriptors.extend(self.ruleset.iter().map(AsFd::as_fd));
        descriptors.extend(self.entrances.iter().map(AsFd::as_fd));
        let order = self.order(request, user)?;
        socket::send(zygote.as_fd(), ENTER, &descriptors)?;
        socket::send(zygote.as_fd(), order.as_bytes(), &[])?;
        drop((given_input, given_output, given_errors));
        let (pidfd, listener) = answer(zygote.as_fd())?;
        let pid = number_of(&pidfd)?;
        // Like all commands; where we may not, it is as likely as others.
        let _preferred = limits::prefer_to_kill(&pid.to_string());
        let joined = group.map_or(Ok(()), |group| group.join_version_2(pid.as_raw_pid().cast_unsigned()));
        let joined = joined.map_err(io::Error::other);
        let proved = joined.and_then(|()| self.prove(pid, (uid, gid))).and_then(|()| {
            for stream in [&input, &output, &errors] {
                rustix::io::ioctl_fionbio(stream, true)?;
            }
            let inside = innermost_number(pid)?;
            let told = rustix::io::fcntl_dupfd_cloexec(&zygote, 0)?;
            let stdin = (request.stdin == Stdin::Stream).then_some(input);
            Ok(Entered::new(
                rustix::io::fcntl_dupfd_cloexec(&pidfd, 0)?,
                inside,
                stdin,
                [output, errors],
                told,
            ))
        });
        match proved {
            Ok(process) => Ok(Arrived {
                pid,
                listener: Listener::from(listener),
                process,
                zygote,
            }),
            Err(error) => {
                // It fails only if it has ended.
                let _killed = pidfd_send_signal(&pidfd, Signal::KILL);
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
            format!("entrances {}", self.entrances.len()),
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
        let namespace = |pid: Pid, name: &str| std::fs::read_link(format!("/proc/{}/ns/{name}", pid.as_raw_pid()));
        for name in NAMESPACES {
            if namespace(pid, name)? != namespace(self.first, name)? {
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
            let of = |pid: Pid| std::fs::read(format!("/proc/{}/{file}", pid.as_raw_pid()));
            if of(pid)? != of(self.first)? {
                return Err(lacks(what));
            }
        }
        if self.kept_to_cpus && cpus_of(pid)? != cpus_of(self.first)? {
            return Err(lacks("the CPUs"));
        }
        Ok(())
    }
}

impl Arrived {
    /// Lets it run.
    pub(crate) fn go(self) -> io::Result<(Listener, Entered)> {
        socket::send(self.zygote.as_fd(), GO, &[])?;
        Ok((self.listener, self.process))
    }
}

/// Nobody waits longer than [`PATIENCE`] at this socket.
fn bound_waiting(socket: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, direction, Some(PATIENCE))?;
    }
    Ok(())
}

fn answer(zygote: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut buffer = [0; 1024];
    let (length, descriptors) = socket::receive(zygote, &mut buffer)?;
    let said = buffer.get(..length).unwrap_or_default();
    let mut descriptors = descriptors.into_iter();
    match (said, descriptors.next(), descriptors.next()) {
        (ENTERED, Some(pidfd), Some(listener)) => {
            let (length, _none) = socket::receive(zygote, &mut buffer)?;
            let said = buffer.get(..length).unwrap_or_default();
            (said == BARE)
                .then_some((pidfd, listener))
                .ok_or_else(|| unexpected(said))
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
