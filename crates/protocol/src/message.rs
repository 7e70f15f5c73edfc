//! The messages: what the host asks ([`ToGuest`]) and what the guest tells ([`FromGuest`]).
//!
//! An execution has a number that the host chooses and never uses twice in one sandbox. The order for each is
//! `Started`, then any of `Output` and `InputTaken`, then `Ended`; or `Ended` alone when it could not be started.

use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most strings in one argument list or environment, which bounds the memory that a decoded message can take.
///
/// Linux takes fewer with its usual stack: a quarter of 8 MiB, at eight bytes a pointer.
pub const MAX_STRINGS: usize = 262_144;

/// One direction of the conversation, with the size that its frames may have.
pub trait Dialogue: Serialize + DeserializeOwned {
    /// Largest body of a frame in bytes; checked before anything is allocated for it.
    const MAX_FRAME: usize;
}

/// What the host asks of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Run a command.
    Exec(ExecCommand),
    /// Bytes for the standard input of an execution; at most [`crate::INPUT_WINDOW`] unacknowledged.
    Input {
        /// Which execution; one that has ended is no error, the bytes are dropped.
        exec: u32,
        /// The bytes.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// No more input follows; the command sees the end of its standard input after what was sent before.
    CloseInput {
        /// Which execution.
        exec: u32,
    },
    /// Send a signal; nothing happens when the execution has ended.
    Signal {
        /// Which execution.
        exec: u32,
        /// The signal's number.
        signal: i32,
        /// To its process group, and with a terminal also to the foreground group; `SIGTERM`, `SIGKILL` and
        /// `SIGHUP` reach the whole session. Otherwise to the command's process alone.
        group: bool,
    },
    /// Read no more of an execution's output, so that its command waits once its pipes are full.
    HoldOutput {
        /// Which execution.
        exec: u32,
    },
    /// Read an execution's output again.
    ReleaseOutput {
        /// Which execution.
        exec: u32,
    },
    /// Give the terminal of an execution another size.
    Resize {
        /// Which execution.
        exec: u32,
        /// Lines.
        rows: u16,
        /// Columns.
        columns: u16,
    },
    /// Serve files on a socket, as a user. The socket comes with the first byte of this frame (`SCM_RIGHTS`); the
    /// conversation on it is [`crate::files`]. What cannot be served is closed.
    Files {
        /// As whom; as the guest itself when absent.
        user: Option<GuestIds>,
    },
    /// Carry out a renaming, as a user. The socket comes with the first byte of this frame; the conversation on it is
    /// [`crate::rename`]. What cannot be carried out is closed.
    Rename {
        /// As whom; as the guest itself when absent.
        user: Option<GuestIds>,
    },
    /// Take calls of tools from those inside and pass them on. The socket for that comes with the first byte of this frame; the
    /// conversation on it is [`crate::tools`]. If that cannot be, it is closed.
    Tools,
    /// Answer with [`FromGuest::UsageReport`].
    Usage,
    /// Kill everything and exit.
    Shutdown,
    /// Let those inside run commands as other users ([`crate::sudo`]) by way of a unix socket.
    ServeSudo {
        /// Where to listen; its directory is made if that alone is missing, and what is there is removed.
        #[serde(with = "crate::bytes")]
        path: Vec<u8>,
    },
}

