//! The requests of one connection, as the record tells them.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;

use crate::current::LedTo;
use crate::journal::Journal;
use crate::journal_entries::{Outcome, Request};

/// How many requests of a connection are told one by one.
const REQUESTS: usize = 1_000;
/// How much of a path is told.
const PATH: usize = 256;
/// How much of why it was refused, in which the path may stand again.
const REASON: usize = 600;
/// How much of a method.
const METHOD: usize = 32;

/// What was seen on a connection.
#[derive(Debug)]
pub(crate) struct Log {
    journal: Journal,
    /// Whether any server was dialled.
    pub(crate) made: Cell<bool>,
    /// The address that was dialled last, unless a proxy has resolved the name.
    pub(crate) address: Cell<Option<IpAddr>>,
    /// Where it leads now.
    pub(crate) led_to: Arc<LedTo>,
    entries: RefCell<Vec<Rc<Entry>>>,
    more: Cell<u64>,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Entry {
    method: String,
    path: String,
    begun: Instant,
    ended: Cell<Option<Duration>>,
    status: Cell<Option<u16>>,
    outcome: RefCell<Outcome>,
    rule: RefCell<Option<String>>,
    secrets: RefCell<Vec<String>>,
    pub(super) sent: Cell<u64>,
    pub(super) received: Cell<u64>,
}

impl Log {
    /// Of a connection that `journal` is told of.
    pub(crate) fn new(journal: Journal) -> Self {
        Self {
            journal,
            made: Cell::default(),
            address: Cell::default(),
            led_to: Arc::default(),
            entries: RefCell::default(),
            more: Cell::default(),
        }
    }

    /// A request begins.
    pub(super) fn begin(&self, parts: &Parts) -> Rc<Entry> {
        let entry = Rc::new(Entry {
            method: cut(parts.method.as_str(), METHOD),
            path: cut(parts.uri.path(), PATH),
            begun: Instant::now(),
            ended: Cell::new(None),
            status: Cell::new(None),
            outcome: RefCell::new(Outcome::Failed("it was ended before it was answered".to_owned())),
            rule: RefCell::new(None),
            secrets: RefCell::default(),
            sent: Cell::new(0),
            received: Cell::new(0),
        });
        let mut entries = self.entries.borrow_mut();
        if entries.len() < REQUESTS && self.journal.has_place_for_request() {
            entries.push(Rc::clone(&entry));
        } else {
            self.more.set(self.more.get() + 1);
        }
        entry
    }

    /// The requests so far, and how many there were beyond those.
    pub(crate) fn requests(&self) -> (Vec<Request>, u64) {
        let told = self.entries.borrow().iter().map(|entry| entry.told()).collect();
        (told, self.more.get())
    }
}

impl Entry {
    pub(super) fn decided_by(&self, rule: Option<String>) {
        *self.rule.borrow_mut() = rule;
    }

    pub(super) fn has(&self, secrets: Vec<String>) {
        *self.secrets.borrow_mut() = secrets;
    }

    pub(super) fn answered(&self, status: u16, outcome: Outcome) {
        self.status.set(Some(status));
        let outcome = match outcome {
            Outcome::Refused(reason) => Outcome::Refused(cut(&reason, REASON)),
            Outcome::Failed(reason) => Outcome::Failed(cut(&reason, REASON)),
            other => other,
        };
        *self.outcome.borrow_mut() = outcome;
    }

    pub(super) fn end(&self) {
        self.ended.set(Some(self.begun.elapsed()));
    }

    fn told(&self) -> Request {
        Request {
            method: self.method.clone(),
            path: self.path.clone(),
            status: self.status.get(),
            outcome: self.outcome.borrow().clone(),
            rule: self.rule.borrow().clone(),
            secrets: self.secrets.borrow().clone(),
            sent: self.sent.get(),
            received: self.received.get(),
            duration: self.ended.get().unwrap_or_else(|| self.begun.elapsed()),
        }
    }
}

/// The beginning of `text`.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_within_bounds_and_without_queries() {
        let log = Log::new(Journal::default());
        let (parts, ()) = http::Request::get("/items?token=hunter2")
            .body(())
            .unwrap()
            .into_parts();
        for _ in 0..REQUESTS + 5 {
            log.begin(&parts).end();
        }
        let (told, more) = log.requests();
        assert_eq!((told.len(), more), (REQUESTS, 5));
        assert_eq!(told[0].path, "/items");
        let long = format!("/{}", "a".repeat(4000));
        let (parts, ()) = http::Request::get(&long).body(()).unwrap().into_parts();
        let entry = Log::new(Journal::default()).begin(&parts);
        assert_eq!(entry.told().path.chars().count(), PATH + 1);
        entry.answered(403, Outcome::Refused(long));
        let Outcome::Refused(reason) = entry.told().outcome else {
            panic!()
        };
        assert_eq!(reason.chars().count(), REASON + 1);
    }

    #[test]
    fn connections_that_go_on_share_the_requests_that_are_told() {
        let journal = Journal::default();
        let (parts, ()) = http::Request::get("/").body(()).unwrap().into_parts();
        let logs: Vec<Log> = std::iter::repeat_with(|| Log::new(journal.clone())).take(50).collect();
        for _ in 0..REQUESTS {
            for log in &logs {
                log.begin(&parts).end();
            }
        }
        let told: usize = logs.iter().map(|log| log.requests().0.len()).sum();
        let more: u64 = logs.iter().map(|log| log.requests().1).sum();
        assert_eq!((told, more), (20_000, 30_000));
    }
}
