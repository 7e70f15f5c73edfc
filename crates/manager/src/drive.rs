//! Carries one execution from start to end: output out, input and signals in, limits kept.
//!
//! The other side is a [`Door`]: the terminal of a command line, later the stream of a server. Nothing here prints.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, ExecEvent, OutputStream, TerminalSize};
use offleash_core::limits::{LimitName, Limits};
use offleash_core::network::{Approval, Question};
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_gateway::{Gateway, Notice, Questions};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Interest, Sandbox, SandboxEvent};
use offleash_sys::process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::capture::Capture;
use crate::last_words::LastWords;

/// Where an execution's output goes, and its input and signals come from.
pub trait Door {
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
    fn turn(&mut self, window: usize) -> io::Result<Vec<DoorEvent>>;

    /// Puts a question about a connection to whoever is there. It must not block: the answer comes as
    /// [`DoorEvent::Answer`], or at once. There is no other question until it is answered or withdrawn.
    fn ask(&mut self, question: Question) -> Option<Approval>;

    /// No question needs an answer any more.
    fn withdraw(&mut self);
}

/// What comes in through a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoorEvent {
    /// Bytes for the command's input.
    Input(Vec<u8>),
    /// No input follows.
    EndOfInput,
    /// A signal for the command.
    Signal(i32),
    /// The terminal changed its size.
    Resize(TerminalSize),
    /// The answer to the question of this number.
    Answer(u64, Approval),
    /// Nobody takes the output any more.
    OutputClosed,
    /// Whoever asked for the run was killed.
    CallerGone,
}

/// How an execution ended, before the sandbox's own record is consulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended by itself.
    Command(ExecEnd),
    /// We ended it because of a limit.
    Limit(LimitHit),
    /// The user interrupted it twice.
    Interrupted { signal: i32 },
    /// Nobody takes the output any more.
    OutputClosed,
    /// The gateway of its network has ended by itself.
    NetworkLost,
}

/// What a drive found out.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) ending: Ending,
    /// Limits that refused single requests.
    pub(crate) limits_hit: Vec<LimitHit>,
    pub(crate) capture: Capture,
    pub(crate) last_words: LastWords,
}

/// What an execution has come to until now.
#[derive(Debug, Default)]
struct Found {
    ending: Option<Ending>,
    limits_hit: Vec<LimitHit>,
}

impl Found {
    /// The first ending counts; what follows is its consequence.
    fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    fn hit(&mut self, hit: LimitHit) {
        // What was changed is too much also when the command has ended before it was found: nobody is told again.
        let is_to_be_kept = hit.effect != LimitEffect::Killed || (self.ending.is_some() && hit.limit.is_of_changes());
        match is_to_be_kept {
            true if self.limits_hit.contains(&hit) => {}
            true => self.limits_hit.push(hit),
            false => self.end(Ending::Limit(hit)),
        }
    }
}

/// When a door keeps this much, no more output is taken from the sandbox.
const MOST_PENDING: usize = 1024 * 1024;

/// How long a door may take, after the end, to pass on what it keeps.
const FLUSH_TIME: Duration = Duration::from_secs(10);

/// After this time a run is long enough to give back what only its start needed.
const SETTLED: Duration = Duration::from_millis(500);

/// `SIGPIPE`, `SIGINT` and the like: the signals of job control that end things.
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

pub(crate) struct Drive<'a> {
    sandbox: &'a mut dyn Sandbox,
    door: &'a mut dyn Door,
    exec: ExecId,
    limits: &'a Limits,
    deadline: Option<Instant>,
    takes_input: bool,
    output_bytes: u64,
    /// When memory that only the start needed is given back; `None` afterwards.
    settles: Option<Instant>,
    interrupted: bool,
    found: Found,
    capture: Capture,
    last_words: LastWords,
    /// Does a little of what can wait, while there is nothing to wait for; says whether there is more.
    chore: Option<&'a mut dyn FnMut() -> bool>,
    /// What the gateway asks.
    questions: Option<&'a Questions>,
    gateway: Option<&'a Gateway>,
}

