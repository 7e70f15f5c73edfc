//! Whether the daemon can do what it is there for, found out by doing the least of it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Daemon;
use super::error::DaemonError;
use super::inner::{Inner, blocking};
use super::launch;

/// How long what was found out holds: whoever may ask, asks often.
const HOLDS: Duration = Duration::from_secs(5);
/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where it is tried, in the state directory.
const DIRECTORY: &str = "ready";
/// What is written there: a block of any file system.
const BLOCK: [u8; 4096] = [0; 4096];

/// What stands against making a sandbox. Names nothing of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Missing {
    /// No more are made.
    #[error("the server is ending")]
    Ending,
    /// Nothing can be recorded.
    #[error("the registry cannot be written")]
    Registry,
    /// Nothing can be written.
    #[error("the state directory cannot be written")]
    State,
    /// No process can be started that would hold one.
    #[error("no keeper can be started")]
    Keepers,
    /// The machine has too little left.
    #[error("the machine is short of {0}")]
    Machine(&'static str),
}

/// What was found out last, and when.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    latest: Mutex<Option<(Instant, Vec<Missing>)>>,
}

impl Daemon {
    /// What stands against making a sandbox now; nothing, if the daemon is ready. What was found out holds for five
    /// seconds, but for its end.
    pub async fn missing(&self) -> Vec<Missing> {
        if self.inner.is_draining() {
            return vec![Missing::Ending];
        }
        let mut latest = self.inner.readiness.latest.lock().await;
        if let Some((at, missing)) = &*latest
            && at.elapsed() < HOLDS
        {
            return missing.clone();
        }
        let missing = look(&self.inner).await;
        *latest = Some((Instant::now(), missing.clone()));
        missing
    }
}

async fn look(inner: &Arc<Inner>) -> Vec<Missing> {
    let mut missing = Vec::new();
    // A transaction of nothing: the thread that writes is there, and nobody else holds the file.
    if !matches!(timeout(PATIENCE, inner.apply(Vec::new())).await, Ok(Ok(()))) {
        missing.push(Missing::Registry);
    }
    let (directory, program) = (inner.state.path().join(DIRECTORY), inner.config.program.clone());
    let tried = blocking("try to start a keeper", move || {
        try_both(&directory, program.as_deref())
    });
    match timeout(PATIENCE, tried).await {
        Ok(Ok(found)) => missing.extend(found),
        _ => missing.push(Missing::Keepers),
    }
    if let Err(DaemonError::Overloaded { what, .. }) = inner.admission.check() {
        missing.push(Missing::Machine(what));
    }
    missing
}

/// Writes a block, and starts a keeper that gets no order.
fn try_both(directory: &Path, program: Option<&Path>) -> Option<Missing> {
    if write(directory).is_err() {
        return Some(Missing::State);
    }
    let started = launch::start(program).and_then(|(_, process, _)| process.end());
    // What is left is written over by the next look.
    let _removed = fs::remove_dir_all(directory);
    started.err().map(|_| Missing::Keepers)
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("block"), BLOCK)
}
