//! A command in a sandbox, seen from a terminal: output and the end come in, input and signals go out.
//!
//! The conversation is on a thread of its own; here is a descriptor to wait for and what came in.

mod messages;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use http::Method;
use offleash_core::exec::{OutputStream, TerminalSize};
use rustix::event::EventfdFlags;
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use self::messages::{MessageStream, news_of};
use super::transport::{self, Transport};
use super::{Client, ClientError, ClientTarget, SandboxServices, malformed};
use crate::e2b::envd::ENDS_WITH_CLIENT;
use crate::http::body;

/// Input that is on the way and not taken yet, in bytes.
const WINDOW: usize = 256 << 10;
/// Input in one request.
const PIECE: usize = 64 << 10;
const STARTING: &str = "start a thread for the command";
/// News that wait for the terminal.
const QUEUE: usize = 64;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct ExecStart {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables beside those that the sandbox has.
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home if absent.
    pub cwd: Option<String>,
    /// As whom; the sandbox's usual user if absent.
    pub user: Option<String>,
    /// A terminal instead of pipes.
    pub tty: Option<TerminalSize>,
    /// Whether input follows.
    pub stdin: bool,
}

/// What came of a command.
#[derive(Debug)]
pub enum News {
    /// It was started, with this process id inside.
    Started(u32),
    /// It wrote something.
    Output(OutputStream, Vec<u8>),
    /// It ended with this code, as shells count: 128 and the number for a signal.
    Ended(u8),
}

/// What is asked of a command.
#[derive(Debug)]
enum ExecAsk {
    Input(Vec<u8>),
    CloseInput,
    Signal(i32),
    Resize(TerminalSize),
}

/// A command that runs. Dropped, it ends as one whose terminal is closed.
#[derive(Debug)]
pub struct Exec {
    news: mpsc::Receiver<Result<News, ClientError>>,
    input: Option<ExecInput>,
    shared: Arc<ExecShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ExecShared {
    /// Readable when there is news.
    wake: OwnedFd,
    /// Input that is on the way.
    unacknowledged: AtomicUsize,
    /// Told when less of it is.
    taken: Notify,
}

impl Client {
    /// Starts a command in the sandbox `id`.
    ///
    /// # Errors
    /// `NotRunning`, `Refused` when there is no such sandbox; that it cannot be started is told by [`Exec::take`].
    pub fn exec(&self, id: &str, start: ExecStart) -> Result<Exec, ClientError> {
        let target = self.target(id, start.user.as_deref())?;
        let shared = Arc::new(ExecShared::new()?);
        let (send_news, news) = mpsc::channel(QUEUE);
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = transport::runtime()?;
        let conversation = ExecConversation {
            transport: self.transport.for_another_loop(),
            target,
            news: send_news,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("exec".to_owned())
            .spawn(move || runtime.block_on(conversation.hold(start, asked)))
            .map_err(local(STARTING))?;
        Ok(Exec {
            news,
            input: Some(ExecInput {
                asks,
                shared: Arc::clone(&shared),
            }),
            shared,
            thread: Some(thread),
        })
    }
}

impl Exec {
    /// What is readable when [`Self::take`] has something.
    pub fn wait_on(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// What came in next; `None` if there is nothing now.
    ///
    /// # Errors
    /// When the command could not be started, or the conversation ended before it did.
    pub fn take(&mut self) -> Result<Option<News>, ClientError> {
        let mut count = [0; 8];
        // Taken before looking: what comes in afterwards wakes again.
        let _nothing_to_take = rustix::io::read(&self.shared.wake, &mut count);
        match self.news.try_recv() {
            Ok(news) => {
                // There may be more.
                self.shared.wake();
                news.map(Some)
            }
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(malformed("the command", "the stream has ended")),
        }
    }

    /// How many bytes of input may be given now.
    pub fn window(&self) -> usize {
        WINDOW.saturating_sub(self.shared.unacknowledged.load(Ordering::Relaxed))
    }

    /// Gives input, at most [`Self::window`] bytes.
    pub fn input(&self, bytes: Vec<u8>) {
        if let Some(way) = self.way() {
            way.send(bytes);
        }
    }

    /// No input follows.
    pub fn close_input(&self) {
        if let Some(way) = self.way() {
            way.close();
        }
    }

    /// Sends a signal: `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM` or `SIGKILL`.
    pub fn signal(&self, signal: i32) {
        if let Some(way) = self.way() {
            way.signal(signal);
        }
    }

    /// Tells its terminal a size.
    pub fn resize(&self, size: TerminalSize) {
        if let Some(way) = self.way() {
            way.resize(size);
        }
    }

    /// There is one until this is dropped.
    fn way(&self) -> Option<&ExecInput> {
        self.input.as_ref()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.input = None;
        self.news.close();
        if let Some(thread) = self.thread.take() {
            // It tells what went wrong as news.
            let _panicked = thread.join();
        }
    }
}

/// A command that runs, for who is on an event loop. Dropped, it ends as one whose terminal is closed.
#[derive(Debug)]
pub struct RunningExec {
    news: mpsc::Receiver<Result<News, ClientError>>,
    asks: mpsc::UnboundedSender<ExecAsk>,
    shared: Arc<ExecShared>,
}

impl SandboxServices {
    /// Starts a command; that it cannot be started is told by [`RunningExec::next`].
    ///
    /// # Errors
    /// `Local`.
    pub fn exec(&self, start: ExecStart) -> Result<RunningExec, ClientError> {
        let shared = Arc::new(ExecShared::new()?);
        let (send_news, news) = mpsc::channel(QUEUE);
        let (asks, asked) = mpsc::unbounded_channel();
        let conversation = ExecConversation {
            transport: self.transport.for_another_loop(),
            target: self.target.as_user(start.user.as_deref()),
            news: send_news,
            shared: Arc::clone(&shared),
        };
        tokio::spawn(conversation.hold(start, asked));
        Ok(RunningExec { news, asks, shared })
    }
}

impl RunningExec {
    /// What came in next; `None` when nothing more will.
    pub async fn next(&mut self) -> Option<Result<News, ClientError>> {
        self.news.recv().await
    }

