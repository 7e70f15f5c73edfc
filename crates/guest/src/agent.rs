//! The loop: waits for the host, for signals and for the commands' streams, and does what is due.

use alloc::string::String;
use alloc::vec::Vec;

use offleash_protocol::{ExecCommand, ExitReport, FromGuest, GuestIds, OUTPUT_CHUNK, SandboxUsage, ToGuest, VERSION};
use offleash_sys::spawn::{self, ChildStarter, SignalQueue, SignalTarget};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use crate::connection::{ConnectionError, HostConnection};
use crate::execution::RunningExec;
use crate::limit_counts::LimitCounts;
use crate::oom_score::OomScore;
use crate::processes::{self, GuestRole};
use crate::{CONTROL, exit, files, rename, sudo, tools, usage};

/// Streams of ended commands that are kept open for the processes they left behind; beyond, the oldest is closed.
const MAX_LEFTOVERS: usize = 256;

/// File workers at a time; a socket beyond is closed.
const MAX_WORKERS: usize = 256;

/// Signals that end a command reach its whole session, not only one process group: SIGHUP, SIGKILL, SIGTERM.
const ENDING: [i32; 3] = [1, 9, 15];

/// The guest at work.
pub(crate) struct GuestAgent {
    role: GuestRole,
    starter: ChildStarter,
    connection: HostConnection,
    signals: SignalQueue,
    executions: Vec<RunningExec>,
    /// Read and thrown away; `None` once all writers are gone.
    leftovers: Vec<Option<OwnedFd>>,
    buffer: Vec<u8>,
    /// Process ids of file workers that were not reaped yet.
    workers: Vec<i32>,
    /// Those inside who want to be somebody else, if they may.
    sudo: Option<sudo::SudoServer>,
    oom_score: OomScore,
    /// Of a machine's own kernel, where the guest is in one.
    limit_counts: Option<LimitCounts>,
    /// Which execution is served first in this round, so that none starves while the host takes little.
    first: usize,
}

/// What poll reported.
#[derive(Clone, Copy)]
enum ReadyDescriptor {
    Requests,
    Space,
    Signals,
    LimitCounts,
    Input(u32),
    Output(u32, usize),
    Leftover(usize),
    SudoListener,
    SudoClient(usize),
}

/// Why the loop ends.
enum LoopEnd {
    Shutdown,
    Broken(ConnectionError),
    Kernel,
}

impl From<ConnectionError> for LoopEnd {
    fn from(broken: ConnectionError) -> Self {
        LoopEnd::Broken(broken)
    }
}

