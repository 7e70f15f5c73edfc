//! Interactive runs: a program whose input comes, and whose output goes, over a WebSocket as it happens.
//!
//! The client says what is to be run, within a time. A client that goes away takes its program with it.

use std::collections::VecDeque;
use std::time::Duration;

use http::Response;
use offleash_core::exec::OutputStream;
use offleash_interpreter::text::Utf8Pieces;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::timeout;

use super::shapes::{ClientMessage, NewJob, ServerMessage, StreamName};
use super::{MAX_JOB_BODY, program, signal_number, stage};
use crate::commands::LiveInput;
use crate::control::{ApiRequest, LastingRequest};
use crate::http::answer::ApiRefusal;
use crate::http::body::Body;
use crate::http::websocket::{SocketGone, WebSocket, WebSocketRequest};
use crate::languages::{Program, ProgramEvent, ProgramWatcher, StageName};

/// How long a client may take to say what is to be run. Piston gives it one second, which is little for who has far to go.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages that may wait on either side before nobody reads on.
const WAITING: usize = 16;

/// Why an interactive run ends, as Piston numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndCode {
    AlreadyInitialized,
    InitializationTimeout,
    NotifiedError,
    NotYetInitialized,
    CanOnlyWriteToStdin,
    InvalidSignal,
    JobCompleted,
}

impl EndCode {
    fn said(self) -> (u16, &'static str) {
        match self {
            Self::AlreadyInitialized => (4000, "Already Initialized"),
            Self::InitializationTimeout => (4001, "Initialization Timeout"),
            Self::NotifiedError => (4002, "Notified Error"),
            Self::NotYetInitialized => (4003, "Not yet initialized"),
            Self::CanOnlyWriteToStdin => (4004, "Can only write to stdin"),
            Self::InvalidSignal => (4005, "Invalid signal"),
            Self::JobCompleted => (4999, "Job Completed"),
        }
    }
}

/// How a part of the conversation ends it.
#[derive(Debug)]
enum TalkEnd {
    Gone,
    Code(EndCode),
    Refused(ApiRefusal),
}

impl From<SocketGone> for TalkEnd {
    fn from(_: SocketGone) -> Self {
        Self::Gone
    }
}

impl From<ApiRefusal> for TalkEnd {
    fn from(refusal: ApiRefusal) -> Self {
        Self::Refused(refusal)
    }
}

pub(crate) async fn connect(asked: &ApiRequest<'_>) -> Result<Response<Body>, ApiRefusal> {
    let upgrade = WebSocketRequest::of(asked.parts, asked.client)?;
    let lasting = asked.lasting();
    Ok(upgrade.answer(MAX_JOB_BODY, |mut socket| async move {
        let end = talk(&lasting, &mut socket).await;
        let code = match end {
            Ok(()) => EndCode::JobCompleted,
            Err(TalkEnd::Code(code)) => code,
            Err(TalkEnd::Gone) => return,
            Err(TalkEnd::Refused(refusal)) => {
                let message = refusal.message;
                if say(&mut socket, &ServerMessage::Error { message }).await.is_err() {
                    return;
                }
                EndCode::NotifiedError
            }
        };
        let (code, reason) = code.said();
        socket.close(code, reason).await;
    }))
}

async fn say(socket: &mut WebSocket, message: &ServerMessage) -> Result<(), SocketGone> {
    // Nothing of it has keys other than text, or fails to be written.
    socket.text(serde_json::to_string(message).unwrap_or_default()).await
}

/// The next message of the client's; what is of no type that is known is passed over.
async fn heard(socket: &mut WebSocket) -> Result<ClientMessage, TalkEnd> {
    loop {
        let message = socket.next().await.ok_or(TalkEnd::Gone)?;
        let read = serde_json::from_slice(message.bytes());
        match read {
            Ok(ClientMessage::Unknown) => {}
            Ok(message) => return Ok(message),
            Err(error) => {
                let why = format!("the message is not what it must be: {error}");
                return Err(ApiRefusal::bad_request(why).into());
            }
        }
    }
}

async fn talk(lasting: &LastingRequest, socket: &mut WebSocket) -> Result<(), TalkEnd> {
    let job = timeout(INIT_TIMEOUT, initialized(socket)).await;
    let job = job.unwrap_or(Err(TalkEnd::Code(EndCode::InitializationTimeout)))?;
    let asked = lasting.asked();
    let program = program(&asked, job).await?;
    let runtime = ServerMessage::Runtime {
        language: program.runtime.language.name,
        version: program.runtime.version.to_string(),
    };
    say(socket, &runtime).await?;
    run(&asked, program, socket).await
}

async fn initialized(socket: &mut WebSocket) -> Result<NewJob, TalkEnd> {
    match heard(socket).await? {
        ClientMessage::Init(job) => Ok(*job),
        _ => Err(TalkEnd::Code(EndCode::NotYetInitialized)),
    }
}

