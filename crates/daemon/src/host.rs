//! Where sandboxes are on this machine: their directories, the processes that hold them, and what these leave.
//!
//! Deliberately not here: which sandboxes there are, and what the registry says of them.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use offleash_core::id::RunId;
use offleash_core::text::Text;
use offleash_interpreter::contexts::is_driver;
use offleash_planner::base::{is_kept, keep, scratch_of, stop_keeping, write_out};
use offleash_store::{
    DaemonLock, HeldSnapshot, HostIdentity, SandboxDirectories, SnapshotDirectories, StateDirectory, remove_directory,
};
use offleash_supervisor::service::client::SupervisorClient;
use offleash_supervisor::service::log::Noted;
use offleash_supervisor::service::message::ProcessInfo;
use offleash_supervisor::tools::ToolsClient;

use crate::error::DaemonError;
use crate::history::{SupervisorRemains, lines_of_supervisor};
use crate::jobs::blocking;
use crate::launch::{self, Process, Started};
use crate::random;
use crate::remains;
use crate::supervisor_pool::WaitingSupervisor;

/// Where calls of tools are counted, in the state directory.
const TOOL_LEDGERS: &str = "tool-calls";
/// How often, and for how long at most, a lock is asked for that the daemon before may be about to drop.
const LOCK_TRIES: u32 = 20;
const BETWEEN_LOCK_TRIES: Duration = Duration::from_millis(50);

/// The state directory as the daemon uses it, and the program that holds sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxHost {
    state: StateDirectory,
    directories: SandboxDirectories,
    /// Ours if `None`.
    program: Option<PathBuf>,
    /// Held until nothing is done in the directory any more.
    lock: Arc<DaemonLock>,
}

impl SandboxHost {
    /// Opens the state directory, the user's own if `None`, and takes the daemon's lock of it.
    ///
    /// # Errors
    /// `AlreadyRunning`, `State`, `Host`.
    pub(crate) async fn open(state: Option<PathBuf>, program: Option<PathBuf>) -> Result<Self, DaemonError> {
        let state = blocking("open the state directory", move || {
            StateDirectory::open(state.as_deref(), &HostIdentity::of_this_process())
        })
        .await??;
        let lock = Arc::new(lock(&state).await?);
        Ok(Self {
            directories: state.sandboxes()?,
            state,
            program,
            lock,
        })
    }

    /// The lock, for who does something in the directory without this.
    pub(crate) fn lock(&self) -> Arc<DaemonLock> {
        Arc::clone(&self.lock)
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// The state directory, as supervisors are told of it.
    pub(crate) fn state_text(&self) -> Text {
        Text::from(self.state.path())
    }

    /// The directory of a sandbox, as its supervisor is told of it.
    pub(crate) fn directory_text(&self, id: &RunId) -> Text {
        Text::from(self.directories.path_of(id))
    }

    /// The program that holds sandboxes, builds and copies; ours if `None`.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }

    /// The supervisor of a sandbox, whether or not it lives.
    pub(crate) fn supervisor(&self, id: &RunId) -> SupervisorClient {
        SupervisorClient::in_directory(&self.directories.path_of(id))
    }

    /// Whether a command runs in a sandbox that somebody started; what cannot be found out is taken for one.
    pub(crate) async fn runs_commands(&self, id: &RunId) -> bool {
        let is_command = |process: &ProcessInfo| !process.tag.as_deref().is_some_and(is_driver);
        let processes = self.supervisor(id).processes().await;
        processes.map_or(true, |all| all.iter().any(is_command))
    }

    /// Makes the directory of a sandbox, and starts its supervisor, unless one was started before and waits.
    ///
    /// # Errors
    /// What the kernel refused, as `Short` or `Host`. The directory may be there then.
    pub(crate) async fn launch(
        &self,
        id: &RunId,
        waiting: Option<WaitingSupervisor>,
    ) -> Result<(Started, Process, Process), DaemonError> {
        let (directories, program, id) = (self.directories.clone(), self.program.clone(), id.clone());
        let launched = blocking("start a supervisor", move || {
            directories.make(&id).map_err(io::Error::other)?;
            let kept = waiting.and_then(WaitingSupervisor::into_supervisor);
            kept.map_or_else(|| launch::start(program.as_deref()), Ok)
        });
        launched.await?.map_err(DaemonError::host("start a supervisor"))
    }

    /// The snapshots on disk.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) fn snapshots(&self) -> Result<SnapshotDirectories, DaemonError> {
        let found = SnapshotDirectories::of(self.state.path());
        found.map_err(|error| DaemonError::host("use the directory of snapshots")(error.source))
    }