    /// What is asked of it from elsewhere.
    pub fn input(&self) -> ExecInput {
        ExecInput {
            asks: self.asks.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The way to a command that runs.
#[derive(Debug, Clone)]
pub struct ExecInput {
    asks: mpsc::UnboundedSender<ExecAsk>,
    shared: Arc<ExecShared>,
}

impl ExecInput {
    /// Gives input, and waits until so much of it was taken that more may follow.
    pub async fn give(&self, bytes: Vec<u8>) {
        self.send(bytes);
        loop {
            let taken = self.shared.taken.notified();
            if self.asks.is_closed() || self.shared.unacknowledged.load(Ordering::Relaxed) < WINDOW {
                return;
            }
            tokio::select! {
                () = taken => {}
                () = self.asks.closed() => return,
            }
        }
    }

    fn send(&self, bytes: Vec<u8>) {
        self.shared.unacknowledged.fetch_add(bytes.len(), Ordering::Relaxed);
        self.ask(ExecAsk::Input(bytes));
    }

    /// No input follows.
    pub fn close(&self) {
        self.ask(ExecAsk::CloseInput);
    }

    /// Sends a signal, as [`Exec::signal`].
    pub fn signal(&self, signal: i32) {
        self.ask(ExecAsk::Signal(signal));
    }

    /// Tells its terminal a size.
    pub fn resize(&self, size: TerminalSize) {
        self.ask(ExecAsk::Resize(size));
    }

    fn ask(&self, ask: ExecAsk) {
        // Nobody takes it when the command has ended.
        let _ended = self.asks.send(ask);
    }
}

impl ExecShared {
    fn new() -> Result<Self, ClientError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(|error| local(STARTING)(error.into()))?;
        Ok(Self {
            wake,
            unacknowledged: AtomicUsize::new(0),
            taken: Notify::new(),
        })
    }

    fn wake(&self) {
        // It can only be full, and is readable then.
        let _is_readable = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        self.taken.notify_waiters();
    }
}

/// The other thread's part.
struct ExecConversation {
    transport: Transport,
    target: ClientTarget,
    news: mpsc::Sender<Result<News, ClientError>>,
    shared: Arc<ExecShared>,
}

impl ExecConversation {
    async fn hold(self, start: ExecStart, asked: mpsc::UnboundedReceiver<ExecAsk>) {
        let is_terminal = start.tty.is_some();
        let ended = tokio::select! {
            ended = self.follow(&start, is_terminal, asked) => ended,
            // Nobody listens any more.
            () = self.news.closed() => return,
        };
        if let Err(error) = ended {
            let _nobody_listens = self.news.send(Err(error)).await;
        }
        self.shared.wake();
    }

    async fn follow(
        &self,
        start: &ExecStart,
        is_terminal: bool,
        mut asked: mpsc::UnboundedReceiver<ExecAsk>,
    ) -> Result<(), ClientError> {
        let mut messages = self.start(start).await?;
        let mut asking: Option<tokio::task::JoinHandle<()>> = None;
        let outcome = loop {
            let event = match messages.next().await {
                Ok(Some(event)) => event,
                Ok(None) => break Err(malformed("the command", "the stream ended before it")),
                Err(error) => break Err(error),
            };
            let Some(news) = news_of(&event) else { continue };
            let is_end = matches!(news, News::Ended(_));
            if let News::Started(pid) = news {
                let (_, closed) = mpsc::unbounded_channel();
                let asked = std::mem::replace(&mut asked, closed);
                let asker = ExecAsker {
                    // Of its own: the command's stream has the other connection.
                    transport: self.transport.for_another_loop(),
                    target: self.target.clone(),
                    shared: Arc::clone(&self.shared),
                    pid,
                    is_terminal,
                };
                asking = Some(tokio::spawn(asker.serve(asked)));
            }
            if self.news.send(Ok(news)).await.is_err() {
                break Ok(());
            }
            self.shared.wake();
            if is_end {
                break Ok(());
            }
        };
        if let Some(asking) = asking {
            asking.abort();
        }
        outcome
    }

    async fn start(&self, start: &ExecStart) -> Result<MessageStream, ClientError> {
        const PATH: &str = "/process.Process/Start";
        let mut process = json!({
            "cmd": start.argv.first(),
            "args": start.argv.get(1..).unwrap_or_default(),
            "envs": start.env,
        });
        if let Some(cwd) = &start.cwd {
            process["cwd"] = json!(cwd);
        }
        let mut message = json!({ "process": process, "stdin": start.stdin });
        if let Some(size) = start.tty {
            message["pty"] = json!({ "size": { "cols": size.columns, "rows": size.rows } });
        }
        let text = message.to_string();
        let length = u32::try_from(text.len()).map_err(|_| malformed(PATH, "the command is too long"))?;
        let mut frame = vec![0];
        frame.extend(length.to_be_bytes());
        frame.extend(text.into_bytes());
        let request = self
            .target
            .request(Method::POST, PATH, "application/connect+json")
            .header("connect-protocol-version", "1")
            .header(ENDS_WITH_CLIENT, "1")
            .body(body::full(frame));
        let answer = self.transport.send(transport::built(request, PATH)?, PATH).await?;
        Ok(MessageStream::of(answer))
    }
}

/// Passes on what is asked, one after another.
struct ExecAsker {
    transport: Transport,
    target: ClientTarget,
    shared: Arc<ExecShared>,
    pid: u32,
    is_terminal: bool,
}

impl ExecAsker {
    async fn serve(self, mut asked: mpsc::UnboundedReceiver<ExecAsk>) {
        let mut held = None;
        loop {
            let next = match held.take() {
                Some(ask) => Some(ask),
                None => asked.recv().await,
            };
            let Some(ask) = next else { return };
            let transport = &self.transport;
            let process = json!({ "pid": self.pid });
            match ask {
                ExecAsk::Input(mut bytes) => {
                    // What was typed or read meanwhile goes with it.
                    while bytes.len() < PIECE {
                        match asked.try_recv() {
                            Ok(ExecAsk::Input(more)) => bytes.extend(more),
                            Ok(other) => {
                                held = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    for piece in bytes.chunks(PIECE) {
                        let place = if self.is_terminal { "pty" } else { "stdin" };
                        let text = data_encoding::BASE64.encode(piece);
                        let message = json!({ "process": process, "input": { place: text } });
                        // A command that takes no more input, or is gone, is no failure.
                        let _dropped = self.target.call(transport, "process.Process/SendInput", &message).await;
                    }
                    self.shared.unacknowledged.fetch_sub(bytes.len(), Ordering::Relaxed);
                    self.shared.wake();
                }
                ExecAsk::CloseInput => {
                    let message = json!({ "process": process });
                    let _gone = self
                        .target
                        .call(transport, "process.Process/CloseStdin", &message)
                        .await;
                }
                ExecAsk::Signal(signal) => {
                    let message = json!({ "process": process, "signal": signal });
                    let _gone = self
                        .target
                        .call(transport, "process.Process/SendSignal", &message)
                        .await;
                }
                ExecAsk::Resize(size) => {
                    let pty = json!({ "size": { "cols": size.columns, "rows": size.rows } });
                    let message = json!({ "process": process, "pty": pty });
                    let _gone = self.target.call(transport, "process.Process/Update", &message).await;
                }
            }
        }
    }
}

/// So that a failure of a local stream has one form.
pub(super) fn local(tried: impl Into<String>) -> impl FnOnce(io::Error) -> ClientError {
    let tried = tried.into();
    move |source| ClientError::Local { tried, source }
}
