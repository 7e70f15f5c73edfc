//! The keeper's own life: it makes the sandbox that it was ordered, says so, serves it, and cleans up.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;
use offleash_core::limits::Limits;
use offleash_core::log_level::LogLevel;
use offleash_core::network::RuleVerdict;
use offleash_core::plan::Plan;
use offleash_core::spec::{Descent, MemoryEnd, SandboxSpec};
use offleash_store::{HostIdentity, LiveRun, NewRun, StateDirectory, remove_directory};
use offleash_sys::process::reserve_descriptors;
use offleash_sys::signals::SignalQueue;
use rustix::fs::{CWD, Mode, OFlags};

use super::answer::{self, Answer};
use super::authority::Authority;
use super::log::Log;
use super::message::{Ended, Hello, VERSION};
use super::order::{ENDED, LONGEST_HOLD, OrderError, SOCKET, SandboxOrder};
use super::serve::{Bounds, Loop, Remains, Serving, listen};
use super::users::Users;
use super::zygote;
use crate::lifecycle::making::{self, Made, Resolved, new_run, place_layers};
use crate::lifecycle::{Chosen, ManagerError, Outside, OwnRoot, this_host};
use offleash_core::error::with_causes;
use offleash_planner::Host;
use offleash_planner::base::is_copied;

/// The program that planning looks at: every sandbox that is kept has a shell.
const SHELL: &str = "/bin/sh";
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM; the last one ends the sandbox, the others are for whoever has a terminal.
const SIGNALS: [i32; 4] = [1, 2, 3, 15];
/// How little this process is to be chosen when memory runs out, where we may say so.
const OOM_SCORE: &str = "-900";
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// How many descriptors there is room for from the start: making a sandbox and running code in it takes some 70.
const DESCRIPTORS: u16 = 256;

/// What its record says that a sandbox of the daemon is for.
pub const OF_THE_DAEMON: &str = "sandbox of the daemon";

/// The hidden command of our program that a keeper is.
pub const COMMAND: &str = "keeper";

/// Makes the sandbox of `order`, tells `answered` what came of it, and serves the sandbox until that ends.
///
/// The calling process has one thread; it becomes a session of its own. When `answered` fails, nobody knows of the
/// sandbox: it is ended again.
///
/// # Errors
/// What `answered` answers.
pub fn hold(order: &SandboxOrder, answered: impl FnOnce(&Answer) -> io::Result<()>) -> io::Result<()> {
    detach();
    // It may not be allowed; nothing depends on it.
    let _written = std::fs::write(OOM_SCORE_FILE, OOM_SCORE);
    let made = order.spec().map_err(HoldError::from).and_then(|spec| {
        if order.is_copied && !is_copied(order.state.as_path(), &order.id) {
            return Err(host("find the copied files")(io::ErrorKind::NotFound.into()));
        }
        Held::make(Wanted {
            spec: &spec,
            id: &order.id,
            state: Some(order.state.as_path()),
            directory: order.directory.as_path(),
            command: vec![SHELL.into()],
            purpose: Some(OF_THE_DAEMON),
            cwd: None,
            inherits: false,
            wants_copy: order.wants_copy,
            longest_hold: order.longest_hold_ms.map_or(LONGEST_HOLD, Duration::from_millis),
        })
    });
    let held = match made {
        Ok(held) => held,
        Err(error) => {
            return answered(&Answer::NotMade {
                kind: error.kind(),
                message: with_causes(&error),
                hint: error.hint(),
            });
        }
    };
    let told = answered(&Answer::Made(answer::Made {
        hello: held.serving.hello.clone(),
        descent: held.serving.descent,
    }));
    match told {
        Ok(()) => held.serve(),
        Err(_) => held.undo(),
    }
    told
}

/// Leaves the session of whoever started us.
pub(super) fn detach() {
    // It may be so already.
    let _session = rustix::process::setsid();
}

