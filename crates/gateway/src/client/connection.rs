//! What passes over the socket of a gateway.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use offleash_core::approval::{ApprovalQuestion, ApprovalSubject};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::first_packets::FirstPackets;
use crate::gateway_process::{Child, GatewayProcess};
use crate::journal::Journal;
use crate::journal_entries::{GatewayLoss, LossCause};
use crate::order_socket::OrderSocket;
use crate::questions::{Notice, Questions};
use crate::wire::frames::{Incoming, Received};
use crate::wire::{ErrorForm, Order, Report};

/// How long the gateway may take to take an order, or to carry it out. It waits for nobody, so that this is long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much there may be for the record in all, in bytes as they come.
const MAX_SAID: usize = if cfg!(test) { 4 } else { 256 } * 1024 * 1024;

/// Is told what came of a connection.
type Answer = Box<dyn FnOnce(io::Result<OwnedFd>) + Send>;

/// A gateway as its supervisor knows it.
#[derive(Debug)]
pub(super) struct Connection {
    orders: OrderSocket,
    heard: Mutex<Heard>,
    changed: Condvar,
    journal: Journal,
    questions: Questions,
    first_packets: FirstPackets,
}

/// What the gateway has said.
struct Heard {
    incoming: Incoming,
    child: Child,
    /// How much of it was for the record.
    said: usize,
    ready: Option<Result<(), ErrorForm>>,
    authority: Option<Result<Vec<u8>, String>>,
    /// The number of the last order that counts, and of the last that was given.
    done: u64,
    given: u64,
    answers: HashMap<u64, Answer>,
    /// Whether it was told to end.
    is_to_end: bool,
    has_told_all: bool,
    /// Whether it has said that it ends by itself.
    is_ending: bool,
    gone: Option<Gone>,
}

