//! The client of a keeper, for a program with an event loop: the daemon.
//!
//! Every operation makes a connection of its own. A keeper that is not there any more is a sandbox that is gone.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_core::exec::{ExecEnd, OutputStream};
use offleash_core::spec::ProcessRef;
use offleash_protocol::encode;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::time::{sleep, timeout};

use super::error::KeeperError;
use super::message::{
    Ended, Hello, INPUT_CHUNK, KeeperReply, KeeperRequest, KeeperUsage, PastInfo, ProcessInfo, Refusals, Selector,
    StartExec, VERSION,
};
use super::order::SOCKET;
use super::replies::Replies;

mod network;

/// How long a keeper may take to answer what it answers at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long it may take to do what takes time: to freeze or kill everything inside, to connect inside.
const WORK: Duration = Duration::from_secs(30);
/// How long to wait before the next try where a keeper has too many connections waiting.
const BUSY: Duration = Duration::from_millis(2);

/// A keeper, known by where its socket is.
#[derive(Clone, Debug)]
pub struct Keeper {
    directory: PathBuf,
}

impl Keeper {
    /// The keeper whose socket is in `directory`.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Who it is, and whether it lives. Whoever has not started it asks this first.
    ///
    /// # Errors
    /// `Gone` when it does not; `OtherVersion` where it understands nothing more but to end its sandbox.
    pub async fn hello(&self) -> Result<Hello, KeeperError> {
        match self.answer(&KeeperRequest::Hello, AT_ONCE, "hello").await? {
            KeeperReply::Hello(hello) if hello.version == VERSION => Ok(hello),
            KeeperReply::Hello(hello) => Err(KeeperError::OtherVersion { found: hello.version }),
            other => Err(unexpected(other)),
        }
    }

    /// Starts a command; it goes on when the stream is dropped.
    ///
    /// # Errors
    /// `InvalidUser`, `Directory`, `NotFound`, `NotExecutable`, `NotStarted`, `Invalid`, `Paused`, `Gone`.
    pub async fn start(&self, start: StartExec) -> Result<ExecStream, KeeperError> {
        self.stream(&KeeperRequest::Start(start), "start a command").await
    }

    /// What a command writes from now on, and how it ends.
    ///
    /// # Errors
    /// `NoProcess` when none such runs or has ended in the last half minute, `Gone`.
    pub async fn attach(&self, which: &Selector) -> Result<ExecStream, KeeperError> {
        let request = KeeperRequest::Attach(which.clone());
        self.stream(&request, "attach to a command").await
    }

