//! The ends of a run: standard streams, signals, and raw mode.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::exec::{OutputStream, TerminalSize};
use offleash_supervisor::prewarmed::Caller;
use offleash_supervisor::run_client::{ExecIo, ExecIoEvent};
use offleash_sys::signals::{PASSED_ON, SignalQueue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios};

use super::complain;
use super::neutral::Neutralizer;
use super::prompt::Prompt;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;
const SIGWINCH: i32 = 28;

/// What a pipe surely takes without blocking once it is writable (pipe(7), `PIPE_BUF`).
const PIPE_ATOMIC: usize = 4096;

/// Where the command's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To our standard streams.
    Streams,
    /// Nowhere: it is only captured.
    Nowhere,
}

/// The user's standard streams and signals.
#[derive(Debug)]
pub(crate) struct TerminalIo {
    signals: Signals,
    destination: Destination,
    input: InputState,
    stdout: Outlet,
    stderr: Outlet,
    /// Before the raw mode, since an open question puts back what it found.
    prompt: Prompt,
    raw: Option<RawMode>,
    /// Whether standard input is a terminal, whose keys belong to a question while it is open.
    has_keys: bool,
    /// Whether a question may have covered what the command drew.
    is_covered: bool,
}

/// From where signals come.
#[derive(Debug)]
enum Signals {
    /// They are sent to this process.
    Own(SignalQueue),
    /// They are sent to the process that handed its run over, which passes them on.
    Passed(Caller),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputState {
    Open,
    Closed,
}

impl TerminalIo {
    /// Opens them; with `tty`, the terminal's keys go to the command as they are.
    ///
    /// # Errors
    /// When signals cannot be queued or the terminal cannot be set.
    pub(crate) fn open(destination: Destination, tty: bool, prompt: Prompt) -> io::Result<Self> {
        let signals = Signals::Own(SignalQueue::new(&PASSED_ON)?);
        Self::with(signals, destination, tty, prompt)
    }

    /// Opens those of a run that another process handed over, whose standard streams are this one's now.
    pub(crate) fn for_another(destination: Destination, prompt: Prompt, caller: Caller) -> io::Result<Self> {
        Self::with(Signals::Passed(caller), destination, false, prompt)
    }

    fn with(signals: Signals, destination: Destination, tty: bool, prompt: Prompt) -> io::Result<Self> {
        let raw = if tty && io::stdin().is_terminal() {
            Some(RawMode::enter()?)
        } else {
            None
        };
        let (stdout, stderr) = (
            Outlet::new(io::stdout().is_terminal() && !tty),
            Outlet::new(io::stderr().is_terminal() && !tty),
        );
        Ok(Self {
            signals,
            destination,
            input: InputState::Open,
            stdout,
            stderr,
            prompt,
            raw,
            has_keys: io::stdin().is_terminal(),
            is_covered: false,
        })
    }

    /// The size of the user's terminal.
    pub(crate) fn size() -> Option<TerminalSize> {
        let size = [io::stdout().as_fd(), io::stdin().as_fd(), io::stderr().as_fd()]
            .into_iter()
            .find_map(|stream| rustix::termios::tcgetwinsize(stream).ok())?;
        Some(TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        })
    }

    /// Puts the terminal back and shows what was held back.
    pub(crate) fn close(mut self) {
        self.prompt.withdraw();
        self.stdout.finish();
        self.stderr.finish();
        // What is left goes out now or never; a reader that is gone is no failure of the command's.
        let _left = self.stdout.write_to(io::stdout().as_fd());
        let _left = self.stderr.write_to(io::stderr().as_fd());
        drop(self.raw.take());
    }

    fn takes_input(&self) -> bool {
        self.input == InputState::Open && !(self.has_keys && self.prompt.is_open())
    }

