//! The host's end of a guest: requests to it, events from it, and the system calls that the filter refuses inside.
//!
//! Every sandbox whose work a guest does has one of these. Deliberately not here: how the guest was started, limits,
//! and how it is killed; those differ from level to level.

mod denials;
mod renames;
mod reservations;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, OutputStream, StartFailure, Stdin, TerminalSize, UserIds};
use offleash_core::plan::Plan;
use offleash_core::record::DenialRecord;
use offleash_protocol::{self as protocol, FromGuest, MessageDecoder, ToGuest};
use offleash_sys::seccomp::{CallNotification, MemoryFigures, NotifyListener};
use offleash_sys::socket;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Pid;

use self::denials::{DenialCounts, is_observation};
use self::renames::PendingRenames;
use crate::error::IsolationError;
use crate::limits::COMMAND_OOM_SCORE;
use crate::sandbox::{ActivityMeasure, DescriptorInterest, ExecId, SandboxEvent};

/// The most bytes taken from the guest in one turn, so that signals and limits get their turn too.
const TURN_BYTES: usize = 1024 * 1024;

/// The most refused calls answered in one turn, so that a program that does nothing but ask cannot keep us.
const TURN_CALLS: usize = 64;

/// Carries out, or admits, calls that the filter leaves to the supervisor.
pub(crate) trait CallMediator: std::fmt::Debug {
    /// Whether the sandbox may have one more process or thread.
    fn admits_process(&mut self) -> bool;

    /// What came of the call; `None` if it is not to be.
    fn carry_out(&mut self, call: &CallNotification, listener: &NotifyListener) -> Option<Result<(), Errno>>;
}

/// A connection to a guest.
#[derive(Debug)]
pub(crate) struct GuestLink {
    /// `None` after we hung up.
    control: Option<OwnedFd>,
    listener: Option<Arc<NotifyListener>>,
    /// Those of processes that the guest has not started.
    further_listeners: Vec<Arc<NotifyListener>>,
    /// Nothing is left to be heard at them; the kernel takes its time to close one, at a moment of the owner's choice.
    closed: Vec<Arc<NotifyListener>>,
    decoder: MessageDecoder<FromGuest>,
    /// Bytes that the guest has not taken yet.
    outbox: Vec<u8>,
    /// What goes with the byte of `outbox` at this place, in order.
    attached: VecDeque<(usize, OwnedFd)>,
    execs: HashMap<u32, LinkedExec>,
    next_exec: u32,
    /// The guest's last measurement that nobody has asked for yet.
    report: Option<protocol::SandboxUsage>,
    denials: DenialCounts,
    /// Whether the guest speaks our version; nothing else it says counts before.
    greeted: bool,
    gone: bool,
    /// Whether an execution ended with anything but success.
    failed: bool,
    /// What the guest is to set for each command.
    oom_score: Option<i16>,
    mediator: Option<Box<dyn CallMediator>>,
    /// Where the filter offers renamings.
    renames: Option<PendingRenames>,
    /// Whether a process was not admitted since somebody asked.
    put_off: bool,
    /// What programs are told that ask how much memory there is.
    memory: Option<MemoryFigures>,
    /// Whether a process was let reserve more than its limit of data.
    has_made_room: bool,
}

#[derive(Debug)]
struct LinkedExec {
    unacknowledged: usize,
}

impl GuestLink {
    /// A link over the guest's control socket; `listener` is where refused calls arrive.
    pub(crate) fn new(control: OwnedFd, listener: Option<OwnedFd>) -> Self {
        Self {
            control: Some(control),
            listener: listener.map(NotifyListener::from).map(Arc::new),
            further_listeners: Vec::new(),
            closed: Vec::new(),
            decoder: MessageDecoder::new(),
            outbox: Vec::new(),
            attached: VecDeque::new(),
            execs: HashMap::new(),
            next_exec: 1,
            report: None,
            denials: DenialCounts::default(),
            greeted: false,
            gone: false,
            failed: false,
            oom_score: Some(COMMAND_OOM_SCORE),
            mediator: None,
            renames: None,
            put_off: false,
            memory: None,
            has_made_room: false,
        }
    }