/// That nothing more will be heard.
#[derive(Debug, Clone)]
struct Gone {
    /// How it was lost, unless it was told to end.
    loss: Option<GatewayLoss>,
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heard")
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn of(process: GatewayProcess, first_packets: FirstPackets) -> io::Result<Self> {
        let GatewayProcess {
            orders,
            incoming,
            child,
        } = process;
        Ok(Self {
            questions: Questions::of_another(orders.clone())?,
            orders,
            heard: Mutex::new(Heard {
                incoming,
                child,
                said: 0,
                ready: None,
                authority: None,
                done: 0,
                given: 0,
                answers: HashMap::new(),
                is_to_end: false,
                has_told_all: false,
                is_ending: false,
                gone: None,
            }),
            changed: Condvar::new(),
            journal: Journal::of_another(),
            first_packets,
        })
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    pub(super) fn first_packets(&self) -> &FirstPackets {
        &self.first_packets
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.orders.as_fd()
    }

    pub(super) fn decide_first_packets(&self) {
        // Names come before the packets that go to their addresses.
        let is_served = !self.take_in();
        self.first_packets.decide(is_served, &self.journal);
    }

    /// Sends an order. One that cannot be sent is of no use any more: the gateway is gone, or will be.
    pub(super) fn send(&self, order: &Order, descriptors: &[OwnedFd]) {
        if self.orders.send(order, descriptors).is_err() {
            self.give_up(LossCause::Misbehaved);
        }
    }

    /// Takes in what was said; whether nothing more will be.
    pub(super) fn take_in(&self) -> bool {
        let mut answered = Vec::new();
        let is_gone = {
            let mut heard = self.heard();
            while heard.gone.is_none() {
                match self.hear(&mut heard, &mut answered) {
                    Ok(Received::Something) => {}
                    Ok(Received::Nothing) => break,
                    Ok(Received::End) => heard.lose(None),
                    Err(_) => heard.lose(Some(LossCause::Misbehaved)),
                }
            }
            heard.gone.is_some()
        };
        self.changed.notify_all();
        for (answer, connected) in answered {
            answer(connected);
        }
        is_gone
    }

    fn hear(&self, heard: &mut Heard, answered: &mut Vec<(Answer, io::Result<OwnedFd>)>) -> io::Result<Received> {
        let received = heard.incoming.receive(self.socket())?;
        while let Some((report, length)) = heard.incoming.next()? {
            self.take(heard, report, length, answered)?;
        }
        Ok(received)
    }

    fn take(
        &self,
        heard: &mut Heard,
        report: Report,
        length: usize,
        answered: &mut Vec<(Answer, io::Result<OwnedFd>)>,
    ) -> io::Result<()> {
        match report {
            Report::Ready(outcome) => heard.ready = Some(outcome),
            Report::Authority(made) => heard.authority = Some(made),
            Report::Done { number } => heard.done = heard.done.max(number),
            Report::Connected { number, error } => {
                let connected = match error {
                    Some(error) => Err(error.into()),
                    None => checked(heard.incoming.descriptors().pop_front()),
                };
                if let Some(answer) = heard.answers.remove(&number) {
                    answered.push((answer, connected));
                }
            }
            Report::Asked(question) => {
                if let Some(question) = bounded(question) {
                    self.questions.notice(Notice::Asked(question));
                }
            }
            Report::Withdrawn(number) => self.questions.notice(Notice::Withdrawn(number)),
            Report::Named(name) => {
                self.journal.named(name.as_str());
                self.first_packets.name(&name);
            }
            Report::Begun(begun) => self.journal.take_begun(begun),
            Report::Entry(entry) => {
                heard.said = heard.said.saturating_add(length);
                if heard.said > MAX_SAID {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.journal.take_in(entry);
            }
            Report::Ending => heard.is_ending = true,
            Report::Ended => heard.has_told_all = true,
        }
        Ok(())
    }

    /// Whether it serves nothing any more.
    pub(super) fn is_gone(&self) -> bool {
        let heard = self.heard();
        heard.gone.is_some() || heard.is_ending
    }

    /// How it was lost, if it was; waits until that is known of one that has said that it ends.
    pub(super) fn loss(&self) -> Option<GatewayLoss> {
        self.wait(|heard| heard.gone.clone())?.loss
    }

    /// Waits until it serves.
    pub(super) fn ready(&self) -> io::Result<()> {
        match self.wait(|heard| heard.ready.take()) {
            Some(outcome) => outcome.map_err(io::Error::from),
            None => Err(io::Error::other("the gateway ended while it started")),
        }
    }

    /// Has it make the sandbox's authority, and waits for its certificate.
    pub(super) fn authority(&self) -> io::Result<Vec<u8>> {
        self.heard().authority = None;
        self.send(&Order::MakeAuthority, &[]);
        match self.wait(|heard| heard.authority.take()) {
            Some(made) => made.map_err(io::Error::other),
            None => Err(io::Error::other("the gateway has ended")),
        }
    }

    /// Gives an order and waits until it counts.
    pub(super) fn have_done(&self, order: impl FnOnce(u64) -> Order) {
        let number = self.next_number();
        self.send(&order(number), &[]);
        // One that has ended has no connections either, and that it has is told in other ways.
        let _counts = self.wait(|heard| (heard.done >= number).then_some(()));
    }

    pub(super) fn connect(&self, port: u16, answer: Answer) {
        let number = self.next_number();
        {
            let mut heard = self.heard();
            if heard.gone.is_some() {
                return;
            }
            heard.answers.insert(number, answer);
        }
        self.send(&Order::Connect { number, port }, &[]);
    }

    /// Has it end, after it has told the rest.
    pub(super) fn end(&self) {
        self.take_in();
        let is_gone = {
            let mut heard = self.heard();
            heard.is_to_end |= !heard.is_ending;
            heard.gone.is_some()
        };
        if is_gone {
            return;
        }
        // It may be gone by now.
        let _sent = self.orders.send(&Order::End, &[]);
        let _told = self.wait(|heard| heard.has_told_all.then_some(()));
        self.give_up(LossCause::Misbehaved);
    }

    /// Ends it, whatever it does.
    fn give_up(&self, cause: LossCause) {
        self.heard().lose(Some(cause));
        self.changed.notify_all();
    }

    /// Waits for what `found` finds; `None` when it will never be there. A gateway that takes too long is ended.
    fn wait<T>(&self, found: impl Fn(&mut Heard) -> Option<T>) -> Option<T> {
        let until = Instant::now() + TIMEOUT;
        let mut heard = self.heard();
        loop {
            if let Some(found) = found(&mut heard) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if heard.gone.is_some() {
                return None;
            }
            if left.is_zero() {
                heard.lose(Some(LossCause::Misbehaved));
                continue;
            }
            let waited = self.changed.wait_timeout(heard, left);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn next_number(&self) -> u64 {
        let mut heard = self.heard();
        heard.given += 1;
        heard.given
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    /// Nothing more is heard. How it ended is how its process did, unless it was ended for another `cause`.
    fn lose(&mut self, cause: Option<LossCause>) {
        if self.gone.is_some() {
            return;
        }
        let ended = self.child.end().unwrap_or(LossCause::Exited(1));
        let loss = GatewayLoss {
            at: SystemTime::now(),
            cause: cause.unwrap_or(ended),
        };
        let is_lost = !(self.is_to_end && self.has_told_all);
        self.gone = Some(Gone {
            loss: is_lost.then_some(loss),
        });
        // Whoever waits for a connection hears that there is none.
        self.answers.clear();
    }
}

/// A connection that was handed over, if it is one.
fn checked(descriptor: Option<OwnedFd>) -> io::Result<OwnedFd> {
    let descriptor = descriptor.ok_or(io::ErrorKind::InvalidData)?;
    let family = sockopt::socket_domain(&descriptor)?;
    let kind = sockopt::socket_type(&descriptor)?;
    if ![AddressFamily::INET, AddressFamily::INET6].contains(&family) || kind != SocketType::STREAM {
        return Err(io::ErrorKind::InvalidData.into());
    }
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    Ok(descriptor)
}

/// A question that is no longer than one of ours; `None` for one that is not a gateway's.
fn bounded(mut question: ApprovalQuestion) -> Option<ApprovalQuestion> {
    const MAX_RULE: usize = 2048;
    if let Some(rule) = &mut question.rule {
        rule.truncate(rule.floor_char_boundary(MAX_RULE));
    }
    // A gateway asks about nothing else.
    matches!(question.about, ApprovalSubject::Connection { .. }).then_some(question)
}
