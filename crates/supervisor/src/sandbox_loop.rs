//! The loop of every process that holds a sandbox: waits for the sandbox, its gateway and its client, and has each take its
//! turn.
//!
//! Who uses the sandbox is a [`SandboxClient`]: the streams of a run ([`crate::run_client`]), programs at a socket
//! (`supervisor::serve`), runs that may take it over (`lifecycle::prepared`). One thread, which waits with poll.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion};
use offleash_core::error::with_causes;
use offleash_core::exec::{ExecEnd, ExecEvent};
use offleash_core::monitor::{MonitorAction, THROTTLED_CPUS_MILLIS};
use offleash_core::record::{AlertRecord, LimitEffect, LimitHit};
use offleash_gateway::{Gateway, Notice};
use offleash_isolation::error::IsolationError;
use offleash_isolation::sandbox::{ExecId, Sandbox, SandboxEvent};
use offleash_sys::process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::lifecycle::loss;
use crate::lifecycle::making::RunningSandbox;
use crate::monitor::SandboxMonitor;
use crate::tools::{AskNotice, ToolQuestions, ToolsProcess};

/// After this time what only the start needed is given back.
const SETTLED: Duration = Duration::from_millis(500);
/// How many questions wait for a client; each asker has one open at a time.
const MAX_QUESTIONS: usize = 16;
/// Where nothing is due.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// Why a loop has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command of a run ended by itself.
    Command(ExecEnd),
    /// Somebody asked for it.
    Killed,
    /// We end the sandbox because of a limit.
    Limit(LimitHit),
    /// The user interrupted the run twice.
    Interrupted { signal: i32 },
    /// Nobody takes the output any more.
    OutputClosed,
    /// A rule of monitoring ended it; its name.
    Rule(String),
    /// The sandbox's first process ended.
    Lost,
    /// The client has what it waited for, or waits no more. The sandbox goes on.
    ClientDone,
}

/// How a loop ended.
#[derive(Debug)]
pub(crate) struct LoopEnd {
    pub(crate) ending: Ending,
    /// Limits that were hit and have not ended it.
    pub(crate) limits_hit: Vec<LimitHit>,
}

/// How much a sandbox is attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// Its limits are looked at whenever that is due.
    Full,
    /// Its limits are looked at when something else happens.
    OnEvents,
    /// Nothing has run in it: no limit can have been reached, and whoever asks is not to wait for a look at them.
    NewsOnly,
}

/// Whoever uses a sandbox.
pub(crate) trait SandboxClient {
    /// One of several that it waits for.
    type Source: Copy;

    /// Names what it waits for.
    fn wait_on<'c>(&'c self, sandbox: &dyn Sandbox, waiting: &mut WaitList<'c, Self::Source>);

    /// Whether output is to be taken from the sandbox.
    fn takes_output(&self) -> bool {
        true
    }

    /// How much the sandbox is attended to.
    fn attention(&self) -> Attention {
        Attention::Full
    }

    /// When it has a turn even if nothing is ready.
    fn next_turn(&self) -> Option<Instant>;

    /// Takes in what is ready of what it waited for, before the sandbox has its turn.
    ///
    /// # Errors
    /// When the sandbox fails.
    fn hear(&mut self, held: &mut LoopSandbox<'_>, ready: &[Self::Source]) -> Result<(), IsolationError> {
        let _it_all_in_its_turn = (held, ready);
        Ok(())
    }

    /// Something happened to an execution.
    fn exec_event(&mut self, held: &mut LoopSandbox<'_>, exec: ExecId, event: ExecEvent);

    /// A limit was hit.
    fn limit_hit(&mut self, held: &mut LoopSandbox<'_>, hit: &LimitHit) {
        let _is_kept_by_the_loop = (held, hit);
    }

    /// A rule of monitoring fired, and what it asks for was done, or was not.
    fn alert(&mut self, held: &mut LoopSandbox<'_>, alert: &AlertRecord) {
        let _is_in_the_record = (held, alert);
    }

    /// Stops everything in the sandbox until somebody resumes it.
    ///
    /// # Errors
    /// Why that cannot be.
    fn pause_by_rule(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), String> {
        let _stays = held;
        Err("nobody could resume it".to_owned())
    }

    /// Puts a question to whoever is there; the answer, where it comes at once.
    fn ask(&mut self, question: ApprovalQuestion) -> Option<ApprovalAnswer> {
        let _nobody_is_there = question;
        Some(ApprovalAnswer::NoTerminal)
    }

    /// No question needs an answer any more.
    fn withdraw(&mut self) {}

    /// This became of a call of a tool.
    fn tool_noted(&mut self, line: String) {
        let _is_counted_in_the_record = line;
    }

    /// The gateway was lost, as `line` says; the sandbox goes on without a network. Nothing more is heard of it.
    fn network_lost(&mut self, line: String) {
        let _is_in_the_record = line;
    }

    /// Does what is due after the sandbox had its turn.
    ///
    /// # Errors
    /// When the sandbox or the client fails.
    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError>;
}

/// Descriptors that are waited for, and whose they are.
#[derive(Debug)]
pub(crate) struct WaitList<'c, S> {
    owners: Vec<Owner<S>>,
    polled: Vec<PollFd<'c>>,
}

