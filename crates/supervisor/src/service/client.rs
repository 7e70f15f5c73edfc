//! The client of a supervisor, for a program with an event loop: the daemon.
//!
//! Every operation makes a connection of its own. A supervisor that is not there any more is a sandbox that is gone.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use offleash_core::approval::ApprovalAnswer;
use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::spec::ProcessRef;
use offleash_protocol::encode;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::time::{sleep, timeout};

use super::error::SupervisorError;
use super::message::{
    Ended, ExitedProcess, FiredAlerts, Hello, INPUT_CHUNK, ProcessInfo, Refusals, Selector, StartExec, SupervisorReply,
    SupervisorRequest, SupervisorUsage, VERSION,
};
use super::order::SOCKET;
use super::replies::Replies;
use super::sandbox_use::SandboxUse;
use crate::tools::{OpenApproval, ToolsClient};

mod network;

/// How long a supervisor may take to answer what it answers at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long it may take to do what takes time: to freeze or kill everything inside, to connect inside.
const WORK: Duration = Duration::from_secs(30);
/// How long to wait before the next try where a supervisor has too many connections waiting.
const BUSY: Duration = Duration::from_millis(2);

/// A supervisor, known by where its socket is.
#[derive(Clone, Debug)]
pub struct SupervisorClient {
    directory: PathBuf,
    used: Option<Arc<dyn SandboxUse>>,
}

