//! A sandbox of the level `process` while it runs.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, OutputStream, StartFailure, Stdin, TerminalSize};
use offleash_core::level::Level;
use offleash_core::limits::{LimitName, Limits};
use offleash_core::plan::Plan;
use offleash_core::record::{Denial, LimitEffect, LimitHit, Usage};
use offleash_core::text::Text;
use offleash_protocol::{self as protocol, Decoder, FromGuest, ToGuest};
use offleash_sys::namespaces::Child;
use offleash_sys::process;
use offleash_sys::seccomp::{Listener, Notification, PeerAddress};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::failed;
use super::grouping::Group;
use super::handshake::ParentEnd;
use crate::error::IsolationError;
use crate::limits::Watcher;
use crate::sandbox::{Enforcement, ExecId, Final, Interest, Sandbox, SandboxEvent};

/// What a sandbox is put together from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) first: Option<Child>,
    pub(super) channel: ParentEnd,
    pub(super) control: OwnedFd,
    pub(super) listener: Option<OwnedFd>,
    pub(super) group: Option<Group>,
    pub(super) enforcement: Enforcement,
}

/// A running sandbox.
#[derive(Debug)]
pub(super) struct ProcessSandbox {
    first: Child,
    /// Tells, until the guest speaks, why it could not be exec'd.
    channel: Option<ParentEnd>,
    control: OwnedFd,
    listener: Option<Listener>,
    watcher: Watcher,
    enforcement: Enforcement,
    decoder: Decoder<FromGuest>,
    /// Bytes that the guest has not taken yet.
    outbox: Vec<u8>,
    execs: HashMap<u32, Exec>,
    next_exec: u32,
    denials: Denials,
    limits: Limits,
    /// Whether the guest speaks our version; nothing else it says counts before.
    greeted: bool,
    gone: bool,
    killed: Option<Final>,
}

#[derive(Debug)]
struct Exec {
    unacknowledged: usize,
}

/// The most bytes taken from the guest in one turn, so that signals and limits get their turn too.
const TURN_BYTES: usize = 1024 * 1024;

/// How much more than its guest the kernel should prefer a command when memory runs out (THREATS R10).
const OOM_SCORE: i16 = 500;

impl ProcessSandbox {
    pub(super) fn new(plan: &Plan, parts: Parts) -> Result<Self, IsolationError> {
        let Parts { first, channel, control, listener, group, enforcement } = parts;
        let Some(first) = first else {
            return Err(IsolationError::Guest { reason: "the first process is gone".to_owned() });
        };
        let layers = plan.layers();
        let watcher = Watcher::new(plan.limits.clone(), group, first.pid, layers);
        Ok(Self {
            first,
            channel: Some(channel),
            control,
            listener: listener.map(Listener::from),
            watcher,
            enforcement,
            decoder: Decoder::new(),
            outbox: Vec::new(),
            execs: HashMap::new(),
            next_exec: 1,
            denials: Denials::default(),
            limits: plan.limits.clone(),
            greeted: false,
            gone: false,
            killed: None,
        })
    }

