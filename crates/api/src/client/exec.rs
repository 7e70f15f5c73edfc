//! A command in a sandbox, seen from a terminal: output and the end come in, input and signals go out.
//!
//! The conversation is on a thread of its own; here is a descriptor to wait for and what came in.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use http::Method;
use offleash_core::exec::{OutputStream, TerminalSize};
use rustix::event::EventfdFlags;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::transport::{self, Answer};
use super::{Client, ClientError, Target, malformed, parsed};
use crate::body;
use crate::connect::EXIT_CODE;

/// Input that is on the way and not taken yet, in bytes.
const WINDOW: usize = 256 << 10;
/// Input in one request.
const PIECE: usize = 64 << 10;
/// News that wait for the terminal.
const QUEUE: usize = 64;
/// The largest message of a stream.
const MOST_MESSAGE: usize = 8 << 20;
/// The last message of a stream.
const END_OF_STREAM: u8 = 2;

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
enum Ask {
    Input(Vec<u8>),
    CloseInput,
    Signal(i32),
    Resize(TerminalSize),
}

/// A command that runs. Dropped, it goes on without us.
#[derive(Debug)]
pub struct Exec {
    news: mpsc::Receiver<Result<News, ClientError>>,
    asks: Option<mpsc::UnboundedSender<Ask>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Readable when there is news.
    wake: OwnedFd,
    /// Input that is on the way.
    unacknowledged: AtomicUsize,
}

