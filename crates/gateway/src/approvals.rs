//! What the rules leave to somebody's judgement: asked once, remembered for the run, and denied when nobody answers.
//!
//! Questions are put one at a time, so that each has its whole time. What the sandbox can cause is bounded: how many
//! wait, how many connections wait for one answer, and how many are put in a run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use offleash_core::approval::{ApprovalAnswer, ApprovalQuestion, ApprovalSubject};
use offleash_core::network::{Host, RuleDecision};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use crate::questions::Questions;

/// How many questions wait at most, the open one included.
const WAITING: usize = 16;
/// How many connections wait at most for one answer.
const WAITERS: usize = 64;
/// How many questions are put in a run.
const MAX_QUESTIONS: usize = 256;
/// How often a host may go unanswered before it counts as denied.
const UNANSWERED: u8 = 2;

/// The judgements of one run.
#[derive(Debug)]
pub(crate) struct Approvals {
    questions: Questions,
    timeout: Duration,
    /// Held by the one whose question is open; others follow in the order in which they came.
    turn: Mutex<()>,
    known: RefCell<Known>,
}

#[derive(Debug, Default)]
struct Known {
    allowed: HashMap<(Host, u16), ApprovalAnswer>,
    denied: HashMap<Host, ApprovalAnswer>,
    unanswered: HashMap<Host, u8>,
    waiting: HashMap<(Host, u16), Vec<oneshot::Sender<ApprovalAnswer>>>,
    put: usize,
}

/// What a connection does that is asked about.
enum Place {
    /// It is decided already.
    Decided(ApprovalAnswer),
    /// The same question waits; its answer will come here.
    Follows(oneshot::Receiver<ApprovalAnswer>),
    /// It puts the question.
    Puts,
}

impl Approvals {
    pub(crate) fn new(questions: Questions, timeout: Duration) -> Self {
        Self {
            questions,
            timeout,
            turn: Mutex::new(()),
            known: RefCell::default(),
        }
    }

    /// Whether a connection may be made that `decision` leaves to judgement. Waits for the answer.
    pub(crate) async fn ask(&self, host: &Host, port: u16, decision: &RuleDecision<'_>) -> ApprovalAnswer {
        let place = self.known.borrow_mut().place(host, port);
        match place {
            Place::Decided(approval) => approval,
            // The one who puts the question ends without an answer only together with the gateway.
            Place::Follows(answer) => answer.await.unwrap_or(ApprovalAnswer::Denied),
            Place::Puts => {
                let approval = self.put(host, port, decision).await;
                self.known.borrow_mut().settle(host, port, approval);
                approval
            }
        }
    }

    async fn put(&self, host: &Host, port: u16, decision: &RuleDecision<'_>) -> ApprovalAnswer {
        let _turn = self.turn.lock().await;
        // Another port of the host may have been denied while this one waited.
        if let Some(decided) = self.known.borrow_mut().before_it_is_put(host, port) {
            return decided;
        }
        let (id, answer) = self.questions.open(|id| ApprovalQuestion {
            id,
            about: ApprovalSubject::Connection {
                host: host.clone(),
                port,
                protocol: decision.protocol,
            },
            rule: decision.rule.map(ToString::to_string),
            timeout: self.timeout,
        });
        match timeout(self.timeout, answer).await {
            Ok(answered) => answered.unwrap_or(ApprovalAnswer::Denied),
            Err(_) => {
                self.questions.withdraw(id);
                ApprovalAnswer::Timeout
            }
        }
    }
}

impl Known {
    fn decided(&self, host: &Host, port: u16) -> Option<ApprovalAnswer> {
        let allowed = self.allowed.get(&(host.clone(), port));
        allowed.or_else(|| self.denied.get(host)).copied()
    }

    fn place(&mut self, host: &Host, port: u16) -> Place {
        if let Some(approval) = self.decided(host, port) {
            return Place::Decided(approval);
        }
        let waiting = self.waiting.len();
        match self.waiting.get_mut(&(host.clone(), port)) {
            Some(waiters) if waiters.len() < WAITERS => {
                let (waiter, answer) = oneshot::channel();
                waiters.push(waiter);
                Place::Follows(answer)
            }
            None if waiting < WAITING => {
                self.waiting.insert((host.clone(), port), Vec::new());
                Place::Puts
            }
            _ => Place::Decided(ApprovalAnswer::TooMany),
        }
    }

    /// What is known by now; otherwise the question counts as put.
    fn before_it_is_put(&mut self, host: &Host, port: u16) -> Option<ApprovalAnswer> {
        let known = self.decided(host, port);
        if known.is_none() && self.put >= MAX_QUESTIONS {
            return Some(ApprovalAnswer::TooMany);
        }
        if known.is_none() {
            self.put += 1;
        }
        known
    }

    /// Remembers the answer, and tells it to all who wait for it.
    fn settle(&mut self, host: &Host, port: u16, approval: ApprovalAnswer) {
        match approval {
            ApprovalAnswer::Run | ApprovalAnswer::Always => {
                self.allowed.insert((host.clone(), port), approval);
            }
            ApprovalAnswer::Denied => {
                self.denied.insert(host.clone(), approval);
            }
            ApprovalAnswer::Timeout => {
                let times = self.unanswered.entry(host.clone()).or_default();
                *times = times.saturating_add(1);
                if *times >= UNANSWERED {
                    self.denied.insert(host.clone(), approval);
                }
            }
            // Nobody was bothered.
            ApprovalAnswer::NoTerminal => self.put = self.put.saturating_sub(1),
            ApprovalAnswer::Once | ApprovalAnswer::TooMany => {}
        }
        for waiter in self.waiting.remove(&(host.clone(), port)).unwrap_or_default() {
            // Its connection may have ended.
            let _told = waiter.send(approval);
        }
    }
}

#[cfg(test)]
mod tests;
