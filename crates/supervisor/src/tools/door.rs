//! The door of a sandbox's tools: where questions about calls are answered, and calls of tools that clients answer.
//!
//! A socket in the sandbox's own directory, served by the process that takes its calls. A connection carries one
//! [`DoorRequest`] and what answers it, a [`DoorReply`] each.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalSubject};
use offleash_core::text::Text;
use offleash_protocol::Dialogue;
use offleash_tools::{AskNotice, ClientNotice, ToolClients};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, timeout};

use super::MAX_ANSWER;
use crate::frames::{FrameDecoder, frame};
use crate::trusted_socket;

/// The name of the socket.
pub(super) const SOCKET: &str = "tools.sock";
/// Connections at a time; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may take to say what it wants.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);

/// What is asked at a door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DoorRequest {
    /// The questions that are open; [`DoorReply::Approvals`].
    Approvals,
    /// To answer a question; [`DoorReply::Done`], or [`DoorReply::Missing`] where it is not open.
    Decide {
        /// Its number.
        question: u64,
        /// The answer.
        answer: ApprovalAnswer,
    },
    /// To hear of calls; [`DoorReply::Done`], then a [`DoorReply::Call`] or a [`DoorReply::Withdrawn`] each, until either side
    /// hangs up.
    Calls,
    /// To answer a call; [`DoorReply::Done`], or [`DoorReply::Missing`] where it waits no more.
    Answer {
        /// Its number.
        call: u64,
        /// The answer.
        outcome: CallOutcome,
    },
}

impl Dialogue for DoorRequest {
    const MAX_FRAME: usize = MAX_ANSWER + 64 * 1024;
}

/// What a client answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallOutcome {
    /// The result, as JSON.
    Result(String),
    /// Why there is none.
    Error(String),
}

/// What a door answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DoorReply {
    /// It is done.
    Done,
    /// There is no such question or call, or none any more.
    Missing,
    /// What is asked.
    Approvals(Vec<OpenApproval>),
    /// A call that the client is to answer.
    Call {
        /// Its number.
        id: u64,
        /// The tool.
        tool: String,
        /// What it is called with, as JSON.
        parameters: String,
    },
    /// A call that needs no answer any more.
    Withdrawn(u64),
}

impl Dialogue for DoorReply {
    const MAX_FRAME: usize = 1024 * 1024;
}

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenApproval {
    /// Its number in the sandbox.
    pub id: u64,
    /// What it is about.
    pub about: ApprovalSubject,
    /// How long it waits still, milliseconds.
    pub left_ms: u64,
    /// The rule that asks, where one does.
    pub rule: Option<String>,
}

impl OpenApproval {
    /// `question`, which waits until then.
    pub(crate) fn of(question: &ApprovalQuestion, until: std::time::Instant) -> Self {
        let left = until.saturating_duration_since(std::time::Instant::now());
        Self {
            id: question.id,
            about: question.about.clone(),
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            rule: question.rule.clone(),
        }
    }
}

/// What connections share.
#[derive(Debug)]
struct DoorState {
    open: Mutex<Option<(ApprovalQuestion, Instant)>>,
    answers: UnboundedSender<(u64, ApprovalAnswer)>,
    clients: Arc<ToolClients>,
    notes: UnboundedSender<AskNotice>,
}

/// Listens at the door of the sandbox whose own directory this is, in place of whoever did before.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn listen(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
    // One that was made again in its place has that of before.
    let _removed = rustix::fs::unlinkat(&directory, SOCKET, AtFlags::empty());
    // By way of the descriptor, because the path of a socket may have 107 bytes and a state directory more.
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    trusted_socket::listen(Path::new(&path))
}

/// Opens the door: questions wait there for an answer instead of going to the supervisor, who is told what to note.
///
/// # Errors
/// When it cannot be listened at.
pub(super) fn open(
    door: OwnedFd,
    notices: UnboundedReceiver<AskNotice>,
    notes: UnboundedSender<AskNotice>,
    answers: UnboundedSender<(u64, ApprovalAnswer)>,
    clients: Arc<ToolClients>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(door.into())?;
    let state = Arc::new(DoorState {
        open: Mutex::default(),
        answers,
        clients,
        notes,
    });
    let _heard = tokio::spawn(hear_questions(notices, Arc::clone(&state)));
    let _served = tokio::spawn(serve(listener, state));
    Ok(())
}

