//! What a supervisor and its clients say to each other.
//!
//! A connection carries one [`SupervisorRequest`] and what answers it. [`SupervisorRequest::Start`] and
//! [`SupervisorRequest::Attach`] are answered with a stream that lasts until the command has ended or either side hangs up;
//! everything else with one reply, but for [`SupervisorRequest::Processes`] and [`SupervisorRequest::Ends`]. The other side of the socket was checked by its
//! credentials, and its bytes are checked all the same (`offleash_protocol`).
//!
//! A supervisor outlives the program that started it, so its client may be of another version: [`SupervisorRequest::Hello`] tells
//! that. It and [`SupervisorRequest::Kill`] are the first ones in every version, so that any client can ask and can end it.

use std::collections::BTreeMap;

use offleash_core::approval::ApprovalAnswer;
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::id::RunId;
use offleash_core::level::Level;
use offleash_core::record::{AlertRecord, LimitHit, RunUsage};
use offleash_core::spec::ProcessRef;
use offleash_protocol::Dialogue;
use serde::{Deserialize, Serialize};

use super::order::NetworkOrder;
use crate::tools::OpenApproval;

/// Version of these messages, in [`Hello`]: a client speaks with supervisors of its own version alone.
pub const VERSION: u32 = 1;

/// Most bytes of input in one request; a client divides what is longer.
pub const INPUT_CHUNK: usize = 1024 * 1024;

/// Most bytes of the name by which a command can be found.
pub const MAX_TAG: usize = 256;

/// Most bytes of the note on an end.
pub const MAX_NOTE: usize = offleash_interpreter::process::MAX_NOTE;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorRequest {
    /// Who it is; [`SupervisorReply::Hello`].
    Hello,
    /// To end the sandbox; [`SupervisorReply::Killed`] once nothing of it is left.
    Kill,
    /// To run a command; [`SupervisorReply::Started`] and the stream of its output.
    Start(StartExec),
    /// To hear of a command that was started; the same as for `Start`, from now on.
    Attach(Selector),
    /// Which commands run; a [`SupervisorReply::Process`] each, then [`SupervisorReply::Done`].
    Processes,
    /// Bytes for the input of a command, at most [`INPUT_CHUNK`]; [`SupervisorReply::Done`] once they were taken.
    Input {
        /// Which command.
        which: Selector,
        /// The bytes.
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// That no more input follows after what was sent; [`SupervisorReply::Done`].
    CloseInput(Selector),
    /// A signal for a command's processes; [`SupervisorReply::Done`].
    Signal {
        /// Which command.
        which: Selector,
        /// The signal's number.
        signal: i32,
    },
    /// Another size for the terminal of a command; [`SupervisorReply::Done`].
    Resize {
        /// Which command.
        which: Selector,
        /// Lines.
        rows: u16,
        /// Columns.
        columns: u16,
    },
    /// A process inside that serves files, as this user or the usual one; [`SupervisorReply::Files`].
    Files {
        /// The user's name.
        user: Option<String>,
    },
    /// A connection to a port inside; [`SupervisorReply::Port`].
    Port(u16),
    /// What is used now; [`SupervisorReply::Usage`].
    Usage,
    /// Other rules for the network, and another way out; [`SupervisorReply::Done`]. Headers need the authority to be in the
    /// sandbox.
    SetNetwork(NetworkOrder),
    /// To stop every process; [`SupervisorReply::Done`] once they have stopped.
    Pause,
    /// To let them go on; [`SupervisorReply::Done`].
    Resume,
    /// For an authority with which connections can be opened; [`SupervisorReply::Authority`].
    Authority,
    /// Which process its first one is; [`SupervisorReply::First`].
    First,
    /// As `Start`, for a command that is a copy of the zygote's process below which the sandbox was made; where there is
    /// none to be had, the command itself is started.
    StartCopy(StartExec),
    /// To stop every process, and do nothing for other clients, until this one hangs up; [`SupervisorReply::Done`] once they
    /// have stopped. The supervisor hangs up when that takes too long.
    Hold,
    /// Which drivers of contexts have ended; a [`SupervisorReply::Exited`] each, then [`SupervisorReply::Done`].
    Ends,
    /// To keep the end of a driver of a context, which may have come, with a note, or not at all; [`SupervisorReply::Done`].
    NoteEnd {
        /// Its tag.
        tag: String,
        /// The note, of at most [`MAX_NOTE`] bytes.
        note: Option<String>,
    },
    /// What was refused after there were so many refusals; [`SupervisorReply::Refusals`].
    Refusals {
        /// So many.
        after: u64,
    },
    /// What was reached; [`SupervisorReply::Reached`].
    Reached,
    /// Which questions wait for an answer; [`SupervisorReply::Approvals`].
    Approvals,
    /// To answer a question; [`SupervisorReply::Done`], or [`SupervisorFailure::NoProcess`] where it is not open.
    Decide {
        /// Its number.
        question: u64,
        /// The answer.
        answer: ApprovalAnswer,
    },
    /// Which rules of monitoring fired after there were so many firings, of which whoever asks is done with those before;
    /// [`SupervisorReply::Alerts`].
    Alerts {
        /// So many; those that nobody is done with yet when absent.
        after: Option<u64>,
    },
}

impl Dialogue for SupervisorRequest {
    // As large an argument list and environment as the guest takes.
    const MAX_FRAME: usize = 8 * 1024 * 1024;
}

/// What a supervisor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorReply {
    /// Who it is.
    Hello(Hello),
    /// The command runs.
    Started {
        /// Its process id inside.
        pid: u32,
    },
    /// What it wrote.
    Output {
        /// Where.
        stream: OutputStream,
        /// The bytes.
        #[serde(with = "offleash_protocol::bytes")]
        bytes: Vec<u8>,
    },
    /// Its time was over, and it was killed for that; the end follows.
    TimedOut,
    /// It has ended; nothing follows.
    Ended {
        /// How.
        end: ExecEnd,
        /// How long it took, from the moment when the supervisor had read the request, µs.
        took_us: u64,
    },
    /// The sandbox is gone; nothing follows.
    Gone {
        /// Why, where the supervisor knows it.
        why: Option<String>,
    },
    /// A command that runs.
    Process(ProcessInfo),
    /// It is done.
    Done,
    /// The socket on which files are served comes with the first byte of this frame.
    Files,
    /// The connection comes with the first byte of this frame.
    Port,
    /// What is used now.
    Usage(SupervisorUsage),
    /// The sandbox has ended.
    Killed(Ended),
    /// It cannot be done.
    Failed(SupervisorFailure),
    /// The sandbox has an authority; these files, by path, must be put into it so that its programs trust that.
    Authority(#[serde(with = "offleash_protocol::bytes::pairs")] Vec<(Vec<u8>, Vec<u8>)>),
    /// The sandbox's first process.
    First(ProcessRef),
    /// A driver of a context that has ended.
    Exited(ExitedProcess),
    /// What was refused.
    Refusals(Refusals),
    /// What was reached.
    Reached(Reached),
    /// Rules that fired.
    Alerts(FiredAlerts),
    /// Questions that wait.
    Approvals(Vec<OpenApproval>),
}

impl Dialogue for SupervisorReply {
    const MAX_FRAME: usize = 8 * 1024 * 1024;
}

/// A supervisor and its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the messages that it speaks.
    pub version: u32,
    /// The sandbox.
    pub id: RunId,
    /// Process id of the supervisor.
    pub pid: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// The level that holds it.
    pub level: Level,
    /// When it was made, RFC 3339 in UTC.
    pub started_at: String,
    /// The users that commands may run as; the first one is the usual one.
    pub users: Vec<UserInfo>,
    /// What is enforced, and by which means.
    pub enforced: BTreeMap<String, String>,
    /// What was asked for and is not enforced, with the reason.
    pub not_enforced: BTreeMap<String, String>,
}