    fn send(&mut self, message: &ToGuest) -> Result<(), IsolationError> {
        protocol::encode_into(message, &mut self.outbox)
            .map_err(|error| IsolationError::Guest { reason: format!("the request does not fit: {error}") })?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), IsolationError> {
        while !self.outbox.is_empty() {
            match rustix::net::send(&self.control, &self.outbox, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // What the guest said before it went is still to be read; the end follows there.
                    self.outbox.clear();
                }
                Err(error) => return Err(running("send to the guest")(error.into())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, events: &mut Vec<SandboxEvent>) -> Result<(), IsolationError> {
        let mut buffer = vec![0; 128 * 1024];
        let mut taken = 0;
        while taken < TURN_BYTES && !self.gone {
            match rustix::net::recv(&self.control, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => {
                    self.check_that_it_started()?;
                    self.lose(events);
                }
                Ok((length, _)) => {
                    taken += length;
                    self.decoder.push(buffer.get(..length).unwrap_or_default());
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

    /// A guest that never spoke was perhaps never exec'd; then the first process said why.
    fn check_that_it_started(&mut self) -> Result<(), IsolationError> {
        match self.channel.take().map(|channel| channel.report()) {
            Some(Err(failure)) if failure.source.kind() != io::ErrorKind::UnexpectedEof => {
                Err(failed(failure.step, failure.subject, failure.source))
            }
            _ => Ok(()),
        }
    }

    fn lose(&mut self, events: &mut Vec<SandboxEvent>) {
        self.gone = true;
        for (exec, _) in self.execs.drain() {
            events.push(SandboxEvent::Exec { exec: ExecId(exec), event: ExecEvent::Ended(ExecEnd::Lost) });
        }
        events.push(SandboxEvent::Gone);
    }

    fn take(&mut self, message: FromGuest, events: &mut Vec<SandboxEvent>) {
        if !self.greeted {
            match message {
                FromGuest::Ready { version: protocol::VERSION } => {
                    self.greeted = true;
                    self.channel = None;
                }
                _ => self.lose(events),
            }
            return;
        }
        let (exec, event) = match message {
            FromGuest::Started { exec, pid } => (exec, ExecEvent::Started { pid }),
            FromGuest::Output { exec, stream, bytes } => (exec, ExecEvent::Output { stream: stream_of(stream), bytes }),
            FromGuest::InputTaken { exec, count } => (exec, self.acknowledge(exec, count)),
            FromGuest::Ended { exec, end, .. } => (exec, ExecEvent::Ended(end_of(end))),
            FromGuest::UsageReport(report) => return self.take_report(&report, events),
            FromGuest::Ready { .. } | FromGuest::Problem { .. } => return,
        };
        // An execution that we did not start, or that has ended, is an invention of the guest's.
        if !self.execs.contains_key(&exec) {
            return;
        }
        if matches!(event, ExecEvent::Ended(_)) {
            self.execs.remove(&exec);
        }
        events.push(SandboxEvent::Exec { exec: ExecId(exec), event });
    }

    fn acknowledge(&mut self, exec: u32, count: u32) -> ExecEvent {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if let Some(state) = self.execs.get_mut(&exec) {
            state.unacknowledged = state.unacknowledged.saturating_sub(count);
        }
        ExecEvent::InputTaken { count }
    }

    fn take_report(&mut self, report: &protocol::Usage, events: &mut Vec<SandboxEvent>) {
        self.watcher.note_guest_usage(report.shm_bytes);
        let full = report.tmpfs.iter().any(|tmpfs| {
            tmpfs.total > 0 && tmpfs.used >= tmpfs.total
                || tmpfs.files_total > 0 && tmpfs.files_used >= tmpfs.files_total
        });
        if full && let Some(size) = self.limits.tmp {
            events.push(SandboxEvent::Limit(LimitHit {
                limit: LimitName::Tmp,
                value: size.0,
                effect: LimitEffect::Refused,
            }));
        }
    }

    fn answer_refused_calls(&mut self) -> Result<(), IsolationError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        // Bounded, so that a program that does nothing but ask for what it may not have cannot keep us here.
        for _ in 0..64 {
            let mut waiting = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
            let ready = rustix::event::poll(&mut waiting, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
            let readable = waiting[0].revents().contains(rustix::event::PollFlags::IN);
            if ready.is_err() || !readable {
                break;
            }
            let call = listener.receive().map_err(running("receive a refused system call"))?;
            let Some(call) = call else { continue };
            self.denials.note(&call, listener);
            let answered = if is_observation(&call) { listener.proceed(&call) } else { listener.refuse(&call) };
            match answered {
                // The caller was killed while it waited.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                answered => answered.map_err(running("answer a refused system call"))?,
            }
        }
        Ok(())
    }
}

impl Sandbox for ProcessSandbox {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        let exec = self.next_exec;
        self.next_exec += 1;
        let message = ToGuest::Exec(message_of(exec, request));
        self.execs.insert(exec, Exec { unacknowledged: 0 });
        self.send(&message).inspect_err(|_| drop(self.execs.remove(&exec)))?;
        Ok(ExecId(exec))
    }

    fn input_window(&self, exec: ExecId) -> usize {
        self.execs.get(&exec.0).map_or(0, |state| protocol::INPUT_WINDOW.saturating_sub(state.unacknowledged))
    }

    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        let Some(state) = self.execs.get_mut(&exec.0) else { return Ok(()) };
        state.unacknowledged += bytes.len();
        self.send(&ToGuest::Input { exec: exec.0, bytes: bytes.to_vec() })
    }

    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        self.send(&ToGuest::CloseInput { exec: exec.0 })
    }

    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        self.send(&ToGuest::Signal { exec: exec.0, signal, group: true })
    }

    fn resize(&mut self, exec: ExecId, size: TerminalSize) -> Result<(), IsolationError> {
        self.send(&ToGuest::Resize { exec: exec.0, rows: size.rows, columns: size.columns })
    }

    fn wait_on(&self, take_output: bool) -> Vec<Interest<'_>> {
        let mut interests = Vec::with_capacity(2);
        if !self.gone && (take_output || !self.outbox.is_empty()) {
            interests.push(Interest { descriptor: self.control.as_fd(), writable: !self.outbox.is_empty() });
        }
        if let Some(listener) = &self.listener {
            interests.push(Interest { descriptor: listener.as_fd(), writable: false });
        }
        interests
    }

    fn next_turn(&self) -> Instant {
        self.watcher.next_tick()
    }

    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        let mut events = Vec::new();
        self.flush()?;
        if take_output {
            self.receive(&mut events)?;
        }
        self.answer_refused_calls()?;
        let now = Instant::now();
        if now >= self.watcher.next_tick() && !self.gone {
            events.extend(self.watcher.tick(now).into_iter().map(SandboxEvent::Limit));
        }
        Ok(events)
    }