    fn read_input(&mut self, window: usize) -> io::Result<Option<ExecIoEvent>> {
        // Not zeroed: most of it is never touched.
        let mut buffer = Vec::with_capacity(window.min(64 * 1024));
        match rustix::io::read(io::stdin(), rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(0) => {
                self.input = InputState::Closed;
                Ok(Some(ExecIoEvent::EndOfInput))
            }
            Ok(_) => {
                buffer.shrink_to_fit();
                Ok(Some(ExecIoEvent::Input(buffer)))
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            // No standard input at all, or a terminal that does not belong to us now (background job).
            Err(Errno::BADF | Errno::IO) => {
                self.input = InputState::Closed;
                Ok(Some(ExecIoEvent::EndOfInput))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read_signals(&mut self, events: &mut Vec<ExecIoEvent>) -> io::Result<()> {
        loop {
            let signal = match &mut self.signals {
                Signals::Own(queue) => queue.next()?,
                Signals::Passed(caller) => match caller.signal() {
                    Err(_) => {
                        events.push(ExecIoEvent::CallerGone);
                        return Ok(());
                    }
                    passed => passed?,
                },
            };
            let Some(signal) = signal else { return Ok(()) };
            if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
                events.extend(self.prompt.deny().map(answered));
            }
            match signal {
                SIGWINCH => events.extend(Self::size().map(ExecIoEvent::Resize)),
                SIGPIPE => {}
                signal => events.push(ExecIoEvent::Signal(signal)),
            }
        }
    }
}

impl ExecIo for TerminalIo {
    fn interests(&self, take_input: bool) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let signals = match &self.signals {
            Signals::Own(queue) => queue.as_fd(),
            Signals::Passed(caller) => caller.as_fd(),
        };
        let mut interests = vec![(signals, PollFlags::IN)];
        interests.extend(self.prompt.interest());
        if take_input && self.takes_input() {
            interests.push((stdin(), PollFlags::IN));
        }
        for (outlet, stream) in [(&self.stdout, stdout()), (&self.stderr, stderr())] {
            if !outlet.waiting.is_empty() && !self.prompt.is_open() {
                interests.push((stream, PollFlags::OUT));
            }
        }
        interests
    }

    fn note(&mut self, line: &str) {
        // A raw terminal does not go back to its left edge by itself.
        let end = if self.raw.is_some() { "\r" } else { "" };
        complain(&format!("offleash: {line}{end}"));
    }

    fn write(&mut self, stream: OutputStream, bytes: Vec<u8>) {
        if self.destination == Destination::Streams {
            match stream {
                OutputStream::Stdout => self.stdout.take(&bytes),
                OutputStream::Stderr => self.stderr.take(&bytes),
            }
        }
    }

    fn pending(&self) -> usize {
        self.stdout.waiting.len() + self.stderr.waiting.len()
    }

    fn turn(&mut self, window: usize) -> io::Result<Vec<ExecIoEvent>> {
        let mut events = Vec::new();
        self.read_signals(&mut events)?;
        events.extend(self.prompt.turn().map(answered));
        if window > 0 && self.takes_input() && is_ready(stdin(), PollFlags::IN) {
            events.extend(self.read_input(window)?);
        }
        // What the command writes waits, so that nothing of it stands beside the question.
        if self.prompt.is_open() {
            return Ok(events);
        }
        if std::mem::take(&mut self.is_covered) {
            // A command that draws by itself draws anew.
            events.push(ExecIoEvent::Signal(SIGWINCH));
        }
        for (name, outcome) in [
            ("standard output", self.stdout.write_to(stdout())),
            ("standard error", self.stderr.write_to(stderr())),
        ] {
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => events.push(ExecIoEvent::OutputClosed),
                outcome => outcome.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?,
            }
        }
        Ok(events)
    }

    fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        let answer = self.prompt.ask(question);
        self.is_covered = answer.is_none() && self.raw.is_some();
        answer
    }

    fn withdraw(&mut self) {
        self.prompt.withdraw();
    }
}

fn answered((question, approval): (u64, ApprovalAnswer)) -> ExecIoEvent {
    ExecIoEvent::Answer(question, approval)
}

fn stdin() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

fn stdout() -> BorrowedFd<'static> {
    rustix::stdio::stdout()
}

fn stderr() -> BorrowedFd<'static> {
    rustix::stdio::stderr()
}

fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut waiting = [rustix::event::PollFd::from_borrowed_fd(descriptor, flags)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(count) if count > 0)
}

/// One of our output streams, which may be slow.
#[derive(Debug)]
struct Outlet {
    waiting: VecDeque<u8>,
    neutralizer: Option<Neutralizer>,
}

impl Outlet {
    fn new(neutral: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            neutralizer: neutral.then(Neutralizer::default),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.neutralizer {
            Some(neutralizer) => self.waiting.extend(neutralizer.filter(bytes)),
            None => self.waiting.extend(bytes),
        }
    }

    fn finish(&mut self) {
        if let Some(neutralizer) = &mut self.neutralizer {
            self.waiting.extend(neutralizer.finish());
        }
    }

    /// Writes what the stream takes without blocking.
    ///
    /// The stream is left in blocking mode, since it may be shared with other programs; instead no more is written at
    /// once than a writable pipe has room for.
    fn write_to(&mut self, stream: BorrowedFd<'_>) -> io::Result<()> {
        while !self.waiting.is_empty() && is_ready(stream, PollFlags::OUT) {
            let (front, _) = self.waiting.as_slices();
            let piece = front.get(..front.len().min(PIPE_ATOMIC)).unwrap_or_default();
            match rustix::io::write(stream, piece) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::BADF | Errno::IO) => {
                    self.waiting.clear();
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The terminal in raw mode, until dropped.
#[derive(Debug)]
struct RawMode {
    before: Termios,
}

impl RawMode {
    fn enter() -> io::Result<Self> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _restored = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
