//! A sandbox of the level `simulated` while it runs: the supervisor's end of a worker.
//!
//! What comes from the worker is taken as that of a hostile guest: a frame that is none ends it, an answer is only owed while
//! it takes the one before, and a few questions are answered at each turn.

mod account;
mod interpreting;
mod loss;
mod stopping;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::exec::{ExecEnd, ExecEvent, ExecRequest, OutputStream, StartFailure, Stdin, TerminalSize, UserIds};
use offleash_core::limits::Limits;
use offleash_core::record::{LimitHit, RunUsage};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{
    DescriptorInterest, EnforcementReport, ExecId, FinalReport, Sandbox, SandboxEvent, UsageMeasure,
};
use offleash_protocol::{MessageDecoder, encode_into};

use rustix::io::Errno;

use crate::code::CodeOfFiles;
use crate::engine::EngineKind;
use crate::interpreters::Interpreters;
use crate::next_level::{NextLevel, ProgramTurn};
use crate::served::SharedTrees;
use crate::tree::FileCaller;
use crate::wire::{
    ByteWord, FromWorker, MAX_INPUT, MAX_PIECE, ProgramPlace, ShellCommand, ShellEnd, ShellOutcome, ToWorker,
    WorkerSetup,
};
use crate::worker_process::{WorkerEnd, WorkerProcess};
use crate::worker_use::worker_use;
use account::ShellAccount;
use loss::{LossCause, cause_of};

/// How long there is nothing to look at.
const LONG: Duration = Duration::from_secs(3600);
/// How long what was read already waits for somebody to take output.
const HELD: Duration = Duration::from_millis(20);
/// How much is read of the socket at once.
const READ_AT_ONCE: usize = 256 * 1024;
/// How many questions are answered at one turn: then whoever else waits has one.
const MAX_ANSWERED: usize = 256;
/// How much output is taken at one turn, in bytes, before whoever counts it has it.
const MAX_OUTPUT: usize = MAX_PIECE;
/// How much input is taken from its giver at once.
const INPUT_WINDOW: usize = 64 * 1024;
/// How much may wait for the worker to take it, before more input is taken.
const MAX_UNSENT: usize = 1024 * 1024;
/// How long a worker may leave what it is sent, before it is ended: it takes input and answers whenever it has asked.
const TAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Where programs of the machine are looked for that the next level would have.
const PROGRAM_DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
const SIGKILL: i32 = 9;

/// The command that is carried out.
#[derive(Debug)]
struct CurrentExec {
    id: ExecId,
    /// What is sent when its input is complete.
    command: Option<ShellCommand>,
    input: usize,
    holds_output: bool,
}

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct SimulatedSandbox {
    kind: EngineKind,
    code: CodeOfFiles,
    interpreters: Interpreters,
    /// Whether the worker may receive files, as those of interpreters are: it says so by its empty root directory.
    takes_files: bool,
    worker: WorkerProcess,
    trees: SharedTrees,
    /// For whom files are asked, where that is not the usual user.
    caller: Option<FileCaller>,
    /// Where programs run, if they do.
    next_level: Option<NextLevel>,
    limits: Limits,
    enforcement: EnforcementReport,
    incoming: MessageDecoder<FromWorker>,
    /// What the worker has not taken yet.
    unsent: Vec<u8>,
    /// Since when it has taken nothing of that.
    untaken_since: Option<Instant>,
    current: Option<CurrentExec>,
    next_exec: u32,
    events: VecDeque<SandboxEvent>,
    account: ShellAccount,
    /// Whether the worker has said what holds it.
    is_ready: bool,
    limits_hit: Vec<LimitHit>,
    /// Whether questions wait that were read already.
    has_more: bool,
    /// Whether output was taken at the last turn.
    took_output: bool,
    is_gone: bool,
    usage: RunUsage,
    killed: Option<FinalReport>,
}

