//! The loop of a keeper: waits for the sandbox, its clients and signals, and does what is due.

mod carry_out;
mod follow;
mod hold;
mod whole;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use offleash_core::log_level::LogLevel;
use offleash_core::network::Approval;
use offleash_core::record::{Denial, LimitEffect, LimitHit};
use offleash_core::spec::Descent;
use offleash_gateway::{Account, Gateway, Notice, Questions};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{Final, Sandbox, SandboxEvent};
use offleash_store::rfc3339_now;
use offleash_sys::process;
use offleash_sys::signals::SignalQueue;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use self::hold::Held;
use super::authority::Authority;
use super::connection::{Connection, Heard, Stage};
use super::executions::{Client, Executions};
use super::log::Log;
use super::message::{EndReason, Ended, Hello, KeeperFailure, KeeperReply};
use super::refusals::Recent;
use super::users::Users;
use super::zygote;
use crate::drive::poll_until;
use offleash_core::error::with_causes;

/// The most connections at once; others wait in the socket's queue.
const MOST_CONNECTIONS: usize = 1024;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long clients may take, after the end, to hear of it.
const FAREWELL: Duration = Duration::from_secs(2);
/// After this time what only the start needed is given back.
const SETTLED: Duration = Duration::from_millis(500);
/// How often to see whether the sandbox's directory is still there.
const LOOK: Duration = Duration::from_secs(5);
/// How much is read from a client at once.
const BUFFER: usize = 64 * 1024;
/// How many bytes of requests that are not here in full are taken in, beside [`SMALL_REQUEST`] of each; the longest one comes
/// in at any rate, so that the others have their turn.
const MOST_UNFINISHED: usize = 64 * 1024 * 1024;
const SMALL_REQUEST: usize = 32 * 1024;
const SIGTERM: i32 = 15;

/// A sandbox that is served.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) sandbox: Box<dyn Sandbox>,
    pub(super) gateway: Option<Gateway>,
    pub(super) listener: OwnedFd,
    /// The sandbox's directory, by which it is found.
    pub(super) directory: OwnedFd,
    pub(super) log: Log,
    pub(super) signals: SignalQueue,
    pub(super) hello: Hello,
    pub(super) users: Users,
    pub(super) authority: Authority,
    pub(super) bounds: Bounds,
    pub(super) descent: Descent,
    /// What the gateway asks, where a rule says that it does.
    pub(super) questions: Option<Questions>,
    /// How long a client may hold it still.
    pub(super) longest_hold: Duration,
}

/// What is left to say of a sandbox that has ended, beside [`Ended`].
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// What was refused.
    pub(super) denials: Vec<Denial>,
    /// What was asked of the network, if there was one.
    pub(super) network: Option<Account>,
}

/// What the sandbox may use, as it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) cpus_millis: u64,
    pub(super) memory_bytes: u64,
    /// Zero without a limit.
    pub(super) disk_bytes: u64,
}

/// The loop, and what it knows.
#[derive(Debug)]
pub(super) struct Loop {
    serving: Serving,
    connections: BTreeMap<Client, Connection>,
    next_client: Client,
    executions: Executions,
    limits_hit: Vec<LimitHit>,
    refusals: Recent,
    ending: Option<EndReason>,
    /// Since when it is paused.
    paused_since: Option<Instant>,
    /// Who has it held still.
    held: Option<Held>,
    /// When memory that only the start needed is given back; `None` afterwards.
    settles: Option<Instant>,
    /// When its directory is looked for; the sandbox's own turns are more frequent.
    looks: Instant,
}

/// Whoever is ready.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Sandbox,
    Gateway,
    Questions,
    Signals,
    Listener,
    Client(Client),
}

impl Loop {
    pub(super) fn new(serving: Serving) -> Self {
        Self {
            serving,
            connections: BTreeMap::new(),
            next_client: 1,
            executions: Executions::default(),
            limits_hit: Vec::new(),
            refusals: Recent::default(),
            ending: None,
            paused_since: None,
            held: None,
            settles: Some(Instant::now() + SETTLED),
            looks: Instant::now() + LOOK,
        }
    }

    /// Serves until the sandbox ends, for whichever reason; `clean_up` removes what it leaves on disk.
    pub(super) fn run(mut self, clean_up: impl FnOnce(&Ended, Remains)) -> Ended {
        let reason = loop {
            if let Some(reason) = self.ending.take() {
                break reason;
            }
            if let Err(error) = self.round() {
                break EndReason::Failed(with_causes(&error));
            }
        };
        let (ended, remains) = self.end(reason);
        clean_up(&ended, remains);
        self.say_farewell(&ended);
        ended
    }

