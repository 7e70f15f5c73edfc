//! Calls that a person is asked about: one question at a time, each with its whole time, and denied when nobody answers.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalSubject};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::answer::CallFailure;
use crate::desk::{JudgedCall, ToolDesk};

/// How many questions are put in a sandbox.
pub(crate) const MAX_QUESTIONS: usize = 256;

/// What is told to whoever answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskNotice {
    /// This is to be answered.
    Asked(ApprovalQuestion),
    /// No answer is needed any more to the question of this number.
    Withdrawn(u64),
    /// Nobody answered the question of this number in time.
    TimedOut(u64),
    /// This became of a call, where notes are kept.
    Noted(String),
    /// This became of a question that somebody was asked elsewhere.
    Decided {
        /// What it was about.
        about: ApprovalSubject,
        /// How it was decided.
        answer: ApprovalAnswer,
    },
}

/// Where questions go, and answers come from.
#[derive(Debug)]
pub struct ToolAsker {
    /// Questions.
    pub notices: UnboundedSender<AskNotice>,
    /// Answers, with the number of their question.
    pub answers: UnboundedReceiver<(u64, ApprovalAnswer)>,
    /// When a question counts as denied.
    pub timeout: Duration,
}

/// A call that waits for an answer, with its number.
pub(crate) type AskedCall = (u32, JudgedCall);

/// A call whose question was decided.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) number: u32,
    pub(crate) call: JudgedCall,
    pub(crate) answer: ApprovalAnswer,
}

/// The questions of one sandbox.
#[derive(Debug)]
pub(crate) struct Asking {
    notices: UnboundedSender<AskNotice>,
    timeout: Duration,
    waiting: VecDeque<AskedCall>,
    open: Option<OpenQuestion>,
    /// How many questions there were, and how many of them somebody was bothered with.
    last: u64,
    put: usize,
    /// Tools that were allowed for the run, and calls that were denied.
    allowed: HashSet<usize>,
    denied: HashSet<(usize, String)>,
}

#[derive(Debug)]
struct OpenQuestion {
    id: u64,
    asked: AskedCall,
    until: Instant,
}

impl Asking {
    pub(crate) fn new(notices: UnboundedSender<AskNotice>, timeout: Duration) -> Self {
        Self {
            notices,
            timeout,
            waiting: VecDeque::new(),
            open: None,
            last: 0,
            put: 0,
            allowed: HashSet::new(),
            denied: HashSet::new(),
        }
    }

    /// Takes a call that a person is to be asked about.
    pub(crate) fn take(&mut self, number: u32, call: JudgedCall) {
        self.waiting.push_back((number, call));
    }

    /// Whether the call of this number waits.
    pub(crate) fn has(&self, number: u32) -> bool {
        let open = self.open.as_ref().map(|open| &open.asked);
        open.into_iter().chain(&self.waiting).any(|(waits, _)| *waits == number)
    }

    /// How many calls wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.open.is_some())
    }

    /// Forgets the call of this number: its caller left.
    pub(crate) fn forget(&mut self, number: u32) {
        self.waiting.retain(|(waits, _)| *waits != number);
        if let Some(open) = self.open.take_if(|open| open.asked.0 == number) {
            let _told = self.notices.send(AskNotice::Withdrawn(open.id));
        }
    }

    /// When the open question counts as denied.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.until)
    }

    /// Takes an answer; `None` where it is to no open question.
    pub(crate) fn answered(&mut self, id: u64, answer: ApprovalAnswer) -> Option<Decided> {
        let open = self.open.take_if(|open| open.id == id)?;
        Some(self.settle(open.asked, answer))
    }

    /// The open question's time is over.
    pub(crate) fn timed_out(&mut self) -> Option<Decided> {
        let open = self.open.take()?;
        // Who is not there any more hears it no more.
        let _told = self.notices.send(AskNotice::TimedOut(open.id));
        Some(self.settle(open.asked, ApprovalAnswer::Timeout))
    }

    /// Decides the next call that waits if it can be decided without a question, or else puts it; `None` when it was put, when one
    /// is open, and when none waits.
    pub(crate) fn next(&mut self, desk: &ToolDesk) -> Option<Decided> {
        if self.open.is_some() {
            return None;
        }
        let (number, call) = self.waiting.pop_front()?;
        let parameters = call.parameters.to_string();
        let known = match () {
            () if self.denied.contains(&(call.tool(), parameters.clone())) => Some(ApprovalAnswer::Denied),
            () if self.allowed.contains(&call.tool()) => Some(ApprovalAnswer::Run),
            () if self.put >= MAX_QUESTIONS => Some(ApprovalAnswer::TooMany),
            () => None,
        };
        if let Some(answer) = known {
            return Some(Decided { number, call, answer });
        }
        self.put += 1;
        self.last += 1;
        let tool = desk.tool(&call).map(|tool| tool.name.to_string()).unwrap_or_default();
        let question = ApprovalQuestion {
            id: self.last,
            about: ApprovalSubject::ToolCall { tool, parameters },
            rule: None,
            timeout: self.timeout,
        };
        self.open = Some(OpenQuestion {
            id: self.last,
            asked: (number, call),
            until: Instant::now() + self.timeout,
        });
        if self.notices.send(AskNotice::Asked(question)).is_ok() {
            return None;
        }
        // Nobody hears it.
        self.answered(self.last, ApprovalAnswer::NoTerminal)
    }

    fn settle(&mut self, (number, call): AskedCall, answer: ApprovalAnswer) -> Decided {
        match answer {
            ApprovalAnswer::Run | ApprovalAnswer::Always => {
                self.allowed.insert(call.tool());
            }
            ApprovalAnswer::Denied => {
                self.denied.insert((call.tool(), call.parameters.to_string()));
            }
            // Nobody was bothered.
            ApprovalAnswer::NoTerminal => self.put = self.put.saturating_sub(1),
            ApprovalAnswer::Once | ApprovalAnswer::Timeout | ApprovalAnswer::TooMany => {}
        }
        Decided { number, call, answer }
    }
}

/// Why a call was refused that a person was to be asked about.
pub(crate) fn refusal(answer: ApprovalAnswer) -> CallFailure {
    CallFailure::Refused(format!("a person is to be asked, and {answer}"))
}

#[cfg(test)]
mod tests;