impl SimulatedSandbox {
    #[expect(clippy::too_many_arguments, reason = "what it is made of")]
    pub(crate) fn new(
        kind: EngineKind,
        worker: WorkerProcess,
        trees: SharedTrees,
        limits: Limits,
        enforcement: EnforcementReport,
        next_level: Option<NextLevel>,
        code: CodeOfFiles,
        interpreters: Interpreters,
        setup: &WorkerSetup,
    ) -> Result<Self, IsolationError> {
        let mut sandbox = Self {
            kind,
            code,
            interpreters,
            takes_files: false,
            worker,
            trees,
            caller: None,
            next_level,
            limits,
            enforcement,
            incoming: MessageDecoder::new(),
            unsent: Vec::new(),
            untaken_since: None,
            current: None,
            next_exec: 1,
            events: VecDeque::new(),
            account: ShellAccount::of(kind),
            is_ready: false,
            limits_hit: Vec::new(),
            has_more: false,
            took_output: true,
            is_gone: false,
            usage: RunUsage::default(),
            killed: None,
        };
        sandbox.send(&ToWorker::Setup(setup.clone()))?;
        Ok(sandbox)
    }

    /// The same, whose files are those of `caller`.
    pub(crate) fn for_caller(self, caller: FileCaller) -> Self {
        Self {
            caller: Some(caller),
            ..self
        }
    }

    fn send(&mut self, message: &ToWorker) -> Result<(), IsolationError> {
        let encoded = encode_into(message, &mut self.unsent);
        encoded.map_err(|error| IsolationError::Guest {
            reason: error.to_string(),
        })?;
        self.flush();
        Ok(())
    }

