//! What a simulated shell is to the worker that it runs in, and what the worker is to it.
//!
//! The one engine that there is stays behind this: its types are named in `worker::shell` alone. Each command is carried out
//! on the calling thread, and asks its [`EngineHost`] for files and for nothing else.

use std::path::PathBuf;

use offleash_core::exec::OutputStream;

pub(crate) use crate::wire::{
    FileAnswer, FileRequest, ProgramPlace, ProgramRequest, ProgramRun, ShellOutcome, Shortfall, ShortfallKind,
};

/// A simulated shell.
pub(crate) trait ShellEngine {
    /// Carries a command out, to its end.
    fn exec(&mut self, command: EngineCommand) -> EngineEnd;
}

/// What an engine has beside its own memory.
pub(crate) trait EngineHost: Send + Sync {
    /// Asks something about a served tree.
    fn files(&self, request: FileRequest) -> FileAnswer;

    /// Where a program of this name would be found.
    fn find_program(&self, name: &str) -> ProgramPlace;

    /// Runs a program at the next level, and waits for its end.
    fn run_program(&self, request: ProgramRequest) -> Option<ProgramRun>;

    /// Passes output on; waits until it is taken.
    fn output(&self, stream: OutputStream, bytes: Vec<u8>);
}

/// What bounds an engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineLimits {
    /// Bytes of output, after which its supervisor has ended it.
    pub(crate) output: Option<u64>,
    /// Bytes of files in memory.
    pub(crate) tmp: Option<u64>,
    /// The largest file in bytes.
    pub(crate) file_size: Option<u64>,
    /// Bytes of memory.
    pub(crate) memory: Option<u64>,
}

/// A command for an engine.
#[derive(Debug, Clone)]
pub(crate) struct EngineCommand {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// Working directory.
    pub(crate) cwd: PathBuf,
    /// Standard input.
    pub(crate) input: Vec<u8>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub(crate) struct EngineEnd {
    /// What became of it.
    pub(crate) outcome: ShellOutcome,
    /// What was not carried out as bash would have.
    pub(crate) shortfalls: Vec<Shortfall>,
}
