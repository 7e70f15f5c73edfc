//! The programs that use a sandbox by its socket: heard, served and told, as one client of its loop.

mod carry_out;
mod follow;
mod still;
mod whole;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::exec::ExecEvent;
use offleash_core::log_level::LogLevel;
use offleash_core::monitor::MonitorAction;
use offleash_core::record::{AlertRecord, DenialRecord, LimitEffect, LimitHit, ToolUse};
use offleash_core::spec::ZygoteRole;
use offleash_gateway::{Account, Gateway};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{EnforcementReport, ExecId, FinalReport, Sandbox};
use offleash_store::rfc3339_now;
use offleash_sys::signals::SignalQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use self::still::StillHold;
use super::authority::Authority;
use super::connection::{Connection, ConnectionStage, Heard};
use super::executions::{Client, Executions};
use super::log::Log;
use super::message::{EndReason, Ended, Hello, SupervisorFailure, SupervisorReply};
use super::refusals::RecentRefusals;
use super::users::Users;
use super::zygote;
use crate::lifecycle::making::RunningSandbox;
use crate::sandbox_loop::{Ending, Lingering, LoopSandbox, SandboxClient, SandboxLoop, WaitList, linger};
use crate::tools::ToolsProcess;
use crate::trusted_socket::is_trusted;
use offleash_core::error::with_causes;

/// The most connections at once; others wait in the socket's queue.
const MAX_CONNECTIONS: usize = 1024;
/// How long a client may take to say what it wants.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long clients may take, after the end, to hear of it.
const LINGER: Duration = Duration::from_secs(2);
/// How often to see whether the sandbox's directory is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How much is read from a client at once.
const BUFFER: usize = 64 * 1024;
/// How many bytes of requests that are not here in full are taken in, beside [`SMALL_REQUEST`] of each; the longest one comes
/// in at any rate, so that the others have their turn.
const MAX_UNFINISHED: usize = 64 * 1024 * 1024;
const SMALL_REQUEST: usize = 32 * 1024;
const SIGTERM: i32 = 15;

/// What a sandbox is served with.
#[derive(Debug)]
pub(super) struct SocketService {
    pub(super) listener: OwnedFd,
    /// The sandbox's directory, by which it is found.
    pub(super) directory: OwnedFd,
    pub(super) log: Log,
    pub(super) signals: SignalQueue,
    pub(super) hello: Hello,
    pub(super) users: Users,
    pub(super) authority: Authority,
    pub(super) bounds: UsageBounds,
    pub(super) descent: ZygoteRole,
    /// How long a client may hold it still.
    pub(super) longest_hold: Duration,
}

/// What is left to say of a sandbox that has ended, beside [`Ended`].
#[derive(Debug, Default)]
pub(super) struct EndRemains {
    /// What was refused.
    pub(super) denials: Vec<DenialRecord>,
    /// What was asked of the network, if there was one.
    pub(super) network: Option<Account>,
    /// How often each of its tools was called.
    pub(super) tools: Vec<ToolUse>,
    /// Rules of monitoring that fired.
    pub(super) alerts: Vec<AlertRecord>,
}

/// What the sandbox may use, as it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsageBounds {
    pub(super) cpus_millis: u64,
    pub(super) memory_bytes: u64,
    /// Zero without a limit.
    pub(super) disk_bytes: u64,
}

/// The programs at a socket that use a sandbox, each by a connection for each request.
#[derive(Debug)]
pub(super) struct SocketClients {
    service: SocketService,
    connections: BTreeMap<Client, Connection>,
    next_client: Client,
    /// How many bytes are here of requests that are not here in full.
    unfinished: usize,
    executions: Executions,
    limits_hit: Vec<LimitHit>,
    refusals: RecentRefusals,
    /// The question about a connection that waits for an answer, and until when.
    asked: Option<(ApprovalQuestion, Instant)>,
    /// How many firings of rules of monitoring somebody has heard of.
    told_alerts: u64,
    /// Whether it is paused because of one.
    paused_by_rule: bool,
    /// Since when it is paused.
    paused_since: Option<Instant>,
    /// Who has it held still.
    hold: Option<StillHold>,
    /// When its directory is looked for; the sandbox's own turns are more frequent.
    looks: Instant,
}

/// Whoever may be ready.
#[derive(Debug, Clone, Copy)]
pub(super) enum SocketSource {
    Signals,
    Listener,
    Client(Client),
}

impl SandboxClient for SocketClients {
    type Source = SocketSource;