    /// Keeps the snapshot `id` in place, if one is meant.
    ///
    /// # Errors
    /// `UnknownSnapshot` if it is not there any more, `Host`.
    pub(crate) async fn hold_snapshot(&self, id: Option<&str>) -> Result<Option<HeldSnapshot>, DaemonError> {
        let Some(id) = id else { return Ok(None) };
        let unknown = || DaemonError::UnknownSnapshot { name: id.to_owned() };
        let run_id: RunId = id.parse().map_err(|_| unknown())?;
        let held = self.snapshots()?.hold(&run_id);
        let held = held.map_err(|error| DaemonError::host("open a snapshot")(error.source))?;
        held.map(Some).ok_or_else(unknown)
    }

    /// Removes the files of a snapshot that nobody uses; answers whether they are gone.
    pub(crate) async fn remove_snapshot(&self, id: &RunId) -> bool {
        let (Ok(snapshots), state) = (self.snapshots(), self.state.path().to_owned()) else {
            return false;
        };
        let (program, id, lock) = (self.program.clone(), id.clone(), self.lock());
        let removed = blocking("remove a snapshot", move || {
            let _until_done = lock;
            match snapshots.unless_held(&id, remove_directory) {
                Ok(is_gone) => is_gone,
                // What belongs to subordinate ids takes their superuser.
                Err(_) => launch::remove_snapshot(program.as_deref(), &state, &id).is_ok(),
            }
        });
        removed.await.unwrap_or(false)
    }

    /// Sets aside the layer of a sandbox that is about to end, so that nobody waits for its removal; answers what it is called
    /// then, for [`Self::remove_layer`]. Where it cannot be, it goes with the sandbox.
    pub(crate) fn set_layer_aside(&self, id: &RunId) -> Option<RunId> {
        let aside = random::layer_id().ok()?;
        let state = self.state.path();
        std::fs::rename(scratch_of(state, id), scratch_of(state, &aside)).ok()?;
        Some(aside)
    }

    /// Has the files of a sandbox, which lie over that build of its template, outlive its supervisor, however that ends; `false` where it has none on disk.
    ///
    /// # Errors
    /// `Short`, `Host`.
    pub(crate) fn keep_files(&self, id: &RunId, build: Option<&str>) -> Result<bool, DaemonError> {
        keep(self.state.path(), id, build).map_err(DaemonError::host("keep the files of a sandbox"))
    }

    /// Has the files of a sandbox that was put away written out, so that they are there after the machine has failed.
    ///
    /// # Errors
    /// `Short`, `Host`.
    pub(crate) async fn write_out_files(&self, id: &RunId) -> Result<(), DaemonError> {
        const TRIED: &str = "write out the files of a sandbox";
        let (state, id) = (self.state.path().to_owned(), id.clone());
        let written = blocking(TRIED, move || write_out(&state, &id)).await?;
        written.map_err(DaemonError::host(TRIED))
    }

    /// Has the files of a sandbox go with it again. Where that fails, they are removed when its record is.
    pub(crate) fn stop_keeping_files(&self, id: &RunId) {
        let _stays = stop_keeping(self.state.path(), id);
    }

    /// Whether the files of a sandbox outlive its supervisor.
    pub(crate) fn keeps_files(&self, id: &RunId) -> bool {
        is_kept(self.state.path(), id)
    }

