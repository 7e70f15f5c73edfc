//! What all connections of a sandbox may use together: bytes, bytes in a second, connections.
//!
//! Whatever carries bytes asks before it passes them on ([`Tally::pass`]): that waits as long as the rate asks for,
//! and does not return once the bytes are used up; whoever serves the connection then cuts it ([`Budget::used_up`]).
//! So a way of carrying cannot forget to stop.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use offleash_core::limits::{LimitName, Limits};
use offleash_core::record::{LimitEffect, LimitHit};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::journal::Journal;

/// What may pass at once after a pause, as a share of a second: so much the rate may be exceeded in a moment.
const BURST: Duration = Duration::from_millis(100);
/// The smallest piece that is worth reading.
const SMALLEST_PIECE: u64 = 512;

/// What is left for a sandbox, and who is using it.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: Option<u64>,
    connections: Option<u64>,
    at_once: Option<u64>,
    rate: Option<Rate>,
    passed: Cell<u64>,
    made: Cell<u64>,
    open: Cell<u64>,
    used_up: watch::Sender<bool>,
    journal: Journal,
}

/// A limit that keeps a connection from being made, or from going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) limit: LimitName,
    pub(crate) value: u64,
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let row = self.limit.row();
        let shown = row.show(self.value);
        write!(
            f,
            "the limit `{}` of {shown} is reached; raise it with `{}`",
            row.word, row.flag
        )
    }
}

/// The place of a connection among those that may be open; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Rc<Budget>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}

impl Budget {
    pub(crate) fn new(limits: &Limits, journal: Journal) -> Rc<Self> {
        Rc::new(Self {
            bytes: limits.net_bytes.map(|bytes| bytes.0),
            connections: limits.net_connections,
            at_once: limits.net_at_once,
            rate: limits.net_rate.map(|rate| Rate::new(rate.0)),
            passed: Cell::new(0),
            made: Cell::new(0),
            open: Cell::new(0),
            used_up: watch::Sender::new(false),
            journal,
        })
    }

    /// A place for one more connection, which is refused if there is none.
    pub(crate) fn admit(self: &Rc<Self>) -> Result<Place, Reached> {
        let full = |limit: Option<u64>, used: &Cell<u64>| limit.filter(|limit| used.get() >= *limit);
        if *self.used_up.borrow() {
            return Err(self.out_of_bytes());
        }
        for (limit, most, used) in [
            (LimitName::NetConnections, self.connections, &self.made),
            (LimitName::NetAtOnce, self.at_once, &self.open),
        ] {
            if let Some(value) = full(most, used) {
                self.note(limit, value, LimitEffect::Refused);
                return Err(Reached { limit, value });
            }
        }
        self.made.set(self.made.get() + 1);
        self.open.set(self.open.get() + 1);
        Ok(Place(Rc::clone(self)))
    }

    /// Returns when no more bytes may pass: every connection is to be cut then.
    pub(crate) async fn used_up(&self) -> Reached {
        let mut used_up = self.used_up.subscribe();
        // An error says that the sender is gone, which is in `self`.
        let _ = used_up.wait_for(|used_up| *used_up).await;
        self.out_of_bytes()
    }

    /// How much to read in one go where `most` is read otherwise: with a low rate less, so that connections take turns,
    /// and no more than is left, so that all of it is used before a connection is cut.
    pub(crate) fn piece(&self, most: usize) -> usize {
        let left = self
            .bytes
            .map_or(u64::MAX, |bytes| bytes.saturating_sub(self.passed.get()));
        let turn = self.rate.as_ref().map_or(u64::MAX, Rate::in_burst).max(SMALLEST_PIECE);
        usize::try_from(turn.min(left)).unwrap_or(most).clamp(1, most)
    }

    /// Waits until `length` bytes may pass, which takes for ever when they may not at all.
    async fn pass(&self, length: u64) {
        let passed = self.passed.get().saturating_add(length);
        if let Some(value) = self.bytes.filter(|most| passed > *most) {
            self.note(LimitName::NetBytes, value, LimitEffect::Cut);
            self.used_up.send_replace(true);
            return std::future::pending().await;
        }
        self.passed.set(passed);
        let Some(rate) = &self.rate else { return };
        if let Some(turn) = rate.next_turn(length) {
            self.note(LimitName::NetRate, rate.per_second, LimitEffect::Slowed);
            sleep_until(turn).await;
        }
    }

    fn out_of_bytes(&self) -> Reached {
        Reached {
            limit: LimitName::NetBytes,
            value: self.bytes.unwrap_or_default(),
        }
    }

    fn note(&self, limit: LimitName, value: u64, effect: LimitEffect) {
        self.journal.limit(LimitHit { limit, value, effect });
    }
}

/// A bucket of tokens, kept as the time at which it is full again (the "virtual scheduling" of GCRA): no timer fills it.
#[derive(Debug)]
struct Rate {
    per_second: u64,
    /// When everything that was let through is paid for.
    paid: Cell<Option<Instant>>,
}

impl Rate {
    fn new(per_second: u64) -> Self {
        Self {
            per_second: per_second.max(1),
            paid: Cell::new(None),
        }
    }

    fn in_burst(&self) -> u64 {
        self.per_second / 10
    }

    /// Takes a turn for `length` bytes; when it is, unless it is now. Turns are given in the order in which they are
    /// taken, whichever connection it is.
    fn next_turn(&self, length: u64) -> Option<Instant> {
        let now = Instant::now();
        let nanoseconds = u128::from(length) * 1_000_000_000 / u128::from(self.per_second);
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        // What was not used before the burst is lost.
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let from = self.paid.get().map_or(earliest, |paid| paid.max(earliest));
        // Centuries from now if it cannot be counted.
        let turn = from.checked_add(cost).unwrap_or(from);
        self.paid.set(Some(turn));
        (turn > now).then_some(turn)
    }
}

/// One way of a connection: what passed, and by whose leave.
#[derive(Debug)]
pub(crate) struct Tally {
    bytes: Cell<u64>,
    budget: Rc<Budget>,
}

impl Tally {
    /// Waits until `length` bytes may be passed on, which takes for ever when they may not at all.
    pub(crate) async fn pass(&self, length: usize) {
        self.budget.pass(u64::try_from(length).unwrap_or(u64::MAX)).await;
    }

    /// Counts what was passed on.
    pub(crate) fn add(&self, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.bytes.set(self.bytes.get().saturating_add(length));
    }

    /// As [`Budget::piece`].
    pub(crate) fn piece(&self, most: usize) -> usize {
        self.budget.piece(most)
    }

    /// How much was passed on.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

/// Bytes of one connection, each way.
#[derive(Debug)]
pub(crate) struct Counts {
    /// From the sandbox.
    pub(crate) sent: Tally,
    /// To the sandbox.
    pub(crate) received: Tally,
}

impl Counts {
    /// None yet, of a connection that draws on `budget`.
    pub(crate) fn new(budget: &Rc<Budget>) -> Self {
        let none = || Tally {
            bytes: Cell::new(0),
            budget: Rc::clone(budget),
        };
        Self {
            sent: none(),
            received: none(),
        }
    }
}

#[cfg(test)]
mod tests;
