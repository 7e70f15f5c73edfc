//! Starts supervisors and hears of their end.
//!
//! A supervisor gets nothing of the daemon but its order and two pipes, and its own session, so that it outlives the daemon
//! and whatever ends that. It does nothing before it has read the whole order: one whose daemon dies before finds the
//! end of its input and goes. So it can be started before it is known for which sandbox.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use crate::registry::{BootId, SupervisorProcess};
use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_sys::process::start_ticks;
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::error::DaemonError;
use offleash_supervisor::frames::{frame, only, order_file};
use offleash_supervisor::roles::{RemoveOrder, SupervisorRole};
use offleash_supervisor::service::answer::{LaunchAnswer, MadeSandbox};
use offleash_supervisor::service::order::SupervisorOrder;

/// This program, even when its file was replaced or removed.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";
/// When it may be worth a try again after a supervisor took too long.
const RETRY: Duration = Duration::from_secs(5);
/// Longest answer of a supervisor to its order.
const MAX_ANSWER: u64 = 64 * 1024;

/// A supervisor that was started and waits for its order.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) process: SupervisorProcess,
    order: OwnedFd,
    answer: OwnedFd,
}

/// A process, from its start or its adoption to its end.
#[derive(Debug)]
pub(crate) struct Process {
    pidfd: OwnedFd,
}

/// Variables of the daemon that a supervisor has too: where the certificate authorities of the machine are, which a gateway
/// that opens TLS trusts.
const PASSED_ON: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

fn passed_on() -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |name: &&str| Some((name.as_bytes().to_vec(), std::env::var_os(name)?.into_vec()));
    PASSED_ON.iter().filter_map(value).collect()
}

/// Starts a supervisor; answers its process twice, once for whoever watches it. Blocks for a moment.
///
/// # Errors
/// What the kernel refused; there is no supervisor then.
pub(crate) fn start(program: Option<&Path>) -> io::Result<(Started, Process, Process)> {
    let (their_order, order) = pipe_with(PipeFlags::CLOEXEC)?;
    let (answer, their_answer) = pipe_with(PipeFlags::CLOEXEC)?;
    // It writes to its sandbox's directory what it has to complain of once it knows that.
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    let streams = [their_order.as_fd(), their_answer.as_fd(), null.as_fd()];
    let pid = start_own(program, SupervisorRole::Sandbox, &passed_on(), streams)?;
    let held = hold(pid).inspect_err(|_| {
        // Nobody would ever hear of its end.
        let _ = kill_process(pid, Signal::KILL);
        let _ = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    });
    let (start_ticks, process, watched) = held?;
    let started = Started {
        process: SupervisorProcess {
            pid: pid.as_raw_pid(),
            start_ticks,
            boot: this_boot(),
        },
        order,
        answer,
    };
    Ok((started, process, watched))
}

/// Starts `program`, ours if `None`, in that role, in a session of its own: it outlives the daemon. It is the caller's
/// to reap, so that its number is its own until then.
fn start_own(
    program: Option<&Path>,
    role: SupervisorRole,
    env: &[(Vec<u8>, Vec<u8>)],
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<Pid> {
    let program = program.unwrap_or(Path::new(OWN_PROGRAM));
    let spawned = spawn(&SpawnCommand {
        argv: &role.arguments(program.as_os_str().as_bytes()),
        env,
        cwd: Some(b"/"),
        descriptors: &streams,
        user: None,
        session: SessionChoice::New,
        orphaned: OrphanFate::Lives,
    });
    let pid = spawned.map_err(io::Error::other)?.pid;
    Ok(Pid::from_raw(pid.max(0)).ok_or(io::ErrorKind::InvalidData)?)
}

/// What a child that was not reaped yet is told from later ones by, and two handles of it.
fn hold(pid: Pid) -> io::Result<(u64, Process, Process)> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let process = Process { pidfd };
    let watched = process.again()?;
    let start_ticks = start_ticks(pid.as_raw_pid())?;
    let start_ticks = start_ticks.ok_or_else(|| io::Error::other("the supervisor ended at once"))?;
    Ok((start_ticks, process, watched))
}

/// Has `program`, ours if `None`, remove the layer that the sandbox `id` left in the state directory. Blocks until it has.
///
/// # Errors
/// When it cannot be started, or could not remove all of it.
pub(crate) fn remove_layer(program: Option<&Path>, state: &Path, id: &RunId) -> io::Result<()> {
    remove_in_process(program, state, id, false)
}

/// As [`remove_layer`], for a snapshot.
///
/// # Errors
/// As [`remove_layer`], and when somebody holds it.
pub(crate) fn remove_snapshot(program: Option<&Path>, state: &Path, id: &RunId) -> io::Result<()> {
    remove_in_process(program, state, id, true)
}

fn remove_in_process(program: Option<&Path>, state: &Path, id: &RunId, is_snapshot: bool) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let order = order_file(&RemoveOrder {
        state: Text::from(state),
        id: id.clone(),
        is_snapshot,
    })?;
    let streams = [order.as_fd(), null.as_fd(), null.as_fd()];
    let pid = start_own(program, SupervisorRole::RemoveLayer, &[], streams)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let ended = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
    match ended.and_then(|ended| ended.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(io::Error::other("not all of them can be removed")),
    }
}