/// A sandbox that is to be made and held.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) spec: &'a SandboxSpec,
    pub(super) id: &'a RunId,
    /// The state directory, if not the usual one.
    pub(super) state: Option<&'a Path>,
    /// The sandbox's own directory.
    pub(super) directory: &'a Path,
    /// What the run is recorded as.
    pub(super) command: Vec<OsString>,
    /// What it is part of, for lists of runs.
    pub(super) purpose: Option<&'static str>,
    /// Where commands start that are not told where; in their user's home if absent.
    pub(super) cwd: Option<Start>,
    /// Whether variables of this process may be passed, as the spec says.
    pub(super) inherits: bool,
    /// Whether a copy of its zygote's process is wanted as soon as it is made.
    pub(super) wants_copy: bool,
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

/// A sandbox and what it leaves on disk.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) serving: Serving,
    pub(super) live: LiveRun,
    pub(super) own_root: Option<OwnRoot>,
    pub(super) directory: OwnedFd,
    pub(super) facts: Facts,
    /// The sandbox's directory, where no daemon has a record by which to remove it.
    pub(super) unrecorded: Option<PathBuf>,
}

/// What a record of the sandbox is made from when it has ended.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) state: StateDirectory,
    pub(super) host: Host,
    pub(super) plan: Plan,
    pub(super) outside: Outside,
    pub(super) command: Vec<OsString>,
    /// Where commands start that are not told where.
    pub(super) cwd: PathBuf,
}

