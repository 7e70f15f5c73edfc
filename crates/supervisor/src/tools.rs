//! Tools of a sandbox: a process of ours takes the calls, since it waits for programs and servers of the owner's, which whoever
//! holds the sandbox does not.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalSubject};
use offleash_core::error::{ErrorKind, Explained};
use offleash_core::record::ToolUse;
use offleash_core::text::Text;
use offleash_core::tool::{DeclaredTool, ToolGrant};
use offleash_isolation::error::IsolationError;
use offleash_isolation::limits::SUPERVISE_COMMAND;
use offleash_isolation::sandbox::Sandbox;
use offleash_protocol::Dialogue;
pub use offleash_protocol::tools::{CommandAnswer, MAX_ANSWER, MAX_REQUEST};
use offleash_sys::spawn::{OrphanFate, SessionChoice, SpawnCommand, spawn};
pub(crate) use offleash_tools::AskNotice;
pub use offleash_tools::{CallFailure, DeskStep, OfferedTool, ToolBench, ToolDesk, ToolSetupError};
use offleash_tools::{ToolAsker, ToolClients};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStringExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::frames::{FrameDecoder, frame, only, order_file};

mod client;
mod door;

pub use client::{ToolCalls, ToolsClient};
pub use door::{CallOutcome, DoorReply, OpenApproval};

/// The role of a process that takes calls of tools.
pub const TOOLS_ROLE: &str = "serve-tools";

/// Our program, as this process has it.
const SELF: &[u8] = b"/proc/self/exe";

/// What tools a sandbox has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolsOrder {
    /// Those that are declared.
    pub tools: Vec<DeclaredTool>,
    /// What is granted of them; all that their owner grants when absent.
    pub grants: Option<Vec<ToolGrant>>,
    /// When a question about a call counts as denied.
    pub ask_timeout: Duration,
    /// The file in which calls are counted, which is there; they are counted for this process alone when absent.
    pub ledger: Option<Text>,
    /// Whether questions are put, and calls answered, at a door that is descriptor 5.
    pub has_door: bool,
}

/// Where tools are served for others than whoever started the sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolsPlace<'a> {
    /// The sandbox's own directory, where the door is.
    pub(crate) directory: Option<&'a Path>,
    /// The file in which calls are counted.
    pub(crate) ledger: Option<&'a Path>,
    /// The variables of what is called; those of this process when absent.
    pub(crate) env: Option<&'a [(Text, Text)]>,
}

impl Dialogue for ToolsOrder {
    const MAX_FRAME: usize = 16 * 1024 * 1024;
}

/// How often each was called.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ToolsReport {
    /// Tool by tool.
    pub uses: Vec<ToolUse>,
}

impl Dialogue for ToolsReport {
    const MAX_FRAME: usize = 64 * 1024;
}

/// What the process says of questions meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum ToolsNotice {
    Asked(ApprovalQuestion),
    Withdrawn(u64),
    TimedOut(u64),
    Noted(String),
    Decided {
        about: ApprovalSubject,
        answer: ApprovalAnswer,
    },
}

impl Dialogue for ToolsNotice {
    const MAX_FRAME: usize = 64 * 1024;
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ToolsApproval {
    question: u64,
    answer: ApprovalAnswer,
}

impl Dialogue for ToolsApproval {
    const MAX_FRAME: usize = 1024;
}

/// Why a sandbox has no tools.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// They cannot be offered.
    #[error("tools cannot be offered: {0}")]
    Setup(#[from] ToolSetupError),
    /// The sandbox takes no calls.
    #[error("tools cannot be offered")]
    Sandbox(#[source] IsolationError),
    /// There is no process for them.
    #[error("tools cannot be offered: starting their process")]
    Start(#[source] io::Error),
}

impl Explained for ToolsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Setup(_) => ErrorKind::Invalid,
            Self::Sandbox(error) => error.kind(),
            Self::Start(_) => ErrorKind::Internal,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Setup(_) => Some("`offleash policy keys` says what `[[tool]]` and `tool_grants` take".to_owned()),
            Self::Sandbox(error) => error.hint(),
            Self::Start(_) => None,
        }
    }
}

/// The process that takes calls for a sandbox. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct ToolsProcess {
    process: OwnedFd,
    answer: File,
    questions: ToolQuestions,
}

/// The questions of the process that takes calls; its descriptor is readable while there are notices.
#[derive(Debug)]
pub(crate) struct ToolQuestions {
    socket: UnixStream,
    notices: FrameDecoder<ToolsNotice>,
    has_ended: bool,
}

