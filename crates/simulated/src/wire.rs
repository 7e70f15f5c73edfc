//! What passes between a worker and the supervisor that holds it.
//!
//! A worker asks and waits; the supervisor answers each question with one answer, in their order. Paths are those below
//! the root of a served tree, without a slash in front, and are checked anew by whoever receives them.

use std::fmt;
use std::marker::PhantomData;

use offleash_core::exec::OutputStream;
use offleash_protocol::Dialogue;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The longest message in either direction: a directory of some 100,000 names.
pub(crate) const MAX_FRAME: usize = 16 * 1024 * 1024;
/// How many bytes of a file go into one message.
pub const MAX_PIECE: usize = 1024 * 1024;
/// How much a program of the next level can be given, or answer with on both streams together.
pub(crate) const MAX_PROGRAM_BYTES: usize = 8 * 1024 * 1024;
/// How much standard input a command can have: it is there as a whole before the command begins.
pub(crate) const MAX_INPUT: usize = 64 * 1024 * 1024;

/// How much code a file may have, in bytes.
pub const MAX_CODE: usize = 64 * 1024 * 1024;
/// How much is made of it, in bytes.
pub const MAX_COMPILED: usize = 512 * 1024 * 1024;

/// How many words a command can have, and as many variables.
pub(crate) const MAX_WORDS: usize = 65_536;
/// How many shortfalls the end of a command can tell of.
pub(crate) const MAX_SHORTFALLS: usize = 1024;

/// Reads a list that is no longer than `MOST`: what is empty takes no bytes of a message, and memory all the same.
fn at_most<'de, D, T, const MOST: usize>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T, const MOST: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Bounded<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of {MOST} at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(next) = seq.next_element()? {
                if list.len() == MOST {
                    return Err(de::Error::invalid_length(MOST + 1, &self));
                }
                list.push(next);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(Bounded::<T, MOST>(PhantomData))
}

/// What the supervisor tells a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// What it is, once and first.
    Setup(WorkerSetup),
    /// Bytes of the standard input of the command that follows.
    Input(#[serde(with = "offleash_protocol::bytes")] Vec<u8>),
    /// Carry this out.
    Exec(ShellCommand),
    /// The answer to what it asked about files.
    Files(FileAnswer),
    /// The answer to whether the machine has a program of that name.
    Program(ProgramPlace),
    /// What became of a program that ran at the next level.
    Ran(ProgramRun),
    /// A piece of the code that it asked for.
    Code(CodePiece),
    /// There is no such code, with an error as the kernel numbers them.
    NoCode {
        /// `EFBIG` for more than [`MAX_CODE`].
        errno: i32,
    },
    /// The answer to which interpreter it needs.
    Interpreter(InterpreterAnswer),
}

/// A language whose scripts run without an operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScriptLanguage {
    /// Python.
    Python,
    /// JavaScript.
    JavaScript,
}

/// What is answered about an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InterpreterAnswer {
    /// A descriptor of its compiled code comes with this message.
    Here,
    /// There is none.
    NotHere {
        /// Why.
        why: String,
    },
}

/// A piece of code, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CodePiece {
    /// Whether this was made of it before, rather than its file.
    pub(crate) is_compiled: bool,
    /// Whether nothing follows.
    pub(crate) is_last: bool,
    /// At most [`MAX_PIECE`].
    #[serde(with = "offleash_protocol::bytes")]
    pub(crate) bytes: Vec<u8>,
}

/// Where a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramPlace {
    /// Nowhere.
    Nowhere,
    /// At the next level, which this sandbox does not go to.
    OutOfReach,
    /// At the next level, where it can be run.
    NextLevel,
}

/// A program for the next level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRequest {
    /// How it is started.
    pub command: ShellCommand,
    /// Its standard input; at most `MAX_PROGRAM_BYTES`.
    #[serde(with = "offleash_protocol::bytes")]
    pub input: Vec<u8>,
}

/// What became of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRun {
    /// Whether there was a sandbox for it.
    pub has_run: bool,
    /// Its status, as a shell has it.
    pub status: u8,
    /// What it wrote to standard output.
    #[serde(with = "offleash_protocol::bytes")]
    pub stdout: Vec<u8>,
    /// And to standard error.
    #[serde(with = "offleash_protocol::bytes")]
    pub stderr: Vec<u8>,
}