impl<'a> Drive<'a> {
    pub(crate) fn new(
        sandbox: &'a mut dyn Sandbox,
        door: &'a mut dyn Door,
        exec: ExecId,
        limits: &'a Limits,
        started: Instant,
        capture: Capture,
    ) -> Self {
        let deadline = limits.wall_time.map(|wall| started + Duration::from_millis(wall.0));
        Self {
            sandbox,
            door,
            exec,
            limits,
            deadline,
            takes_input: true,
            output_bytes: 0,
            settles: Some(Instant::now() + SETTLED),
            interrupted: false,
            found: Found::default(),
            capture,
            last_words: LastWords::default(),
            chore: None,
            questions: None,
            gateway: None,
        }
    }

    /// Gives it something to do in small pieces whenever nothing else is to be done.
    pub(crate) fn with_chore(self, chore: &'a mut dyn FnMut() -> bool) -> Self {
        Self {
            chore: Some(chore),
            ..self
        }
    }

    /// Gives it what the gateway asks, to be put to the door.
    pub(crate) fn with_questions(self, questions: Option<&'a Questions>) -> Self {
        Self { questions, ..self }
    }

    /// Ends the execution when this gateway has ended before it: a command that is cut off from its network does not go
    /// on as if nothing had happened.
    pub(crate) fn with_gateway(self, gateway: Option<&'a Gateway>) -> Self {
        Self { gateway, ..self }
    }

    /// Drives until the execution has ended, for whichever reason.
    pub(crate) fn run(mut self) -> Result<Driven, IsolationError> {
        while self.found.ending.is_none() {
            self.wait()?;
            self.turn_sandbox()?;
            self.turn_questions();
            self.turn_door()?;
            self.check_wall_time();
            self.check_gateway();
            self.settle();
        }
        self.door.withdraw();
        self.flush()?;
        let Some(ending) = self.found.ending else {
            return Err(IsolationError::Guest {
                reason: "the execution has no end".to_owned(),
            });
        };
        Ok(Driven {
            ending,
            limits_hit: self.found.limits_hit,
            capture: self.capture,
            last_words: self.last_words,
        })
    }

    fn takes_output(&self) -> bool {
        self.door.pending() < MOST_PENDING
    }

    fn wait(&mut self) -> Result<(), IsolationError> {
        let take_input = self.takes_input && self.sandbox.input_window(self.exec) > 0;
        let mut waiting: Vec<PollFd<'_>> = Vec::with_capacity(8);
        let sandbox = self.sandbox.wait_on(self.takes_output());
        waiting.extend(sandbox.iter().map(what_is_awaited));
        if let Some(gateway) = self.gateway {
            waiting.push(PollFd::from_borrowed_fd(gateway.lives(), PollFlags::empty()));
        }
        for (descriptor, flags) in self.door.interests(take_input) {
            waiting.push(PollFd::from_borrowed_fd(descriptor, flags));
        }
        waiting.extend(self.questions.map(|questions| PollFd::new(questions, PollFlags::IN)));
        let until = self.deadline.map_or(self.sandbox.next_turn(), |deadline| {
            deadline.min(self.sandbox.next_turn())
        });
        while let Some(chore) = self.chore.as_mut() {
            let now = Instant::now();
            if now >= until || poll_until(&mut waiting, now)? {
                return Ok(());
            }
            if !chore() {
                self.chore = None;
            }
        }
        poll_until(&mut waiting, until).map(|_| ())
    }

