//! The supervisor's own life: it makes the sandbox that it was ordered, says so, serves it, and cleans up.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::limits::Limits;
use offleash_core::log_level::LogLevel;
use offleash_core::spec::{MemoryEnd, RootChoice, SandboxSpec, ZygoteRole};
use offleash_core::text::Text;
use offleash_isolation::sandbox::EnforcementReport;
use offleash_store::remove_directory;
use offleash_sys::process::reserve_descriptors;
use offleash_sys::signals::SignalQueue;
use rustix::fs::{CWD, Mode, OFlags};

use super::answer::{LaunchAnswer, MadeSandbox};
use super::authority::Authority;
use super::log::Log;
use super::message::{Ended, Hello, VERSION};
use super::order::{ENDED, MAX_HOLD, OrderError, SOCKET, SupervisorOrder};
use super::serve::{self, EndRemains, SocketService, UsageBounds};
use super::users::Users;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::making::{
    self, CallerEnvironment, HeldSandbox, LaunchSpec, PlannedCommand, RunningSandbox, SandboxMaking, SandboxSetup,
    StateSource, UnmadeSandbox,
};
use crate::tools::ToolsPlace;
use crate::trusted_socket::listen;
use offleash_planner::base::{is_copied, is_kept, note_stacks};

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM; the last one ends the sandbox, the others are for whoever has a terminal.
const SIGNALS: [i32; 4] = [1, 2, 3, 15];
/// How little this process is to be chosen when memory runs out, where we may say so.
const OOM_SCORE: &str = "-900";
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// How many descriptors there is room for from the start: making a sandbox and running code in it takes some 70.
const DESCRIPTORS: u16 = 256;

/// What its record says that a sandbox of the daemon is for.
pub const OF_THE_DAEMON: &str = "sandbox of the daemon";

/// Makes the sandbox of `order`, tells `answered` what came of it, and serves the sandbox until that ends.
///
/// The calling process has one thread; it becomes a session of its own. When `answered` fails, nobody knows of the
/// sandbox: it is ended again.
///
/// # Errors
/// What `answered` answers.
pub fn hold(order: &SupervisorOrder, answered: impl FnOnce(&LaunchAnswer) -> io::Result<()>) -> io::Result<()> {
    detach();
    // It may not be allowed; nothing depends on it.
    let _written = std::fs::write(OOM_SCORE_FILE, OOM_SCORE);
    let shell = shell();
    let made = order.spec().map_err(HoldError::from).and_then(|spec| {
        if order.is_copied && !is_copied(order.state.as_path(), &order.id) {
            return Err(host("find the copied files")(io::ErrorKind::NotFound.into()));
        }
        if order.is_kept && !is_kept(order.state.as_path(), &order.id) {
            return Err(host("find the files that were kept")(io::ErrorKind::NotFound.into()));
        }
        ServedSandbox::make(ServiceSpec {
            launch: LaunchSpec {
                spec,
                id: order.id.clone(),
                state: StateSource::Unswept(Some(order.state.as_path())),
                environment: CallerEnvironment::Empty,
                planned_for: PlannedCommand::Known(&shell),
                user: None,
                recorded: &shell,
                purpose: Some(OF_THE_DAEMON),
                wants_copy: order.wants_copy,
                tools: match &order.tools {
                    Some(tools) => ToolsPlace {
                        directory: Some(order.directory.as_path()),
                        ledger: Some(tools.ledger.as_path()),
                        env: Some(&tools.env),
                    },
                    None => ToolsPlace::default(),
                },
            },
            directory: order.directory.as_path(),
            cwd: None,
            longest_hold: order.longest_hold_ms.map_or(MAX_HOLD, Duration::from_millis),
        })
    });
    let held = match made {
        Ok(held) => {
            // Without it, what is changed in the sandbox cannot be shown.
            let _noted = note_stacks(order.state.as_path(), &held.setup.plan);
            held
        }
        Err(error) => {
            return answered(&LaunchAnswer::not_made(&error));
        }
    };
    let told = answered(&held.answer());
    match told {
        Ok(()) => held.serve(),
        Err(_) => held.undo(),
    }
    told
}

/// What planning looks at: every sandbox that is served has a shell.
pub(super) fn shell() -> [OsString; 1] {
    ["/bin/sh".into()]
}