#[derive(Debug, Clone, Copy)]
enum Owner<S> {
    Sandbox,
    Gateway,
    Questions,
    ToolQuestions,
    Client(S),
}

impl<'c, S: Copy> WaitList<'c, S> {
    /// One of the client's.
    pub(crate) fn add(&mut self, source: S, descriptor: BorrowedFd<'c>, flags: PollFlags) {
        self.push(Owner::Client(source), descriptor, flags);
    }

    fn push(&mut self, owner: Owner<S>, descriptor: BorrowedFd<'c>, flags: PollFlags) {
        self.owners.push(owner);
        self.polled.push(PollFd::from_borrowed_fd(descriptor, flags));
    }
}

/// What became ready.
struct Ready<S> {
    gateway: bool,
    questions: bool,
    tool_questions: bool,
    client: Vec<S>,
}

/// What has become of a sandbox so far.
#[derive(Debug, Default)]
struct LoopFindings {
    ending: Option<Ending>,
    limits_hit: Vec<LimitHit>,
}

impl LoopFindings {
    /// The first ending counts; what follows is its consequence.
    fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    fn hit(&mut self, hit: LimitHit) {
        // What is left is too much also when the command has ended before it was found: nobody is told again.
        let is_to_be_kept =
            hit.effect != LimitEffect::Killed || (self.ending.is_some() && hit.limit.is_of_what_is_left());
        match is_to_be_kept {
            true if self.limits_hit.contains(&hit) => {}
            true => self.limits_hit.push(hit),
            false => self.end(Ending::Limit(hit)),
        }
    }
}

/// The sandbox of a loop, for its client.
#[derive(Debug)]
pub(crate) struct LoopSandbox<'a> {
    pub(crate) sandbox: &'a mut dyn Sandbox,
    pub(crate) gateway: Option<&'a Gateway>,
    pub(crate) monitor: &'a mut SandboxMonitor,
    tools: Option<&'a mut ToolQuestions>,
    questions: QuestionLine,
    findings: LoopFindings,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    Gateway,
    Tools,
}

/// What is asked of a client: it has one question at a time, whoever asks.
#[derive(Debug, Default)]
struct QuestionLine {
    open: Option<(Asker, ApprovalQuestion)>,
    waiting: VecDeque<(Asker, ApprovalQuestion)>,
}

impl QuestionLine {
    /// Takes a question back, all of this asker's without a number; the one that was open.
    fn withdraw(&mut self, asker: Asker, id: Option<u64>) -> Option<ApprovalQuestion> {
        let is_it = |by: Asker, number: u64| by == asker && id.is_none_or(|id| id == number);
        self.waiting.retain(|(by, question)| !is_it(*by, question.id));
        let open = self.open.take_if(|(by, question)| is_it(*by, question.id));
        open.map(|(_, question)| question)
    }
}

impl LoopSandbox<'_> {
    /// Ends the loop. The first ending counts.
    pub(crate) fn end(&mut self, ending: Ending) {
        self.findings.end(ending);
    }

    /// Answers the open question, if it has this number; in the audit log, too, if somebody was asked.
    pub(crate) fn answer(&mut self, id: u64, approval: ApprovalAnswer) {
        if let Some((asker, question)) = self.questions.open.take_if(|(_, open)| open.id == id) {
            if approval != ApprovalAnswer::NoTerminal {
                self.monitor
                    .note_decision(&question.about, question.rule.as_deref(), approval);
            }
            self.answer_to(asker, question.id, approval);
        }
    }

    fn answer_to(&mut self, asker: Asker, id: u64, approval: ApprovalAnswer) {
        match asker {
            Asker::Gateway => {
                if let Some(gateway) = self.gateway {
                    gateway.questions().answer(id, approval);
                }
            }
            Asker::Tools => {
                if let Some(tools) = &mut self.tools {
                    tools.answer(id, approval);
                }
            }
        }
    }
}

