//! Sandboxes that were made ahead, so that a create is a hand-out.
//!
//! They are of template `base`, with the default limits and network. How many there are follows demand: as many as were
//! asked for lately, between the configured bounds. They are made in the background, a few at a time, when nobody waits
//! for one that is there, and a create that finds none makes its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_store::registry::SandboxState;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::config::PoolConfig;
use super::creating::make_for_pool;
use super::ending;
use super::history::Cause;
use super::inner::{Inner, Job};
use super::table::Entry;

/// How often the number is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// What is left of demand after that time: half after about half a minute.
const DECAY: f64 = 0.977;
/// Nothing is made until none was handed out for this long, because whoever got one is about to use it …
const CALM: Duration = Duration::from_millis(50);
/// … but no longer than this, so that a long row of creates does not come to an empty pool.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// How long nothing is made after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The warm pool.
#[derive(Debug)]
pub(super) struct Pool {
    config: PoolConfig,
    contents: Mutex<Contents>,
    /// Told when one was taken.
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Contents {
    /// The oldest first; the freshest is handed out last.
    members: VecDeque<Member>,
    /// Creates of late, the older the less.
    demand: f64,
    spell: Option<Spell>,
}

/// Members that were handed out one soon after the other.
#[derive(Debug, Clone, Copy)]
struct Spell {
    first: Instant,
    latest: Instant,
}

#[derive(Debug)]
struct Member {
    entry: Arc<Entry>,
    since: Instant,
}

impl Pool {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            contents: Mutex::default(),
            wanted: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants a sandbox.
    pub(super) fn note_demand(&self) {
        self.lock().demand += 1.0;
    }

    /// Takes one out.
    pub(super) fn take(&self) -> Option<Arc<Entry>> {
        let taken = {
            let mut contents = self.lock();
            contents.note_taken(Instant::now());
            contents.members.pop_front()
        };
        self.wanted.notify_one();
        taken.map(|member| member.entry)
    }

    /// Takes out all.
    pub(super) fn take_all(&self) -> Vec<Arc<Entry>> {
        self.lock().members.drain(..).map(|member| member.entry).collect()
    }

    /// Puts one in.
    pub(super) fn add(&self, entry: Arc<Entry>) {
        self.lock().members.push_back(Member {
            entry,
            since: Instant::now(),
        });
    }

    /// Takes out one that has died.
    pub(super) fn forget(&self, entry: &Arc<Entry>) {
        self.lock().members.retain(|member| !Arc::ptr_eq(&member.entry, entry));
    }

    /// How many are to wait.
    fn target(&self) -> usize {
        let demand = self.lock().demand.ceil();
        // Creates of half a minute: far below where it would matter how a number is rounded.
        let demand = (0..=self.config.max).find(|count| f64_of(*count) >= demand);
        demand
            .unwrap_or(self.config.max)
            .max(self.config.min)
            .min(self.config.max)
    }

    /// Takes out what is too old, and what is too many.
    fn surplus(&self) -> Vec<Arc<Entry>> {
        let target = self.target();
        let mut contents = self.lock();
        let mut out = Vec::new();
        while contents.members.len() > target
            || contents
                .members
                .front()
                .is_some_and(|member| member.since.elapsed() > self.config.max_age)
        {
            let Some(member) = contents.members.pop_front() else {
                break;
            };
            out.push(member.entry);
        }
        out
    }

    /// How long to wait before more are made; zero when none is left.
    fn wait(&self) -> Duration {
        let contents = self.lock();
        match contents.spell {
            Some(spell) if !contents.members.is_empty() => spell.end().saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        }
    }