    fn round(&mut self) -> Result<(), IsolationError> {
        let unfinished = self.bound_requests();
        let ready = self.wait()?;
        let mut room = MOST_UNFINISHED.saturating_sub(unfinished);
        let mut buffer = Vec::new();
        for ready in ready {
            match ready {
                Ready::Sandbox => {}
                Ready::Gateway => self.end_for(EndReason::NetworkLost),
                Ready::Questions => self.answer_questions(),
                Ready::Signals => self.take_signals(),
                Ready::Listener => self.accept(),
                Ready::Client(client) if !self.is_heard(client) => {}
                Ready::Client(client) => {
                    buffer.resize(BUFFER, 0);
                    room = room.saturating_sub(self.hear(client, &mut buffer, room));
                }
            }
        }
        self.turn_sandbox()?;
        self.kill_what_is_late()?;
        self.feed()?;
        self.flush();
        self.end_hold();
        self.hold_and_release()?;
        self.settle();
        self.look();
        self.note_network();
        Ok(())
    }

    /// Writes down what the gateway tells, which wakes nobody for it: what waits meanwhile is not lost.
    fn note_network(&mut self) {
        for news in self.serving.gateway.iter().flat_map(Gateway::news) {
            self.serving.log.network(&news);
            self.refusals.note(&news);
        }
    }