/// The loop.
pub(crate) struct SandboxLoop<'a> {
    held: LoopSandbox<'a>,
    /// Does a little of what can wait, while there is nothing to wait for; says whether there is more.
    chore: Option<&'a mut dyn FnMut() -> bool>,
    /// When memory that only the start needed is given back; `None` where it is kept, and afterwards.
    settles: Option<Instant>,
    /// Whether its gateway was lost, and the client told.
    has_lost_network: bool,
}

impl<'a> SandboxLoop<'a> {
    pub(crate) fn new(running: &'a mut RunningSandbox) -> Self {
        Self {
            held: LoopSandbox {
                sandbox: &mut *running.sandbox,
                gateway: running.gateway.as_ref(),
                monitor: &mut running.monitor,
                tools: running.tools.as_mut().map(ToolsProcess::questions),
                questions: QuestionLine::default(),
                findings: LoopFindings::default(),
            },
            chore: None,
            settles: None,
            has_lost_network: false,
        }
    }

    /// Gives it something to do in small pieces whenever nothing else is to be done.
    pub(crate) fn with_chore(self, chore: &'a mut dyn FnMut() -> bool) -> Self {
        Self {
            chore: Some(chore),
            ..self
        }
    }

    /// Has it give back, after a while, memory that only the start needed.
    pub(crate) fn settling(self) -> Self {
        Self {
            settles: Some(Instant::now() + SETTLED),
            ..self
        }
    }

    /// Goes on until something ends it.
    ///
    /// # Errors
    /// When the sandbox or its client fails.
    pub(crate) fn run<C: SandboxClient>(mut self, client: &mut C) -> Result<LoopEnd, IsolationError> {
        loop {
            if let Some(ending) = self.held.findings.ending.take() {
                self.watch(client, Some(&ending));
                let findings = self.held.findings;
                let ending = findings.ending.unwrap_or(ending);
                let limits_hit = findings.limits_hit;
                return Ok(LoopEnd { ending, limits_hit });
            }
            let ready = self.wait(client)?;
            if ready.gateway {
                self.tell_of_lost_network(client);
            }
            client.hear(&mut self.held, &ready.client)?;
            self.turn_sandbox(client)?;
            if ready.questions {
                self.hear_gateway(client);
            }
            if ready.tool_questions {
                self.hear_tools(client);
            }
            self.watch(client, None);
            client.turn(&mut self.held)?;
            self.put_questions(client);
            self.settle();
        }
    }