/// A user of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    /// Login name.
    pub name: String,
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Home directory inside.
    pub home: String,
}

/// A command to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartExec {
    /// Program and arguments; a program without a slash is looked up in `PATH`.
    #[serde(with = "offleash_protocol::bytes::list")]
    pub argv: Vec<Vec<u8>>,
    /// Variables beside those that the user and the sandbox have; they win.
    #[serde(with = "offleash_protocol::bytes::pairs")]
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory inside, the user's home if absent; one that is not absolute is below that.
    pub cwd: Option<Vec<u8>>,
    /// As whom, by name; as the usual user if absent.
    pub user: Option<String>,
    /// A terminal of so many rows and columns instead of pipes.
    pub tty: Option<(u16, u16)>,
    /// Whether it gets input; `/dev/null` otherwise.
    pub stdin: bool,
    /// A name by which it can be found, of at most [`MAX_TAG`] bytes.
    pub tag: Option<String>,
    /// After so many milliseconds it is killed.
    pub timeout_ms: Option<u64>,
}

/// Which command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selector {
    /// That with this process id inside.
    Pid(u32),
    /// The latest with this tag.
    Tag(String),
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its process id inside.
    pub pid: u32,
    /// The name by which it can be found.
    pub tag: Option<String>,
    /// Program and arguments as they were asked for; cut where they are very long.
    #[serde(with = "offleash_protocol::bytes::list")]
    pub argv: Vec<Vec<u8>>,
    /// The variables that were asked for; cut where they are very long.
    #[serde(with = "offleash_protocol::bytes::pairs")]
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The directory in which it was started.
    #[serde(with = "offleash_protocol::bytes")]
    pub cwd: Vec<u8>,
    /// As whom it runs.
    pub user: String,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// A driver of a context that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitedProcess {
    /// The name by which it could be found.
    pub tag: String,
    /// The directory in which it was started.
    #[serde(with = "offleash_protocol::bytes")]
    pub cwd: Vec<u8>,
    /// How it ended.
    pub end: ExecEnd,
    /// What was noted of it.
    pub note: Option<String>,
}