    fn usage(&mut self) -> Usage {
        self.watcher.usage()
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported { level: Level::Process, operation: "pause a sandbox yet" })
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        Err(IsolationError::Unsupported { level: Level::Process, operation: "resume a sandbox yet" })
    }

    fn kill(&mut self) -> Result<Final, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        self.gone = true;
        process::kill(self.first.pidfd.as_fd()).map_err(running("kill the first process"))?;
        // Returns when every process of the pid namespace is gone: the kernel lets its first one end last.
        let resources = process::reap(self.first.pid).map_err(running("wait for the first process"))?;
        self.answer_refused_calls()?;
        self.listener = None;
        let mut last = self.watcher.finish(&resources).map_err(running("remove the cgroup"))?;
        last.denials = std::mem::take(&mut self.denials).into_list();
        self.killed = Some(last.clone());
        Ok(last)
    }
}

impl Drop for ProcessSandbox {
    fn drop(&mut self) {
        // A caller that wants to know whether it worked calls `kill` itself.
        let _killed = self.kill();
    }
}

fn running(action: &'static str) -> impl FnOnce(io::Error) -> IsolationError {
    move |source| IsolationError::Running { action, source }
}

fn message_of(exec: u32, request: &ExecRequest) -> protocol::Exec {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = |text: &std::ffi::OsString| text.as_bytes().to_vec();
    protocol::Exec {
        exec,
        argv: request.argv.iter().map(bytes).collect(),
        env: request.env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        cwd: request.cwd.as_os_str().as_bytes().to_vec(),
        stdin: match request.stdin {
            Stdin::Null => protocol::StdinKind::Null,
            Stdin::Stream => protocol::StdinKind::Stream,
        },
        tty: request.tty.map(|size| (size.rows, size.columns)),
        oom_score_adj: Some(OOM_SCORE),
    }
}

fn stream_of(stream: protocol::Stream) -> OutputStream {
    match stream {
        protocol::Stream::Stdout => OutputStream::Stdout,
        protocol::Stream::Stderr => OutputStream::Stderr,
    }
}

fn end_of(end: protocol::End) -> ExecEnd {
    match end {
        protocol::End::Exited { code } => ExecEnd::Exited { code },
        protocol::End::Signaled { signal } => ExecEnd::Signaled { signal },
        protocol::End::NotStarted(failure) => ExecEnd::NotStarted(match failure {
            protocol::StartFailure::NotFound => StartFailure::NotFound,
            protocol::StartFailure::NotExecutable { errno } => StartFailure::NotExecutable { errno },
            protocol::StartFailure::Directory { errno } => StartFailure::Directory { errno },
            protocol::StartFailure::Other { step, errno } => StartFailure::Other { step, errno },
        }),
    }
}

/// Whether the filter asks about a call only so that it can be recorded: nothing is decided by the answer, since the
/// sandbox has no way out of its network namespace.
fn is_observation(call: &Notification) -> bool {
    call.name() == "connect"
}

/// Refusals, counted: a program that asks a million times is one line.
#[derive(Debug, Default)]
struct Denials {
    counted: BTreeMap<(&'static str, String, String), u64>,
}

/// Kinds of refusals that are told apart; beyond, they are counted together.
const MOST_DENIALS: usize = 256;

impl Denials {
    fn note(&mut self, call: &Notification, listener: &Listener) {
        let (subject, name, rule) = if is_observation(call) {
            match call.peer_address(listener) {
                Ok(Some(PeerAddress::Internet(peer))) if !peer.ip().is_loopback() => {
                    ("network", peer.to_string(), "network: none".to_owned())
                }
                // Inside the sandbox, or a call that fails anyway.
                _ => return,
            }
        } else {
            ("syscall", call.name().to_owned(), call.rule())
        };
        let full = self.counted.len() >= MOST_DENIALS;
        let key = (subject, name, rule);
        let key = if full && !self.counted.contains_key(&key) {
            (subject, "others".to_owned(), "more than are told apart".to_owned())
        } else {
            key
        };
        *self.counted.entry(key).or_default() += 1;
    }

    fn into_list(self) -> Vec<Denial> {
        let denial = |((subject, name, rule), count): ((&str, String, String), u64)| Denial {
            subject: subject.to_owned(),
            name: Text::from(name),
            rule,
            count,
        };
        self.counted.into_iter().map(denial).collect()
    }
}

