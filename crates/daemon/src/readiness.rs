//! Whether the daemon can do what it is there for, found out by doing the least of it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::admission::AdmissionControl;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::jobs::blocking;
use crate::launch;

/// How long what was found out holds: whoever may ask, asks often.
const HOLDS_FOR: Duration = Duration::from_secs(5);
/// How long each step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Where it is tried, in the state directory.
const DIRECTORY: &str = "ready";
/// What is written there: a block of any file system.
const BLOCK: [u8; 4096] = [0; 4096];

/// What stands against making a sandbox. Names nothing of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReadinessObstacle {
    /// No more are made.
    #[error("the server is ending")]
    Ending,
    /// The owner wants no more.
    #[error("it is drained and takes no new sandboxes")]
    Drained,
    /// Nothing can be recorded.
    #[error("the registry cannot be written")]
    Registry,
    /// Nothing can be written.
    #[error("the state directory cannot be written")]
    State,
    /// No process can be started that would hold one.
    #[error("no supervisor can be started")]
    Supervisors,
    /// The machine has too little left.
    #[error("the machine is short of {0}")]
    Machine(&'static str),
}

/// Finds out whether a sandbox could be made.
#[derive(Debug)]
pub(crate) struct ReadinessCheck {
    core: DaemonCore,
    admission: Arc<AdmissionControl>,
    /// What was found out last, and when.
    latest: Mutex<Option<(Instant, Vec<ReadinessObstacle>)>>,
}

impl ReadinessCheck {
    pub(crate) fn new(core: DaemonCore, admission: Arc<AdmissionControl>) -> Self {
        Self {
            core,
            admission,
            latest: Mutex::default(),
        }
    }

    /// What stands against making a sandbox now; nothing, if the daemon is ready. What was found out holds for a while, but
    /// for its end and that it is drained.
    pub(crate) async fn missing(&self) -> Vec<ReadinessObstacle> {
        if self.core.jobs.is_draining() {
            return vec![ReadinessObstacle::Ending];
        }
        if self.core.jobs.is_drained() {
            return vec![ReadinessObstacle::Drained];
        }
        let mut latest = self.latest.lock().await;
        if let Some((at, missing)) = &*latest
            && at.elapsed() < HOLDS_FOR
        {
            return missing.clone();
        }
        let missing = self.look().await;
        *latest = Some((Instant::now(), missing.clone()));
        missing
    }

    async fn look(&self) -> Vec<ReadinessObstacle> {
        let mut missing = Vec::new();
        // A transaction of nothing: the thread that writes is there, and nobody else holds the file.
        let written = timeout(STEP_TIMEOUT, self.core.registry.apply(Vec::new()));
        if !matches!(written.await, Ok(Ok(()))) {
            missing.push(ReadinessObstacle::Registry);
        }
        let host = &self.core.host;
        let directory = host.state().path().join(DIRECTORY);
        let program = host.program().map(Path::to_owned);
        let tried = blocking("try to start a supervisor", move || {
            try_both(&directory, program.as_deref())
        });
        match timeout(STEP_TIMEOUT, tried).await {
            Ok(Ok(found)) => missing.extend(found),
            _ => missing.push(ReadinessObstacle::Supervisors),
        }
        if let Err(DaemonError::Overloaded { what, .. }) = self.admission.check() {
            missing.push(ReadinessObstacle::Machine(what));
        }
        missing
    }
}

/// Writes a block, and starts a supervisor that gets no order.
fn try_both(directory: &Path, program: Option<&Path>) -> Option<ReadinessObstacle> {
    if write(directory).is_err() {
        return Some(ReadinessObstacle::State);
    }
    let started = launch::start(program).and_then(|(_, process, _)| process.end());
    // What is left is written over by the next look.
    let _removed = fs::remove_dir_all(directory);
    started.err().map(|_| ReadinessObstacle::Supervisors)
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("block"), BLOCK)
}