    fn wait<C: SandboxClient>(&mut self, client: &C) -> Result<Ready<C::Source>, IsolationError> {
        let mut waiting = WaitList {
            owners: Vec::with_capacity(8),
            polled: Vec::with_capacity(8),
        };
        for interest in self.held.sandbox.wait_on(client.takes_output()) {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, interest.writable);
            waiting.push(Owner::Sandbox, interest.descriptor, flags);
        }
        if let Some(gateway) = self.held.gateway.filter(|_| !self.has_lost_network) {
            waiting.push(Owner::Gateway, gateway.lives(), PollFlags::empty());
            waiting.push(Owner::Questions, gateway.questions().as_fd(), PollFlags::IN);
        }
        if let Some(questions) = self.held.tools.as_deref().and_then(ToolQuestions::interest) {
            waiting.push(Owner::ToolQuestions, questions, PollFlags::IN);
        }
        client.wait_on(&*self.held.sandbox, &mut waiting);
        let until = self.next_turn(client);
        let is_ready = wait_with(&mut self.chore, &mut waiting.polled, until)?;
        let mut ready = Ready {
            gateway: false,
            questions: false,
            tool_questions: false,
            client: Vec::new(),
        };
        if !is_ready {
            return Ok(ready);
        }
        for (owner, polled) in waiting.owners.iter().zip(&waiting.polled) {
            match owner {
                _ if polled.revents().is_empty() => {}
                Owner::Sandbox => {}
                Owner::Gateway => ready.gateway = true,
                Owner::Questions => ready.questions = true,
                Owner::ToolQuestions => ready.tool_questions = true,
                Owner::Client(source) => ready.client.push(*source),
            }
        }
        Ok(ready)
    }

    fn next_turn<C: SandboxClient>(&self, client: &C) -> Instant {
        let of_sandbox = (client.attention() == Attention::Full).then(|| self.held.sandbox.next_turn());
        let due = [of_sandbox, client.next_turn(), self.settles];
        due.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + FAR)
    }

    fn turn_sandbox<C: SandboxClient>(&mut self, client: &mut C) -> Result<(), IsolationError> {
        let takes_output = client.takes_output();
        let events = match client.attention() {
            Attention::Full | Attention::OnEvents => self.held.sandbox.turn(takes_output)?,
            Attention::NewsOnly => self.held.sandbox.news(takes_output)?,
        };
        for event in events {
            match event {
                SandboxEvent::Exec { exec, event } => client.exec_event(&mut self.held, exec, event),
                SandboxEvent::Limit(hit) => {
                    client.limit_hit(&mut self.held, &hit);
                    self.held.findings.hit(hit);
                }
                SandboxEvent::Gone => self.held.end(Ending::Lost),
            }
        }
        Ok(())
    }

    /// Samples what the sandbox does when that is due, and does what rules ask for that fire. At the end of the loop there is
    /// nothing left to be done, but to be told; only a command that has ended can still be ended by a rule, so that nothing of
    /// it is written back.
    fn watch<C: SandboxClient>(&mut self, client: &mut C, end: Option<&Ending>) {
        if client.attention() != Attention::Full || !self.held.monitor.is_due(end.is_some()) {
            return;
        }
        let LoopSandbox {
            sandbox,
            gateway,
            monitor,
            ..
        } = &mut self.held;
        for mut alert in monitor.look(&mut **sandbox, *gateway, end.is_some()) {
            let is_late = match (alert.action, end) {
                (_, None) | (MonitorAction::Kill, Some(Ending::Command(_))) => false,
                (action, Some(_)) => action > MonitorAction::Alert,
            };
            alert.not_done = match is_late {
                true => Some("it had ended already".to_owned()),
                false => self.act(client, &alert).err(),
            };
            self.held.monitor.note(alert.clone());
            client.alert(&mut self.held, &alert);
        }
    }

    /// Does what a rule asks for.
    fn act<C: SandboxClient>(&mut self, client: &mut C, alert: &AlertRecord) -> Result<(), String> {
        match alert.action {
            MonitorAction::Off | MonitorAction::Log | MonitorAction::Alert => Ok(()),
            MonitorAction::Throttle => {
                let throttled = self.held.sandbox.throttle(THROTTLED_CPUS_MILLIS);
                throttled.map_err(|error| with_causes(&error))
            }
            MonitorAction::Pause | MonitorAction::SnapshotAndPause => client.pause_by_rule(&mut self.held),
            MonitorAction::Kill => {
                self.held.end(Ending::Rule(alert.rule.clone()));
                Ok(())
            }
        }
    }

    /// Once: nothing is to be heard of it any more.
    fn tell_of_lost_network<C: SandboxClient>(&mut self, client: &mut C) {
        if let Some(lost) = self.held.gateway.and_then(Gateway::loss) {
            self.has_lost_network = true;
            let line = loss(lost).line();
            self.withdraw(client, Asker::Gateway, None, None);
            client.network_lost(line);
        }
    }

    /// Takes in what the gateway asks.
    fn hear_gateway<C: SandboxClient>(&mut self, client: &mut C) {
        let Some(questions) = self.held.gateway.map(Gateway::questions) else {
            return;
        };
        for notice in questions.take() {
            match notice {
                Notice::Asked(question) => self.line_up(Asker::Gateway, question),
                // It takes one back when its time is over.
                Notice::Withdrawn(id) => {
                    self.withdraw(client, Asker::Gateway, Some(id), Some(ApprovalAnswer::Timeout));
                }
            }
        }
    }

    /// Takes in what is asked about calls of tools.
    fn hear_tools<C: SandboxClient>(&mut self, client: &mut C) {
        let notices = self.held.tools.as_mut().map(|tools| tools.take()).unwrap_or_default();
        for notice in notices {
            match notice {
                AskNotice::Asked(question) => self.line_up(Asker::Tools, question),
                AskNotice::Withdrawn(id) => self.withdraw(client, Asker::Tools, Some(id), None),
                AskNotice::TimedOut(id) => {
                    self.withdraw(client, Asker::Tools, Some(id), Some(ApprovalAnswer::Timeout));
                }
                AskNotice::Noted(line) => client.tool_noted(line),
                AskNotice::Decided { about, answer } => self.held.monitor.note_decision(&about, None, answer),
            }
        }
        if self.held.tools.as_ref().is_some_and(|tools| tools.interest().is_none()) {
            // Nobody is there who waits for an answer.
            self.withdraw(client, Asker::Tools, None, None);
        }
    }

    fn line_up(&mut self, asker: Asker, question: ApprovalQuestion) {
        match self.held.questions.waiting.len() < MAX_QUESTIONS {
            true => self.held.questions.waiting.push_back((asker, question)),
            false => self.held.answer_to(asker, question.id, ApprovalAnswer::TooMany),
        }
    }

    /// Takes a question back, which may have been decided by that.
    fn withdraw<C: SandboxClient>(
        &mut self,
        client: &mut C,
        asker: Asker,
        id: Option<u64>,
        decided: Option<ApprovalAnswer>,
    ) {
        let Some(question) = self.held.questions.withdraw(asker, id) else {
            return;
        };
        if let Some(answer) = decided {
            let rule = question.rule.as_deref();
            self.held.monitor.note_decision(&question.about, rule, answer);
        }
        client.withdraw();
    }

    /// Puts the next question to the client when none is open.
    fn put_questions<C: SandboxClient>(&mut self, client: &mut C) {
        while self.held.questions.open.is_none()
            && let Some((asker, question)) = self.held.questions.waiting.pop_front()
        {
            let id = question.id;
            self.held.questions.open = Some((asker, question.clone()));
            if let Some(approval) = client.ask(question) {
                self.held.answer(id, approval);
            }
        }
    }

    fn settle(&mut self) {
        if self.settles.is_some_and(|settles| Instant::now() >= settles) {
            self.settles = None;
            process::release_memory_of_start();
        }
    }
}

