//! What a context needs of a sandbox: to start a process with streams, to find it again, to signal it.
//!
//! Implemented by the room that holds sandboxes; the tests of this room start processes of this machine.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use offleash_core::error::ErrorKind;
use offleash_core::exec::{ExecEnd, OutputStream};

use crate::language::Language;

/// Most bytes that are given to [`ProcessHost::input`] at once.
pub const MAX_INPUT: usize = crate::protocol::MAX_FROM_HOST + 128;
/// Most bytes of a note that is given to [`ProcessHost::note_end`].
pub const MAX_NOTE: usize = 1024;

/// The processes of one sandbox; clones are those of the same one.
pub trait ProcessHost: Clone + Send + Sync + 'static {
    /// What a process writes, and how it ends.
    type Stream: ProcessStream;

    /// Starts a process as the usual user, with input, and found by its tag afterwards. It goes on when the stream is
    /// dropped.
    fn start(&self, start: ProcessStart) -> impl Future<Output = Result<Self::Stream, ProcessError>> + Send;

    /// The variables that a process is given beside those of the sandbox.
    fn environment(&self) -> Arc<BTreeMap<String, String>>;

    /// What a process writes from now on.
    fn attach(&self, pid: u32) -> impl Future<Output = Result<Self::Stream, ProcessError>> + Send;

    /// The processes that were started with [`Self::start`], by whomever, and that run.
    fn list(&self) -> impl Future<Output = Result<Vec<RunningProcess>, ProcessError>> + Send;

    /// Gives a process input of at most [`MAX_INPUT`] bytes, all of it or nothing, and returns when it was taken.
    fn input(&self, pid: u32, bytes: Vec<u8>) -> impl Future<Output = Result<(), ProcessError>> + Send;

    /// Sends a signal to a process and those in its process group; `SIGKILL` to all that it started.
    fn signal(&self, pid: u32, signal: i32) -> impl Future<Output = Result<(), ProcessError>> + Send;

    /// The ends of processes that were started by whomever, but of those that nobody will ask for. That of a process is
    /// forgotten when another one of its tag is started.
    fn ended(&self) -> impl Future<Output = Result<Vec<EndedProcess>, ProcessError>> + Send;

    /// Has the end of the process with that tag, which may have come, kept with a note; without one, nobody will ask for it.
    fn note_end(&self, tag: &str, note: Option<String>) -> impl Future<Output = Result<(), ProcessError>> + Send;
}

/// What a process writes, and how it ends. Dropping it leaves the process alone.
pub trait ProcessStream: Send + Sync + 'static {
    /// Its process id inside.
    fn pid(&self) -> u32;

    /// Why the sandbox is gone, where [`Self::next`] has said that it is and that is known.
    fn why_gone(&self) -> Option<String> {
        None
    }

    /// What comes next; `None` when the sandbox is gone. May be dropped and called again: nothing is lost.
    fn next(&mut self) -> impl Future<Output = Result<Option<ProcessNews>, ProcessError>> + Send;
}

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStart {
    /// Of which language it is the driver.
    pub language: Language,
    /// Program and arguments; the program is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Working directory inside; the user's home if absent.
    pub cwd: Option<String>,
    /// A name by which it can be found.
    pub tag: String,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningProcess {
    /// Its process id inside.
    pub pid: u32,
    /// The name by which it can be found.
    pub tag: Option<String>,
    /// The directory in which it was started.
    pub cwd: String,
}

/// A process that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedProcess {
    /// The name by which it could be found.
    pub tag: String,
    /// The directory in which it was started.
    pub cwd: String,
    /// How it ended.
    pub end: ExecEnd,
    /// What was noted of it.
    pub note: Option<String>,
}

/// What is new of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessNews {
    /// It wrote something.
    Output(OutputStream, Vec<u8>),
    /// It has ended; nothing follows.
    Ended(ExecEnd),
}

/// Why a process was not started, found, fed or signalled.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The sandbox is gone.
    #[error("the sandbox is gone")]
    Gone,
    /// The sandbox is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// There is no such program.
    #[error("there is no such program in the sandbox")]
    NotFound,
    /// The process is not there any more.
    #[error("the process has ended")]
    Ended,
    /// The working directory cannot be entered.
    #[error("the working directory cannot be entered: {reason}")]
    Directory {
        /// What the kernel said.
        reason: String,
    },
    /// Something else.
    #[error("{error}")]
    Other {
        /// What kind of failure it is.
        kind: ErrorKind,
        /// What it is.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}