    fn turn_sandbox(&mut self) -> Result<(), IsolationError> {
        for event in self.sandbox.turn(self.takes_output())? {
            match event {
                SandboxEvent::Exec { exec, event } if exec == self.exec => self.take(event),
                SandboxEvent::Exec { .. } => {}
                SandboxEvent::Limit(hit) => self.found.hit(hit),
                SandboxEvent::Gone => self.end(Ending::Command(ExecEnd::Lost)),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: ExecEvent) {
        match event {
            ExecEvent::Started { .. } | ExecEvent::InputTaken { .. } => {}
            ExecEvent::Output { stream, bytes } => self.pass_on(stream, bytes),
            ExecEvent::Ended(end) => self.end(Ending::Command(end)),
        }
    }

    fn pass_on(&mut self, stream: OutputStream, mut bytes: Vec<u8>) {
        if let Some(limit) = self.limits.output {
            let left = usize::try_from(limit.0.saturating_sub(self.output_bytes)).unwrap_or(usize::MAX);
            if bytes.len() > left {
                bytes.truncate(left);
                self.end(Ending::Limit(LimitHit {
                    limit: LimitName::Output,
                    value: limit.0,
                    effect: LimitEffect::Killed,
                }));
            }
        }
        self.output_bytes += bytes.len() as u64;
        self.capture.take(stream, &bytes);
        self.last_words.take(stream, &bytes);
        if !bytes.is_empty() {
            self.door.write(stream, bytes);
        }
    }

    /// A command whose gateway has ended may be heard of first, since it sees its connections close.
    fn end(&mut self, ending: Ending) {
        let ending = match ending {
            Ending::Command(_) if self.gateway.is_some_and(Gateway::has_ended) => Ending::NetworkLost,
            ending => ending,
        };
        self.found.end(ending);
    }

    /// Puts to the door what the gateway asks.
    fn turn_questions(&mut self) {
        let Some(questions) = self.questions else { return };
        for notice in questions.take() {
            match notice {
                Notice::Asked(question) => {
                    let id = question.id;
                    if let Some(approval) = self.door.ask(question) {
                        questions.answer(id, approval);
                    }
                }
                Notice::Withdrawn(_) => self.door.withdraw(),
            }
        }
    }

    fn turn_door(&mut self) -> Result<(), IsolationError> {
        let window = if self.takes_input {
            self.sandbox.input_window(self.exec)
        } else {
            0
        };
        let events = self.door.turn(window).map_err(door_failure)?;
        for event in events {
            match event {
                DoorEvent::Input(bytes) => self.sandbox.input(self.exec, &bytes)?,
                DoorEvent::EndOfInput => {
                    self.takes_input = false;
                    self.sandbox.close_input(self.exec)?;
                }
                DoorEvent::Signal(signal) => self.signal(signal)?,
                DoorEvent::Resize(size) => self.sandbox.resize(self.exec, size)?,
                DoorEvent::Answer(id, approval) => {
                    if let Some(questions) = self.questions {
                        questions.answer(id, approval);
                    }
                }
                DoorEvent::OutputClosed => self.end(Ending::OutputClosed),
                DoorEvent::CallerGone => self.end(Ending::Interrupted { signal: SIGKILL }),
            }
        }
        Ok(())
    }

    /// The first interrupt asks, the second kills.
    fn signal(&mut self, signal: i32) -> Result<(), IsolationError> {
        let asks = matches!(signal, SIGINT | 1 | 3 | 15);
        if asks && self.interrupted {
            self.end(Ending::Interrupted { signal });
            return Ok(());
        }
        self.interrupted |= asks;
        self.sandbox.signal(self.exec, signal)
    }

    fn check_gateway(&mut self) {
        if self.gateway.is_some_and(Gateway::has_ended) {
            self.end(Ending::NetworkLost);
        }
    }

    fn check_wall_time(&mut self) {
        if let (Some(deadline), Some(wall)) = (self.deadline, self.limits.wall_time)
            && Instant::now() >= deadline
        {
            self.end(Ending::Limit(LimitHit {
                limit: LimitName::WallTime,
                value: wall.0,
                effect: LimitEffect::Killed,
            }));
        }
    }

    fn settle(&mut self) {
        if self.settles.is_some_and(|settles| Instant::now() >= settles) {
            self.settles = None;
            process::release_memory_of_start();
        }
    }

    /// Passes on what the door still keeps.
    fn flush(&mut self) -> Result<(), IsolationError> {
        let deadline = Instant::now() + FLUSH_TIME;
        while self.door.pending() > 0 && self.found.ending != Some(Ending::OutputClosed) && Instant::now() < deadline {
            let mut waiting: Vec<PollFd<'_>> = Vec::with_capacity(4);
            for (descriptor, flags) in self.door.interests(false) {
                waiting.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
            let _is_ready = poll_until(&mut waiting, deadline)?;
            let events = self.door.turn(0).map_err(door_failure)?;
            if events.iter().any(|event| {
                matches!(
                    event,
                    DoorEvent::OutputClosed | DoorEvent::Signal(_) | DoorEvent::CallerGone
                )
            }) {
                break;
            }
        }
        Ok(())
    }
}

/// Lets a sandbox finish what was begun for a program that has ended, until `deadline`.
pub(crate) fn finish(sandbox: &mut dyn Sandbox, deadline: Instant) -> Result<(), IsolationError> {
    while sandbox.is_finishing() && Instant::now() < deadline {
        let interests = sandbox.wait_on(false);
        let mut waiting: Vec<PollFd<'_>> = interests.iter().map(what_is_awaited).collect();
        poll_until(&mut waiting, sandbox.next_turn().min(deadline))?;
        drop(waiting);
        let events = sandbox.turn(false)?;
        if events.iter().any(|event| matches!(event, SandboxEvent::Gone)) {
            break;
        }
    }
    Ok(())
}

/// What to wait for on a descriptor of a sandbox.
pub(crate) fn what_is_awaited<'a>(interest: &Interest<'a>) -> PollFd<'a> {
    let flags = if interest.writable {
        PollFlags::IN | PollFlags::OUT
    } else {
        PollFlags::IN
    };
    PollFd::from_borrowed_fd(interest.descriptor, flags)
}

/// Waits until one of `waiting` is ready or `until` has come; says whether one is.
pub(crate) fn poll_until(waiting: &mut [PollFd<'_>], until: Instant) -> Result<bool, IsolationError> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match rustix::event::poll(waiting, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(IsolationError::Running {
            action: "wait for the sandbox",
            source: error.into(),
        }),
    }
}