impl Dialogue for ToGuest {
    // Room for the largest argument list and environment that Linux takes (6 MiB, execve(2)).
    const MAX_FRAME: usize = 8 * 1024 * 1024;
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecCommand {
    /// The number under which everything else refers to it.
    pub exec: u32,
    /// Program and arguments; a program without a slash is looked up in the `PATH` of `env`.
    #[serde(with = "crate::bytes::list")]
    pub argv: Vec<Vec<u8>>,
    /// The whole environment: names and values.
    #[serde(with = "crate::bytes::pairs")]
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory.
    #[serde(with = "crate::bytes")]
    pub cwd: Vec<u8>,
    /// Where standard input comes from; with a terminal, whether input may be sent.
    pub stdin: StdinKind,
    /// A terminal of that many rows and columns instead of pipes.
    pub tty: Option<(u16, u16)>,
    /// The command's `oom_score_adj`, if that is higher than the guest's own.
    pub oom_score_adj: Option<i16>,
    /// As whom; as the guest itself when absent.
    pub user: Option<GuestIds>,
}

/// A user and its group, as ids inside; there are no further groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Where standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinKind {
    /// `/dev/null`.
    Null,
    /// Bytes sent with [`ToGuest::Input`] until [`ToGuest::CloseInput`].
    Stream,
}

/// Which of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestStream {
    /// Standard output, and everything a terminal shows.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What the guest tells the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The guest runs and takes commands; its first message.
    Ready {
        /// The guest's [`crate::VERSION`].
        version: u32,
    },
    /// The command was exec'd.
    Started {
        /// Which execution.
        exec: u32,
        /// Process id as the guest sees it.
        pid: u32,
    },
    /// Bytes of output.
    Output {
        /// Which execution.
        exec: u32,
        /// Which stream.
        stream: GuestStream,
        /// The bytes as they were written, at most [`crate::OUTPUT_CHUNK`].
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// So many bytes of input were handed to the command, or dropped because it closed its standard input.
    InputTaken {
        /// Which execution.
        exec: u32,
        /// How many since the last such message.
        count: u32,
    },
    /// The command's process is gone and what it wrote was sent; no message about this execution follows.
    Ended {
        /// Which execution.
        exec: u32,
        /// How.
        end: ExitReport,
        /// CPU time in user mode in microseconds, with that of the descendants it waited for.
        user_us: u64,
        /// CPU time in the kernel, likewise.
        system_us: u64,
        /// Largest resident set in KiB of the command or a descendant it waited for.
        max_rss_kib: u64,
    },
    /// The answer to [`ToGuest::Usage`].
    UsageReport(SandboxUsage),
    /// Something went wrong that belongs to no execution; the text is for a log.
    Problem {
        /// What was tried and why it failed.
        text: String,
    },
}

impl Dialogue for FromGuest {
    const MAX_FRAME: usize = 1024 * 1024;
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReport {
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
}

/// Why a command could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailure {
    /// No such command.
    NotFound,
    /// It exists and cannot be executed.
    NotExecutable {
        /// What the kernel said: `EISDIR` for a directory, `EACCES` without an execute bit, `ENOEXEC` for an unknown
        /// format, `ENOENT` when the interpreter or loader that the file names is missing, `E2BIG` …
        errno: i32,
    },
    /// The working directory cannot be entered.
    Directory {
        /// What the kernel said.
        errno: i32,
    },
    /// Another call failed.
    Other {
        /// What was tried, such as `clone`.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
}

/// What the sandbox holds at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUsage {
    /// Processes besides the guest, dead ones that nobody waited for included.
    pub processes: u32,
    /// Memory of System V segments in bytes, resident and swapped; zero when they are the host's own.
    pub shm_bytes: u64,
    /// Each tmpfs; empty when the mounts are the host's own.
    pub tmpfs: Vec<TmpfsUsage>,
    /// Processes that a kernel of the sandbox's own has killed for want of memory; zero when that is the host's to count.
    pub memory_kills: u64,
    /// Processes and threads that it has refused, likewise.
    pub refused_processes: u64,
}

/// How full a tmpfs is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsUsage {
    /// Where it is mounted.
    #[serde(with = "crate::bytes")]
    pub path: Vec<u8>,
    /// Bytes in use.
    pub used: u64,
    /// Bytes it may hold; zero without a bound.
    pub total: u64,
    /// Inodes in use.
    pub files_used: u64,
    /// Inodes it may hold; zero without a bound.
    pub files_total: u64,
}