    /// The same with somebody who carries out what the filter leaves to us.
    pub(crate) fn mediated_by(self, mediator: impl CallMediator + 'static) -> Self {
        Self {
            mediator: Some(Box::new(mediator)),
            ..self
        }
    }

    /// The same with workers of the guest for renamings of directories that an overlay does not do.
    pub(crate) fn renaming(self, first: Pid, plan: &Plan) -> Self {
        self.listener.iter().for_each(|listener| listener.take_turns());
        Self {
            renames: Some(PendingRenames::new(first, plan)),
            ..self
        }
    }

    /// The same without a score of each command's own for when memory runs out.
    pub(crate) fn without_oom_score(self) -> Self {
        Self {
            oom_score: None,
            ..self
        }
    }

    /// Takes note of what programs are told that ask how much memory there is, where that is ours to say.
    pub(crate) fn show_memory(&mut self, figures: Option<MemoryFigures>) {
        self.memory = figures.or(self.memory);
    }

    /// Whether a process was let reserve more than its limit of data.
    pub(crate) fn has_made_room(&self) -> bool {
        self.has_made_room
    }

    /// Whether the guest has spoken. One that is gone before was perhaps never started.
    pub(crate) fn has_spoken(&self) -> bool {
        self.greeted
    }

    /// Whether nothing more will come from the guest.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    pub(crate) fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        let exec = self.next_exec;
        self.next_exec += 1;
        self.execs.insert(exec, LinkedExec { unacknowledged: 0 });
        let sent = self.send(&ToGuest::Exec(message_of(exec, request, self.oom_score)));
        if sent.is_err() {
            self.execs.remove(&exec);
        }
        sent.map(|()| ExecId(exec))
    }

    /// A number for an execution that is not the guest's.
    pub(crate) fn reserve(&mut self) -> ExecId {
        let exec = self.next_exec;
        self.next_exec += 1;
        ExecId(exec)
    }

    /// Answers calls that are refused to another process of the sandbox, too.
    pub(crate) fn listen_to(&mut self, listener: NotifyListener) {
        self.further_listeners.push(Arc::new(listener));
    }

    /// Whether a directory is being renamed for a program, which may have ended.
    pub(crate) fn is_renaming(&self) -> bool {
        !self.gone && self.renames.as_ref().is_some_and(|renames| !renames.is_idle())
    }

    pub(crate) fn input_window(&self, exec: ExecId) -> usize {
        self.execs
            .get(&exec.0)
            .map_or(0, |state| protocol::INPUT_WINDOW.saturating_sub(state.unacknowledged))
    }

    pub(crate) fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        let Some(state) = self.execs.get_mut(&exec.0) else {
            return Ok(());
        };
        state.unacknowledged += bytes.len();
        self.send(&ToGuest::Input {
            exec: exec.0,
            bytes: bytes.to_vec(),
        })
    }

    pub(crate) fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        self.send(&ToGuest::CloseInput { exec: exec.0 })
    }

    pub(crate) fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        self.send(&ToGuest::Signal {
            exec: exec.0,
            signal,
            group: true,
        })
    }

    pub(crate) fn hold_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        self.send(&ToGuest::HoldOutput { exec: exec.0 })
    }

    pub(crate) fn release_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        self.send(&ToGuest::ReleaseOutput { exec: exec.0 })
    }

    pub(crate) fn resize(&mut self, exec: ExecId, size: TerminalSize) -> Result<(), IsolationError> {
        self.send(&ToGuest::Resize {
            exec: exec.0,
            rows: size.rows,
            columns: size.columns,
        })
    }

    /// As [`Sandbox::open_files`](crate::sandbox::Sandbox::open_files).
    pub(crate) fn open_files(&mut self, user: Option<UserIds>) -> Result<OwnedFd, IsolationError> {
        self.send_with_socket(&ToGuest::Files { user: user.map(ids_of) })
    }

    /// As [`Sandbox::take_tool_calls`](crate::sandbox::Sandbox::take_tool_calls).
    pub(crate) fn take_tool_calls(&mut self) -> Result<OwnedFd, IsolationError> {
        self.send_with_socket(&ToGuest::Tools)
    }

    /// Sends a message that one end of a new socket goes with; answers the other.
    fn send_with_socket(&mut self, message: &ToGuest) -> Result<OwnedFd, IsolationError> {
        let (ours, theirs) = socket::stream_pair().map_err(running("make a socket for the guest"))?;
        self.attached.push_back((self.outbox.len(), theirs));
        let sent = self.send(message);
        if self.gone || self.control.is_none() {
            return Err(IsolationError::Guest {
                reason: "the sandbox is gone".to_owned(),
            });
        }
        sent.map(|()| ours)
    }

    /// Lets those inside run commands as other users of the sandbox, by the guest's program under the name `sudo`.
    pub(crate) fn serve_sudo(&mut self) -> Result<(), IsolationError> {
        let path = protocol::sudo::SOCKET.as_bytes().to_vec();
        self.send(&ToGuest::ServeSudo { path })
    }

    /// As [`Sandbox::wait_on`](crate::sandbox::Sandbox::wait_on).
    pub(crate) fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>> {
        let mut interests = Vec::with_capacity(2);
        let is_awaited = !self.gone && (take_output || !self.outbox.is_empty());
        if let Some(control) = self.control.as_ref().filter(|_| is_awaited) {
            interests.push(DescriptorInterest {
                descriptor: control.as_fd(),
                writable: !self.outbox.is_empty(),
            });
        }
        for listener in self.listener.iter().chain(&self.further_listeners) {
            interests.push(DescriptorInterest {
                descriptor: listener.as_fd(),
                writable: false,
            });
        }
        interests.extend(self.renames.iter().flat_map(PendingRenames::wait_on));
        interests
    }

    /// Passes on what waits, answers refused calls and, with `take_output`, takes in what the guest says.
    pub(crate) fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        let mut events = Vec::new();
        self.flush()?;
        if take_output {
            self.receive(&mut events)?;
        }
        self.answer_refused_calls()?;
        self.advance_renames();
        Ok(events)
    }

    /// Asks the guest what the sandbox holds; the answer comes with a later turn.
    pub(crate) fn ask_for_report(&mut self) -> Result<(), IsolationError> {
        self.send(&ToGuest::Usage)
    }

    /// Whether an execution ended with anything but success, as for want of processes.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a process was not admitted since this was asked last.
    pub(crate) fn take_put_off(&mut self) -> bool {
        std::mem::take(&mut self.put_off)
    }

    /// What the guest measured last, if that is news.
    pub(crate) fn take_report(&mut self) -> Option<protocol::SandboxUsage> {
        self.report.take()
    }

    /// What was refused so far, counted into what else is known.
    pub(crate) fn with_refused(&self, measured: ActivityMeasure) -> ActivityMeasure {
        ActivityMeasure {
            refused_calls: self.denials.calls(),
            strays: self.denials.strays(),
            credentials: self.denials.credentials(),
            ..measured
        }
    }

    /// Closes the control socket, at which the guest kills everything and ends.
    pub(crate) fn hang_up(&mut self) {
        self.gone = true;
        self.control = None;
    }

    /// Answers the last refused calls and says what was refused in all, once everything inside is gone.
    pub(crate) fn finish(&mut self) -> Result<Vec<DenialRecord>, IsolationError> {
        self.hang_up();
        self.answer_refused_calls()?;
        self.renames.iter_mut().for_each(PendingRenames::clear);
        self.closed.extend(self.listener.take());
        self.closed.append(&mut self.further_listeners);
        Ok(std::mem::take(&mut self.denials).into_list())
    }

    fn send(&mut self, message: &ToGuest) -> Result<(), IsolationError> {
        protocol::encode_into(message, &mut self.outbox).map_err(|error| IsolationError::Guest {
            reason: format!("the request does not fit: {error}"),
        })?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), IsolationError> {
        let Some(control) = &self.control else {
            self.outbox.clear();
            self.attached.clear();
            return Ok(());
        };
        while !self.outbox.is_empty() {
            let sent = match self.attached.front() {
                Some((0, descriptor)) => {
                    let one = self.outbox.get(..1).unwrap_or_default();
                    socket::send_now(control.as_fd(), one, &[descriptor.as_fd()])
                }
                Some((place, _)) => send_bytes(control, self.outbox.get(..*place).unwrap_or_default()),
                None => send_bytes(control, &self.outbox),
            };
            match sent {
                Ok(sent) => {
                    if self.attached.front().is_some_and(|(place, _)| *place == 0) {
                        self.attached.pop_front();
                    }
                    self.outbox.drain(..sent);
                    for (place, _) in &mut self.attached {
                        *place = place.saturating_sub(sent);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // What the guest said before it went is still to be read; the end follows there.
                    self.outbox.clear();
                    self.attached.clear();
                }
                Err(error) => return Err(running("send to the guest")(error.into())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, events: &mut Vec<SandboxEvent>) -> Result<(), IsolationError> {
        // Not zeroed: most of it is never touched.
        let mut buffer = Vec::with_capacity(128 * 1024);
        let mut taken = 0;
        while taken < TURN_BYTES && !self.gone {
            let Some(control) = &self.control else { break };
            buffer.clear();
            match rustix::net::recv(
                control,
                rustix::buffer::spare_capacity(&mut buffer),
                RecvFlags::DONTWAIT,
            ) {
                Ok((0, _)) | Err(Errno::CONNRESET) => self.lose(events),
                Ok((length, _)) => {
                    taken += length;
                    self.decoder.push(&buffer);
                    self.decode(events);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(running("receive from the guest")(error.into())),
            }
        }
        Ok(())
    }

    fn decode(&mut self, events: &mut Vec<SandboxEvent>) {
        loop {
            match self.decoder.next() {
                Ok(Some(message)) => self.take(message, events),
                Ok(None) => return,
                // Not our protocol: whatever speaks there is not to be believed in anything.
                Err(_) => return self.lose(events),
            }
        }
    }

    fn lose(&mut self, events: &mut Vec<SandboxEvent>) {
        self.gone = true;
        for (exec, _) in self.execs.drain() {
            events.push(SandboxEvent::Exec {
                exec: ExecId(exec),
                event: ExecEvent::Ended(ExecEnd::Lost),
            });
        }
        events.push(SandboxEvent::Gone);
    }

    fn take(&mut self, message: FromGuest, events: &mut Vec<SandboxEvent>) {
        if !self.greeted {
            match message {
                FromGuest::Ready {
                    version: protocol::VERSION,
                } => self.greeted = true,
                _ => self.lose(events),
            }
            return;
        }
        let (exec, event) = match message {
            FromGuest::Started { exec, pid } => (exec, ExecEvent::Started { pid }),
            FromGuest::Output { exec, stream, bytes } => (
                exec,
                ExecEvent::Output {
                    stream: stream_of(stream),
                    bytes,
                },
            ),
            FromGuest::InputTaken { exec, count } => (exec, self.acknowledge(exec, count)),
            FromGuest::Ended { exec, end, .. } => {
                self.failed |= end != protocol::ExitReport::Exited { code: 0 };
                (exec, ExecEvent::Ended(end_of(end)))
            }
            FromGuest::UsageReport(report) => {
                self.report = Some(report);
                return;
            }
            FromGuest::Ready { .. } | FromGuest::Problem { .. } => return,
        };
        // An execution that we did not start, or that has ended, is an invention of the guest's.
        if !self.execs.contains_key(&exec) {
            return;
        }
        if matches!(event, ExecEvent::Ended(_)) {
            self.execs.remove(&exec);
        }
        events.push(SandboxEvent::Exec {
            exec: ExecId(exec),
            event,
        });
    }

    fn acknowledge(&mut self, exec: u32, count: u32) -> ExecEvent {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if let Some(state) = self.execs.get_mut(&exec) {
            state.unacknowledged = state.unacknowledged.saturating_sub(count);
        }
        ExecEvent::InputTaken { count }
    }

    fn advance_renames(&mut self) {
        let Some(mut renames) = self.renames.take() else {
            return;
        };
        if !renames.is_idle() {
            renames.advance(&mut |socket, user| {
                self.attached.push_back((self.outbox.len(), socket));
                self.send(&ToGuest::Rename { user }).is_ok() && !self.gone
            });
        }
        self.renames = Some(renames);
    }

    fn answer_refused_calls(&mut self) -> Result<(), IsolationError> {
        if let Some(listener) = self.listener.take() {
            let answered = self.answer_calls_of(&listener);
            self.listener = Some(listener);
            answered?;
        }
        for listener in std::mem::take(&mut self.further_listeners) {
            if self.answer_calls_of(&listener)? {
                self.further_listeners.push(listener);
            }
        }
        Ok(())
    }

    /// Answers whether programs are left under the filter.
    fn answer_calls_of(&mut self, listener: &Arc<NotifyListener>) -> Result<bool, IsolationError> {
        for _ in 0..TURN_CALLS {
            let call = match listener.receive() {
                Ok(Some(call)) => call,
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(running("receive a refused system call")(error)),
            };
            if call.offered() {
                let is_taken = self
                    .renames
                    .as_mut()
                    .is_some_and(|renames| renames.take(call.clone(), listener));
                if !is_taken {
                    listener
                        .proceed(&call)
                        .map_err(running("leave a system call to the kernel"))?;
                }
                continue;
            }
            let answered = match &mut self.mediator {
                _ if call.asks_for_memory() => listener.tell_memory(&call, self.memory.as_ref()),
                _ if let Some(bytes) = call.reserves() => {
                    self.has_made_room |= reservations::make_room(listener, &call, bytes);
                    listener.proceed(&call)
                }
                Some(mediator) if call.forks() => {
                    let is_admitted = mediator.admits_process();
                    self.put_off |= !is_admitted;
                    if is_admitted {
                        listener.proceed(&call)
                    } else {
                        listener.postpone(&call)
                    }
                }
                Some(mediator) if call.mediated() => match mediator.carry_out(&call, listener) {
                    Some(outcome) => listener.complete(&call, outcome),
                    None => {
                        self.denials.note(&call, listener);
                        listener.refuse(&call)
                    }
                },
                _ => {
                    self.denials.note(&call, listener);
                    if is_observation(&call) {
                        listener.proceed(&call)
                    } else {
                        listener.refuse(&call)
                    }
                }
            };
            answered.map_err(running("answer a refused system call"))?;
        }
        Ok(true)
    }
}

/// The error of a call on a running sandbox.
pub(crate) fn running(action: &'static str) -> impl FnOnce(io::Error) -> IsolationError {
    move |source| IsolationError::Running { action, source }
}

fn message_of(exec: u32, request: &ExecRequest, oom_score: Option<i16>) -> protocol::ExecCommand {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = |text: &std::ffi::OsString| text.as_bytes().to_vec();
    protocol::ExecCommand {
        exec,
        argv: request.argv.iter().map(bytes).collect(),
        env: request
            .env
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect(),
        cwd: request.cwd.as_os_str().as_bytes().to_vec(),
        stdin: match request.stdin {
            Stdin::Null => protocol::StdinKind::Null,
            Stdin::Stream => protocol::StdinKind::Stream,
        },
        tty: request.tty.map(|size| (size.rows, size.columns)),
        oom_score_adj: oom_score,
        user: request.user.map(ids_of),
    }
}

fn ids_of(user: UserIds) -> protocol::GuestIds {
    protocol::GuestIds {
        uid: user.uid,
        gid: user.gid,
    }
}

fn send_bytes(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn stream_of(stream: protocol::GuestStream) -> OutputStream {
    match stream {
        protocol::GuestStream::Stdout => OutputStream::Stdout,
        protocol::GuestStream::Stderr => OutputStream::Stderr,
    }
}

fn end_of(end: protocol::ExitReport) -> ExecEnd {
    match end {
        protocol::ExitReport::Exited { code } => ExecEnd::Exited { code },
        protocol::ExitReport::Signaled { signal } => ExecEnd::Signaled { signal },
        protocol::ExitReport::NotStarted(failure) => ExecEnd::NotStarted(match failure {
            protocol::StartFailure::NotFound => StartFailure::NotFound,
            protocol::StartFailure::NotExecutable { errno } => StartFailure::NotExecutable { errno },
            protocol::StartFailure::Directory { errno } => StartFailure::Directory { errno },
            protocol::StartFailure::Other { step, errno } => StartFailure::Other { step, errno },
        }),
    }
}