    fn wait(&mut self) -> Result<Vec<Ready>, IsolationError> {
        let mut wanted = Vec::with_capacity(8);
        let mut polled = Vec::with_capacity(8);
        let mut want = |ready, descriptor, flags| {
            wanted.push(ready);
            polled.push(PollFd::from_borrowed_fd(descriptor, flags));
        };
        let interests = self.serving.sandbox.wait_on(true);
        for interest in &interests {
            let flags = if interest.writable {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            want(Ready::Sandbox, interest.descriptor, flags);
        }
        if let Some(gateway) = &self.serving.gateway {
            want(Ready::Gateway, gateway.lives(), PollFlags::empty());
        }
        if let Some(questions) = &self.serving.questions {
            want(Ready::Questions, questions.as_fd(), PollFlags::IN);
        }
        want(Ready::Signals, self.serving.signals.as_fd(), PollFlags::IN);
        if self.connections.len() < MOST_CONNECTIONS && self.held.is_none() {
            want(Ready::Listener, self.serving.listener.as_fd(), PollFlags::IN);
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
            want(Ready::Client(*client), descriptor, flags);
        }
        let _is_ready = poll_until(&mut polled, self.next_turn())?;
        let is_ready = |(ready, polled): (Ready, PollFd<'_>)| (!polled.revents().is_empty()).then_some(ready);
        Ok(wanted.into_iter().zip(polled).filter_map(is_ready).collect())
    }

    fn next_turn(&self) -> Instant {
        let asking = |one: &&Connection| one.stage == Stage::Asking && self.held.is_none();
        let impatient = self.connections.values().filter(asking);
        let others = [
            self.executions.next_deadline().filter(|_| !self.is_still()),
            self.held.as_ref().map(Held::ends),
            self.settles,
            impatient.map(|one| one.since + PATIENCE).min(),
        ];
        others
            .into_iter()
            .flatten()
            .fold(self.serving.sandbox.next_turn(), Instant::min)
    }

    fn turn_sandbox(&mut self) -> Result<(), IsolationError> {
        for event in self.serving.sandbox.turn(true)? {
            match event {
                SandboxEvent::Exec { exec, event } => self.tell(exec, event),
                SandboxEvent::Limit(hit) => self.hit(hit),
                SandboxEvent::Gone => self.end_for(EndReason::Lost),
            }
        }
        Ok(())
    }

    fn hit(&mut self, hit: LimitHit) {
        if hit.effect == LimitEffect::Killed {
            self.end_for(EndReason::Limit(hit.clone()));
        }
        let is_new = !self.limits_hit.contains(&hit);
        if is_new || hit.effect == LimitEffect::Ended {
            self.serving.log.limit(&hit);
        }
        if is_new {
            self.limits_hit.push(hit);
        }
    }

    /// The first reason counts; what follows is its consequence.
    fn end_for(&mut self, reason: EndReason) {
        self.ending.get_or_insert(reason);
    }

    /// Nobody is here to be asked.
    fn answer_questions(&self) {
        let Some(questions) = &self.serving.questions else {
            return;
        };
        for notice in questions.take() {
            if let Notice::Asked(question) = notice {
                questions.answer(question.id, Approval::NoTerminal);
            }
        }
    }

    fn take_signals(&mut self) {
        while let Ok(Some(signal)) = self.serving.signals.next() {
            // Others are for whoever has a terminal.
            if signal == SIGTERM {
                self.end_for(EndReason::Killed);
            }
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < MOST_CONNECTIONS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.serving.listener, flags) {
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

    /// Has large requests wait while too much is here of others that are not here in full; answers how much.
    fn bound_requests(&mut self) -> usize {
        let sizes = self
            .connections
            .iter()
            .map(|(client, connection)| (connection.unfinished(), *client));
        let (unfinished, longest) = sizes.fold((0, None), |(sum, longest), one| (sum + one.0, longest.max(Some(one))));
        let is_full = unfinished >= MOST_UNFINISHED;
        for (client, connection) in &mut self.connections {
            let is_longest = longest.is_some_and(|(_, longest)| longest == *client);
            connection.hold_back(is_full && !is_longest && connection.unfinished() > SMALL_REQUEST);
        }
        unfinished
    }

    /// Takes in what a client says; answers how many bytes more of it are here that make no request.
    fn hear(&mut self, client: Client, buffer: &mut [u8], room: usize) -> usize {
        let Some(connection) = self.connections.get_mut(&client) else {
            return 0;
        };
        let before = connection.unfinished();
        match connection.hear(buffer, room) {
            Heard::Nothing => {}
            Heard::HungUp => self.leave(client),
            Heard::Request(request) => {
                if let Err(failure) = self.carry_out(client, *request) {
                    self.answer(client, &KeeperReply::Failed(failure));
                }
            }
        }
        let connection = self.connections.get(&client);
        connection.map_or(0, |connection| connection.unfinished().saturating_sub(before))
    }

    fn leave(&mut self, client: Client) {
        self.connections.remove(&client);
        self.executions.leave(client);
        self.let_go(client);
    }

    fn answer(&mut self, client: Client, reply: &KeeperReply) {
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.answer(reply);
        }
    }

    /// Sends what clients take, and lets those go with whom all is said.
    fn flush(&mut self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (client, connection) in &mut self.connections {
            let is_late =
                connection.stage == Stage::Asking && now >= connection.since + PATIENCE && self.held.is_none();
            if !connection.flush() || connection.is_over() || is_late {
                gone.push(*client);
            }
        }
        for client in gone {
            self.leave(client);
        }
    }

    fn settle(&mut self) {
        if self.settles.is_some_and(|settles| Instant::now() >= settles) {
            self.settles = None;
            process::release_memory_of_start();
        }
    }

    /// Ends a sandbox whose directory was removed: no daemon will ever find it.
    fn look(&mut self) {
        let now = Instant::now();
        if now < self.looks {
            return;
        }
        self.looks = now + LOOK;
        if self.serving.descent == Descent::Zygote && self.connections.is_empty() && !self.has_descendants() {
            // Neither does a daemon follow it nor is it of use to anybody.
            self.end_for(EndReason::Killed);
        }
        if rustix::fs::fstat(&self.serving.directory).is_ok_and(|status| status.st_nlink == 0) {
            self.end_for(EndReason::Killed);
        }
    }

    fn has_descendants(&self) -> bool {
        let first = self.serving.sandbox.first_process();
        first.is_some_and(|first| zygote::has_descendants(first).unwrap_or(true))
    }

    fn end(&mut self, reason: EndReason) -> (Ended, Remains) {
        // What kept it from ending in good order is the kernel's, and of no use to clients.
        let last = self.serving.sandbox.kill().unwrap_or_else(|_| Final::default());
        self.note_network();
        let mut limits_hit = std::mem::take(&mut self.limits_hit);
        for hit in last.limits_hit.iter().filter(|hit| !limits_hit.contains(hit)) {
            self.serving.log.limit(hit);
        }
        if last.out_of_memory {
            let line = "the kernel killed a process for want of memory";
            self.serving.log.note(LogLevel::Warn, line);
        }
        for denial in &last.denials {
            let times = match denial.count {
                1 => String::new(),
                count => format!(" {count} times"),
            };
            let line = format!(
                "{} `{}` was refused{times}: {}",
                denial.subject, denial.name, denial.rule
            );
            self.serving.log.note(LogLevel::Warn, &line);
        }
        let mut network = self.serving.gateway.take().map(Gateway::finish);
        if let Some(account) = &mut network {
            limits_hit.append(&mut account.limits_hit);
        }
        limits_hit.extend(last.limits_hit);
        let ended = Ended {
            reason,
            at: rfc3339_now(),
            usage: last.usage,
            limits_hit,
            out_of_memory: last.out_of_memory,
        };
        let denials = last.denials;
        (ended, Remains { denials, network })
    }

    fn say_farewell(&mut self, ended: &Ended) {
        for connection in self.connections.values_mut() {
            match connection.stage {
                Stage::Following(_) => {
                    connection.answer(&KeeperReply::Gone { why: ended.why() });
                }
                Stage::Waiting if connection.waits_for_the_end => {
                    connection.answer(&KeeperReply::Killed(ended.clone()));
                }
                Stage::Asking | Stage::Waiting => connection.answer(&KeeperReply::Failed(KeeperFailure::Gone)),
                Stage::Leaving => {}
            }
        }
        let deadline = Instant::now() + FAREWELL;
        loop {
            self.flush();
            let mut polled: Vec<PollFd<'_>> = Vec::new();
            for connection in self.connections.values() {
                polled.push(PollFd::from_borrowed_fd(connection.interest().0, PollFlags::OUT));
            }
            let is_over = polled.is_empty() || Instant::now() >= deadline;
            if is_over || poll_until(&mut polled, deadline).is_err() {
                return;
            }
        }
    }
}

/// Whether the other side is us or root.
fn is_trusted(socket: &OwnedFd) -> bool {
    let ours = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == ours || peer.uid.is_root())
}

/// Waits for connections at `path`, of which nobody else may be there.
pub(super) fn listen(path: &std::path::Path) -> io::Result<OwnedFd> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}
