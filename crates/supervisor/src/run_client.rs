//! The client of a run: its standard streams and signals, with one command; output out, input and signals in, limits kept.
//!
//! The other side is an [`ExecIo`]: the terminal of a command line, or whoever builds a template. Nothing here prints.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::exec::{ExecEnd, ExecEvent, OutputStream, TerminalSize};
use offleash_core::limits::{LimitName, Limits};
use offleash_core::monitor::MonitorAction;
use offleash_core::record::{AlertRecord, LimitEffect, LimitHit};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Sandbox};
use rustix::event::{PollFd, PollFlags};

use crate::capture::Capture;
use crate::lifecycle::making::RunningSandbox;
use crate::output_tail::OutputTail;
use crate::sandbox_loop::{
    Ending, Lingering, LoopEnd, LoopSandbox, SandboxClient, SandboxLoop, WaitList, finish, linger,
};

/// Where an execution's output goes, and its input and signals come from.
pub trait ExecIo {
    /// What to wait for; input only when `take_input`.
    fn interests(&self, take_input: bool) -> Vec<(BorrowedFd<'_>, PollFlags)>;

    /// Takes output; it must not block, so it keeps what cannot be passed on at once.
    fn write(&mut self, stream: OutputStream, bytes: Vec<u8>);

    /// Tells the user something that is of use only while the command runs.
    fn note(&mut self, line: &str);

    /// Bytes that are kept because they could not be passed on yet.
    fn pending(&self) -> usize;

    /// Passes on what it can, and says what came in; at most `window` bytes of input.
    ///
    /// # Errors
    /// When a descriptor of its own fails.
    fn turn(&mut self, window: usize) -> io::Result<Vec<ExecIoEvent>>;

    /// Puts a question to whoever is there. It must not block: the answer comes as
    /// [`ExecIoEvent::Answer`], or at once. There is no other question until it is answered or withdrawn.
    fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer>;

    /// No question needs an answer any more.
    fn withdraw(&mut self);
}

/// What comes from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecIoEvent {
    /// Bytes for the command's input.
    Input(Vec<u8>),
    /// No input follows.
    EndOfInput,
    /// A signal for the command.
    Signal(i32),
    /// The terminal changed its size.
    Resize(TerminalSize),
    /// The answer to the question of this number.
    Answer(u64, ApprovalAnswer),
    /// Nobody takes the output any more.
    OutputClosed,
    /// Whoever asked for the run was killed.
    CallerGone,
}

/// What became of a run's command.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) ending: Ending,
    /// Limits that refused single requests.
    pub(crate) limits_hit: Vec<LimitHit>,
    pub(crate) capture: Capture,
    pub(crate) output_tail: OutputTail,
    /// Whether the user was told that the gateway was lost.
    pub(crate) has_told_of_loss: bool,
}

/// When so much waits to be passed on, no more output is taken from the sandbox.
const MAX_PENDING: usize = 1024 * 1024;

/// How long passing on the rest may take after the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after its command a run may go on for what was begun and is not finished (`Sandbox::is_finishing`).
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// `SIGPIPE`, `SIGINT` and the like: the signals of job control that end things.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A run's command, with the streams that it is for.
pub(crate) struct RunClient<'a> {
    io: &'a mut dyn ExecIo,
    exec: ExecId,
    limits: &'a Limits,
    deadline: Option<Instant>,
    /// Whether its streams are a terminal.
    has_terminal: bool,
    takes_input: bool,
    output_bytes: u64,
    interrupted: bool,
    is_closed: bool,
    capture: Capture,
    output_tail: OutputTail,
    has_told_of_loss: bool,
}

impl<'a> RunClient<'a> {
    pub(crate) fn new(
        io: &'a mut dyn ExecIo,
        exec: ExecId,
        limits: &'a Limits,
        started: Instant,
        capture: Capture,
    ) -> Self {
        Self {
            io,
            exec,
            limits,
            deadline: limits.wall_time.map(|wall| started + Duration::from_millis(wall.0)),
            has_terminal: false,
            takes_input: true,
            output_bytes: 0,
            interrupted: false,
            is_closed: false,
            capture,
            output_tail: OutputTail::default(),
            has_told_of_loss: false,
        }
    }

    /// The same with a terminal, or not.
    #[must_use]
    pub(crate) fn on_terminal(self, has_terminal: bool) -> Self {
        Self { has_terminal, ..self }
    }

    /// Serves the command until it has ended, for whichever reason, and its output was passed on. Whenever nothing else is
    /// to be done, the `chore` is.
    ///
    /// # Errors
    /// When the sandbox or the streams fail.
    pub(crate) fn run(
        mut self,
        running: &mut RunningSandbox,
        chore: &mut dyn FnMut() -> bool,
    ) -> Result<RunOutcome, IsolationError> {
        let LoopEnd { ending, limits_hit } = SandboxLoop::new(running).with_chore(chore).settling().run(&mut self)?;
        self.io.withdraw();
        self.is_closed = ending == Ending::OutputClosed;
        linger(&mut self, Instant::now() + FLUSH_TIMEOUT)?;
        if matches!(ending, Ending::Command(_)) {
            finish(running, Instant::now() + FINISH_TIMEOUT)?;
        }
        Ok(RunOutcome {
            ending,
            limits_hit,
            capture: self.capture,
            output_tail: self.output_tail,
            has_told_of_loss: self.has_told_of_loss,
        })
    }