/// What a worker needs before the first command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// Memory in bytes; none for no limit.
    pub memory: Option<u64>,
    /// CPU time in seconds.
    pub cpu_seconds: Option<u64>,
    /// Bytes of output, all told.
    pub output: Option<u64>,
    /// Bytes of files in the worker's own memory.
    pub tmp: Option<u64>,
    /// The largest file in bytes.
    pub file_size: Option<u64>,
    /// Where the served trees are, by their number.
    pub mounts: Vec<MountPoint>,
    /// The user's name.
    pub user: String,
    /// The user's home directory.
    #[serde(with = "offleash_protocol::bytes")]
    pub home: Vec<u8>,
    /// The name of the machine.
    pub hostname: String,
}

/// Where a served tree is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// Its path inside.
    #[serde(with = "offleash_protocol::bytes")]
    pub path: Vec<u8>,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellCommand {
    /// Program and arguments.
    #[serde(deserialize_with = "at_most::<_, _, MAX_WORDS>")]
    pub argv: Vec<ByteWord>,
    /// The whole environment.
    #[serde(deserialize_with = "at_most::<_, _, MAX_WORDS>")]
    pub env: Vec<(ByteWord, ByteWord)>,
    /// Working directory inside.
    pub cwd: ByteWord,
}

/// Bytes that are laid down in one piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteWord(#[serde(with = "offleash_protocol::bytes")] pub Vec<u8>);

/// What a worker tells or asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// It has given up what it does not need, and takes commands.
    Ready(WorkerWalls),
    /// Bytes of output.
    Output {
        /// Of which stream.
        stream: OutputStream,
        /// The bytes.
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// Something about a file of a served tree.
    Files(FileRequest),
    /// Whether the next level has a program of this name.
    Program(String),
    /// Run this at the next level.
    Run(ProgramRequest),
    /// It needs the code in this file.
    Code {
        /// The number of the tree.
        mount: u32,
        /// The path in it.
        #[serde(with = "offleash_protocol::bytes")]
        path: Vec<u8>,
        /// Whether nothing that was made of it before is of use.
        anew: bool,
    },
    /// A piece of what it made of the code that it was given last, to be kept.
    Compiled {
        /// Whether nothing follows.
        is_last: bool,
        /// At most [`MAX_PIECE`].
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// It needs the interpreter of this language.
    Interpreter(ScriptLanguage),
    /// The command is over.
    Ended(ShellEnd),
}

/// What holds a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerWalls {
    /// Its root is an empty directory.
    pub(crate) has_empty_root: bool,
    /// Landlock refuses it every file.
    pub(crate) has_landlock: bool,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShellEnd {
    /// What became of it.
    pub(crate) outcome: ShellOutcome,
    /// What was not carried out as bash would have.
    #[serde(deserialize_with = "at_most::<_, _, MAX_SHORTFALLS>")]
    pub(crate) shortfalls: Vec<Shortfall>,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellOutcome {
    /// Its status.
    Exited(u8),
    /// The directory cannot be entered.
    NoDirectory {
        /// Why.
        errno: i32,
    },
    /// A signal's number, as of a program that did the same.
    Signaled {
        /// It.
        signal: i32,
    },
    /// There is no such program.
    NotFound,
    /// It is none.
    NotExecutable,
    /// This build has no engine.
    NoEngine,
}

/// Something that was not carried out as bash would have; a line on standard error said so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shortfall {
    /// Of what kind.
    pub kind: ShortfallKind,
    /// What: a limit's words, a builtin with its option, a program.
    pub what: String,
}

/// Why something was not carried out as bash would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ShortfallKind {
    /// A limit of the engine.
    Limit,
    /// Something that the engine does not have.
    Unsupported,
    /// A program that only levels with processes have.
    NeedsProcess,
    /// A program that was run at the next level.
    RanAtProcess,
}

/// Something that is asked about a served tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// The number of the tree.
    pub mount: u32,
    /// The path in it; empty for its root.
    #[serde(with = "offleash_protocol::bytes")]
    pub path: Vec<u8>,
    /// What is to be done there.
    pub operation: FileOperation,
}