impl Started {
    /// Gives the supervisor its order and waits until it has made the sandbox.
    ///
    /// # Errors
    /// Why it has not; `Overloaded` when it took longer than `patience`.
    pub(crate) async fn give(self, order: &SupervisorOrder, patience: Duration) -> Result<MadeSandbox, DaemonError> {
        let answered = timeout(patience, self.ask(order)).await;
        let answer = answered
            .map_err(|_| DaemonError::Overloaded {
                what: "time to make a sandbox",
                retry_after: RETRY,
            })?
            .map_err(|error| DaemonError::supervisor("make a sandbox", error))?;
        answer.into_result().map_err(DaemonError::of_making)
    }

    async fn ask(self, order: &SupervisorOrder) -> io::Result<LaunchAnswer> {
        for end in [&self.order, &self.answer] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let mut order_pipe = pipe::Sender::from_owned_fd(self.order)?;
        let answer_pipe = pipe::Receiver::from_owned_fd(self.answer)?;
        order_pipe.write_all(&frame(order)?).await?;
        drop(order_pipe);
        let mut answer = Vec::new();
        answer_pipe.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        only(&answer)
    }
}

impl Process {
    /// A child of ours that nobody has reaped.
    pub(crate) fn new(pidfd: OwnedFd) -> Self {
        Self { pidfd }
    }

    /// The process that was recorded, if it lives.
    pub(crate) fn find(recorded: SupervisorProcess) -> Option<Self> {
        // `from_raw` panics below zero, and the number was read from a file.
        let pid = (recorded.pid > 0).then(|| Pid::from_raw(recorded.pid))??;
        // After a reboot both numbers may be another process's.
        if recorded.boot != this_boot() {
            return None;
        }
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The descriptor came first: the number cannot have become another's since.
        (start_ticks(recorded.pid).ok()? == Some(recorded.start_ticks)).then_some(Self { pidfd })
    }

    /// Another handle of the same process.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let pidfd = self.pidfd.try_clone()?;
        Ok(Self { pidfd })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Kills it; the kernel then kills its sandbox.
    pub(crate) fn kill(&self) -> io::Result<()> {
        offleash_sys::process::kill(self.pidfd.as_fd())
    }

    /// Tells it to end.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.pidfd, Signal::TERM)?)
    }

    /// Ends it, and reaps it.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.kill()?;
        self.reap();
        Ok(())
    }

    /// Waits until it has ended, and reaps it if it is ours to reap.
    pub(crate) async fn ended(self) -> io::Result<Option<WaitIdStatus>> {
        #[expect(
            deprecated,
            reason = "its successor asks for a promise that an owned descriptor keeps by itself"
        )]
        let watched = AsyncFd::with_interest(self.pidfd, Interest::READABLE)?;
        watched.readable().await?.retain_ready();
        let ended = Self {
            pidfd: watched.into_inner(),
        };
        Ok(ended.reap())
    }

    /// How it ended. A supervisor that an earlier daemon started is somebody else's to reap.
    fn reap(&self) -> Option<WaitIdStatus> {
        rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED).ok()?
    }
}

/// The boot that the machine is in.
fn this_boot() -> Option<BootId> {
    // Kept, because a time may come when no file can be opened.
    static BOOT: OnceLock<BootId> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Some(*boot);
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let boot = text.trim_ascii_end().parse().ok()?;
    Some(*BOOT.get_or_init(|| boot))
}

#[cfg(test)]
mod tests {
    use offleash_core::level::DegradeMode;
    use offleash_core::spec::ZygoteRole;

    use super::*;
    use offleash_supervisor::service::order::{LimitsOrder, NetworkOrder, Template};

    #[test]
    fn a_process_is_told_from_a_later_one_of_the_same_number() {
        let pid = rustix::process::getpid().as_raw_pid();
        let start_ticks = start_ticks(pid).unwrap().unwrap();
        let boot = this_boot();
        assert!(boot.is_some());
        let recorded = SupervisorProcess { pid, start_ticks, boot };
        assert!(Process::find(recorded).is_some());
        for other in [
            SupervisorProcess {
                boot: Some("0badcafe-0000-4000-8000-00000000000f".parse().unwrap()),
                ..recorded
            },
            SupervisorProcess { boot: None, ..recorded },
            SupervisorProcess {
                start_ticks: start_ticks - 1,
                ..recorded
            },
            SupervisorProcess { pid: 0, ..recorded },
            SupervisorProcess { pid: -1, ..recorded },
        ] {
            assert!(Process::find(other).is_none(), "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_supervisor_that_takes_too_long_is_one_of_a_machine_that_has_too_much_to_do() {
        let (_read, order) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (answer, _kept_open) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let process = SupervisorProcess {
            pid: 1,
            start_ticks: 0,
            boot: None,
        };
        let started = Started { process, order, answer };
        let made = started.give(&some_order(), Duration::from_millis(1)).await;
        assert!(matches!(made, Err(DaemonError::Overloaded { .. })), "{made:?}");
    }

    fn some_order() -> SupervisorOrder {
        SupervisorOrder {
            id: "isomething".parse().unwrap(),
            state: Text(Vec::new()),
            directory: Text(Vec::new()),
            template: Template::System,
            env: Vec::new(),
            level: None,
            runtime: None,
            hypervisor: None,
            acceleration: None,
            vm_kernel: None,
            min_level: None,
            degrade: DegradeMode::Allow,
            limits: LimitsOrder::default(),
            network: NetworkOrder::default(),
            allow_ptrace: false,
            descent: ZygoteRole::Alone,
            wants_copy: false,
            is_copied: false,
            is_kept: false,
            volumes: Vec::new(),
            snapshot: None,
            longest_hold_ms: None,
            tools: None,
            monitors: Vec::new(),
        }
    }
}