    /// Removes what a supervisor left, but for the files of its sandbox.
    ///
    /// # Errors
    /// What is in the way, as text for the log.
    pub(crate) async fn remove_but_files(&self, id: &RunId) -> Result<(), String> {
        let (state, directories) = (self.state.clone(), self.directories.clone());
        let (id, lock) = (id.clone(), self.lock());
        let removed = blocking("remove what a supervisor left", move || {
            let _until_done = lock;
            remains::remove_but_files(&state, &directories, &id)
        });
        removed.await.map_err(|error| error.to_string())?
    }

    /// Removes a layer that was set aside. What cannot be removed now goes with one of the next sandboxes.
    pub(crate) async fn remove_layer(&self, id: RunId) {
        let (program, state, lock) = (self.program.clone(), self.state.path().to_owned(), self.lock());
        let removed = blocking("remove a layer", move || {
            let _until_done = lock;
            remove_directory(&scratch_of(&state, &id)).is_ok()
                || launch::remove_layer(program.as_deref(), &state, &id).is_ok()
        });
        let _removed = removed.await;
    }

    /// Removes the directory of a sandbox and what its supervisor may have left elsewhere.
    ///
    /// # Errors
    /// What is in the way, as text for the log.
    pub(crate) async fn remove(&self, id: &RunId) -> Result<(), String> {
        let (state, directories) = (self.state.clone(), self.directories.clone());
        let (program, id, lock) = (self.program.clone(), id.clone(), self.lock());
        let removed = blocking("remove a sandbox", move || {
            let _until_done = lock;
            remains::remove(&state, &directories, program.as_deref(), &id)
        });
        removed.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The file in which a sandbox's calls of tools are counted, as long as it is on record.
    pub(crate) fn tool_ledger(&self, id: &RunId) -> PathBuf {
        self.state.path().join(TOOL_LEDGERS).join(id.as_str())
    }

    /// Makes that file; that of a fork is the one of its source, under another name: what one has had, the others have had.
    ///
    /// # Errors
    /// `Short`, `Host`.
    pub(crate) fn make_tool_ledger(&self, id: &RunId, source: Option<&str>) -> Result<(), DaemonError> {
        let path = self.tool_ledger(id);
        let make = || {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(self.state.path().join(TOOL_LEDGERS))?;
            match source.and_then(|source| source.parse::<RunId>().ok()) {
                Some(source) => std::fs::hard_link(self.tool_ledger(&source), &path),
                None => {
                    let mut options = std::fs::OpenOptions::new();
                    options.write(true).create_new(true).mode(0o600);
                    options.open(&path).map(drop)
                }
            }
        };
        make().map_err(DaemonError::host("count calls of tools"))
    }

    /// Removes it.
    pub(crate) fn remove_tool_ledger(&self, id: &RunId) {
        // Most have none; one that stays is found by nobody, and counts for nobody.
        let _removed = std::fs::remove_file(self.tool_ledger(id));
    }

    /// The door of a sandbox's tools, whether or not it has any.
    pub(crate) fn tools(&self, id: &RunId) -> ToolsClient {
        ToolsClient::in_directory(&self.directories.path_of(id))
    }

    /// The ids of all directories of sandboxes.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) async fn ids(&self) -> Result<Vec<RunId>, DaemonError> {
        let directories = self.directories.clone();
        let ids = blocking("list sandboxes", move || directories.ids()).await?;
        ids.map_err(|error| DaemonError::host("list sandboxes")(io::Error::other(error)))
    }

    /// What the supervisor of a sandbox wrote so far, the oldest first. Blocks for a moment.
    pub(crate) fn supervisor_lines(&self, id: &RunId) -> Vec<Noted> {
        lines_of_supervisor(&self.directories, id)
    }

    /// What the supervisor of a sandbox left when it ended. Blocks for a moment.
    pub(crate) fn supervisor_remains(&self, id: &RunId) -> SupervisorRemains {
        SupervisorRemains::read(&self.directories, id)
    }
}

async fn lock(state: &StateDirectory) -> Result<DaemonLock, DaemonError> {
    for _ in 0..LOCK_TRIES {
        if let Some(lock) = state.lock_for_daemon()? {
            return Ok(lock);
        }
        tokio::time::sleep(BETWEEN_LOCK_TRIES).await;
    }
    Err(DaemonError::AlreadyRunning)
}