/// Why a keeper does not hold what it was ordered.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error("a rule of the network cannot be read")]
    Network(#[from] OrderError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error("cannot {action}")]
    Host { action: &'static str, source: io::Error },
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

impl Held {
    pub(super) fn make(wanted: Wanted<'_>) -> Result<Self, HoldError> {
        let Wanted { command, purpose, .. } = wanted;
        reserve_descriptors(DESCRIPTORS);
        let mut spec = wanted.spec.clone();
        spec.memory_end = MemoryEnd::Process;
        let signals = SignalQueue::new(&SIGNALS).map_err(host("wait for signals"))?;
        let mut chosen = prepare(&mut spec, wanted.id)?;
        if let (Descent::Below(zygote), true) = (spec.descent, wanted.wants_copy) {
            // Otherwise it is asked for when it is to come in.
            let _asked = zygote::connect(zygote).map(|socket| chosen.ask_for_copy(socket));
        }
        let is_alone = spec.descent != wanted.spec.descent;
        let directory = open_directory(wanted.directory).map_err(host("open the sandbox's directory"))?;
        let state = StateDirectory::open(wanted.state, &HostIdentity::of_this_process());
        let state = state.map_err(ManagerError::from)?;
        let mut of_this_host = this_host(state.path())?;
        if !wanted.inherits {
            of_this_host.env = Vec::new();
        }
        let shell = [SHELL.into()];
        let resolved = Resolved::of(&spec, of_this_host, &shell, wanted.id.clone(), &chosen)?;
        let outside = resolved.outside(&spec, &shell)?;
        let Resolved {
            host: of_this_host,
            mut plan,
            mut basis,
            own_root,
            ..
        } = resolved;
        basis.env.extend(outside.variables().iter().cloned());
        let new = NewRun {
            purpose,
            ..new_run(&spec, &command, &plan, &of_this_host)
        };
        let live = LiveRun::create(&state, new);
        let mut live = live.map_err(ManagerError::from)?;
        place_layers(&mut plan, &live);
        let mut tending = live.tending();
        let made = making::make(&spec, &mut chosen, &mut plan, &outside, &mut live, &mut tending);
        let made = made.and_then(|made| {
            // From here on its socket can be found.
            let listener = listen(&socket_path(&directory)).map_err(|source| ManagerError::Host {
                action: "listen on the keeper's socket",
                source,
            })?;
            Ok((made, listener))
        });
        let (Made { sandbox, gateway, .. }, listener) = match made {
            Ok(made) => made,
            Err(error) => {
                forget(live, own_root);
                return Err(error.into());
            }
        };
        let start = match wanted.cwd {
            None => None,
            Some(Start::Usual) => Some(basis.cwd.clone()),
            Some(Start::At(directory)) => Some(directory),
        };
        let cwd = start.clone().unwrap_or_else(|| basis.user.home.clone());
        let users = Users::new(basis, &plan, start);
        let authority = Authority::of(outside.trust());
        let enforcement = sandbox.enforcement().clone();
        let hello = Hello {
            version: VERSION,
            id: wanted.id.clone(),
            pid: rustix::process::getpid().as_raw_pid().cast_unsigned(),
            paused: false,
            level: plan.level,
            started_at: live.run().started_at().to_owned(),
            users: users.infos(),
            enforced: enforcement.enforced,
            not_enforced: enforcement.not_enforced,
        };
        let bounds = bounds(&spec.limits);
        let questions = gateway
            .as_ref()
            .filter(|_| asks(&spec))
            .map(|gateway| gateway.questions().clone());
        let copy = rustix::io::fcntl_dupfd_cloexec(&directory, 0);
        let copy = copy.map_err(|error| host("keep the sandbox's directory open")(error.into()))?;
        let of_log = rustix::io::fcntl_dupfd_cloexec(&directory, 0);
        let of_log = of_log.map_err(|error| host("keep the sandbox's directory open")(error.into()))?;
        let mut log = Log::in_directory(of_log);
        if is_alone {
            let line = "interpreters are started, not copied: nothing could be made below the zygote";
            log.note(LogLevel::Warn, line);
        }
        Ok(Self {
            serving: Serving {
                sandbox,
                gateway,
                listener,
                directory: copy,
                log,
                signals,
                hello,
                users,
                authority,
                bounds,
                descent: spec.descent,
                questions,
                longest_hold: wanted.longest_hold,
            },
            live,
            own_root,
            directory,
            unrecorded: (spec.descent == Descent::Zygote).then(|| wanted.directory.to_owned()),
            facts: Facts {
                state,
                host: of_this_host,
                plan,
                outside,
                command,
                cwd,
            },
        })
    }

    fn serve(self) {
        let Self {
            serving,
            live,
            own_root,
            directory,
            unrecorded,
            facts,
        } = self;
        // Only the record of a run needs it, and what has no record may wait for long.
        drop(facts);
        Loop::new(serving).run(|ended, _| {
            leave(&directory, ended);
            forget(live, own_root);
            // A daemon that is there does the same.
            let _removed = unrecorded.map(|path| remove_directory(&path));
        });
    }

    /// Serves the sandbox until it ends; `clean_up` is told how, and has what it leaves.
    pub(super) fn serve_for(self, clean_up: impl FnOnce(&Ended, Remains, LiveRun, Option<OwnRoot>, Facts)) {
        let Self {
            serving,
            live,
            own_root,
            directory,
            facts,
            unrecorded: _,
        } = self;
        Loop::new(serving).run(|ended, remains| {
            leave(&directory, ended);
            clean_up(ended, remains, live, own_root, facts);
        });
    }

    /// Ends it at once: nobody has heard of it.
    pub(super) fn undo(mut self) {
        let _last = self.serving.sandbox.kill();
        drop(self.serving);
        remove_socket(&self.directory);
        forget(self.live, self.own_root);
    }
}

/// Chooses the level; below no zygote where the one that was meant is gone, or cannot be entered.
fn prepare(spec: &mut SandboxSpec, id: &RunId) -> Result<Chosen, ManagerError> {
    let prepared = Chosen::prepare(spec, id);
    match spec.descent {
        Descent::Below(_) if prepared.is_err() => {
            spec.descent = Descent::Alone;
            Chosen::prepare(spec, id)
        }
        _ => prepared,
    }
}

/// Whether a rule of the network is to be asked about.
fn asks(spec: &SandboxSpec) -> bool {
    let mut rules = spec.network.policy.rules.iter();
    rules.any(|rule| rule.verdict() == RuleVerdict::Ask)
}

/// What may be used where a limit says so, and what the machine has otherwise.
fn bounds(limits: &Limits) -> Bounds {
    let machine = rustix::system::sysinfo();
    let memory = machine.totalram.saturating_mul(machine.mem_unit.into());
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpus_millis = u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000);
    Bounds {
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

/// Removes what the run of a sandbox has in the state directory; the next start does it where this fails.
fn forget(live: LiveRun, own_root: Option<OwnRoot>) {
    let _discarded = own_root.map(OwnRoot::discard);
    let _erased = live.erase();
}