impl SupervisorClient {
    /// The supervisor whose socket is in `directory`.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            used: None,
        }
    }

    /// This one, of which and of what comes from it `used` is to know.
    #[must_use]
    pub fn used_by(self, used: Arc<dyn SandboxUse>) -> Self {
        Self {
            used: Some(used),
            ..self
        }
    }

    /// The door of its tools, whether or not it has any.
    pub fn tools(&self) -> ToolsClient {
        ToolsClient::in_directory(&self.directory)
    }

    /// What knows that the sandbox is used, for what lives longer than this.
    pub fn usage_guard(&self) -> Option<Arc<dyn SandboxUse>> {
        self.used.clone()
    }

    /// Who it is, and whether it lives. Whoever has not started it asks this first.
    ///
    /// # Errors
    /// `Gone` when it does not; `OtherVersion` where it understands nothing more but to end its sandbox.
    pub async fn hello(&self) -> Result<Hello, SupervisorError> {
        match self.answer(&SupervisorRequest::Hello, AT_ONCE, "hello").await? {
            SupervisorReply::Hello(hello) if hello.version == VERSION => Ok(hello),
            SupervisorReply::Hello(hello) => Err(SupervisorError::OtherVersion { found: hello.version }),
            other => Err(unexpected(other)),
        }
    }

    /// Starts a command; it goes on when the stream is dropped. A line for Bash is for `/bin/sh` where there is no Bash, as
    /// in many images.
    ///
    /// # Errors
    /// `InvalidUser`, `Directory`, `NotFound`, `NotExecutable`, `NotStarted`, `NotAllowed`, `Invalid`, `Paused`, `Gone`.
    pub async fn start(&self, start: StartExec) -> Result<ExecStream, SupervisorError> {
        self.announce(&start).await?;
        let again = for_any_shell(&start);
        let started = self.stream(&SupervisorRequest::Start(start), "start a command").await;
        match (started, again) {
            (Err(SupervisorError::NotFound), Some(again)) => {
                self.stream(&SupervisorRequest::Start(again), "start a command").await
            }
            (started, _) => started,
        }
    }

    /// Tells whoever has to know of commands before they are started, as [`Self::start`] does, of one that a shell is given as input.
    ///
    /// # Errors
    /// `NotAllowed`.
    pub async fn announce(&self, start: &StartExec) -> Result<(), SupervisorError> {
        match &self.used {
            Some(used) => used.before_start(start).await,
            None => Ok(()),
        }
    }

    /// What a command writes from now on, and how it ends.
    ///
    /// # Errors
    /// `NoProcess` when none such runs or has ended in the last half minute, `Gone`.
    pub async fn attach(&self, which: &Selector) -> Result<ExecStream, SupervisorError> {
        let request = SupervisorRequest::Attach(which.clone());
        self.stream(&request, "attach to a command").await
    }

    /// As [`Self::start`], with a copy of the process of the sandbox's zygote in place of the program, where that is to
    /// be had.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_copy(&self, start: StartExec) -> Result<ExecStream, SupervisorError> {
        let request = SupervisorRequest::StartCopy(start);
        self.stream(&request, "start a copy of the zygote").await
    }

    /// The sandbox's first process, below which others can be made if it is a zygote.
    ///
    /// # Errors
    /// `Unsupported`, `Gone`.
    pub async fn first_process(&self) -> Result<ProcessRef, SupervisorError> {
        match self
            .answer(&SupervisorRequest::First, AT_ONCE, "find its first process")
            .await?
        {
            SupervisorReply::First(first) => Ok(first),
            other => Err(unexpected(other)),
        }
    }

    async fn stream(
        &self,
        request: &SupervisorRequest,
        operation: &'static str,
    ) -> Result<ExecStream, SupervisorError> {
        let (replies, first) = self.ask(request, WORK, operation).await?;
        match first {
            SupervisorReply::Started { pid } => Ok(ExecStream {
                pid,
                replies,
                took: None,
                why_gone: None,
                _used: self.used.clone(),
            }),
            other => Err(unexpected(other)),
        }
    }

    /// The commands that run.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, SupervisorError> {
        let listed = self.list(&SupervisorRequest::Processes, |reply| match reply {
            SupervisorReply::Process(process) => Ok(process),
            other => Err(unexpected(other)),
        });
        within(AT_ONCE, "list processes", listed).await
    }

    /// The drivers of contexts that have ended, but those of which nobody wants to know.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn ends(&self) -> Result<Vec<ExitedProcess>, SupervisorError> {
        let listed = self.list(&SupervisorRequest::Ends, |reply| match reply {
            SupervisorReply::Exited(exited) => Ok(exited),
            other => Err(unexpected(other)),
        });
        within(AT_ONCE, "list ends", listed).await
    }

    /// Has the end of the driver with that tag, which may have come, kept with a note, or nobody asked for it.
    ///
    /// # Errors
    /// `Invalid` when the note is longer than notes may be, `Paused`, `Gone`.
    pub async fn note_end(&self, tag: &str, note: Option<String>) -> Result<(), SupervisorError> {
        let tag = tag.to_owned();
        let request = SupervisorRequest::NoteEnd { tag, note };
        self.done(&request, AT_ONCE, "note an end").await
    }

    /// What was refused after there were so many refusals.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn refusals(&self, after: u64) -> Result<Refusals, SupervisorError> {
        let request = SupervisorRequest::Refusals { after };
        match self.ask(&request, AT_ONCE, "ask what was refused").await?.1 {
            SupervisorReply::Refusals(refusals) => Ok(refusals),
            other => Err(unexpected(other)),
        }
    }

    /// Which questions about connections wait for an answer.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn approvals(&self) -> Result<Vec<OpenApproval>, SupervisorError> {
        match self
            .ask(&SupervisorRequest::Approvals, AT_ONCE, "ask what is asked")
            .await?
            .1
        {
            SupervisorReply::Approvals(open) => Ok(open),
            other => Err(unexpected(other)),
        }
    }

    /// Answers such a question; `false` where it is not open.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn decide(&self, question: u64, answer: ApprovalAnswer) -> Result<bool, SupervisorError> {
        let request = SupervisorRequest::Decide { question, answer };
        match self.ask(&request, AT_ONCE, "answer a question").await {
            Ok((_, SupervisorReply::Done)) => Ok(true),
            Ok((_, other)) => Err(unexpected(other)),
            Err(SupervisorError::NoProcess) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Which rules of monitoring fired that nobody is done with; those before `after` are done with.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn alerts(&self, after: Option<u64>) -> Result<FiredAlerts, SupervisorError> {
        let request = SupervisorRequest::Alerts { after };
        match self.ask(&request, AT_ONCE, "ask which rules fired").await?.1 {
            SupervisorReply::Alerts(fired) => Ok(fired),
            other => Err(unexpected(other)),
        }
    }

    async fn list<T>(
        &self,
        request: &SupervisorRequest,
        entry: impl Fn(SupervisorReply) -> Result<T, SupervisorError>,
    ) -> Result<Vec<T>, SupervisorError> {
        let (mut replies, mut reply) = self.ask_now(request).await?;
        let mut found = Vec::new();
        while reply != SupervisorReply::Done {
            found.push(entry(reply)?);
            reply = replies.next().await?.ok_or(SupervisorError::Gone)?;
        }
        Ok(found)
    }

    /// Gives a command input, and returns when all of it was taken: as long as the command does not read, that takes. Nobody
    /// but the caller knows how long is too long; dropping this gives up what was not begun to be passed on.
    ///
    /// # Errors
    /// `NoProcess`, also when the command ends first; `InputClosed`; `Exhausted` when many wait to give it some; `Paused`,
    /// `Gone`.
    pub async fn input(&self, which: &Selector, bytes: Vec<u8>) -> Result<(), SupervisorError> {
        for piece in bytes.chunks(INPUT_CHUNK) {
            let request = SupervisorRequest::Input {
                which: which.clone(),
                bytes: piece.to_vec(),
            };
            match self.ask_now(&request).await?.1 {
                SupervisorReply::Done => {}
                other => return Err(unexpected(other)),
            }
        }
        Ok(())
    }

    /// Ends the input of a command, after what was given before and as soon as that was taken.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub async fn close_input(&self, which: &Selector) -> Result<(), SupervisorError> {
        let request = SupervisorRequest::CloseInput(which.clone());
        match self.ask_now(&request).await?.1 {
            SupervisorReply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a signal to a command's processes; `SIGTERM`, `SIGKILL` and `SIGHUP` reach its whole session.
    ///
    /// # Errors
    /// `NoProcess`, `Invalid`, `Paused`, `Gone`.
    pub async fn signal(&self, which: &Selector, signal: i32) -> Result<(), SupervisorError> {
        let request = SupervisorRequest::Signal {
            which: which.clone(),
            signal,
        };
        self.done(&request, AT_ONCE, "send a signal").await
    }

    /// Tells the terminal of a command its size.
    ///
    /// # Errors
    /// `NoProcess`, `NoTerminal`, `Paused`, `Gone`.
    pub async fn resize(&self, which: &Selector, rows: u16, columns: u16) -> Result<(), SupervisorError> {
        let request = SupervisorRequest::Resize {
            which: which.clone(),
            rows,
            columns,
        };
        self.done(&request, AT_ONCE, "resize a terminal").await
    }

    /// What is used now.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn usage(&self) -> Result<SupervisorUsage, SupervisorError> {
        match self.answer(&SupervisorRequest::Usage, AT_ONCE, "measure").await? {
            SupervisorReply::Usage(usage) => Ok(usage),
            other => Err(unexpected(other)),
        }
    }

    /// Stops every process; connections to the outside are cut. Nothing happens when it is paused already.
    ///
    /// # Errors
    /// `Unsupported` where the level cannot, `Gone`.
    pub async fn pause(&self) -> Result<(), SupervisorError> {
        self.done(&SupervisorRequest::Pause, WORK, "pause").await
    }

    /// Lets every process go on. Nothing happens when they do already.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn resume(&self) -> Result<(), SupervisorError> {
        self.done(&SupervisorRequest::Resume, WORK, "resume").await
    }

    /// Stops every process until the answer is released or dropped; connections to the outside stay. What others ask of the
    /// supervisor waits until then.
    ///
    /// # Errors
    /// `Unsupported` where the level cannot, `Paused`, `Gone`.
    pub async fn hold_still(&self) -> Result<StillHeld, SupervisorError> {
        match self.ask(&SupervisorRequest::Hold, WORK, "hold a sandbox still").await? {
            (replies, SupervisorReply::Done) => Ok(StillHeld { replies }),
            (_, other) => Err(unexpected(other)),
        }
    }

    /// Ends the sandbox, and answers when nothing of it is left.
    ///
    /// # Errors
    /// `Gone` when it was gone already.
    pub async fn kill(&self) -> Result<Ended, SupervisorError> {
        match self.answer(&SupervisorRequest::Kill, WORK, "kill").await? {
            SupervisorReply::Killed(ended) => Ok(ended),
            other => Err(unexpected(other)),
        }
    }

    /// A connection to a port on the sandbox's loopback.
    ///
    /// # Errors
    /// `PortClosed` when nobody listens there, `Unsupported` without a network, `Paused`, `Gone`.
    pub async fn port(&self, port: u16) -> Result<tokio::net::TcpStream, SupervisorError> {
        let (mut replies, first) = self
            .ask(&SupervisorRequest::Port(port), WORK, "connect to a port")
            .await?;
        match first {
            SupervisorReply::Port => {}
            other => return Err(unexpected(other)),
        }
        let stream = std::net::TcpStream::from(replies.take_descriptor()?);
        let registered = stream
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpStream::from_std(stream));
        registered.map_err(SupervisorError::io("use a connection into the sandbox"))
    }

    /// The socket of a process inside that serves files as `user`.
    pub(super) async fn files_socket(&self, user: Option<&str>) -> Result<OwnedFd, SupervisorError> {
        let request = SupervisorRequest::Files {
            user: user.map(str::to_owned),
        };
        let (mut replies, first) = self.ask(&request, AT_ONCE, "open files").await?;
        match first {
            SupervisorReply::Files => replies.take_descriptor(),
            other => Err(unexpected(other)),
        }
    }

    async fn done(
        &self,
        request: &SupervisorRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<(), SupervisorError> {
        match self.answer(request, patience, operation).await? {
            SupervisorReply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn answer(
        &self,
        request: &SupervisorRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<SupervisorReply, SupervisorError> {
        Ok(self.ask(request, patience, operation).await?.1)
    }

    async fn ask(
        &self,
        request: &SupervisorRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<(Replies, SupervisorReply), SupervisorError> {
        within(patience, operation, self.ask_now(request)).await
    }

    /// The first reply, and what others come from.
    async fn ask_now(&self, request: &SupervisorRequest) -> Result<(Replies, SupervisorReply), SupervisorError> {
        let frame = encode(request).map_err(|error| SupervisorError::Invalid {
            reason: format!("the request is too large: {error}"),
        })?;
        let mut replies = Replies::asking(self.connect().await?, &frame).await?;
        match replies.next().await? {
            Some(SupervisorReply::Failed(failure)) => Err(failure.into()),
            Some(SupervisorReply::Gone { .. }) | None => Err(SupervisorError::Gone),
            Some(reply) => Ok((replies, reply)),
        }
    }

    /// By way of a descriptor, because the path of a socket may have 107 bytes and a state directory more.
    async fn connect(&self) -> Result<OwnedFd, SupervisorError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::openat(CWD, &self.directory, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Err(SupervisorError::Gone),
            other => other.map_err(|error| SupervisorError::io("open the directory of the sandbox")(error.into()))?,
        };
        let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let failed = |error: Errno| SupervisorError::io("connect to the supervisor of the sandbox")(error.into());
        let address = SocketAddrUnix::new(path.as_str()).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(socket),
                // One of this kind is connected at once or, while others wait for the supervisor, not at all (connect(2)).
                Err(Errno::AGAIN) => sleep(BUSY).await,
                Err(Errno::INTR) => {}
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(SupervisorError::Gone),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A sandbox in which nothing moves, until this is dropped or its supervisor loses patience.
#[derive(Debug)]
pub struct StillHeld {
    replies: Replies,
}

impl StillHeld {
    /// Lets it go on, if nothing has moved in it up to now.
    ///
    /// # Errors
    /// `Gone` when its supervisor has hung up: it was let go on, or has ended.
    pub async fn release(mut self) -> Result<(), SupervisorError> {
        match timeout(Duration::ZERO, self.replies.next()).await {
            // There is nothing to be said.
            Err(_) => Ok(()),
            Ok(_) => Err(SupervisorError::Gone),
        }
    }
}

async fn within<T>(
    patience: Duration,
    operation: &'static str,
    work: impl Future<Output = Result<T, SupervisorError>>,
) -> Result<T, SupervisorError> {
    timeout(patience, work)
        .await
        .unwrap_or(Err(SupervisorError::Timeout { operation }))
}

fn unexpected(reply: SupervisorReply) -> SupervisorError {
    match reply {
        SupervisorReply::Failed(failure) => failure.into(),
        SupervisorReply::Gone { .. } => SupervisorError::Gone,
        other => SupervisorError::unexpected(&format!("{other:?}").chars().take(40).collect::<String>()),
    }
}

/// What a command writes, and how it ends. Dropping it leaves the command alone.
#[derive(Debug)]
pub struct ExecStream {
    pid: u32,
    replies: Replies,
    took: Option<Duration>,
    why_gone: Option<String>,
    _used: Option<Arc<dyn SandboxUse>>,
}

/// What is new of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecNews {
    /// It wrote something.
    Output {
        /// Where.
        stream: OutputStream,
        /// What.
        bytes: Vec<u8>,
    },
    /// Its time was over, and it was killed for that; the end follows.
    TimedOut,
    /// It has ended; nothing follows.
    Ended(ExecEnd),
}

impl ExecStream {
    /// The command's process id inside.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How long it took, from when its supervisor had read the request to when that knew of its end; known once that was
    /// told.
    pub fn took(&self) -> Option<Duration> {
        self.took
    }

    /// Why the sandbox is gone, once [`Self::next`] has said that it is; `None` where it was told to end, or nobody knows.
    pub fn why_gone(&self) -> Option<&str> {
        self.why_gone.as_deref()
    }

    /// What comes next; `None` when the sandbox is gone. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// `Protocol` or `Io` when the supervisor cannot be understood any more.
    pub async fn next(&mut self) -> Result<Option<ExecNews>, SupervisorError> {
        match self.replies.next().await {
            Ok(Some(SupervisorReply::Output { stream, bytes })) => Ok(Some(ExecNews::Output { stream, bytes })),
            Ok(Some(SupervisorReply::TimedOut)) => Ok(Some(ExecNews::TimedOut)),
            Ok(None) => Ok(None),
            Ok(Some(SupervisorReply::Gone { why })) => {
                self.why_gone = why;
                Ok(None)
            }
            Ok(Some(SupervisorReply::Ended { end, took_us })) => {
                self.took = Some(Duration::from_micros(took_us));
                Ok((end != ExecEnd::Lost).then_some(ExecNews::Ended(end)))
            }
            Ok(Some(other)) => Err(unexpected(other)),
            Err(error) => Err(error),
        }
    }
}

/// The command with `/bin/sh`, if it is a line for Bash, or a Bash at a terminal, as SDKs and our own doors write them.
fn for_any_shell(start: &StartExec) -> Option<StartExec> {
    let argv: Vec<&[u8]> = start.argv.iter().map(Vec::as_slice).collect();
    match argv[..] {
        [b"/bin/bash", b"-l", b"-c", _] | [b"/bin/bash", b"-c", _] | [b"/bin/bash", b"-i", b"-l"] => {}
        _ => return None,
    }
    let mut again = start.clone();
    *again.argv.first_mut()? = b"/bin/sh".to_vec();
    Some(again)
}