    /// Sends what the socket takes now. What a worker that has ended does not take is dropped: the end of its socket tells of it.
    fn flush(&mut self) {
        let mut sent = 0;
        while let Some(rest) = self.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(&self.worker.socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => sent = self.unsent.len(),
            }
        }
        self.unsent.drain(..sent);
        self.untaken_since = match self.untaken_since.filter(|_| sent == 0) {
            _ if self.unsent.is_empty() => None,
            Some(since) => Some(since),
            None => Some(Instant::now()),
        };
    }

    /// Ends a worker that has taken nothing for too long.
    fn lose_if_deaf(&mut self) -> Result<(), IsolationError> {
        match self.untaken_since {
            Some(since) if since.elapsed() >= TAKE_TIMEOUT => self.lose(Some("it does not take what it is sent")),
            _ => Ok(()),
        }
    }

    /// Reads what is there and answers it.
    fn listen(&mut self) -> Result<(), IsolationError> {
        let mut buffer = vec![0; READ_AT_ONCE];
        let mut answered = 0;
        let mut output = 0;
        self.has_more = true;
        while answered < MAX_ANSWERED && output < MAX_OUTPUT && self.unsent.is_empty() && !self.is_gone {
            match self.incoming.next() {
                Ok(Some(message)) => {
                    answered += 1;
                    if let FromWorker::Output { bytes, .. } = &message {
                        output += bytes.len();
                    }
                    self.take(message)?;
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    self.lose(Some(&error.to_string()))?;
                    break;
                }
            }
            match rustix::net::recv(
                &self.worker.socket,
                buffer.as_mut_slice(),
                rustix::net::RecvFlags::empty(),
            ) {
                Ok((0, _)) => self.lose(None)?,
                Ok((count, _)) => self.incoming.push(buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.has_more = false;
                    break;
                }
                Err(_) => self.lose(None)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, message: FromWorker) -> Result<(), IsolationError> {
        let runs_program = self.next_level.as_ref().is_some_and(NextLevel::is_running);
        let misbehaves = match &message {
            FromWorker::Ready(_) => self.is_ready,
            FromWorker::Output { bytes, .. } => bytes.len() > MAX_PIECE,
            // A worker waits for its program, beside which nothing is written into the layer, and for its interpreter.
            _ => runs_program || self.interpreters.is_making(),
        };
        if misbehaves {
            return self.lose(Some("it says what it has no reason to say"));
        }
        match message {
            FromWorker::Ready(walls) => {
                self.is_ready = true;
                self.takes_files = walls.has_empty_root;
                let root = if walls.has_empty_root {
                    "an empty root directory"
                } else {
                    "no call that opens files"
                };
                let landlock = if walls.has_landlock { ", Landlock" } else { "" };
                self.enforcement
                    .holds("worker.files", format!("{root}{landlock}, seccomp"));
            }
            FromWorker::Output { stream, bytes } => self.output(stream, bytes),
            FromWorker::Files(request) => {
                let mut trees = self.trees.borrow_mut();
                let answer = match self.caller {
                    Some(caller) => trees.answer_to(caller, request),
                    None => trees.answer(request),
                };
                let hits = trees.take_hits();
                drop(trees);
                self.note_hits(hits);
                self.send(&ToWorker::Files(answer))?;
            }
            FromWorker::Program(name) => {
                let place = match (is_program(&name), &self.next_level) {
                    (false, _) => ProgramPlace::Nowhere,
                    (true, None) => ProgramPlace::OutOfReach,
                    (true, Some(_)) => ProgramPlace::NextLevel,
                };
                if place == ProgramPlace::OutOfReach {
                    self.account.refused_program(&name);
                }
                self.send(&ToWorker::Program(place))?;
            }
            FromWorker::Run(request) => match &mut self.next_level {
                Some(next_level) => {
                    let program = request.command.argv.first().map(|word| &*word.0);
                    let name: String = String::from_utf8_lossy(program.unwrap_or_default()).into_owned();
                    let spent = self.usage.user_cpu_us.saturating_add(self.usage.system_cpu_us);
                    match next_level.start(request, Duration::from_micros(spent)) {
                        Ok(()) => self.account.ran_program(&name),
                        Err(error) => {
                            self.account.refused_program(&name);
                            self.send(&ToWorker::Ran(NextLevel::not_run(&error)))?;
                        }
                    }
                }
                None => self.lose(Some("it asks for a program, and has none"))?,
            },
            FromWorker::Code { mount, path, anew } => {
                let pieces = self.code.pieces(&mut self.trees.borrow_mut(), mount, &path, anew);
                for message in pieces {
                    self.send(&message)?;
                }
            }
            FromWorker::Compiled { bytes, is_last } => {
                if !self.code.take_compiled(&bytes, is_last) {
                    self.lose(Some("it has made what nobody asked for"))?;
                }
            }
            FromWorker::Interpreter(language) => {
                self.asked_for_interpreter(language)?;
            }
            FromWorker::Ended(end) => self.ended(end),
        }
        Ok(())
    }

    fn output(&mut self, stream: OutputStream, bytes: Vec<u8>) {
        if let Some(exec) = self.current.as_ref().map(|current| current.id) {
            let event = ExecEvent::Output { stream, bytes };
            self.events.push_back(SandboxEvent::Exec { exec, event });
        }
    }

    fn ended(&mut self, end: ShellEnd) {
        self.account.hear(end.shortfalls);
        let ended = match end.outcome {
            ShellOutcome::Exited(code) => ExecEnd::Exited { code },
            ShellOutcome::NoDirectory { errno } => ExecEnd::NotStarted(StartFailure::Directory { errno }),
            ShellOutcome::Signaled { signal } => ExecEnd::Signaled { signal },
            ShellOutcome::NotFound => ExecEnd::NotStarted(StartFailure::NotFound),
            ShellOutcome::NotExecutable => ExecEnd::NotStarted(StartFailure::NotExecutable {
                errno: Errno::NOEXEC.raw_os_error(),
            }),
            ShellOutcome::NoEngine => ExecEnd::NotStarted(StartFailure::Other {
                step: format!("this build has no engine for it (feature `{}`)", self.kind.feature),
                errno: Errno::NOSYS.raw_os_error(),
            }),
        };
        self.finish_exec(ended);
    }

    fn finish_exec(&mut self, end: ExecEnd) {
        if let Some(current) = self.current.take() {
            let event = ExecEvent::Ended(end);
            self.events.push_back(SandboxEvent::Exec {
                exec: current.id,
                event,
            });
        }
    }

    fn note_hits(&mut self, hits: Vec<LimitHit>) {
        for hit in hits {
            if !self.limits_hit.contains(&hit) {
                self.limits_hit.push(hit.clone());
                self.events.push_back(SandboxEvent::Limit(hit));
            }
        }
    }

    /// The worker has ended, or says what no worker says: finds out why, and tells.
    fn lose(&mut self, misbehaved: Option<&str>) -> Result<(), IsolationError> {
        if self.is_gone {
            return Ok(());
        }
        self.is_gone = true;
        self.unsent.clear();
        self.untaken_since = None;
        if misbehaved.is_none() {
            self.worker.wait_a_moment();
        }
        let end = self.worker.end();
        let Some(end) = end.map_err(running("wait for the worker"))? else {
            return Ok(());
        };
        self.account_worker(&end);
        match (misbehaved, cause_of(&end, &self.limits)) {
            (None, LossCause::Limit(hit)) => self.events.push_back(SandboxEvent::Limit(hit)),
            (None, LossCause::Crash(signal, why)) => {
                self.output(
                    OutputStream::Stderr,
                    format!("offleash: {} {why}\n", self.kind.name).into_bytes(),
                );
                self.finish_exec(ExecEnd::Signaled { signal });
            }
            (Some(why), _) => {
                let line = format!("offleash: {} was ended: {why}\n", self.kind.name);
                self.output(OutputStream::Stderr, line.into_bytes());
                self.finish_exec(ExecEnd::Signaled { signal: SIGKILL });
            }
        }
        self.events.push_back(SandboxEvent::Gone);
        Ok(())
    }

    /// Has a program at the next level take its turn.
    fn tend_program(&mut self) -> Result<(), IsolationError> {
        let Some(next_level) = self.next_level.as_mut().filter(|next_level| next_level.is_running()) else {
            return Ok(());
        };
        let ProgramTurn { ended, last, hits } = next_level.turn()?;
        self.note_hits(hits);
        self.account_program(last);
        match ended {
            Some(run) => {
                self.trees.borrow_mut().changed_by_others();
                self.send(&ToWorker::Ran(run))
            }
            None => Ok(()),
        }
    }

    fn account_worker(&mut self, end: &WorkerEnd) {
        self.usage.user_cpu_us += end.usage.user_us;
        self.usage.system_cpu_us += end.usage.system_us;
        let peak = end.usage.max_rss_kib.saturating_mul(1024);
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(Some(peak));
        self.usage.peak_pids = self.usage.peak_pids.max(Some(0));
    }

    fn account_program(&mut self, last: Option<FinalReport>) {
        let Some(last) = last else { return };
        self.usage.user_cpu_us += last.usage.user_cpu_us;
        self.usage.system_cpu_us += last.usage.system_cpu_us;
        self.usage.peak_memory_bytes = self.usage.peak_memory_bytes.max(last.usage.peak_memory_bytes);
        self.usage.peak_pids = self.usage.peak_pids.max(last.usage.peak_pids);
        for denial in last.denials {
            self.account.denied(denial);
        }
        self.note_hits(last.limits_hit);
    }

    /// Sends the command whose input is complete.
    fn begin(&mut self) -> Result<(), IsolationError> {
        let command = self.current.as_mut().and_then(|current| current.command.take());
        match command {
            Some(command) => self.send(&ToWorker::Exec(command)),
            None => Ok(()),
        }
    }

    fn unsupported<T>(&self, operation: &'static str) -> Result<T, IsolationError> {
        let level = self.kind.level;
        Err(IsolationError::Unsupported { level, operation })
    }

    fn is(&self, exec: ExecId) -> bool {
        self.current.as_ref().is_some_and(|current| current.id == exec)
    }

    /// Ends the command because its input is longer than it may be.
    fn refuse_input(&mut self) {
        let what = format!("standard input of more than {MAX_INPUT} bytes");
        self.output(OutputStream::Stderr, format!("offleash: limit: {what}\n").into_bytes());
        self.account.limit(&what);
        self.finish_exec(ExecEnd::Exited { code: 1 });
    }
}

/// Whether a level with processes would find a program of this name.
pub(crate) fn is_program(name: &str) -> bool {
    let is_name = !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && !matches!(name, "." | "..");
    is_name
        && PROGRAM_DIRECTORIES
            .iter()
            .any(|directory| std::path::Path::new(directory).join(name).is_file())
}

fn running(action: &'static str) -> impl FnOnce(io::Error) -> IsolationError {
    move |source| IsolationError::Running { action, source }
}

impl Sandbox for SimulatedSandbox {
    fn enforcement(&self) -> &EnforcementReport {
        &self.enforcement
    }

    fn exec(&mut self, request: &ExecRequest) -> Result<ExecId, IsolationError> {
        if request.tty.is_some() {
            return self.unsupported("give a command a terminal");
        }
        if self.current.is_some() {
            return self.unsupported("carry out two commands at once");
        }
        if let Some(user) = request.user {
            let (uid, gid) = (user.uid, user.gid);
            self.caller = Some(FileCaller { uid, gid });
        }
        let word = |word: &std::ffi::OsString| ByteWord(word.as_encoded_bytes().to_vec());
        let id = ExecId(self.next_exec);
        self.next_exec = self.next_exec.wrapping_add(1);
        self.current = Some(CurrentExec {
            id,
            command: Some(ShellCommand {
                argv: request.argv.iter().map(word).collect(),
                env: request
                    .env
                    .iter()
                    .map(|(name, value)| (word(name), word(value)))
                    .collect(),
                cwd: ByteWord(request.cwd.as_os_str().as_encoded_bytes().to_vec()),
            }),
            input: 0,
            holds_output: false,
        });
        let event = ExecEvent::Started { pid: 1 };
        self.events.push_back(SandboxEvent::Exec { exec: id, event });
        if request.stdin == Stdin::Null {
            self.begin()?;
        }
        Ok(id)
    }

    fn enter(&mut self, _: &ExecRequest, _: &mut dyn FnMut() -> io::Result<OwnedFd>) -> Result<ExecId, IsolationError> {
        self.unsupported("let a process into a sandbox that runs")
    }

    fn input_window(&self, exec: ExecId) -> usize {
        let waits = |current: &CurrentExec| current.id == exec && current.command.is_some();
        match &self.current {
            Some(current) if waits(current) && self.unsent.len() < MAX_UNSENT => INPUT_WINDOW,
            _ => 0,
        }
    }

    fn input(&mut self, exec: ExecId, bytes: &[u8]) -> Result<(), IsolationError> {
        let Some(current) = self.current.as_mut().filter(|current| current.id == exec) else {
            return Ok(());
        };
        current.input += bytes.len();
        if current.input > MAX_INPUT {
            self.refuse_input();
            return Ok(());
        }
        self.send(&ToWorker::Input(bytes.to_vec()))
    }

    fn close_input(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        match self.is(exec) {
            true => self.begin(),
            false => Ok(()),
        }
    }

    fn signal(&mut self, exec: ExecId, signal: i32) -> Result<(), IsolationError> {
        // The shell has no signals of others: whatever is sent ends it, as it ends a shell that waits for a command.
        if self.is(exec) && signal != 0 {
            self.finish_exec(ExecEnd::Signaled { signal });
            self.kill()?;
        }
        Ok(())
    }

    fn hold_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        if let Some(current) = self.current.as_mut().filter(|current| current.id == exec) {
            current.holds_output = true;
        }
        Ok(())
    }

    fn release_output(&mut self, exec: ExecId) -> Result<(), IsolationError> {
        if let Some(current) = self.current.as_mut().filter(|current| current.id == exec) {
            current.holds_output = false;
        }
        Ok(())
    }

    fn resize(&mut self, _: ExecId, _: TerminalSize) -> Result<(), IsolationError> {
        self.unsupported("give a command a terminal")
    }

    fn open_files(&mut self, _: Option<UserIds>) -> Result<OwnedFd, IsolationError> {
        self.unsupported("serve files to others")
    }

    fn take_tool_calls(&mut self) -> Result<OwnedFd, IsolationError> {
        self.unsupported("offer tools")
    }

    fn wait_on(&self, take_output: bool) -> Vec<DescriptorInterest<'_>> {
        let holds = self.current.as_ref().is_some_and(|current| current.holds_output);
        let mut interests = self.next_level.as_ref().map(NextLevel::wait_on).unwrap_or_default();
        interests.extend(self.interpreters.wait_on());
        // What comes is in order: output that nobody takes keeps the rest waiting, and with it the command.
        let takes = take_output && !holds && !self.is_gone;
        let writable = !self.unsent.is_empty();
        if takes || (writable && !self.is_gone) {
            interests.push(DescriptorInterest {
                descriptor: self.worker.socket.as_fd(),
                writable,
            });
        }
        interests
    }

    fn next_turn(&self) -> Instant {
        let now = Instant::now();
        let has_more = self.has_more && self.unsent.is_empty() && !self.is_gone;
        if !self.events.is_empty() || (has_more && self.took_output) {
            return now;
        }
        // Nothing at the socket tells of what was read already.
        let again = now + if has_more { HELD } else { LONG };
        let of_program = self.next_level.as_ref().and_then(NextLevel::next_turn);
        let deaf = self.untaken_since.map(|since| since + TAKE_TIMEOUT);
        of_program.into_iter().chain(deaf).fold(again, Instant::min)
    }

    fn news(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        self.flush();
        self.lose_if_deaf()?;
        self.tend_program()?;
        self.tend_interpreter()?;
        let holds = self.current.as_ref().is_some_and(|current| current.holds_output);
        self.took_output = take_output && !holds;
        if self.took_output {
            self.listen()?;
        }
        Ok(self.events.drain(..).collect())
    }

    fn turn(&mut self, take_output: bool) -> Result<Vec<SandboxEvent>, IsolationError> {
        self.news(take_output)
    }

    fn usage(&mut self) -> RunUsage {
        self.usage.workspace_bytes = Some(self.trees.borrow().layer_bytes());
        self.usage.clone()
    }

    fn measure(&mut self) -> UsageMeasure {
        let found = worker_use(self.worker_pid());
        let of_ended = self.usage.user_cpu_us.saturating_add(self.usage.system_cpu_us);
        let peak = self.usage.peak_memory_bytes.unwrap_or(0);
        UsageMeasure {
            cpu_us: of_ended.saturating_add(found.cpu_us),
            memory_bytes: found.memory_bytes,
            memory_peak_bytes: peak.max(found.memory_bytes),
            disk_bytes: self.trees.borrow().layer_bytes(),
            ..UsageMeasure::default()
        }
    }

    fn pause(&mut self) -> Result<(), IsolationError> {
        self.unsupported("pause a sandbox")
    }

    fn hold_still(&mut self) -> Result<(), IsolationError> {
        self.unsupported("pause a sandbox")
    }

    fn resume(&mut self) -> Result<(), IsolationError> {
        Ok(())
    }

    fn kill(&mut self) -> Result<FinalReport, IsolationError> {
        if let Some(done) = &self.killed {
            return Ok(done.clone());
        }
        self.is_gone = true;
        if let Some(next_level) = &mut self.next_level {
            let last = next_level.end()?;
            self.account_program(last);
        }
        let end = self.worker.end();
        if let Some(end) = end.map_err(running("end the worker"))? {
            self.account_worker(&end);
        }
        let usage = self.usage();
        let last = FinalReport {
            usage,
            denials: self.account.denials(),
            limits_hit: Vec::new(),
            out_of_memory: false,
            uncounted: Vec::new(),
            open_files: None,
        };
        Ok(self.killed.insert(last).clone())
    }
}