/// Leaves the session of whoever started us.
pub(super) fn detach() {
    // It may be so already.
    let _session = rustix::process::setsid();
}

/// A sandbox that is to be made and served.
#[derive(Debug)]
pub(super) struct ServiceSpec<'a> {
    /// How it is made.
    pub(super) launch: LaunchSpec<'a>,
    /// The sandbox's own directory.
    pub(super) directory: &'a Path,
    /// Where commands start that are not told where; if absent, in their user's home, or where an image says.
    pub(super) cwd: Option<Start>,
    /// How long a client may hold it still.
    pub(super) longest_hold: Duration,
}

/// Where commands start that are not told where.
#[derive(Debug, Clone)]
pub(super) enum Start {
    /// Where those of a run do.
    Usual,
    /// In this directory inside.
    At(PathBuf),
}

/// A sandbox that is served, and what it leaves on disk.
#[derive(Debug)]
pub(super) struct ServedSandbox {
    pub(super) running: RunningSandbox,
    pub(super) service: SocketService,
    pub(super) setup: SandboxSetup,
    pub(super) directory: OwnedFd,
    /// Where commands start that are not told where.
    pub(super) cwd: PathBuf,
    /// The sandbox's directory, where no daemon has a record by which to remove it.
    unrecorded: Option<PathBuf>,
}

/// Why a supervisor does not hold what it was ordered.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error("a rule of the network cannot be read")]
    Network(#[source] OrderError),
    #[error(transparent)]
    Manager(#[from] LifecycleError),
    #[error("cannot {action}")]
    Host { action: &'static str, source: io::Error },
}

impl From<OrderError> for HoldError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Image(error) => Self::Manager(error.into()),
            error => Self::Network(error),
        }
    }
}

impl Explained for HoldError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Network(error) => error.kind(),
            Self::Manager(error) => error.kind(),
            Self::Host { source, .. } if source.kind() == io::ErrorKind::AddrInUse => ErrorKind::Conflict,
            Self::Host { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Network(error) => error.hint(),
            Self::Manager(error) => error.hint(),
            Self::Host { .. } => None,
        }
    }
}

fn host(action: &'static str) -> impl FnOnce(io::Error) -> HoldError {
    move |source| HoldError::Host { action, source }
}

impl ServedSandbox {
    pub(super) fn make(asked: ServiceSpec<'_>) -> Result<Self, HoldError> {
        reserve_descriptors(DESCRIPTORS);
        let signals = SignalQueue::new(&SIGNALS).map_err(host("wait for signals"))?;
        let directory = open_directory(asked.directory).map_err(host("open the sandbox's directory"))?;
        let launch = LaunchSpec {
            spec: SandboxSpec {
                memory_end: MemoryEnd::Process,
                ..asked.launch.spec
            },
            ..asked.launch
        };
        let descent = launch.spec.descent;
        let mut making = SandboxMaking::begin(launch)?;
        let planned = making.plan()?;
        let HeldSandbox { running, setup, .. } = making.make(planned).map_err(UnmadeSandbox::forget)?;
        // From here on its socket can be found.
        let listener = match listen(&socket_path(&directory)) {
            Ok(listener) => listener,
            Err(source) => {
                drop(running);
                setup.forget();
                let action = "listen on the supervisor's socket";
                return Err(LifecycleError::Host { action, source }.into());
            }
        };
        let SandboxSetup {
            spec,
            plan,
            basis,
            outside,
            live,
            ..
        } = &setup;
        let start = match (asked.cwd, &spec.root) {
            (Some(Start::At(directory)), _) => Some(directory),
            // Also a template that is an image, which is not known before.
            (Some(Start::Usual), _) | (None, RootChoice::Image(_)) => Some(basis.cwd.clone()),
            (None, _) => None,
        };
        let cwd = start.clone().unwrap_or_else(|| basis.user.home.clone());
        let mut basis = basis.clone();
        basis.env.extend(outside.variables().iter().cloned());
        let users = Users::new(basis, plan, start);
        let EnforcementReport { enforced, not_enforced } = running.sandbox.enforcement().clone();
        let hello = Hello {
            version: VERSION,
            id: plan.id.clone(),
            pid: rustix::process::getpid().as_raw_pid().cast_unsigned(),
            paused: false,
            level: plan.level,
            started_at: live.run().started_at().to_owned(),
            users: users.infos(),
            enforced,
            not_enforced,
        };
        let mut log = Log::in_directory(again(&directory)?);
        if spec.descent != descent {
            let line = "interpreters are started, not copied: nothing could be made below the zygote";
            log.note(LogLevel::Warn, line);
        }
        let service = SocketService {
            listener,
            directory: again(&directory)?,
            log,
            signals,
            hello,
            users,
            authority: Authority::of(outside.trust()),
            bounds: bounds(&spec.limits),
            descent: spec.descent,
            longest_hold: asked.longest_hold,
        };
        let unrecorded = (spec.descent == ZygoteRole::Zygote).then(|| asked.directory.to_owned());
        Ok(Self {
            running,
            service,
            setup,
            directory,
            cwd,
            unrecorded,
        })
    }