impl GuestAgent {
    /// Takes over the control socket and says that it is ready.
    pub(crate) fn start(role: GuestRole) -> Result<Self, Errno> {
        if role == GuestRole::Subreaper {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        if !processes::can_be_found(role) {
            return Err(Errno::ACCESS);
        }
        // Before anything else is opened, which could have their numbers.
        let limit_counts = LimitCounts::adopt();
        let signals = SignalQueue::of_all()?;
        let starter = ChildStarter::of_this_process();
        let connection = HostConnection::new(spawn::adopt_descriptor(CONTROL)?);
        occupy_standard_streams()?;
        let oom_score = OomScore::of_this_process();
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        // Not an array that is copied: no page of it is touched before there is output.
        let buffer = alloc::vec![0; OUTPUT_CHUNK];
        let (executions, leftovers) = (Vec::new(), Vec::new());
        Ok(Self {
            role,
            starter,
            connection,
            signals,
            executions,
            leftovers,
            workers: Vec::new(),
            sudo: None,
            buffer,
            oom_score,
            limit_counts,
            first: 0,
        })
    }

    /// Serves until the end; answers the exit code. No process of the sandbox is left then.
    pub(crate) fn serve(mut self) -> u8 {
        self.connection.send(&FromGuest::Ready { version: VERSION });
        let stop = loop {
            if let Err(stop) = self.round() {
                break stop;
            }
        };
        if let LoopEnd::Broken(ConnectionError::Protocol) = stop {
            self.report_problem("the host sent something that is not the protocol");
            // It may be gone already.
            let _ = self.connection.flush();
        }
        processes::kill_all(self.role);
        match stop {
            LoopEnd::Shutdown => exit::SHUTDOWN,
            LoopEnd::Broken(ConnectionError::Gone) => exit::HOST_GONE,
            LoopEnd::Broken(ConnectionError::Protocol) => exit::PROTOCOL,
            LoopEnd::Kernel => exit::KERNEL,
        }
    }

    fn round(&mut self) -> Result<(), LoopEnd> {
        self.connection.flush()?;
        self.first = self.first.wrapping_add(1);
        for ready in self.wait()? {
            match ready {
                ReadyDescriptor::Requests => self.take_requests()?,
                ReadyDescriptor::Space => self.connection.flush()?,
                ReadyDescriptor::Signals => self.reap(),
                ReadyDescriptor::LimitCounts => self.report_limits(),
                ReadyDescriptor::Input(exec) => self.advance_input(exec),
                ReadyDescriptor::Output(exec, output) => self.forward(exec, output),
                ReadyDescriptor::Leftover(index) => self.discard(index),
                ReadyDescriptor::SudoListener => self.sudo.iter_mut().for_each(sudo::SudoServer::accept),
                ReadyDescriptor::SudoClient(client) => {
                    if let Some(sudo) = &mut self.sudo {
                        sudo.serve(client, &mut self.buffer, &self.oom_score);
                    }
                }
            }
        }
        if let Some(sudo) = &mut self.sudo {
            sudo.tidy(self.role);
        }
        self.leftovers.retain(Option::is_some);
        self.report_ended();
        Ok(())
    }

    fn wait(&self) -> Result<Vec<ReadyDescriptor>, LoopEnd> {
        let mut wanted = Vec::with_capacity(8);
        let mut polled = Vec::with_capacity(8);
        let mut want = |ready, descriptor, events| {
            wanted.push(ready);
            polled.push(PollFd::from_borrowed_fd(descriptor, events));
        };
        if self.connection.takes_requests() {
            want(ReadyDescriptor::Requests, self.connection.socket(), PollFlags::IN);
        }
        if self.connection.has_unsent() {
            want(ReadyDescriptor::Space, self.connection.socket(), PollFlags::OUT);
        }
        want(ReadyDescriptor::Signals, self.signals.as_fd(), PollFlags::IN);
        for file in self.limit_counts.iter().flat_map(LimitCounts::wait_on) {
            want(ReadyDescriptor::LimitCounts, file, PollFlags::PRI);
        }
        let takes_output = self.connection.room() >= OUTPUT_CHUNK;
        let (before, after) = self.executions.split_at(self.first % self.executions.len().max(1));
        for execution in after.iter().chain(before) {
            if let Some(input) = execution.input.waits_for() {
                want(ReadyDescriptor::Input(execution.exec), input, PollFlags::OUT);
            }
            let takes_output = takes_output && !execution.held;
            for (index, output) in execution.outputs.iter().enumerate().filter(|_| takes_output) {
                if let Some(descriptor) = output.descriptor() {
                    want(
                        ReadyDescriptor::Output(execution.exec, index),
                        descriptor,
                        PollFlags::IN,
                    );
                }
            }
        }
        for (index, leftover) in self.leftovers.iter().enumerate() {
            if let Some(leftover) = leftover {
                want(ReadyDescriptor::Leftover(index), leftover.as_fd(), PollFlags::IN);
            }
        }
        if let Some(sudo) = &self.sudo {
            // Before anybody else is let in, for whom one of them who said nothing may have to go.
            for (index, client) in sudo.clients().enumerate() {
                want(ReadyDescriptor::SudoClient(index), client, PollFlags::IN);
            }
            if let Some(listener) = sudo.listener() {
                want(ReadyDescriptor::SudoListener, listener, PollFlags::IN);
            }
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => return Ok(Vec::new()),
            Err(_) => return Err(LoopEnd::Kernel),
        }
        let is_ready = |(ready, polled): (ReadyDescriptor, PollFd<'_>)| (!polled.revents().is_empty()).then_some(ready);
        Ok(wanted.into_iter().zip(polled).filter_map(is_ready).collect())
    }

    fn take_requests(&mut self) -> Result<(), LoopEnd> {
        self.connection.receive(&mut self.buffer)?;
        while let Some(request) = self.connection.next()? {
            self.carry_out(request)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, request: ToGuest) -> Result<(), LoopEnd> {
        match request {
            ToGuest::Exec(request) => self.start_execution(&request)?,
            ToGuest::Input { exec, bytes } => self.input(exec, &bytes)?,
            ToGuest::CloseInput { exec } => {
                if let Some(execution) = self.execution(exec) {
                    execution.input.close();
                }
                self.advance_input(exec);
            }
            ToGuest::Signal { exec, signal, group } => self.signal(exec, signal, group),
            ToGuest::HoldOutput { exec } => self.hold_output(exec, true),
            ToGuest::ReleaseOutput { exec } => self.hold_output(exec, false),
            ToGuest::Resize { exec, rows, columns } => {
                if let Some(execution) = self.execution(exec) {
                    execution.resize(rows, columns);
                }
            }
            ToGuest::Files { user } => {
                let socket = self.connection.take_descriptor()?;
                self.serve_files(socket, user);
            }
            ToGuest::Rename { user } => {
                let socket = self.connection.take_descriptor()?;
                self.rename(socket, user);
            }
            ToGuest::Tools => {
                let socket = self.connection.take_descriptor()?;
                if tools::start(socket).is_err() {
                    self.report_problem("calls of tools cannot be taken");
                }
            }
            ToGuest::Usage => self.report_usage(),
            ToGuest::Shutdown => return Err(LoopEnd::Shutdown),
            ToGuest::ServeSudo { path } => match sudo::SudoServer::listen(&path, self.starter) {
                Ok(server) => self.sudo = Some(server),
                Err(_) => self.report_problem("listening for sudo failed"),
            },
        }
        Ok(())
    }

    fn hold_output(&mut self, exec: u32, held: bool) {
        if let Some(execution) = self.execution(exec) {
            execution.held = held;
        }
    }

    fn execution(&mut self, exec: u32) -> Option<&mut RunningExec> {
        self.executions.iter_mut().find(|execution| execution.exec == exec)
    }

    fn start_execution(&mut self, request: &ExecCommand) -> Result<(), LoopEnd> {
        let exec = request.exec;
        if self.execution(exec).is_some() {
            return Err(LoopEnd::Broken(ConnectionError::Protocol));
        }
        self.oom_score.ask(request.oom_score_adj);
        let (started, has_score) = self.oom_score.inherited(|| RunningExec::start(self.starter, request));
        match started {
            Ok(execution) => {
                let pid = execution.pid.unsigned_abs();
                self.executions.push(execution);
                self.connection.send(&FromGuest::Started { exec, pid });
                if !has_score {
                    self.report_problem("writing oom_score_adj of a command failed");
                }
            }
            Err(failure) => self.connection.send(&FromGuest::Ended {
                exec,
                end: ExitReport::NotStarted(failure),
                user_us: 0,
                system_us: 0,
                max_rss_kib: 0,
            }),
        }
        // The host learns of it before anything else is done.
        Ok(self.connection.flush()?)
    }

    /// Whatever goes wrong is the socket's end to whoever has the other one.
    fn serve_files(&mut self, socket: OwnedFd, user: Option<GuestIds>) {
        if self.workers.len() >= MAX_WORKERS {
            return self.report_problem("there are too many file workers");
        }
        match files::start(socket, user) {
            Ok(worker) => self.workers.push(worker),
            Err(_) => self.report_problem("a file worker could not be started"),
        }
    }

    /// As [`Self::serve_files`].
    fn rename(&mut self, socket: OwnedFd, user: Option<GuestIds>) {
        if rename::start(socket, user).is_err() {
            self.report_problem("a rename worker could not be started");
        }
    }

    fn report_problem(&mut self, text: &str) {
        self.connection.send(&FromGuest::Problem {
            text: String::from(text),
        });
    }

    fn input(&mut self, exec: u32, bytes: &[u8]) -> Result<(), LoopEnd> {
        let taken = match self.execution(exec) {
            Some(execution) => execution
                .push_input(bytes)
                .map_err(|_| LoopEnd::Broken(ConnectionError::Protocol))?,
            // It has ended, which the host may not know yet.
            None => return Ok(()),
        };
        self.acknowledge(exec, taken);
        Ok(())
    }

    fn advance_input(&mut self, exec: u32) {
        let taken = self.execution(exec).map_or(0, |execution| execution.input.advance());
        self.acknowledge(exec, taken);
    }

    fn acknowledge(&mut self, exec: u32, taken: usize) {
        if taken > 0 {
            let count = u32::try_from(taken).unwrap_or(u32::MAX);
            self.connection.send(&FromGuest::InputTaken { exec, count });
        }
    }

    fn signal(&mut self, exec: u32, signal: i32, group: bool) {
        let role = self.role;
        let Some(execution) = self.execution(exec).filter(|execution| execution.is_running()) else {
            return;
        };
        if !group {
            // Still ours and not reaped, so this is the process that was meant; it may be dead already.
            let _ = spawn::signal(SignalTarget::Process(execution.pid), signal);
            return;
        }
        execution.signal_group(signal);
        let session = execution.pid;
        if ENDING.contains(&signal) {
            processes::signal_session(role, session, session, signal);
        }
    }

    fn reap(&mut self) {
        self.signals.clear();
        loop {
            match spawn::reap() {
                Ok(Some(ended)) => {
                    self.workers.retain(|worker| *worker != ended.pid);
                    if let Some(sudo) = &mut self.sudo {
                        sudo.command_ended(&ended);
                    }
                    let of_this = |execution: &&mut RunningExec| execution.pid == ended.pid && execution.is_running();
                    if let Some(execution) = self.executions.iter_mut().find(of_this) {
                        execution.command_ended(ended);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn forward(&mut self, exec: u32, output: usize) {
        if let Some(execution) = self.executions.iter_mut().find(|execution| execution.exec == exec) {
            execution.forward(output, &mut self.connection, &mut self.buffer);
        }
    }

    fn discard(&mut self, index: usize) {
        let Some(place) = self.leftovers.get_mut(index) else {
            return;
        };
        let read = place
            .as_ref()
            .map(|leftover| rustix::io::read(leftover, &mut self.buffer[..]));
        if !matches!(read, Some(Ok(1..) | Err(Errno::AGAIN | Errno::INTR))) {
            *place = None;
        }
    }

    fn report_usage(&mut self) {
        if let Some(counts) = &mut self.limit_counts {
            counts.look();
        }
        let counts = self.limit_counts.as_ref().map(LimitCounts::last).unwrap_or_default();
        self.connection.send(&FromGuest::UsageReport(SandboxUsage {
            memory_kills: counts.memory_kills,
            refused_processes: counts.refused_processes,
            ..usage::measure(self.role)
        }));
    }

    /// Reports what the kernel counts if it has counted more.
    fn report_limits(&mut self) {
        if self.limit_counts.as_mut().is_some_and(LimitCounts::look) {
            self.report_usage();
        }
    }

    /// Reports what is used where the host cannot look itself, if a limit is reached.
    fn report_reached(&mut self) {
        let Some(counts) = &mut self.limit_counts else { return };
        let has_changed = counts.look();
        if has_changed || usage::has_full_tmpfs() {
            self.report_usage();
        }
    }

    /// Reports the ends of commands whose output was sent in full.
    fn report_ended(&mut self) {
        let mut index = 0;
        while let Some(execution) = self.executions.get_mut(index) {
            let Some(report) = execution.wind_up(&mut self.connection, &mut self.buffer) else {
                index += 1;
                continue;
            };
            let ended = self.executions.remove(index);
            self.leftovers.extend(ended.into_leftovers().map(Some));
            // Why it ended comes before that it ended.
            self.report_reached();
            self.connection.send(&report);
        }
        let surplus = self.leftovers.len().saturating_sub(MAX_LEFTOVERS);
        self.leftovers.drain(..surplus);
    }
}

/// Makes sure that descriptors 0, 1 and 2 are taken, so that no pipe of a command gets such a number.
pub(crate) fn occupy_standard_streams() -> Result<(), Errno> {
    loop {
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fd::AsRawFd::as_raw_fd(&null) > 2 {
            return Ok(());
        }
        // Stays open for good.
        core::mem::forget(null);
    }
}