async fn hear_questions(mut notices: UnboundedReceiver<AskNotice>, state: Arc<DoorState>) {
    while let Some(notice) = notices.recv().await {
        match notice {
            AskNotice::Asked(question) => {
                let line = format!("approval {} is asked for: {}", question.id, question.about);
                let until = Instant::now() + question.timeout;
                *state.open.lock().unwrap_or_else(PoisonError::into_inner) = Some((question, until));
                state.note(line);
            }
            AskNotice::Withdrawn(id) => {
                state.take(id);
                state.note(format!("approval {id} is needed no more"));
            }
            AskNotice::TimedOut(id) => {
                if let Some(question) = state.take(id) {
                    state.decided(question, ApprovalAnswer::Timeout);
                }
            }
            AskNotice::Noted(line) => state.note(line),
            // It is told from here, and never heard here.
            AskNotice::Decided { .. } => {}
        }
    }
}

async fn serve(listener: UnixListener, state: Arc<DoorState>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let state = Arc::clone(&state);
                drop(tokio::spawn(async move {
                    let _until_done = place;
                    // Who hangs up has nothing to be told.
                    let _done = state.attend(stream).await;
                }));
            }
            // Descriptors are used up until connections end.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

impl DoorState {
    async fn attend(&self, mut stream: UnixStream) -> io::Result<()> {
        if !trusted_socket::is_trusted(&stream) {
            return Ok(());
        }
        let request = timeout(ASKING_TIMEOUT, request(&mut stream)).await??;
        let reply = match request {
            DoorRequest::Approvals => DoorReply::Approvals(self.approvals()),
            DoorRequest::Decide { question, answer } => self.decide(question, answer),
            DoorRequest::Answer { call, outcome } => self.answer(call, outcome),
            DoorRequest::Calls => return self.tell_calls(stream).await,
        };
        stream.write_all(&frame(&reply)?).await
    }

    fn approvals(&self) -> Vec<OpenApproval> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(question, until): &(ApprovalQuestion, Instant)| OpenApproval::of(question, until.into_std());
        open.iter().map(one).collect()
    }

    fn decide(&self, question: u64, answer: ApprovalAnswer) -> DoorReply {
        // Whoever takes it answers: a second answer finds none.
        let Some(asked) = self.take(question) else {
            return DoorReply::Missing;
        };
        if self.answers.send((question, answer)).is_err() {
            return DoorReply::Missing;
        }
        self.decided(asked, answer);
        DoorReply::Done
    }

    fn take(&self, question: u64) -> Option<ApprovalQuestion> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.take_if(|(asked, _)| asked.id == question).map(|(asked, _)| asked)
    }

    /// Has it on record how a question was decided.
    fn decided(&self, question: ApprovalQuestion, answer: ApprovalAnswer) {
        self.note(format!("approval {}: {answer}", question.id));
        let about = question.about;
        // Whoever keeps the record may be gone.
        let _told = self.notes.send(AskNotice::Decided { about, answer });
    }

    fn answer(&self, call: u64, outcome: CallOutcome) -> DoorReply {
        let outcome = match outcome {
            CallOutcome::Result(json) => serde_json::from_str(&json).map_err(|error| format!("it is no JSON: {error}")),
            CallOutcome::Error(why) => Err(why),
        };
        match self.clients.answer(call, outcome) {
            true => DoorReply::Done,
            false => DoorReply::Missing,
        }
    }

    /// Tells a client of calls until it hangs up or another one hears of them.
    async fn tell_calls(&self, mut stream: UnixStream) -> io::Result<()> {
        let mut client = self.clients.listen();
        stream.write_all(&frame(&DoorReply::Done)?).await?;
        loop {
            tokio::select! {
                notice = client.next() => {
                    let reply = match notice {
                        None => return Ok(()),
                        Some(ClientNotice::Call { id, tool, parameters }) => DoorReply::Call { id, tool, parameters },
                        Some(ClientNotice::Withdrawn(id)) => DoorReply::Withdrawn(id),
                    };
                    stream.write_all(&frame(&reply)?).await?;
                }
                // It has nothing more to say but that it leaves.
                left = stream.read_u8() => return left.map(drop),
            }
        }
    }

    fn note(&self, line: String) {
        // Whoever keeps notes may be gone.
        let _told = self
            .notes
            .send(AskNotice::Noted(Text::from(std::ffi::OsStr::new(&line)).to_string()));
    }
}

async fn request(stream: &mut UnixStream) -> io::Result<DoorRequest> {
    let mut frames = FrameDecoder::<DoorRequest>::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(request) = frames.next().map_err(io::Error::other)? {
            return Ok(request);
        }
        match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => frames.push(buffer.get(..count).unwrap_or_default()),
        }
    }
}