impl ToolsOrder {
    /// The judge of its calls.
    ///
    /// # Errors
    /// When they cannot be offered.
    pub fn desk(self) -> Result<ToolDesk, ToolSetupError> {
        ToolDesk::new(self.tools, self.grants)
    }
}

/// Has calls of a sandbox taken; nothing is started for one without tools.
pub(crate) fn start(
    order: ToolsOrder,
    sandbox: &mut dyn Sandbox,
    place: &ToolsPlace<'_>,
) -> Result<Option<ToolsProcess>, ToolsError> {
    if order.tools.is_empty() && order.grants.is_none() {
        return Ok(None);
    }
    // What is wrong with them is said before anything runs.
    order.clone().desk()?;
    let calls = sandbox.take_tool_calls().map_err(ToolsError::Sandbox)?;
    let started = place.directory.map(door::listen).transpose().and_then(|door| {
        let order = ToolsOrder {
            ledger: place.ledger.map(Text::from),
            has_door: door.is_some(),
            ..order
        };
        ToolsProcess::start(&order, &calls, door.as_ref(), place.env)
    });
    started.map(Some).map_err(ToolsError::Start)
}

impl ToolsProcess {
    fn start(
        order: &ToolsOrder,
        calls: &OwnedFd,
        door: Option<&OwnedFd>,
        env: Option<&[(Text, Text)]>,
    ) -> io::Result<Self> {
        let order = order_file(order)?;
        let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let (socket, their_socket) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let null = File::options().write(true).open("/dev/null")?;
        // The owner's programs have the owner's variables.
        let env: Vec<_> = match env {
            Some(env) => env
                .iter()
                .map(|(name, value)| (name.0.clone(), value.0.clone()))
                .collect(),
            None => std::env::vars_os()
                .map(|(name, value)| (name.into_vec(), value.into_vec()))
                .collect(),
        };
        let mut descriptors = vec![
            order.as_fd(),
            theirs.as_fd(),
            null.as_fd(),
            calls.as_fd(),
            their_socket.as_fd(),
        ];
        descriptors.extend(door.map(|door| door.as_fd()));
        let directory = std::env::current_dir().map_or_else(|_| b"/".to_vec(), |path| path.into_os_string().into_vec());
        let spawned = spawn(&SpawnCommand {
            argv: &[SELF.to_vec(), SUPERVISE_COMMAND.into(), TOOLS_ROLE.into()],
            env: &env,
            cwd: Some(&directory),
            descriptors: &descriptors,
            user: None,
            session: SessionChoice::New,
            orphaned: OrphanFate::Dies,
        })
        .map_err(io::Error::other)?;
        // Not reaped yet, so its number is still its own.
        let pid = Pid::from_raw(spawned.pid.max(0)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            process: pidfd_open(pid, PidfdFlags::empty())?,
            answer: answer.into(),
            questions: ToolQuestions::of(socket),
        })
    }

    /// What it asks.
    pub(crate) fn questions(&mut self) -> &mut ToolQuestions {
        &mut self.questions
    }

    /// How often each tool was called; the sandbox is gone, so the process ends by itself.
    pub(crate) fn finish(mut self) -> Vec<ToolUse> {
        let mut text = Vec::new();
        let most = u64::try_from(ToolsReport::MAX_FRAME).unwrap_or(u64::MAX) + 64;
        let read = (&mut self.answer).take(most).read_to_end(&mut text);
        let report = read.and_then(|_| only::<ToolsReport>(&text));
        report.unwrap_or_default().uses
    }
}

impl ToolQuestions {
    fn of(socket: UnixStream) -> Self {
        Self {
            socket,
            notices: FrameDecoder::new(),
            has_ended: false,
        }
    }

    /// What to wait for; `None` when nothing more comes.
    pub(crate) fn interest(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_ended).then(|| self.socket.as_fd())
    }

    /// What there is to know since the last time.
    pub(crate) fn take(&mut self) -> Vec<AskNotice> {
        let mut notices = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.notices.push(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.has_ended = true,
            }
            loop {
                match self.notices.next() {
                    Ok(Some(ToolsNotice::Asked(question))) => notices.push(AskNotice::Asked(question)),
                    Ok(Some(ToolsNotice::Withdrawn(id))) => notices.push(AskNotice::Withdrawn(id)),
                    Ok(Some(ToolsNotice::TimedOut(id))) => notices.push(AskNotice::TimedOut(id)),
                    Ok(Some(ToolsNotice::Noted(line))) => notices.push(AskNotice::Noted(line)),
                    Ok(Some(ToolsNotice::Decided { about, answer })) => {
                        notices.push(AskNotice::Decided { about, answer });
                    }
                    Ok(None) => break,
                    // It does not speak as it should, and is heard no more.
                    Err(_) => {
                        self.has_ended = true;
                        break;
                    }
                }
            }
            if self.has_ended {
                break;
            }
        }
        notices
    }

    /// Answers the question of this number, if it is still open.
    pub(crate) fn answer(&mut self, question: u64, answer: ApprovalAnswer) {
        // A process that takes no answer has ended, or has had 200 KB of them: its question is denied in time.
        let _told = frame(&ToolsApproval { question, answer }).and_then(|bytes| self.socket.write_all(&bytes));
    }
}

