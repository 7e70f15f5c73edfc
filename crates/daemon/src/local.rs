//! Sandboxes of one program, which end with it: no daemon is needed, and nobody else can reach them.
//!
//! Each is held by a supervisor as the daemon's are, so that whatever speaks to one speaks to the other. The supervisor is this
//! program with a hidden command behind it, and reads the sandbox's description from the same arguments as a run does.
//! When the program dies, the kernel kills its supervisors.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use offleash_core::error::{ErrorKind, Explained};
use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_store::{DirectoryHold, FileError, SandboxDirectories};
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, SpawnError, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::contexts::{SandboxContexts, contexts_of};
use crate::launch::{OWN_PROGRAM, Process};
use offleash_supervisor::frames::{only, order_file, texts};
use offleash_supervisor::lifecycle::{LifecycleError, new_id, open_state};
use offleash_supervisor::roles::SupervisorRole;
use offleash_supervisor::service::answer::{LaunchAnswer, MadeSandbox};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::error::SupervisorError;
use offleash_supervisor::service::local::LocalOrder;
use offleash_supervisor::service::message::{EndReason, Ended};
use offleash_supervisor::service::order::ENDED;

/// How long making a sandbox may take.
const MAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the supervisor of a sandbox that was ended may take to keep or write back its changes.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer of a supervisor to its order.
const MAX_ANSWER: u64 = 64 * 1024;
/// The most sandboxes of one program at a time.
pub const MAX_LOCAL: usize = 32;

/// What all sandboxes of a program have in common.
#[derive(Debug)]
pub struct LocalConfig {
    /// The state directory, if not the usual one.
    pub state: Option<PathBuf>,
    /// The arguments by which a supervisor knows what to make.
    pub arguments: Vec<OsString>,
    /// Where supervisors write what the user should know.
    pub complaints: OwnedFd,
}

/// The sandboxes of this program.
#[derive(Debug)]
pub struct LocalSandboxes {
    arguments: Vec<OsString>,
    complaints: OwnedFd,
    directories: SandboxDirectories,
    all: Mutex<BTreeMap<String, HeldSandbox>>,
}

#[derive(Debug)]
struct HeldSandbox {
    sandbox: LocalSandbox,
    process: Process,
    _hold: DirectoryHold,
}

/// A sandbox of this program; clones are the same one.
#[derive(Debug, Clone)]
pub struct LocalSandbox {
    /// Its id.
    pub id: String,
    /// What holds it.
    pub supervisor: SupervisorClient,
    /// The contexts of code in it.
    pub contexts: Arc<SandboxContexts>,
    /// Where commands start, inside.
    pub cwd: String,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
}

/// Why a program has no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Manager(#[from] LifecycleError),
    /// There is no place for its socket.
    #[error("cannot make a directory for the sandbox")]
    Directory(#[from] FileError),
    /// Its supervisor cannot be started.
    #[error("cannot start the supervisor of the sandbox")]
    Start(#[from] SpawnError),
    /// A call of ours failed.
    #[error("cannot {tried}")]
    Host {
        /// What was tried.
        tried: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Its supervisor has not made it.
    #[error("cannot make the sandbox: {message}")]
    NotMade {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What was tried, and why it failed, with its causes.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// Its supervisor did not answer in time.
    #[error("the sandbox was not made within {} s", MAKE_TIMEOUT.as_secs())]
    Timeout,
    /// There are as many as there may be.
    #[error("there are {MAX_LOCAL} sandboxes already")]
    Exhausted,
    /// There is none of that id.
    #[error("there is no sandbox `{}`", .0.escape_debug())]
    NotFound(String),
}

impl Explained for LocalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Manager(error) => error.kind(),
            Self::NotMade { kind, .. } => *kind,
            Self::Timeout => ErrorKind::Timeout,
            Self::Exhausted => ErrorKind::Exhausted,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Directory(_) | Self::Start(_) | Self::Host { .. } => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Manager(error) => error.hint(),
            Self::NotMade { hint, .. } => hint.clone(),
            Self::Exhausted => Some("end one of them first".to_owned()),
            _ => None,
        }
    }
}

fn host(tried: &'static str) -> impl FnOnce(io::Error) -> LocalError {
    move |source| LocalError::Host { tried, source }
}