fn door_failure(source: io::Error) -> IsolationError {
    if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return IsolationError::OutputFull { source };
    }
    IsolationError::Running {
        action: "use the terminal",
        source,
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::limits::LimitName;

    use super::*;

    fn killed(limit: LimitName) -> LimitHit {
        LimitHit {
            limit,
            value: 1,
            effect: LimitEffect::Killed,
        }
    }

    #[test]
    fn too_many_changes_are_told_also_when_they_are_found_as_the_command_ends() {
        let ended = || Ending::Command(ExecEnd::Exited { code: 0 });
        let found = |limit: LimitName| {
            let mut found = Found::default();
            found.end(ended());
            found.hit(killed(limit));
            found.hit(killed(limit));
            (found.ending, found.limits_hit)
        };
        assert_eq!(
            found(LimitName::Workspace),
            (Some(ended()), vec![killed(LimitName::Workspace)])
        );
        assert_eq!(found(LimitName::Memory), (Some(ended()), Vec::new()));
    }

    #[test]
    fn the_first_ending_counts() {
        let mut found = Found::default();
        found.hit(killed(LimitName::Workspace));
        found.end(Ending::Command(ExecEnd::Lost));
        found.hit(killed(LimitName::Memory));
        assert_eq!(found.ending, Some(Ending::Limit(killed(LimitName::Workspace))));
        assert_eq!(found.limits_hit, Vec::new());
    }
}