    fn missing(&self, being_made: usize) -> usize {
        let have = self.lock().members.len() + being_made;
        self.target().saturating_sub(have)
    }
}

impl Contents {
    fn note_taken(&mut self, now: Instant) {
        let goes_on = |spell: &Spell| now.saturating_duration_since(spell.latest) < CALM;
        let first = self.spell.filter(goes_on).map_or(now, |spell| spell.first);
        self.spell = Some(Spell { first, latest: now });
    }
}

impl Spell {
    fn end(self) -> Instant {
        (self.latest + CALM).min(self.first + LONGEST_WAIT)
    }
}

fn f64_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Begins to fill the pool, until the daemon is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    if inner.pool.config.max == 0 {
        return;
    }
    let (weak, wanted) = (Arc::downgrade(inner), Arc::clone(&inner.pool.wanted));
    tokio::spawn(async move {
        let mut making: JoinSet<bool> = JoinSet::new();
        let (mut looked, mut not_before) = (Instant::now(), Instant::now());
        loop {
            let Some(inner) = weak.upgrade() else { return };
            while let Some(made) = making.try_join_next() {
                if !made.unwrap_or(false) {
                    not_before = Instant::now() + AFTER_FAILURE;
                }
            }
            if looked.elapsed() >= EVERY {
                looked = Instant::now();
                inner.pool.lock().demand *= DECAY;
                for entry in inner.pool.surplus() {
                    ending::end_in_background(&inner, &entry, Cause::killed("too many wait"));
                }
            }
            let mut wait = inner.pool.wait();
            if wait.is_zero() {
                wait = EVERY;
                if Instant::now() >= not_before && !inner.is_draining() {
                    fill(&inner, &mut making);
                }
            }
            drop(inner);
            // A member that is ready, one that was taken, or the time.
            tokio::select! {
                _ = timeout(wait, wanted.notified()) => {}
                Some(made) = making.join_next() => {
                    if !made.unwrap_or(false) {
                        not_before = Instant::now() + AFTER_FAILURE;
                    }
                }
            }
        }
    });
}

fn fill(inner: &Arc<Inner>, making: &mut JoinSet<bool>) {
    let room = inner.pool.config.max_creating.saturating_sub(making.len());
    for _ in 0..inner.pool.missing(making.len()).min(room) {
        // What the machine has left is for those who wait for it.
        if inner.admission.check().is_err() {
            return;
        }
        let inner = Arc::clone(inner);
        // Until it is in the pool, where the end of the daemon finds it.
        let job = Job::begin(&inner);
        making.spawn(async move {
            let _job = job;
            let work = Arc::clone(&inner);
            match inner.detached(async move { make_for_pool(&work).await }).await {
                Ok(entry) if entry.state() == SandboxState::Running => {
                    inner.pool.add(entry);
                    true
                }
                _ => false,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(min: usize, max: usize) -> Pool {
        Pool::new(PoolConfig {
            min,
            max,
            ..PoolConfig::default()
        })
    }

    #[test]
    fn its_size_follows_demand_between_the_bounds() {
        let pool = pool(2, 10);
        assert_eq!((pool.target(), pool.missing(0), pool.missing(1)), (2, 2, 1));
        for (creates, expected) in [(1, 2), (4, 5), (3, 8), (100, 10)] {
            (0..creates).for_each(|_| pool.note_demand());
            assert_eq!(pool.target(), expected);
        }
        pool.lock().demand *= 0.01;
        assert_eq!(pool.target(), 2);
    }

    #[test]
    fn members_are_made_when_none_was_handed_out_for_a_moment_and_in_a_long_row_all_the_same() {
        let mut contents = Contents::default();
        let start = Instant::now();
        let end = |contents: &Contents| contents.spell.unwrap().end() - start;
        let at = |ms| start + Duration::from_millis(ms);
        contents.note_taken(start);
        assert_eq!(end(&contents), CALM);
        contents.note_taken(at(20));
        assert_eq!(end(&contents), Duration::from_millis(20) + CALM);
        (1..100).for_each(|number| contents.note_taken(at(20 + number * 10)));
        assert_eq!(end(&contents), LONGEST_WAIT);
        // Another row.
        contents.note_taken(at(5000));
        assert_eq!(end(&contents), Duration::from_millis(5000) + CALM);
    }

    #[test]
    fn an_empty_one_is_filled_without_waiting() {
        let pool = pool(2, 10);
        assert!(pool.take().is_none());
        assert_eq!(pool.wait(), Duration::ZERO);
    }

    #[test]
    fn one_that_is_switched_off_is_empty() {
        let pool = pool(2, 0);
        pool.note_demand();
        assert_eq!((pool.target(), pool.missing(0)), (0, 0));
        assert!(pool.take().is_none());
    }
}