impl LocalSandboxes {
    /// No sandboxes so far; what programs left that were killed is removed.
    ///
    /// # Errors
    /// When the state directory cannot be used.
    pub fn new(config: LocalConfig) -> Result<Self, LocalError> {
        let state = open_state(config.state.as_deref())?;
        let directories = state.own_sandboxes().map_err(LifecycleError::from)?;
        directories.remove_abandoned()?;
        Ok(Self {
            arguments: config.arguments,
            complaints: config.complaints,
            directories,
            all: Mutex::default(),
        })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, HeldSandbox>> {
        // Whoever holds it does one thing to it.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a sandbox. It ends with the thread that first polls this, so that must be one that lives as long as the
    /// program.
    ///
    /// # Errors
    /// `Exhausted`, `NotMade`, `Timeout`, and when the machine has no more of something.
    pub async fn create(&self) -> Result<LocalSandbox, LocalError> {
        if self.all().len() >= MAX_LOCAL {
            return Err(LocalError::Exhausted);
        }
        let id = new_id()?;
        let (directory, hold) = self.directories.make_and_hold(&id)?;
        let made = self.start(&id, &directory).await;
        match made {
            Ok((sandbox, process)) => {
                let own = HeldSandbox {
                    sandbox: sandbox.clone(),
                    process,
                    _hold: hold,
                };
                self.all().insert(sandbox.id.clone(), own);
                Ok(sandbox)
            }
            Err(error) => {
                // What is left is removed by the next program.
                let _removed = self.directories.remove(&id);
                Err(error)
            }
        }
    }

    async fn start(&self, id: &RunId, directory: &Path) -> Result<(LocalSandbox, Process), LocalError> {
        let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| host("make a pipe")(error.into()))?;
        let process = self.spawn(id, directory, theirs)?;
        let answered = timeout(MAKE_TIMEOUT, read(answer)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            failed => {
                // Nobody would know of it.
                let _ended = process.end();
                return Err(match failed {
                    Ok(Err(error)) => host("hear from the supervisor of the sandbox")(error),
                    _ => LocalError::Timeout,
                });
            }
        };
        match answer {
            LaunchAnswer::Made(made) => {
                let MadeSandbox { hello, cwd, notes, .. } = *made;
                let supervisor = SupervisorClient::in_directory(directory);
                let cwd = cwd.as_os_str().to_string_lossy().into_owned();
                let contexts = contexts_of(supervisor.clone(), BTreeMap::new(), hello.level).working_in(cwd.clone());
                let sandbox = LocalSandbox {
                    id: id.as_str().to_owned(),
                    supervisor,
                    contexts: Arc::new(contexts),
                    cwd,
                    notes,
                };
                Ok((sandbox, process))
            }
            LaunchAnswer::NotMade { kind, message, hint } => {
                let _reaped = process.ended().await;
                Err(LocalError::NotMade { kind, message, hint })
            }
        }
    }

    fn spawn(&self, id: &RunId, directory: &Path, answer: OwnedFd) -> Result<Process, LocalError> {
        let order = order_file(&LocalOrder {
            id: id.clone(),
            directory: Text::from(directory),
            arguments: texts(&self.arguments),
        });
        let order = order.map_err(host("write the order for a sandbox"))?;
        let env: Vec<_> = std::env::vars_os()
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect();
        let spawned = spawn(&SpawnCommand {
            argv: &SupervisorRole::Local.arguments(OWN_PROGRAM.as_bytes()),
            env: &env,
            cwd: None,
            descriptors: &[order.as_fd(), answer.as_fd(), self.complaints.as_fd()],
            user: None,
            session: SessionChoice::New,
            orphaned: OrphanFate::Dies,
        })?;
        // Not reaped yet, so its number is still its own.
        let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData);
        let pidfd = pid.map_err(io::Error::from).and_then(|pid| {
            let held = pidfd_open(pid, PidfdFlags::empty());
            Ok(held?)
        });
        Ok(Process::new(
            pidfd.map_err(host("watch the supervisor of the sandbox"))?,
        ))
    }

    /// The sandbox of that id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, id: &str) -> Result<LocalSandbox, LocalError> {
        let found = self.all().get(id).map(|own| own.sandbox.clone());
        found.ok_or_else(|| LocalError::NotFound(id.chars().take(60).collect()))
    }

    /// Why a sandbox has ended by itself, in words; `None` where it has not, or nobody wrote it down.
    pub fn why_ended(&self, id: &str) -> Option<String> {
        let text = self.directories.read(&id.parse().ok()?, ENDED, MAX_ANSWER)?;
        let ended: Ended = serde_json::from_slice(&text.0).ok()?;
        Some(match ended.reason {
            EndReason::Killed => "it was ended".to_owned(),
            EndReason::Rule(rule) => format!("rule `{rule}` of monitoring ended it"),
            EndReason::Limit(hit) => {
                let row = hit.limit.row();
                let value = row.show(hit.value);
                format!(
                    "it reached its limit of {} ({value}), which `{}` raises",
                    row.word, row.flag
                )
            }
            EndReason::Lost if ended.out_of_memory => "it was out of memory; `--memory` gives it more".to_owned(),
            EndReason::Lost => "its first process ended".to_owned(),
            EndReason::Failed(reason) => reason,
        })
    }

    /// The ids of all of them.
    pub fn ids(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    /// Ends a sandbox, and returns when what changed in its workspace is kept or written back. One that ended by itself
    /// is forgotten.
    ///
    /// # Errors
    /// `NotFound`; `Timeout` when it takes too long, after which it goes on by itself.
    pub async fn end(&self, id: &str) -> Result<(), LocalError> {
        let own = self.all().remove(id);
        let own = own.ok_or_else(|| LocalError::NotFound(id.chars().take(60).collect()))?;
        match own.sandbox.supervisor.kill().await {
            Ok(_) | Err(SupervisorError::Gone | SupervisorError::Timeout { .. }) => {}
            Err(_) => {
                let _killed = own.process.end();
            }
        }
        let ended = timeout(END_TIMEOUT, own.process.ended()).await;
        ended
            .map_err(|_| LocalError::Timeout)?
            .map_err(host("wait for the supervisor of the sandbox"))?;
        if let Ok(id) = id.parse() {
            let _removed = self.directories.remove(&id);
        }
        Ok(())
    }

    /// Ends all of them.
    pub async fn end_all(&self) {
        for id in self.ids() {
            let _ended = self.end(&id).await;
        }
    }
}

async fn read(answer: OwnedFd) -> io::Result<LaunchAnswer> {
    rustix::io::ioctl_fionbio(&answer, true)?;
    let mut text = Vec::new();
    let answer = pipe::Receiver::from_owned_fd(answer)?;
    answer.take(MAX_ANSWER).read_to_end(&mut text).await?;
    only(&text)
}