    /// How much input is taken from whoever gives it.
    fn input_window(&self, sandbox: &dyn Sandbox) -> usize {
        match self.takes_input {
            true => sandbox.input_window(self.exec),
            false => 0,
        }
    }

    fn pass_on(&mut self, held: &mut LoopSandbox<'_>, stream: OutputStream, mut bytes: Vec<u8>) {
        if let Some(limit) = self.limits.output {
            let left = usize::try_from(limit.0.saturating_sub(self.output_bytes)).unwrap_or(usize::MAX);
            if bytes.len() > left {
                bytes.truncate(left);
                held.end(killed(LimitName::Output, limit.0));
            }
        }
        self.output_bytes += bytes.len() as u64;
        self.capture.take(stream, &bytes);
        self.output_tail.take(stream, &bytes);
        if !bytes.is_empty() {
            self.io.write(stream, bytes);
        }
    }

    fn turn_io(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        let window = self.input_window(held.sandbox);
        for event in self.io.turn(window).map_err(io_failure)? {
            match event {
                ExecIoEvent::Input(bytes) => held.sandbox.input(self.exec, &bytes)?,
                ExecIoEvent::EndOfInput => {
                    self.takes_input = false;
                    held.sandbox.close_input(self.exec)?;
                }
                ExecIoEvent::Signal(signal) => self.signal(held, signal)?,
                ExecIoEvent::Resize(size) => held.sandbox.resize(self.exec, size)?,
                ExecIoEvent::Answer(id, approval) => held.answer(id, approval),
                ExecIoEvent::OutputClosed => held.end(Ending::OutputClosed),
                ExecIoEvent::CallerGone => held.end(Ending::Interrupted { signal: SIGKILL }),
            }
        }
        Ok(())
    }

    /// The first interrupt asks, the second kills.
    fn signal(&mut self, held: &mut LoopSandbox<'_>, signal: i32) -> Result<(), IsolationError> {
        let asks = matches!(signal, SIGINT | SIGHUP | 3 | SIGTERM);
        if asks && self.interrupted {
            held.end(Ending::Interrupted { signal });
            return Ok(());
        }
        self.interrupted |= asks;
        held.sandbox.signal(self.exec, signal)?;
        match self.has_terminal && signal == SIGTERM {
            // Shells at a terminal pass over the one, and end by the other: their terminal goes.
            true => held.sandbox.signal(self.exec, SIGHUP),
            false => Ok(()),
        }
    }

    fn check_wall_time(&self, held: &mut LoopSandbox<'_>) {
        if let (Some(deadline), Some(wall)) = (self.deadline, self.limits.wall_time)
            && Instant::now() >= deadline
        {
            held.end(killed(LimitName::WallTime, wall.0));
        }
    }
}

fn killed(limit: LimitName, value: u64) -> Ending {
    Ending::Limit(LimitHit {
        limit,
        value,
        effect: LimitEffect::Killed,
    })
}

impl SandboxClient for RunClient<'_> {
    type Source = ();

    fn wait_on<'c>(&'c self, sandbox: &dyn Sandbox, waiting: &mut WaitList<'c, ()>) {
        for (descriptor, flags) in self.io.interests(self.input_window(sandbox) > 0) {
            waiting.add((), descriptor, flags);
        }
    }

    fn takes_output(&self) -> bool {
        self.io.pending() < MAX_PENDING
    }

    fn next_turn(&self) -> Option<Instant> {
        self.deadline
    }

    fn exec_event(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, event: ExecEvent) {
        if exec != self.exec {
            return;
        }
        match event {
            ExecEvent::Started { .. } | ExecEvent::InputTaken { .. } => {}
            ExecEvent::Output { stream, bytes } => self.pass_on(held, stream, bytes),
            ExecEvent::Ended(ExecEnd::Lost) => held.end(Ending::Lost),
            ExecEvent::Ended(end) => held.end(Ending::Command(end)),
        }
    }

    fn alert(&mut self, _held: &mut LoopSandbox<'_>, alert: &AlertRecord) {
        if alert.action > MonitorAction::Log {
            self.io.note(&alert.line());
        }
    }

    fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        self.io.ask(question)
    }

    fn withdraw(&mut self) {
        self.io.withdraw();
    }

    fn network_lost(&mut self, line: String) {
        self.has_told_of_loss = true;
        self.io.note(&line);
    }

    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        self.turn_io(held)?;
        self.check_wall_time(held);
        Ok(())
    }
}

impl Lingering for RunClient<'_> {
    fn left(&self) -> Vec<PollFd<'_>> {
        let interests = self.io.interests(false).into_iter();
        interests
            .map(|(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags))
            .collect()
    }

    fn pass_rest(&mut self) -> Result<bool, IsolationError> {
        if self.is_closed || self.io.pending() == 0 {
            return Ok(false);
        }
        let events = self.io.turn(0).map_err(io_failure)?;
        let gives_up = |event: &ExecIoEvent| {
            matches!(
                event,
                ExecIoEvent::OutputClosed | ExecIoEvent::Signal(_) | ExecIoEvent::CallerGone
            )
        };
        Ok(!events.iter().any(gives_up) && self.io.pending() > 0)
    }
}

fn io_failure(source: io::Error) -> IsolationError {
    if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return IsolationError::OutputFull { source };
    }
    IsolationError::Running {
        action: "use the terminal",
        source,
    }
}
