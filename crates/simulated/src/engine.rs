//! What a simulated shell is to the worker that it runs in, and what the worker is to it.
//!
//! An engine stays behind this: the types of the one here are named in `worker::shell` alone, and `offleash-wasm` has another. Each command is carried out
//! on the calling thread, and asks its [`EngineHost`] for files and for nothing else.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use offleash_core::exec::OutputStream;
use offleash_core::level::Level;

pub use crate::wire::{
    ByteWord, FileAnswer, FileEntry, FileFacts, FileKind, FileOperation, FileRequest, MAX_CODE, MAX_COMPILED,
    MAX_PIECE, MountPoint, ProgramPlace, ProgramRequest, ProgramRun, ScriptLanguage, ShellCommand, ShellOutcome,
    Shortfall, ShortfallKind, WorkerSetup,
};

/// What runs in the workers, as words and records have it.
#[derive(Debug, Clone, Copy)]
pub struct EngineKind {
    /// The level that it makes.
    pub level: Level,
    /// The worker's role behind `offleash supervise`.
    pub role: &'static str,
    /// What it is called.
    pub name: &'static str,
    /// What is said of commands.
    pub commands: &'static str,
    /// The feature of a build that has it.
    pub feature: &'static str,
}

/// A simulated shell.
pub trait ShellEngine {
    /// Carries a command out, to its end.
    fn exec(&mut self, command: EngineCommand) -> EngineEnd;
}

/// What a script has beside its own memory.
pub trait ScriptHost: Send + Sync {
    /// Asks something about a served tree.
    fn files(&self, request: FileRequest) -> FileAnswer;

    /// Passes output on; waits until it is taken. Whether whoever writes may go on.
    fn output(&self, stream: OutputStream, bytes: Vec<u8>) -> bool;

    /// The compiled interpreter of a language, as a file that nobody writes to.
    ///
    /// # Errors
    /// Why there is none.
    fn interpreter(&self, language: ScriptLanguage) -> Result<OwnedFd, String>;
}

/// What an engine has beside its own memory.
pub trait EngineHost: ScriptHost {
    /// Where a program of this name would be found.
    fn find_program(&self, name: &str) -> ProgramPlace;

    /// Runs a program at the next level, and waits for its end.
    fn run_program(&self, request: ProgramRequest) -> Option<ProgramRun>;

    /// The code in a file of a served tree, or, unless it is wanted `anew`, what was made of it before.
    ///
    /// # Errors
    /// As the kernel numbers them.
    fn code(&self, mount: u32, path: &[u8], anew: bool) -> Result<EngineCode, i32>;

    /// Has kept what was made of the code that was given last.
    fn keep_compiled(&self, compiled: &[u8]);
}

impl std::fmt::Debug for ScriptPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("ScriptPlace");
        shown.field("mounts", &self.mounts).field("memory", &self.memory);
        shown.finish_non_exhaustive()
    }
}

impl ScriptLanguage {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    /// The names of its command.
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "python"],
            Self::JavaScript => &["node", "js"],
        }
    }

    /// The language whose command has this name.
    pub fn of_command(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|language| language.commands().contains(&name))
    }

    /// Its word among names of files and arguments.
    pub fn word(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }
}

/// Runs scripts, for commands of an engine.
pub trait ScriptRunner: Send + Sync {
    /// Runs a command of a language to its end, with all that it reaches.
    fn run(&self, language: ScriptLanguage, command: EngineCommand, place: ScriptPlace) -> EngineEnd;
}

/// What a script reaches.
#[derive(Clone)]
pub struct ScriptPlace {
    /// Answers about files and takes output.
    pub host: Arc<dyn ScriptHost>,
    /// Where trees are, by their number. One of them is `/`.
    pub mounts: Vec<MountPoint>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// Keeps compiled interpreters, for the owner alone.
pub trait InterpreterStore: std::fmt::Debug {
    /// The file of one that was compiled before.
    fn find(&mut self, language: ScriptLanguage) -> Option<OwnedFd>;

    /// The arguments with which this program compiles it, and puts it where it is found.
    fn maker(&self, language: ScriptLanguage) -> Vec<Vec<u8>>;
}

/// Makes what keeps the interpreters that a build has, in a state directory.
pub type InterpreterStoreMaker = fn(&std::path::Path) -> Box<dyn InterpreterStore>;

/// Code for an engine.
#[derive(Debug, Clone)]
pub enum EngineCode {
    /// What the file holds.
    Source(Vec<u8>),
    /// What an engine of this build made of it.
    Compiled(Vec<u8>),
}

/// Keeps what an engine made of code, for the owner alone.
pub trait CompiledStore: std::fmt::Debug {
    /// What was made of this code before.
    fn find(&mut self, source: &[u8]) -> Option<Vec<u8>>;

    /// Keeps what was made of the code that was looked for last.
    fn keep(&mut self, compiled: &[u8]);
}

/// What bounds an engine.
#[derive(Debug, Clone)]
pub struct EngineLimits {
    /// Bytes of output, after which its supervisor has ended it.
    pub output: Option<u64>,
    /// Bytes of files in memory.
    pub tmp: Option<u64>,
    /// The largest file in bytes.
    pub file_size: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// A command for an engine.
#[derive(Debug, Clone)]
pub struct EngineCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Standard input.
    pub input: Vec<u8>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct EngineEnd {
    /// What became of it.
    pub outcome: ShellOutcome,
    /// What was not carried out as bash would have.
    pub shortfalls: Vec<Shortfall>,
}