/// Waits, with the chore in between as long as there is some; says whether anything is ready.
fn wait_with(
    chore: &mut Option<&mut dyn FnMut() -> bool>,
    polled: &mut [PollFd<'_>],
    until: Instant,
) -> Result<bool, IsolationError> {
    while let Some(piece) = chore.as_mut() {
        let now = Instant::now();
        let is_ready = poll_until(polled, now)?;
        if is_ready || now >= until {
            return Ok(is_ready);
        }
        if !piece() {
            *chore = None;
        }
    }
    poll_until(polled, until)
}

/// Lets a sandbox finish what was begun for a program that has ended.
#[derive(Debug)]
struct FinishingClient {
    deadline: Instant,
}

impl SandboxClient for FinishingClient {
    type Source = ();

    fn wait_on<'c>(&'c self, _sandbox: &dyn Sandbox, _waiting: &mut WaitList<'c, ()>) {}

    fn takes_output(&self) -> bool {
        false
    }

    fn next_turn(&self) -> Option<Instant> {
        Some(self.deadline)
    }

    fn exec_event(&mut self, _held: &mut LoopSandbox<'_>, _exec: ExecId, _event: ExecEvent) {}

    fn turn(&mut self, held: &mut LoopSandbox<'_>) -> Result<(), IsolationError> {
        if !held.sandbox.is_finishing() || Instant::now() >= self.deadline {
            held.end(Ending::ClientDone);
        }
        Ok(())
    }
}

/// Lets a sandbox finish what was begun for a program that has ended, at most until `deadline`.
///
/// # Errors
/// When the sandbox fails.
pub(crate) fn finish(running: &mut RunningSandbox, deadline: Instant) -> Result<(), IsolationError> {
    if running.sandbox.is_finishing() {
        SandboxLoop::new(running).run(&mut FinishingClient { deadline })?;
    }
    Ok(())
}

/// A client for whom something is left when the loop has ended.
pub(crate) trait Lingering {
    /// What to wait for; nothing when nobody is left to take anything.
    fn left(&self) -> Vec<PollFd<'_>>;

    /// Passes on what is taken now; whether there is more to wait for.
    ///
    /// # Errors
    /// When it cannot be passed on.
    fn pass_rest(&mut self) -> Result<bool, IsolationError>;
}

/// Has a client take what is left for it, until `deadline`.
///
/// # Errors
/// As [`Lingering::pass_rest`].
pub(crate) fn linger(client: &mut impl Lingering, deadline: Instant) -> Result<(), IsolationError> {
    while client.pass_rest()? {
        let mut waiting = client.left();
        if waiting.is_empty() || Instant::now() >= deadline {
            break;
        }
        poll_until(&mut waiting, deadline)?;
    }
    Ok(())
}

/// Waits until one of `waiting` is ready or `until` has come; says whether one is.
fn poll_until(waiting: &mut [PollFd<'_>], until: Instant) -> Result<bool, IsolationError> {
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

#[cfg(test)]
#[path = "sandbox_loop_tests.rs"]
mod tests;
