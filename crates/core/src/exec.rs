//! One execution inside a sandbox: the request, its events, its end.

use std::ffi::OsString;
use std::path::PathBuf;

/// A command to run inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// Program and arguments; the program is looked up in the sandbox's `PATH` unless it has a slash.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory inside.
    pub cwd: PathBuf,
    /// Where standard input comes from.
    pub stdin: Stdin,
    /// A terminal instead of pipes.
    pub tty: Option<TerminalSize>,
    /// As whom; as the sandbox's first process when absent.
    pub user: Option<UserIds>,
}

/// A user of a sandbox and its group, as ids inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Where standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// Bytes sent with the sandbox's `input` until closed.
    Stream,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// Which of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output, and everything a terminal shows.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What happens during an execution, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// The command was exec'd, with this pid inside.
    Started {
        /// Process id in the sandbox's pid namespace.
        pid: u32,
    },
    /// Bytes of output.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// The bytes as they were written.
        bytes: Vec<u8>,
    },
    /// So many bytes of input were taken, so as many more may be sent.
    InputTaken {
        /// How many.
        count: usize,
    },
    /// The end; no event follows.
    Ended(ExecEnd),
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// The command returned.
    Exited {
        /// Its code.
        code: u8,
    },
    /// A signal ended the command.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// The command never ran.
    NotStarted(StartFailure),
    /// The sandbox was gone before the command ended: killed, out of memory, or the guest died.
    Lost,
    /// The command was killed, with `SIGKILL`, since the sandbox had no memory left; the sandbox goes on.
    OutOfMemory {
        /// The memory that the sandbox may use, in bytes.
        limit: u64,
    },
}

/// Why a command could not be started inside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFailure {
    /// No such command in the sandbox.
    NotFound,
    /// It is a directory, has no execute bit, or its format is unknown.
    NotExecutable {
        /// What the kernel said.
        errno: i32,
    },
    /// The working directory cannot be entered.
    Directory {
        /// What the kernel said.
        errno: i32,
    },
    /// Another call failed.
    Other {
        /// What was tried, such as `fork`.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
}