/// What a sandbox was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// How many refusals there were since it was made. One that is like an earlier one counts no more.
    pub count: u64,
    /// Those that were asked for, a line each, the newest last; the oldest are missing where there are many.
    pub lines: Vec<String>,
}

/// What a sandbox reached, by connections that have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Connections of one kind each, the latest first.
    pub hosts: Vec<ReachedPlace>,
    /// How many connections there were beyond those.
    pub more: u64,
}

/// Connections of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedPlace {
    /// The name, or the address where none was used.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The rule that decided; none stands for what holds unless a rule says otherwise.
    pub rule: Option<String>,
    /// Why there was none, or why it ended, if it was not made and ended as usual.
    pub failure: Option<String>,
    /// Methods of the requests on them, where these were seen.
    pub methods: Vec<String>,
    /// How many there were.
    pub times: u64,
    /// Bytes that the sandbox sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
    /// When the latest was asked for, milliseconds since 1970.
    pub last_ms: i64,
}

/// Rules of monitoring that fired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiredAlerts {
    /// How many there were since the sandbox was made, these included.
    pub count: u64,
    /// The oldest first.
    pub alerts: Vec<AlertRecord>,
    /// Whether the sandbox is paused because of one.
    pub paused: bool,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorUsage {
    /// CPU time so far, in microseconds.
    pub cpu_us: u64,
    /// CPUs that it may use at once, in thousandths.
    pub cpus_millis: u64,
    /// Memory now, in bytes.
    pub memory_bytes: u64,
    /// Memory that can be had back, such as the cache of files, in bytes; part of `memory_bytes`.
    pub memory_cache_bytes: u64,
    /// The most memory so far, in bytes.
    pub memory_peak_bytes: u64,
    /// The memory that it may have, in bytes; that of the machine without a limit.
    pub memory_limit_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// What its files take on disk, in bytes.
    pub disk_bytes: u64,
    /// What they may take, in bytes; zero without a limit.
    pub disk_limit_bytes: u64,
    /// How many rules of monitoring fired of which nobody has heard yet.
    pub untold_alerts: u64,
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// What was used in all.
    pub usage: RunUsage,
    /// Limits that were hit.
    pub limits_hit: Vec<LimitHit>,
    /// Whether the kernel killed something for want of memory.
    pub out_of_memory: bool,
    /// Rules of monitoring that fired of which nobody has heard.
    pub untold_alerts: Vec<AlertRecord>,
}

/// Why a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// Somebody asked for it.
    Killed,
    /// A limit was exceeded.
    Limit(LimitHit),
    /// A rule of monitoring ended it; its name.
    Rule(String),
    /// Its first process ended, which it does not by itself.
    Lost,
    /// A call on the host failed.
    Failed(String),
}

/// Why something cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorFailure {
    /// No user has this name.
    InvalidUser(String),
    /// No such command runs, or did a moment ago.
    NoProcess,
    /// The sandbox is paused.
    Paused,
    /// Nobody listens on that port.
    PortClosed,
    /// The working directory cannot be entered.
    Directory {
        /// What the kernel said.
        errno: i32,
    },
    /// There is no such command.
    NotFound,
    /// The command cannot be executed.
    NotExecutable {
        /// What the kernel said.
        errno: i32,
    },
    /// The command was not started for another reason.
    NotStarted {
        /// What was tried.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
    /// The command takes no input, or no more.
    InputClosed,
    /// The command has no terminal.
    NoTerminal,
    /// The level cannot do it.
    Unsupported {
        /// What.
        operation: String,
    },
    /// The request itself is wrong.
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// Too much of this is going on.
    Exhausted {
        /// Of what.
        what: String,
    },
    /// A call on the host failed.
    Failed {
        /// Which, and how.
        reason: String,
    },
    /// The sandbox ends at this moment.
    Gone,
}

#[cfg(test)]
mod tests {
    use offleash_protocol::encode;

    use super::*;

    /// The first byte behind the length says which variant it is, and the number behind it the version: clients of any
    /// version understand that much of each other.
    #[test]
    fn what_clients_of_every_version_say_and_hear_keeps_its_place() {
        assert_eq!(encode(&SupervisorRequest::Hello).unwrap()[4], 0);
        assert_eq!(encode(&SupervisorRequest::Kill).unwrap()[4], 1);
        let hello = Hello {
            version: VERSION,
            id: "a".parse().unwrap(),
            pid: 1,
            paused: false,
            level: Level::Process,
            started_at: String::new(),
            users: Vec::new(),
            enforced: BTreeMap::new(),
            not_enforced: BTreeMap::new(),
        };
        let frame = encode(&SupervisorReply::Hello(hello)).unwrap();
        assert_eq!(frame[4..6], [0, u8::try_from(VERSION).unwrap()]);
    }
}