impl Drop for ToolsProcess {
    fn drop(&mut self) {
        // It has ended, or is of no more use; killed, it ends at once.
        let _killed = offleash_sys::process::kill(self.process.as_fd());
        let _reaped = waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Takes calls at `calls` until the sandbox is gone, and asks at `questions`: what a process of [`TOOLS_ROLE`] does.
///
/// # Errors
/// When there is no such socket, or they cannot be offered.
pub fn serve(order: ToolsOrder, calls: OwnedFd, questions: OwnedFd, door: Option<OwnedFd>) -> io::Result<ToolsReport> {
    let (timeout, ledger) = (order.ask_timeout, order.ledger.clone());
    let mut desk = order.desk().map_err(io::Error::other)?;
    if let Some(ledger) = ledger {
        desk.count_in(ledger.as_path())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = |descriptor: OwnedFd| {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            tokio::net::UnixStream::from_std(descriptor.into())
        };
        let (heard, tell) = stream(questions)?.into_split();
        let ((notices, told), (answered, answers)) = (unbounded_channel(), unbounded_channel());
        let clients = Arc::new(ToolClients::default());
        match door {
            None => {
                let _telling = tokio::spawn(tell_notices(told, tell));
                let _hearing = tokio::spawn(hear_answers(heard, answered));
            }
            Some(door) => {
                desk.keep_notes();
                let (to_supervisor, passed_on) = unbounded_channel();
                let _telling = tokio::spawn(tell_notices(passed_on, tell));
                door::open(door, told, to_supervisor, answered, Arc::clone(&clients))?;
            }
        }
        let asker = ToolAsker {
            notices,
            answers,
            timeout,
        };
        // However it ends, what was called was called.
        let _ended = offleash_tools::serve(&mut desk, stream(calls)?, asker, clients).await;
        Ok(ToolsReport { uses: desk.uses() })
    })
}

/// Passes notices on until there are no more, or nobody hears them.
async fn tell_notices(mut notices: UnboundedReceiver<AskNotice>, mut to: OwnedWriteHalf) -> io::Result<()> {
    while let Some(notice) = notices.recv().await {
        let notice = match notice {
            AskNotice::Asked(question) => ToolsNotice::Asked(question),
            AskNotice::Withdrawn(id) => ToolsNotice::Withdrawn(id),
            AskNotice::TimedOut(id) => ToolsNotice::TimedOut(id),
            AskNotice::Noted(line) => ToolsNotice::Noted(line),
            AskNotice::Decided { about, answer } => ToolsNotice::Decided { about, answer },
        };
        to.write_all(&frame(&notice)?).await?;
    }
    Ok(())
}

/// Passes answers on until there are no more.
async fn hear_answers(mut from: OwnedReadHalf, to: UnboundedSender<(u64, ApprovalAnswer)>) -> io::Result<()> {
    let mut frames = FrameDecoder::<ToolsApproval>::new();
    let mut buffer = [0; 1024];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(()),
            count => frames.push(buffer.get(..count).unwrap_or_default()),
        }
        while let Some(told) = frames.next().map_err(io::Error::other)? {
            if to.send((told.question, told.answer)).is_err() {
                return Ok(());
            }
        }
    }
}

/// Makes one call for the owner, judged as one from a sandbox; answers the bytes for it.
///
/// # Errors
/// When nothing can be called.
pub fn call_once(order: ToolsOrder, request: &[u8]) -> Result<Vec<u8>, ToolsError> {
    let mut desk = order.desk()?;
    let judged = match desk.take(request) {
        DeskStep::Answer(answer) => return Ok(answer),
        DeskStep::Call(judged) => judged,
        // Whoever calls is who would be asked.
        DeskStep::Ask(judged) => match desk.approve(judged) {
            DeskStep::Call(judged) => judged,
            DeskStep::Answer(answer) => return Ok(answer),
            DeskStep::Ask(judged) => judged,
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ToolsError::Start)?;
    Ok(runtime.block_on(offleash_tools::make(&mut desk, &judged)))
}