    fn serve(self) {
        let Self {
            running,
            service,
            setup,
            directory,
            unrecorded,
            ..
        } = self;
        // Only the record of a run needs the rest, and what has no record may wait for long.
        let SandboxSetup {
            live,
            own_root,
            volumes,
            ..
        } = setup;
        serve::serve(running, service, |ended, _| {
            leave(&directory, ended);
            making::forget(own_root, live);
            drop(volumes);
            // A daemon that is there does the same.
            let _removed = unrecorded.map(|path| remove_directory(&path));
        });
    }

    /// Serves the sandbox until it ends; `clean_up` is told how, and has what it leaves.
    pub(super) fn serve_for(self, clean_up: impl FnOnce(&Ended, EndRemains, SandboxSetup)) {
        let Self {
            running,
            service,
            setup,
            directory,
            ..
        } = self;
        serve::serve(running, service, |ended, remains| {
            leave(&directory, ended);
            clean_up(ended, remains, setup);
        });
    }

    /// What whoever ordered it is told.
    pub(super) fn answer(&self) -> LaunchAnswer {
        LaunchAnswer::Made(Box::new(MadeSandbox {
            hello: self.service.hello.clone(),
            descent: self.service.descent,
            cwd: Text::from(&self.cwd),
            notes: self.setup.outside.news(),
        }))
    }

    /// Ends it at once: nobody has heard of it.
    pub(super) fn undo(mut self) {
        let _last = self.running.sandbox.kill();
        drop((self.running, self.service));
        remove_socket(&self.directory);
        self.setup.forget();
    }
}

/// Another descriptor of the sandbox's directory.
fn again(directory: &OwnedFd) -> Result<OwnedFd, HoldError> {
    let again = rustix::io::fcntl_dupfd_cloexec(directory, 0);
    again.map_err(|error| host("keep the sandbox's directory open")(error.into()))
}

/// What may be used where a limit says so, and what the machine has otherwise.
fn bounds(limits: &Limits) -> UsageBounds {
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(machine.mem_unit.into());
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpus_millis = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000);
    UsageBounds {
        cpus_millis: limits.cpus.map_or(cpus_millis, |cpus| cpus.millis),
        memory_bytes: limits.memory.map_or(memory, |memory| memory.0),
        disk_bytes: limits.workspace.map_or(0, |disk| disk.0),
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// By way of the descriptor, because the path of a socket may have 107 bytes and a state directory more.
fn socket_path(directory: &OwnedFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()).into()
}

fn remove_socket(directory: &OwnedFd) {
    // Whoever finds one that nobody serves knows what that means.
    let _removed = rustix::fs::unlinkat(directory, SOCKET, rustix::fs::AtFlags::empty());
}

/// Removes the way to the sandbox, and says how it ended.
fn leave(directory: &OwnedFd, ended: &Ended) {
    remove_socket(directory);
    note(directory, ended);
}

/// Writes down how it ended, for a daemon that is not there now.
fn note(directory: &OwnedFd, ended: &Ended) {
    let path = format!("/proc/self/fd/{}/{ENDED}", directory.as_raw_fd());
    // Without it, it is known that it has ended, and not how.
    let _written = serde_json::to_vec(ended).map(|text| std::fs::write(path, text));
}