impl Client {
    /// Starts a command in the sandbox `id`.
    ///
    /// # Errors
    /// `NotRunning`, `Refused` when there is no such sandbox; that it cannot be started is told by [`Exec::take`].
    pub fn exec(&self, id: &str, start: ExecStart) -> Result<Exec, ClientError> {
        let target = self.target(id, start.user.as_deref())?;
        let local = |source| ClientError::Local {
            tried: "start a thread for the command".to_owned(),
            source,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(|error| local(error.into()))?;
        let shared = Arc::new(Shared {
            wake,
            unacknowledged: AtomicUsize::new(0),
        });
        let (send_news, news) = mpsc::channel(QUEUE);
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = transport::runtime()?;
        let conversation = Conversation {
            socket: self.socket.clone(),
            target,
            news: send_news,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("exec".to_owned())
            .spawn(move || runtime.block_on(conversation.hold(start, asked)))
            .map_err(local)?;
        Ok(Exec {
            news,
            asks: Some(asks),
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
        self.shared.unacknowledged.fetch_add(bytes.len(), Ordering::Relaxed);
        self.ask(Ask::Input(bytes));
    }

    /// No input follows.
    pub fn close_input(&self) {
        self.ask(Ask::CloseInput);
    }

    /// Sends a signal: `SIGTERM` or `SIGKILL`.
    pub fn signal(&self, signal: i32) {
        self.ask(Ask::Signal(signal));
    }

    /// Tells its terminal a size.
    pub fn resize(&self, size: TerminalSize) {
        self.ask(Ask::Resize(size));
    }

    fn ask(&self, ask: Ask) {
        if let Some(asks) = &self.asks {
            // Nobody takes it when the command has ended.
            let _ended = asks.send(ask);
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.asks = None;
        self.news.close();
        if let Some(thread) = self.thread.take() {
            // It tells what went wrong as news.
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // It can only be full, and is readable then.
        let _is_readable = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The other thread's part.
struct Conversation {
    socket: PathBuf,
    target: Target,
    news: mpsc::Sender<Result<News, ClientError>>,
    shared: Arc<Shared>,
}

impl Conversation {
    async fn hold(self, start: ExecStart, asked: mpsc::UnboundedReceiver<Ask>) {
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
        mut asked: mpsc::UnboundedReceiver<Ask>,
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
                let asker = Asker {
                    socket: self.socket.clone(),
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

    async fn start(&self, start: &ExecStart) -> Result<Messages, ClientError> {
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
            .body(body::full(frame));
        let answer = transport::send(&self.socket, transport::built(request, PATH)?, PATH).await?;
        Ok(Messages {
            answer,
            held: Vec::new(),
        })
    }
}

/// The messages of a stream.
struct Messages {
    answer: Answer,
    held: Vec<u8>,
}

impl Messages {
    /// The next message; `None` when the stream has ended well.
    async fn next(&mut self) -> Result<Option<Value>, ClientError> {
        const ASKED: &str = "the command's stream";
        loop {
            if let Some((header, rest)) = self.held.split_first_chunk::<5>() {
                let [flags, length @ ..] = *header;
                let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                if length > MOST_MESSAGE {
                    return Err(malformed(ASKED, format!("a message of {length} bytes")));
                }
                if let Some(message) = rest.get(..length) {
                    let message: Value = parsed(message, ASKED)?;
                    self.held.drain(..header.len() + length);
                    return match flags & END_OF_STREAM {
                        0 => Ok(Some(message)),
                        _ => ended(&message).map(|()| None),
                    };
                }
            }
            let cut = |reason: String| ClientError::Cut { reason };
            match self.answer.piece().await.map_err(|error| cut(error.to_string()))? {
                Some(piece) => self.held.extend_from_slice(&piece),
                None => return Err(cut("it ended in the middle".to_owned())),
            }
        }
    }
}

fn ended(message: &Value) -> Result<(), ClientError> {
    let Some(error) = message.get("error") else {
        return Ok(());
    };
    let text = error.get("message").and_then(Value::as_str).unwrap_or("it failed");
    let exit_code = &message["metadata"][EXIT_CODE][0];
    if let Some(exit_code) = exit_code.as_str().and_then(|code| code.parse().ok()) {
        return Err(ClientError::NotStarted {
            message: text.to_owned(),
            exit_code,
        });
    }
    let kind = match error.get("code").and_then(Value::as_str) {
        Some("not_found") => offleash_core::error::ErrorKind::NotFound,
        Some("invalid_argument") => offleash_core::error::ErrorKind::Invalid,
        Some("unauthenticated" | "permission_denied") => offleash_core::error::ErrorKind::Denied,
        Some("unavailable") => offleash_core::error::ErrorKind::Unavailable,
        _ => offleash_core::error::ErrorKind::Internal,
    };
    Err(ClientError::Refused {
        message: text.to_owned(),
        kind,
    })
}

fn news_of(message: &Value) -> Option<News> {
    let event = message.get("event")?;
    if let Some(start) = event.get("start") {
        let pid = start.get("pid").and_then(Value::as_u64)?;
        return Some(News::Started(u32::try_from(pid).ok()?));
    }
    if let Some(data) = event.get("data") {
        let (stream, text) = [
            ("stdout", OutputStream::Stdout),
            ("stderr", OutputStream::Stderr),
            ("pty", OutputStream::Stdout),
        ]
        .into_iter()
        .find_map(|(name, stream)| Some((stream, data.get(name)?.as_str()?)))?;
        let bytes = data_encoding::BASE64.decode(text.as_bytes()).ok()?;
        return Some(News::Output(stream, bytes));
    }
    let end = event.get("end")?;
    let status = end.get("status").and_then(Value::as_str).unwrap_or_default();
    let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    Some(News::Ended(match u8::try_from(code) {
        Ok(code) => code,
        Err(_) => killed(status),
    }))
}

/// 128 and the signal's number, from a status such as `signal: killed`.
fn killed(status: &str) -> u8 {
    let number = match status.strip_prefix("signal: ").unwrap_or_default() {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "segmentation fault" => 11,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        // Of those that have no name there: the one that cannot be caught.
        _ => 9,
    };
    128 + number
}

/// Passes on what is asked, one after another.
struct Asker {
    socket: PathBuf,
    target: Target,
    shared: Arc<Shared>,
    pid: u32,
    is_terminal: bool,
}

impl Asker {
    async fn serve(self, mut asked: mpsc::UnboundedReceiver<Ask>) {
        while let Some(ask) = asked.recv().await {
            let socket: &Path = &self.socket;
            let process = json!({ "pid": self.pid });
            match ask {
                Ask::Input(bytes) => {
                    for piece in bytes.chunks(PIECE) {
                        let place = if self.is_terminal { "pty" } else { "stdin" };
                        let text = data_encoding::BASE64.encode(piece);
                        let message = json!({ "process": process, "input": { place: text } });
                        // A command that takes no more input, or is gone, is no failure.
                        let _dropped = self.target.call(socket, "process.Process/SendInput", &message).await;
                    }
                    self.shared.unacknowledged.fetch_sub(bytes.len(), Ordering::Relaxed);
                    self.shared.wake();
                }
                Ask::CloseInput => {
                    let message = json!({ "process": process });
                    let _gone = self.target.call(socket, "process.Process/CloseStdin", &message).await;
                }
                Ask::Signal(signal) => {
                    let name = if signal == 9 {
                        "SIGNAL_SIGKILL"
                    } else {
                        "SIGNAL_SIGTERM"
                    };
                    let message = json!({ "process": process, "signal": name });
                    let _gone = self.target.call(socket, "process.Process/SendSignal", &message).await;
                }
                Ask::Resize(size) => {
                    let pty = json!({ "size": { "cols": size.columns, "rows": size.rows } });
                    let message = json!({ "process": process, "pty": pty });
                    let _gone = self.target.call(socket, "process.Process/Update", &message).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_are_written() {
        let started = news_of(&json!({"event": {"start": {"pid": 7}}}));
        assert!(matches!(started, Some(News::Started(7))));
        let output = news_of(&json!({"event": {"data": {"stderr": "aGk="}}}));
        assert!(matches!(output, Some(News::Output(OutputStream::Stderr, bytes)) if bytes == b"hi"));
        let screen = news_of(&json!({"event": {"data": {"pty": "aGk="}}}));
        assert!(matches!(screen, Some(News::Output(OutputStream::Stdout, _))));
        for (end, code) in [
            (json!({"exitCode": 3, "exited": true, "status": "exit status 3"}), 3),
            (json!({"exited": true, "status": "exit status 0"}), 0),
            (json!({"exitCode": -1, "status": "signal: killed"}), 137),
            (json!({"exitCode": -1, "status": "signal: terminated"}), 143),
        ] {
            let news = news_of(&json!({"event": {"end": end}}));
            assert!(matches!(news, Some(News::Ended(seen)) if seen == code), "{news:?}");
        }
        assert!(news_of(&json!({"event": {"keepalive": {}}})).is_none());
        assert!(news_of(&json!({"event": {"data": {"stdout": "not base64"}}})).is_none());
    }

    #[test]
    fn the_end_of_a_stream_says_whether_it_was_well() {
        assert!(ended(&json!({})).is_ok());
        let error = ended(&json!({"error": {"code": "not_found", "message": "no such thing"}})).unwrap_err();
        assert_eq!(error.to_string(), "no such thing");
        let missing = json!({
            "error": {"code": "invalid_argument", "message": "there is no such command"},
            "metadata": {"offleash-exit-code": ["127"]},
        });
        let error = ended(&missing).unwrap_err();
        assert!(
            matches!(error, ClientError::NotStarted { exit_code: 127, .. }),
            "{error:?}"
        );
    }
}