    fn wait_on<'c>(&'c self, _sandbox: &dyn Sandbox, waiting: &mut WaitList<'c, SocketSource>) {
        waiting.add(SocketSource::Signals, self.service.signals.as_fd(), PollFlags::IN);
        if self.connections.len() < MAX_CONNECTIONS && self.hold.is_none() {
            waiting.add(SocketSource::Listener, self.service.listener.as_fd(), PollFlags::IN);
        }
        for (client, connection) in &self.connections {
            let (descriptor, mut flags) = connection.interest();
            if !self.is_heard(*client) {
                flags.remove(PollFlags::IN);
                if flags.is_empty() {
                    // That it hangs up is noticed when it is its turn again.
                    continue;
                }
            }
            waiting.add(SocketSource::Client(*client), descriptor, flags);
        }
    }

    fn tool_noted(&mut self, line: String) {
        self.service.log.note(LogLevel::Info, &line);
    }

    fn alert(&mut self, _held: &mut LoopSandbox<'_>, alert: &AlertRecord) {
        let level = match alert.action {
            MonitorAction::Log => LogLevel::Info,
            _ => LogLevel::Warn,
        };
        self.service.log.note(level, &alert.line());
    }

    fn pause_by_rule(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), String> {
        self.stop(held).map_err(|error| with_causes(&error))?;
        self.paused_by_rule = true;
        Ok(())
    }

    fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        let line = format!("approval n{} is asked for: {}", question.id, question.about);
        self.service.log.note(LogLevel::Info, &line);
        let until = Instant::now() + question.timeout;
        self.asked = Some((question, until));
        None
    }

    fn withdraw(&mut self) {
        if let Some((question, _)) = self.asked.take() {
            let line = format!("approval n{} was not given in time, or is needed no more", question.id);
            self.service.log.note(LogLevel::Info, &line);
        }
    }

    fn network_lost(&mut self, line: String) {
        self.service.log.note(LogLevel::Error, &line);
        self.refusals.keep(line);
    }

    fn next_turn(&self) -> Option<Instant> {
        let asking = |one: &&Connection| one.stage == ConnectionStage::Asking && self.hold.is_none();
        let impatient = self.connections.values().filter(asking);
        let due = [
            self.executions.next_deadline().filter(|_| !self.is_still()),
            self.hold.as_ref().map(StillHold::ends),
            impatient.map(|one| one.since + ASKING_TIMEOUT).min(),
        ];
        due.into_iter().flatten().min()
    }

    fn hear(&mut self, held: &mut LoopSandbox<'_>, ready: &[SocketSource]) -> Result<(), IsolationError> {
        let mut room = MAX_UNFINISHED.saturating_sub(self.unfinished);
        let mut buffer = Vec::new();
        for source in ready {
            match *source {
                SocketSource::Signals => self.take_signals(held),
                SocketSource::Listener => self.accept(),
                SocketSource::Client(client) if !self.is_heard(client) => {}
                SocketSource::Client(client) => {
                    buffer.resize(BUFFER, 0);
                    room = room.saturating_sub(self.hear_client(held, client, &mut buffer, room)?);
                }
            }
        }
        Ok(())
    }

    fn exec_event(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, event: ExecEvent) {
        self.tell(held, exec, event);
    }

    fn limit_hit(&mut self, _held: &mut LoopSandbox<'_>, hit: &LimitHit) {
        let is_new = !self.limits_hit.contains(hit);
        if is_new || hit.effect == LimitEffect::Ended {
            self.service.log.limit(hit);
        }
        if is_new {
            self.limits_hit.push(hit.clone());
        }
    }

    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        self.kill_what_is_late(held)?;
        self.feed(held)?;
        self.flush(held)?;
        self.end_hold(held)?;
        self.hold_and_release(held)?;
        self.look(held);
        self.note_network(held);
        self.bound_requests();
        Ok(())
    }
}

impl SocketClients {
    fn new(service: SocketService) -> Self {
        Self {
            service,
            connections: BTreeMap::new(),
            next_client: 1,
            unfinished: 0,
            executions: Executions::default(),
            limits_hit: Vec::new(),
            refusals: RecentRefusals::default(),
            asked: None,
            told_alerts: 0,
            paused_by_rule: false,
            paused_since: None,
            hold: None,
            looks: Instant::now() + LOOK_EVERY,
        }
    }

    /// Writes down what the gateway tells, which wakes nobody for it: what waits meanwhile is not lost.
    fn note_network(&mut self, held: &LoopSandbox<'_>) {
        self.note_news(held.gateway);
    }