    /// As [`Self::start`], with a copy of the process of the sandbox's zygote in place of the program, where that is to
    /// be had.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_copy(&self, start: StartExec) -> Result<ExecStream, KeeperError> {
        let request = KeeperRequest::StartCopy(start);
        self.stream(&request, "start a copy of the zygote").await
    }

    /// The sandbox's first process, below which others can be made if it is a zygote.
    ///
    /// # Errors
    /// `Unsupported`, `Gone`.
    pub async fn first_process(&self) -> Result<ProcessRef, KeeperError> {
        match self
            .answer(&KeeperRequest::First, AT_ONCE, "find its first process")
            .await?
        {
            KeeperReply::First(first) => Ok(first),
            other => Err(unexpected(other)),
        }
    }

    async fn stream(&self, request: &KeeperRequest, operation: &'static str) -> Result<ExecStream, KeeperError> {
        let (replies, first) = self.ask(request, WORK, operation).await?;
        match first {
            KeeperReply::Started { pid } => Ok(ExecStream {
                pid,
                replies,
                took: None,
                why_gone: None,
            }),
            other => Err(unexpected(other)),
        }
    }

    /// The commands that run.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, KeeperError> {
        let listed = self.list(&KeeperRequest::Processes, |reply| match reply {
            KeeperReply::Process(process) => Ok(process),
            other => Err(unexpected(other)),
        });
        within(AT_ONCE, "list processes", listed).await
    }

    /// The drivers of contexts that have ended, but those of which nobody wants to know.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn ends(&self) -> Result<Vec<PastInfo>, KeeperError> {
        let listed = self.list(&KeeperRequest::Ends, |reply| match reply {
            KeeperReply::Past(past) => Ok(past),
            other => Err(unexpected(other)),
        });
        within(AT_ONCE, "list ends", listed).await
    }

    /// Has the end of the driver with that tag, which may have come, kept with a note, or nobody asked for it.
    ///
    /// # Errors
    /// `Invalid` when the note is longer than notes may be, `Paused`, `Gone`.
    pub async fn note_end(&self, tag: &str, note: Option<String>) -> Result<(), KeeperError> {
        let tag = tag.to_owned();
        let request = KeeperRequest::NoteEnd { tag, note };
        self.done(&request, AT_ONCE, "note an end").await
    }

    /// What was refused after there were so many refusals.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn refusals(&self, after: u64) -> Result<Refusals, KeeperError> {
        let request = KeeperRequest::Refusals { after };
        match self.ask(&request, AT_ONCE, "ask what was refused").await?.1 {
            KeeperReply::Refusals(refusals) => Ok(refusals),
            other => Err(unexpected(other)),
        }
    }

    async fn list<T>(
        &self,
        request: &KeeperRequest,
        entry: impl Fn(KeeperReply) -> Result<T, KeeperError>,
    ) -> Result<Vec<T>, KeeperError> {
        let (mut replies, mut reply) = self.ask_now(request).await?;
        let mut found = Vec::new();
        while reply != KeeperReply::Done {
            found.push(entry(reply)?);
            reply = replies.next().await?.ok_or(KeeperError::Gone)?;
        }
        Ok(found)
    }

    /// Gives a command input, and returns when all of it was taken: as long as the command does not read, that takes. Nobody
    /// but the caller knows how long is too long; dropping this gives up what was not begun to be passed on.
    ///
    /// # Errors
    /// `NoProcess`, also when the command ends first; `InputClosed`; `Exhausted` when many wait to give it some; `Paused`,
    /// `Gone`.
    pub async fn input(&self, which: &Selector, bytes: Vec<u8>) -> Result<(), KeeperError> {
        for piece in bytes.chunks(INPUT_CHUNK) {
            let request = KeeperRequest::Input {
                which: which.clone(),
                bytes: piece.to_vec(),
            };
            match self.ask_now(&request).await?.1 {
                KeeperReply::Done => {}
                other => return Err(unexpected(other)),
            }
        }
        Ok(())
    }

    /// Ends the input of a command, after what was given before and as soon as that was taken.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub async fn close_input(&self, which: &Selector) -> Result<(), KeeperError> {
        let request = KeeperRequest::CloseInput(which.clone());
        match self.ask_now(&request).await?.1 {
            KeeperReply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a signal to a command's processes; `SIGTERM`, `SIGKILL` and `SIGHUP` reach its whole session.
    ///
    /// # Errors
    /// `NoProcess`, `Invalid`, `Paused`, `Gone`.
    pub async fn signal(&self, which: &Selector, signal: i32) -> Result<(), KeeperError> {
        let request = KeeperRequest::Signal {
            which: which.clone(),
            signal,
        };
        self.done(&request, AT_ONCE, "send a signal").await
    }

    /// Tells the terminal of a command its size.
    ///
    /// # Errors
    /// `NoProcess`, `NoTerminal`, `Paused`, `Gone`.
    pub async fn resize(&self, which: &Selector, rows: u16, columns: u16) -> Result<(), KeeperError> {
        let request = KeeperRequest::Resize {
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
    pub async fn usage(&self) -> Result<KeeperUsage, KeeperError> {
        match self.answer(&KeeperRequest::Usage, AT_ONCE, "measure").await? {
            KeeperReply::Usage(usage) => Ok(usage),
            other => Err(unexpected(other)),
        }
    }

    /// Stops every process; connections to the outside are cut. Nothing happens when it is paused already.
    ///
    /// # Errors
    /// `Unsupported` where the level cannot, `Gone`.
    pub async fn pause(&self) -> Result<(), KeeperError> {
        self.done(&KeeperRequest::Pause, WORK, "pause").await
    }

    /// Lets every process go on. Nothing happens when they do already.
    ///
    /// # Errors
    /// `Gone`.
    pub async fn resume(&self) -> Result<(), KeeperError> {
        self.done(&KeeperRequest::Resume, WORK, "resume").await
    }

    /// Stops every process until the answer is released or dropped; connections to the outside stay. What others ask of the
    /// keeper waits until then.
    ///
    /// # Errors
    /// `Unsupported` where the level cannot, `Paused`, `Gone`.
    pub async fn hold_still(&self) -> Result<StillHeld, KeeperError> {
        match self.ask(&KeeperRequest::Hold, WORK, "hold a sandbox still").await? {
            (replies, KeeperReply::Done) => Ok(StillHeld { replies }),
            (_, other) => Err(unexpected(other)),
        }
    }

    /// Ends the sandbox, and answers when nothing of it is left.
    ///
    /// # Errors
    /// `Gone` when it was gone already.
    pub async fn kill(&self) -> Result<Ended, KeeperError> {
        match self.answer(&KeeperRequest::Kill, WORK, "kill").await? {
            KeeperReply::Killed(ended) => Ok(ended),
            other => Err(unexpected(other)),
        }
    }

    /// A connection to a port on the sandbox's loopback.
    ///
    /// # Errors
    /// `PortClosed` when nobody listens there, `Unsupported` without a network, `Paused`, `Gone`.
    pub async fn port(&self, port: u16) -> Result<tokio::net::TcpStream, KeeperError> {
        let (mut replies, first) = self.ask(&KeeperRequest::Port(port), WORK, "connect to a port").await?;
        match first {
            KeeperReply::Port => {}
            other => return Err(unexpected(other)),
        }
        let stream = std::net::TcpStream::from(replies.take_descriptor()?);
        let registered = stream
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpStream::from_std(stream));
        registered.map_err(KeeperError::io("use a connection into the sandbox"))
    }

    /// The socket of a process inside that serves files as `user`.
    pub(super) async fn files_socket(&self, user: Option<&str>) -> Result<OwnedFd, KeeperError> {
        let request = KeeperRequest::Files {
            user: user.map(str::to_owned),
        };
        let (mut replies, first) = self.ask(&request, AT_ONCE, "open files").await?;
        match first {
            KeeperReply::Files => replies.take_descriptor(),
            other => Err(unexpected(other)),
        }
    }

    async fn done(
        &self,
        request: &KeeperRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<(), KeeperError> {
        match self.answer(request, patience, operation).await? {
            KeeperReply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn answer(
        &self,
        request: &KeeperRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<KeeperReply, KeeperError> {
        Ok(self.ask(request, patience, operation).await?.1)
    }

    async fn ask(
        &self,
        request: &KeeperRequest,
        patience: Duration,
        operation: &'static str,
    ) -> Result<(Replies, KeeperReply), KeeperError> {
        within(patience, operation, self.ask_now(request)).await
    }

    /// The first reply, and what others come from.
    async fn ask_now(&self, request: &KeeperRequest) -> Result<(Replies, KeeperReply), KeeperError> {
        let frame = encode(request).map_err(|error| KeeperError::Invalid {
            reason: format!("the request is too large: {error}"),
        })?;
        let mut replies = Replies::asking(self.connect().await?, &frame).await?;
        match replies.next().await? {
            Some(KeeperReply::Failed(failure)) => Err(failure.into()),
            Some(KeeperReply::Gone { .. }) | None => Err(KeeperError::Gone),
            Some(reply) => Ok((replies, reply)),
        }
    }

    /// By way of a descriptor, because the path of a socket may have 107 bytes and a state directory more.
    async fn connect(&self) -> Result<OwnedFd, KeeperError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match rustix::fs::openat(CWD, &self.directory, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Err(KeeperError::Gone),
            other => other.map_err(|error| KeeperError::io("open the directory of the sandbox")(error.into()))?,
        };
        let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        let failed = |error: Errno| KeeperError::io("connect to the keeper of the sandbox")(error.into());
        let address = SocketAddrUnix::new(path.as_str()).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => return Ok(socket),
                // One of this kind is connected at once or, while others wait for the keeper, not at all (connect(2)).
                Err(Errno::AGAIN) => sleep(BUSY).await,
                Err(Errno::INTR) => {}
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(KeeperError::Gone),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A sandbox in which nothing moves, until this is dropped or its keeper loses patience.
#[derive(Debug)]
pub struct StillHeld {
    replies: Replies,
}

impl StillHeld {
    /// Lets it go on, if nothing has moved in it up to now.
    ///
    /// # Errors
    /// `Gone` when its keeper has hung up: it was let go on, or has ended.
    pub async fn release(mut self) -> Result<(), KeeperError> {
        match timeout(Duration::ZERO, self.replies.next()).await {
            // There is nothing to be said.
            Err(_) => Ok(()),
            Ok(_) => Err(KeeperError::Gone),
        }
    }
}

async fn within<T>(
    patience: Duration,
    operation: &'static str,
    work: impl Future<Output = Result<T, KeeperError>>,
) -> Result<T, KeeperError> {
    timeout(patience, work)
        .await
        .unwrap_or(Err(KeeperError::Timeout { operation }))
}

fn unexpected(reply: KeeperReply) -> KeeperError {
    match reply {
        KeeperReply::Failed(failure) => failure.into(),
        KeeperReply::Gone { .. } => KeeperError::Gone,
        other => KeeperError::unexpected(&format!("{other:?}").chars().take(40).collect::<String>()),
    }
}

/// What a command writes, and how it ends. Dropping it leaves the command alone.
#[derive(Debug)]
pub struct ExecStream {
    pid: u32,
    replies: Replies,
    took: Option<Duration>,
    why_gone: Option<String>,
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

    /// How long it took, from when its keeper had read the request to when that knew of its end; known once that was
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
    /// `Protocol` or `Io` when the keeper cannot be understood any more.
    pub async fn next(&mut self) -> Result<Option<ExecNews>, KeeperError> {
        match self.replies.next().await {
            Ok(Some(KeeperReply::Output { stream, bytes })) => Ok(Some(ExecNews::Output { stream, bytes })),
            Ok(Some(KeeperReply::TimedOut)) => Ok(Some(ExecNews::TimedOut)),
            Ok(None) => Ok(None),
            Ok(Some(KeeperReply::Gone { why })) => {
                self.why_gone = why;
                Ok(None)
            }
            Ok(Some(KeeperReply::Ended { end, took_us })) => {
                self.took = Some(Duration::from_micros(took_us));
                Ok((end != ExecEnd::Lost).then_some(ExecNews::Ended(end)))
            }
            Ok(Some(other)) => Err(unexpected(other)),
            Err(error) => Err(error),
        }
    }
}
