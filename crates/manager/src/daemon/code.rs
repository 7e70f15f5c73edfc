//! Contexts of code in sandboxes: what `interpreter` needs of a sandbox, by way of its keeper.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use offleash_core::error::Explained as _;
use offleash_interpreter::contexts::{Contexts, is_driver};
use offleash_interpreter::limits::Limits;
use offleash_interpreter::process::{ProcessError, ProcessNews, ProcessStream, Processes, Running, Start};

use super::Daemon;
use super::error::DaemonError;
use crate::keeper::client::{ExecNews, ExecStream, Keeper};
use crate::keeper::error::KeeperError;
use crate::keeper::message::{Selector, StartExec};

/// The contexts of one sandbox.
pub type SandboxContexts = Contexts<SandboxProcesses>;

/// The contexts of all sandboxes in which somebody asked for some.
#[derive(Debug, Default)]
pub(super) struct AllContexts {
    by_sandbox: Mutex<HashMap<String, Arc<SandboxContexts>>>,
}

impl Daemon {
    /// The contexts of a sandbox, which is resumed by this when traffic resumes it. Who asks was checked.
    ///
    /// Drivers that an earlier daemon started are found again. They outlive this daemon, too.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if it is paused, `Keeper`.
    pub async fn contexts(&self, id: &str) -> Result<Arc<SandboxContexts>, DaemonError> {
        let access = self.access(id)?;
        let keeper = self.keeper(id).await?;
        let mut all = self
            .inner
            .contexts
            .by_sandbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(contexts) = all.get(id) {
            return Ok(Arc::clone(contexts));
        }
        // Ids are never used again: those of sandboxes that are gone are of no use.
        all.retain(|id, _| self.inner.table.get(id).is_some());
        let processes = SandboxProcesses {
            keeper,
            env: Arc::new(access.env),
        };
        let contexts = Arc::new(Contexts::new(processes, Limits::default()));
        all.insert(id.to_owned(), Arc::clone(&contexts));
        Ok(contexts)
    }
}

/// Whether a command of a sandbox is the driver of a context, which nobody started as a command.
pub fn is_driver_tag(tag: Option<&str>) -> bool {
    tag.is_some_and(is_driver)
}

/// The processes of a sandbox, with the variables that every command in it gets.
#[derive(Debug, Clone)]
pub struct SandboxProcesses {
    keeper: Keeper,
    env: Arc<BTreeMap<String, String>>,
}

/// What a driver writes.
#[derive(Debug)]
pub struct SandboxStream {
    stream: ExecStream,
}

impl Processes for SandboxProcesses {
    type Stream = SandboxStream;

    async fn start(&self, start: Start) -> Result<SandboxStream, ProcessError> {
        let bytes = |(name, value): (&String, &String)| (name.clone().into_bytes(), value.clone().into_bytes());
        let exec = StartExec {
            argv: start.argv.into_iter().map(String::into_bytes).collect(),
            env: self.env.iter().map(bytes).collect(),
            cwd: start.cwd.map(String::into_bytes),
            stdin: true,
            tag: Some(start.tag),
            ..StartExec::default()
        };
        let stream = self.keeper.start(exec).await.map_err(told)?;
        Ok(SandboxStream { stream })
    }

    async fn attach(&self, pid: u32) -> Result<SandboxStream, ProcessError> {
        let stream = self.keeper.attach(&Selector::Pid(pid)).await.map_err(told)?;
        Ok(SandboxStream { stream })
    }

    async fn list(&self) -> Result<Vec<Running>, ProcessError> {
        let processes = self.keeper.processes().await.map_err(told)?;
        let running = processes.into_iter().map(|process| Running {
            pid: process.pid,
            tag: process.tag,
            cwd: String::from_utf8_lossy(&process.cwd).into_owned(),
        });
        Ok(running.collect())
    }

    async fn input(&self, pid: u32, bytes: Vec<u8>) -> Result<(), ProcessError> {
        self.keeper.input(&Selector::Pid(pid), bytes).await.map_err(told)
    }

    async fn signal(&self, pid: u32, signal: i32) -> Result<(), ProcessError> {
        self.keeper.signal(&Selector::Pid(pid), signal).await.map_err(told)
    }
}

impl ProcessStream for SandboxStream {
    fn pid(&self) -> u32 {
        self.stream.pid()
    }

    async fn next(&mut self) -> Result<Option<ProcessNews>, ProcessError> {
        loop {
            let news = self.stream.next().await.map_err(told)?;
            return Ok(match news {
                None => None,
                Some(ExecNews::Output { stream, bytes }) => Some(ProcessNews::Output(stream, bytes)),
                Some(ExecNews::Ended(end)) => Some(ProcessNews::Ended(end)),
                // Its end follows; none was started with a time.
                Some(ExecNews::TimedOut) => continue,
            });
        }
    }
}

fn told(error: KeeperError) -> ProcessError {
    match error {
        KeeperError::Gone => ProcessError::Gone,
        KeeperError::Paused => ProcessError::Paused,
        KeeperError::NotFound | KeeperError::NotExecutable { .. } => ProcessError::NotFound,
        KeeperError::NoProcess | KeeperError::InputClosed => ProcessError::Ended,
        KeeperError::Directory { .. } => ProcessError::Directory {
            reason: error.to_string(),
        },
        other => ProcessError::Other {
            kind: other.kind(),
            error: Box::new(other),
        },
    }
}