    fn note_news(&mut self, gateway: Option<&Gateway>) {
        for news in gateway.into_iter().flat_map(Gateway::news) {
            self.service.log.network(&news);
            self.refusals.note(&news);
        }
    }

    fn take_signals(&mut self, held: &mut LoopSandbox<'_>) {
        while let Ok(Some(signal)) = self.service.signals.next() {
            // Others are for whoever has a terminal.
            if signal == SIGTERM {
                held.end(Ending::Killed);
            }
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < MAX_CONNECTIONS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.service.listener, flags) {
                Ok(socket) if is_trusted(&socket) => {
                    self.connections.insert(self.next_client, Connection::new(socket));
                    self.next_client += 1;
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Descriptors are used up until connections end, or nobody is waiting.
                Err(_) => return,
            }
        }
    }

    /// Has large requests wait while too much is here of others that are not here in full.
    fn bound_requests(&mut self) {
        let sizes = self
            .connections
            .iter()
            .map(|(client, connection)| (connection.unfinished(), *client));
        let (unfinished, longest) = sizes.fold((0, None), |(sum, longest), one| (sum + one.0, longest.max(Some(one))));
        let is_full = unfinished >= MAX_UNFINISHED;
        for (client, connection) in &mut self.connections {
            let is_longest = longest.is_some_and(|(_, longest)| longest == *client);
            connection.hold_back(is_full && !is_longest && connection.unfinished() > SMALL_REQUEST);
        }
        self.unfinished = unfinished;
    }

    /// Takes in what a client says; answers how many bytes more of it are here that make no request.
    fn hear_client(
        &mut self,
        held: &mut LoopSandbox<'_>,
        client: Client,
        buffer: &mut [u8],
        room: usize,
    ) -> Result<usize, IsolationError> {
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(0);
        };
        let before = connection.unfinished();
        match connection.hear(buffer, room) {
            Heard::Nothing => {}
            Heard::HungUp => self.leave(held, client)?,
            Heard::Request(request) => {
                if let Err(failure) = self.carry_out(held, client, *request) {
                    self.answer(client, &SupervisorReply::Failed(failure));
                }
            }
        }
        let connection = self.connections.get(&client);
        Ok(connection.map_or(0, |connection| connection.unfinished().saturating_sub(before)))
    }

    fn leave(&mut self, held: &mut LoopSandbox<'_>, client: Client) -> Result<(), IsolationError> {
        self.forget(client);
        self.let_go(held, client)
    }

    fn forget(&mut self, client: Client) {
        self.connections.remove(&client);
        self.executions.leave(client);
    }

    fn answer(&mut self, client: Client, reply: &SupervisorReply) {
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.answer(reply);
        }
    }

    /// Sends what clients take, and lets those go with whom all is said.
    fn flush(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        for client in self.send() {
            self.leave(held, client)?;
        }
        Ok(())
    }

    /// Sends what clients take; those with whom all is said.
    fn send(&mut self) -> Vec<Client> {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (client, connection) in &mut self.connections {
            let is_late = connection.stage == ConnectionStage::Asking
                && now >= connection.since + ASKING_TIMEOUT
                && self.hold.is_none();
            if !connection.flush() || connection.is_over() || is_late {
                gone.push(*client);
            }
        }
        gone
    }

    /// Ends a sandbox whose directory was removed: no daemon will ever find it.
    fn look(&mut self, held: &mut LoopSandbox<'_>) {
        let now = Instant::now();
        if now < self.looks {
            return;
        }
        self.looks = now + LOOK_EVERY;
        self.note_corrections(held.sandbox.enforcement());
        if self.service.descent == ZygoteRole::Zygote && self.connections.is_empty() && !has_descendants(held.sandbox) {
            // Neither does a daemon follow it nor is it of use to anybody.
            held.end(Ending::Killed);
        }
        if rustix::fs::fstat(&self.service.directory).is_ok_and(|status| status.st_nlink == 0) {
            held.end(Ending::Killed);
        }
    }

    /// Notes what turned out not to hold after it was said what does; who asks from now on is told.
    fn note_corrections(&mut self, found: &EnforcementReport) {
        let told = &mut self.service.hello;
        if (&told.enforced, &told.not_enforced) == (&found.enforced, &found.not_enforced) {
            return;
        }
        for (control, why) in &found.not_enforced {
            if told.not_enforced.get(control) != Some(why) {
                self.service
                    .log
                    .note(LogLevel::Warn, &format!("not enforced: `{control}`: {why}"));
            }
        }
        (told.enforced, told.not_enforced) = (found.enforced.clone(), found.not_enforced.clone());
    }

    /// Ends the sandbox, and says how it ended.
    fn end(&mut self, running: RunningSandbox, reason: EndReason) -> (Ended, EndRemains) {
        let RunningSandbox {
            mut sandbox,
            gateway,
            tools,
            mut monitor,
            ..
        } = running;
        // What kept it from ending in good order is the kernel's, and of no use to clients.
        let last = sandbox.kill().unwrap_or_else(|_| FinalReport::default());
        self.note_news(gateway.as_ref());
        let mut limits_hit = std::mem::take(&mut self.limits_hit);
        for hit in last.limits_hit.iter().filter(|hit| !limits_hit.contains(hit)) {
            self.service.log.limit(hit);
        }
        if last.out_of_memory {
            let line = "the kernel killed a process for want of memory";
            self.service.log.note(LogLevel::Warn, line);
        }
        for denial in &last.denials {
            self.service.log.note(LogLevel::Warn, &told(denial));
        }
        let mut network = gateway.map(Gateway::finish);
        if let Some(account) = &mut network {
            limits_hit.append(&mut account.limits_hit);
        }
        limits_hit.extend(last.limits_hit);
        let told = usize::try_from(self.told_alerts).unwrap_or(usize::MAX);
        let ended = Ended {
            reason,
            at: rfc3339_now(),
            usage: last.usage,
            limits_hit,
            out_of_memory: last.out_of_memory,
            untold_alerts: monitor.alerts().get(told..).unwrap_or_default().to_vec(),
        };
        let denials = last.denials;
        let tools = tools.map(ToolsProcess::finish).unwrap_or_default();
        (
            ended,
            EndRemains {
                denials,
                network,
                tools,
                alerts: monitor.take_alerts(),
            },
        )
    }

    fn say_farewell(&mut self, ended: &Ended) {
        for connection in self.connections.values_mut() {
            match connection.stage {
                ConnectionStage::Following(_) => {
                    connection.answer(&SupervisorReply::Gone { why: ended.why() });
                }
                ConnectionStage::Waiting if connection.waits_for_the_end => {
                    connection.answer(&SupervisorReply::Killed(ended.clone()));
                }
                ConnectionStage::Asking | ConnectionStage::Waiting => {
                    connection.answer(&SupervisorReply::Failed(SupervisorFailure::Gone))
                }
                ConnectionStage::Leaving => {}
            }
        }
        // Who cannot be told finds the socket closed.
        let _told = linger(self, Instant::now() + LINGER);
    }
}