/// Runs the program between its watcher and the client. When this ends early the program is ended, and its sandbox with it, by the
/// task that has both.
async fn run(asked: &ApiRequest<'_>, program: Program, socket: &mut WebSocket) -> Result<(), TalkEnd> {
    let (bytes, given) = mpsc::channel(WAITING);
    let (signals, sent) = mpsc::channel(WAITING);
    let (events, told) = mpsc::channel(WAITING);
    let stdin = program.stdin.clone();
    let watcher = ProgramWatcher {
        input: LiveInput {
            bytes: given,
            signals: sent,
        },
        events,
    };
    let work = asked.whole(|daemon, caller| async move { Ok(program.run_watched(&daemon, &caller, watcher).await) });
    let client = ClientSide {
        bytes,
        signals,
        told,
        // Piston reads none of it; a program that begins with it and goes on with messages is served by both.
        waiting: VecDeque::from([stdin]),
    };
    let (ran, carried) = tokio::join!(work, client.carry(socket));
    carried?;
    ran?.map_err(|failed| asked.failed(&failed))?;
    Ok(())
}

/// What stands between a program and its client.
struct ClientSide {
    bytes: Sender<Vec<u8>>,
    signals: Sender<i32>,
    told: Receiver<ProgramEvent>,
    /// Input that the program has not had yet: no more is heard before it has.
    waiting: VecDeque<Vec<u8>>,
}

impl ClientSide {
    /// Carries what both say until the program is over.
    async fn carry(self, socket: &mut WebSocket) -> Result<(), TalkEnd> {
        let Self {
            bytes,
            signals,
            mut told,
            mut waiting,
        } = self;
        waiting.retain(|bytes| !bytes.is_empty());
        let mut written = WrittenText::default();
        loop {
            let hears = waiting.is_empty();
            tokio::select! {
                event = told.recv() => match event {
                    Some(event) => tell(socket, &mut written, event).await?,
                    None => return Ok(()),
                },
                room = bytes.reserve(), if !hears => {
                    let next = waiting.pop_front().unwrap_or_default();
                    // A program that is over reads nothing; its end comes.
                    if let Ok(room) = room {
                        room.send(next);
                    }
                }
                message = heard(socket), if hears => match meant(message?)? {
                    ClientWish::Nothing => {}
                    ClientWish::Input(bytes) => waiting.push_back(bytes),
                    ClientWish::Signal(number) => {
                        // More than wait already do nothing that they do not.
                        let _sent = signals.try_send(number);
                    }
                },
            }
        }
    }
}

/// What a client wants of a program that runs.
enum ClientWish {
    Nothing,
    Input(Vec<u8>),
    Signal(i32),
}

fn meant(message: ClientMessage) -> Result<ClientWish, TalkEnd> {
    match message {
        ClientMessage::Init(_) => Err(TalkEnd::Code(EndCode::AlreadyInitialized)),
        ClientMessage::Data { stream, data } => match stream {
            StreamName::Stdin => Ok(ClientWish::Input(data.into_bytes())),
            StreamName::Other => Err(TalkEnd::Code(EndCode::CanOnlyWriteToStdin)),
        },
        ClientMessage::Signal { signal } => {
            let number = signal_number(&signal).ok_or(TalkEnd::Code(EndCode::InvalidSignal))?;
            Ok(ClientWish::Signal(number))
        }
        ClientMessage::Unknown => Ok(ClientWish::Nothing),
    }
}

/// What both streams wrote, as text in which characters are whole.
#[derive(Debug, Default)]
struct WrittenText {
    stdout: Utf8Pieces,
    stderr: Utf8Pieces,
}

/// Tells of an event.
async fn tell(socket: &mut WebSocket, written: &mut WrittenText, event: ProgramEvent) -> Result<(), SocketGone> {
    let name = |stage| match stage {
        StageName::Compile => "compile",
        StageName::Run => "run",
    };
    match event {
        ProgramEvent::Began(stage) => say(socket, &ServerMessage::Stage { stage: name(stage) }).await,
        ProgramEvent::Wrote(OutputStream::Stdout, bytes) => {
            let text = written.stdout.push(&bytes);
            tell_text(socket, "stdout", text).await
        }
        ProgramEvent::Wrote(OutputStream::Stderr, bytes) => {
            let text = written.stderr.push(&bytes);
            tell_text(socket, "stderr", text).await
        }
        ProgramEvent::Ended(ended, outcome) => {
            tell_text(socket, "stdout", written.stdout.finish()).await?;
            tell_text(socket, "stderr", written.stderr.finish()).await?;
            let told = stage(*outcome);
            let message = ServerMessage::Exit {
                stage: name(ended),
                code: told.code,
                signal: told.signal,
                message: told.message,
                status: told.status,
            };
            say(socket, &message).await
        }
    }
}

async fn tell_text(socket: &mut WebSocket, stream: &'static str, data: String) -> Result<(), SocketGone> {
    match data.is_empty() {
        true => Ok(()),
        false => say(socket, &ServerMessage::Data { stream, data }).await,
    }
}
