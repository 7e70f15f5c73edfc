//! The commands of a sandbox: those that run, and for a while those that ran.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use offleash_core::exec::ExecEnd;
use offleash_interpreter::contexts::is_driver;
use offleash_isolation::sandbox::ExecId;

use super::ends::{EndRetention, Ends};
use super::message::{ExitedProcess, ProcessInfo, Selector};

/// How long the end of a command can be asked for.
const REMEMBERED: Duration = Duration::from_secs(30);
/// The most ends that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// A client, by number.
pub(super) type Client = u64;

/// A command that was sent to the guest.
#[derive(Debug)]
pub(super) struct Execution {
    /// When it was asked for.
    pub(super) asked: Instant,
    /// Its process id is zero until it has been started.
    pub(super) process: ProcessInfo,
    /// How much memory of ours its arguments and variables take, in bytes.
    pub(super) remembered: usize,
    /// Whether input may follow.
    pub(super) takes_input: bool,
    pub(super) followers: Vec<Client>,
    /// Whether the guest was told to keep its output.
    pub(super) held: bool,
    /// When it is killed.
    pub(super) deadline: Option<Instant>,
    pub(super) timed_out: bool,
    pub(super) feeds: VecDeque<InputFeed>,
    /// What is kept of its end if it is the driver of a context.
    pub(super) wanted: EndRetention,
}

/// Input on its way, in the order in which it was asked for.
#[derive(Debug)]
pub(super) struct InputFeed {
    pub(super) client: Client,
    pub(super) what: FedInput,
}

impl InputFeed {
    fn bytes(&self) -> usize {
        match &self.what {
            FedInput::Bytes { bytes, .. } => bytes.len(),
            FedInput::End => 0,
        }
    }

    fn has_begun(&self) -> bool {
        matches!(self.what, FedInput::Bytes { sent, .. } if sent > 0)
    }
}

#[derive(Debug)]
pub(super) enum FedInput {
    Bytes { bytes: Vec<u8>, sent: usize },
    End,
}

/// A command that has ended.
#[derive(Debug, Clone)]
pub(super) struct ExitedExec {
    pub(super) pid: u32,
    tag: Option<String>,
    pub(super) end: ExecEnd,
    pub(super) took: Duration,
    pub(super) timed_out: bool,
    until: Instant,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Executions {
    running: BTreeMap<ExecId, Execution>,
    exited: VecDeque<ExitedExec>,
    /// Those of drivers.
    ends: Ends,
}

impl Executions {
    pub(super) fn add(&mut self, exec: ExecId, execution: Execution) {
        if let Some(tag) = &execution.process.tag {
            self.ends.forget(tag);
        }
        self.running.insert(exec, execution);
    }

    pub(super) fn get(&mut self, exec: ExecId) -> Option<&mut Execution> {
        self.running.get_mut(&exec)
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = (ExecId, &mut Execution)> {
        self.running.iter_mut().map(|(exec, execution)| (*exec, execution))
    }

    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// How much memory is taken by the arguments and variables of all that run, in bytes.
    pub(super) fn remembered(&self) -> usize {
        self.running.values().map(|one| one.remembered).sum()
    }

    /// How much input waits to be taken, in bytes.
    pub(super) fn waiting(&self) -> usize {
        let feeds = self.running.values().flat_map(|one| &one.feeds);
        feeds.map(InputFeed::bytes).sum()
    }

    /// That which runs, the latest where several have the tag.
    pub(super) fn find(&mut self, which: &Selector) -> Option<(ExecId, &mut Execution)> {
        let started = self.running.iter_mut().rev().filter(|(_, one)| one.process.pid != 0);
        let mut chosen = started.filter(|(_, one)| match which {
            Selector::Pid(pid) => one.process.pid == *pid,
            Selector::Tag(tag) => one.process.tag.as_ref() == Some(tag),
        });
        chosen.next().map(|(exec, execution)| (*exec, execution))
    }

    /// That which has ended a moment ago.
    pub(super) fn find_exited(&mut self, which: &Selector) -> Option<ExitedExec> {
        self.forget();
        let mut chosen = self.exited.iter().rev().filter(|exited| match which {
            Selector::Pid(pid) => exited.pid == *pid,
            Selector::Tag(tag) => exited.tag.as_ref() == Some(tag),
        });
        chosen.next().cloned()
    }

    /// The drivers of contexts that have ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = &ExitedProcess> {
        self.ends.all()
    }

    /// Says what is to be kept of the end of the driver with that tag.
    pub(super) fn note_end(&mut self, tag: &str, note: Option<String>) {
        let wanted = EndRetention::new(note);
        match self.find(&Selector::Tag(tag.to_owned())) {
            Some((_, execution)) => execution.wanted = wanted,
            None => self.ends.note(tag, wanted),
        }
    }

    /// Takes note of an end.
    pub(super) fn end(&mut self, exec: ExecId, end: &ExecEnd) -> Option<Execution> {
        let mut execution = self.running.remove(&exec)?;
        self.forget();
        if execution.process.pid != 0 {
            if execution.process.tag.as_deref().is_some_and(is_driver) {
                let wanted = std::mem::take(&mut execution.wanted);
                self.ends.keep(&execution.process, end, wanted);
            }
            self.exited.push_back(ExitedExec {
                pid: execution.process.pid,
                tag: execution.process.tag.clone(),
                end: end.clone(),
                took: execution.asked.elapsed(),
                timed_out: execution.timed_out,
                until: Instant::now() + REMEMBERED,
            });
        }
        Some(execution)
    }

    fn forget(&mut self) {
        let now = Instant::now();
        let surplus = self.exited.len().saturating_sub(MAX_REMEMBERED);
        self.exited.drain(..surplus);
        while self.exited.front().is_some_and(|exited| exited.until <= now) {
            self.exited.pop_front();
        }
    }

    /// When the next one is to be killed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.running
            .values()
            .filter(|one| !one.timed_out)
            .filter_map(|one| one.deadline)
            .min()
    }

    /// Moves every deadline by the time in which nothing ran.
    pub(super) fn postpone(&mut self, by: Duration) {
        for execution in self.running.values_mut() {
            execution.deadline = execution.deadline.map(|deadline| deadline + by);
        }
    }

    /// Nobody of this number is there any more.
    pub(super) fn leave(&mut self, client: Client) {
        for execution in self.running.values_mut() {
            execution.followers.retain(|follower| *follower != client);
            // What has begun to be passed on is passed on whole: whoever speaks next to the command must not have to
            // guess where it stopped.
            let takes_input = &mut execution.takes_input;
            execution.feeds.retain(|feed| {
                let stays = feed.client != client || feed.has_begun();
                // Somebody else can still end the input that this client wanted to end.
                *takes_input |= !stays && matches!(feed.what, FedInput::End);
                stays
            });
        }
    }
}