impl Lingering for SocketClients {
    fn left(&self) -> Vec<PollFd<'_>> {
        let all = self.connections.values();
        all.map(|connection| PollFd::from_borrowed_fd(connection.interest().0, PollFlags::OUT))
            .collect()
    }

    fn pass_rest(&mut self) -> Result<bool, IsolationError> {
        for client in self.send() {
            self.forget(client);
        }
        Ok(!self.connections.is_empty())
    }
}

/// Serves a sandbox until it ends, for whichever reason; `clean_up` removes what it leaves on disk.
pub(super) fn serve(mut running: RunningSandbox, service: SocketService, clean_up: impl FnOnce(&Ended, EndRemains)) {
    let mut clients = SocketClients::new(service);
    let reason = match SandboxLoop::new(&mut running).settling().run(&mut clients) {
        Ok(end) => reason(end.ending),
        Err(error) => EndReason::Failed(with_causes(&error)),
    };
    let (ended, remains) = clients.end(running, reason);
    clean_up(&ended, remains);
    clients.say_farewell(&ended);
}

fn reason(ending: Ending) -> EndReason {
    match ending {
        Ending::Limit(hit) => EndReason::Limit(hit),
        Ending::Killed => EndReason::Killed,
        Ending::Rule(rule) => EndReason::Rule(rule),
        // The others are those of a run.
        Ending::Lost | Ending::Command(_) | Ending::Interrupted { .. } | Ending::OutputClosed | Ending::ClientDone => {
            EndReason::Lost
        }
    }
}

fn has_descendants(sandbox: &dyn Sandbox) -> bool {
    let first = sandbox.first_process();
    first.is_some_and(|first| zygote::has_descendants(first).unwrap_or(true))
}

/// What was refused, as a line of the log.
fn told(denial: &DenialRecord) -> String {
    let times = match denial.count {
        1 => String::new(),
        count => format!(" {count} times"),
    };
    format!(
        "{} `{}` was refused{times}: {}",
        denial.subject, denial.name, denial.rule
    )
}