/// What is to be done with a file. Nothing follows a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOperation {
    /// Say what is there.
    Stat,
    /// Name what is in the directory.
    List,
    /// Read from this offset, at most [`MAX_PIECE`] bytes.
    Read {
        /// In bytes.
        offset: u64,
    },
    /// Say where the link points.
    ReadLink,
    /// Make a file with these bytes, in place of one that is there.
    Replace {
        /// How long it is going to be.
        total: u64,
        /// The beginning.
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// Add bytes to the end; makes the file if it is not there.
    Append(#[serde(with = "offleash_protocol::bytes")] Vec<u8>),
    /// Write at this offset, into a file that is there.
    Write {
        /// In bytes.
        offset: u64,
        /// At most [`MAX_PIECE`].
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// Cut a file, or fill it up with zeroes.
    Resize {
        /// In bytes.
        size: u64,
    },
    /// Make a directory.
    MakeDirectory,
    /// Remove a file, a link or an empty directory.
    Remove,
    /// Give another name to something that is not a directory of the host.
    Rename {
        /// The path in the same tree.
        #[serde(with = "offleash_protocol::bytes")]
        to: Vec<u8>,
    },
    /// Make a link.
    Symlink {
        /// What it says.
        #[serde(with = "offleash_protocol::bytes")]
        target: Vec<u8>,
    },
    /// Set the permissions.
    Chmod {
        /// The low nine bits and the sticky one.
        mode: u32,
    },
    /// Set the time of the last change.
    Touch {
        /// Seconds since 1970.
        seconds: i64,
        /// And nanoseconds.
        nanoseconds: u32,
    },
}

/// What an operation is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAnswer {
    /// It was not done.
    Failed {
        /// As the kernel numbers errors.
        errno: i32,
    },
    /// It was done.
    Done,
    /// What is there.
    Facts(FileFacts),
    /// What is in the directory.
    Entries(Vec<FileEntry>),
    /// A piece of a file; shorter than asked for only at its end.
    Piece {
        /// The bytes.
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
        /// The length of the whole.
        total: u64,
    },
    /// Where a link points.
    Target(#[serde(with = "offleash_protocol::bytes")] Vec<u8>),
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The name.
    #[serde(with = "offleash_protocol::bytes")]
    pub name: Vec<u8>,
    /// What is there.
    pub facts: FileFacts,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Seconds of the last change since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device, of which nothing is opened.
    Special,
}

impl Dialogue for ToWorker {
    const MAX_FRAME: usize = MAX_FRAME;
}

impl Dialogue for FromWorker {
    const MAX_FRAME: usize = MAX_FRAME;
}

#[cfg(test)]
mod tests {
    use super::*;
    use offleash_protocol::{MessageDecoder, encode};

    fn reads(message: &FromWorker) -> bool {
        let mut decoder: MessageDecoder<FromWorker> = MessageDecoder::new();
        decoder.push(&encode(message).unwrap());
        matches!(decoder.next(), Ok(Some(read)) if read == *message)
    }

    fn program(words: usize, variables: usize) -> FromWorker {
        let word = ByteWord(Vec::new());
        FromWorker::Run(ProgramRequest {
            command: ShellCommand {
                argv: vec![word.clone(); words],
                env: vec![(word.clone(), word.clone()); variables],
                cwd: word,
            },
            input: Vec::new(),
        })
    }

    fn end(shortfalls: usize) -> FromWorker {
        let (kind, what) = (ShortfallKind::Limit, String::new());
        FromWorker::Ended(ShellEnd {
            outcome: ShellOutcome::Exited(0),
            shortfalls: vec![Shortfall { kind, what }; shortfalls],
        })
    }

    #[test]
    fn lists_are_no_longer_than_their_bounds_however_few_bytes_they_take() {
        assert!(reads(&program(MAX_WORDS, MAX_WORDS)));
        assert!(!reads(&program(MAX_WORDS + 1, 0)));
        assert!(!reads(&program(0, MAX_WORDS + 1)));
        assert!(reads(&end(MAX_SHORTFALLS)));
        assert!(!reads(&end(MAX_SHORTFALLS + 1)));
    }
}
