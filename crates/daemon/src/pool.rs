//! Sandboxes that were made ahead, so that a create is a hand-out.
//!
//! Each template has a queue of its own; all are with the default limits and network. How many wait in a queue follows
//! demand: as many as were asked for lately, between the bounds of the template, and no more in all queues together than
//! the bound over all, which is shared fairly ([`crate::pool_shares`]). They are made in the background
//! ([`crate::filling`]), and a create that finds none makes its own.
//!
//! A member is of one build of its template and is handed out for that one alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::spec::ProcessRef;
use tokio::sync::Notify;

use crate::config::{PoolBounds, PoolConfig};
use crate::origin::{BASE_TEMPLATE, TemplateOrigin};
use crate::pool_shares::{PoolWish, shares};
use crate::sandboxes::SandboxEntry;

/// What is left of demand after a second: half after about half a minute.
const DECAY: f64 = 0.977;
/// Demand that is less is none: what one create leaves is that little after three minutes.
const LEAST_DEMAND: f64 = 0.015;
/// Nothing is made until none was handed out for this long, because whoever got one is about to use it …
const QUIET_TIME: Duration = Duration::from_millis(50);
/// … but no longer than this, so that a long row of creates does not come to an empty pool.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// What the first one of a template is taken to need of the machine's memory, MiB: as much as an interpreter with large
/// libraries.
const FIRST_MIB: u64 = 128;
/// How long nothing is made for a template after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The warm pool.
#[derive(Debug)]
pub(crate) struct ReadyPool {
    config: PoolConfig,
    contents: Mutex<PoolContents>,
    /// Told when one was taken or there is another queue.
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct PoolContents {
    /// By the name of their template.
    queues: BTreeMap<String, PoolQueue>,
    /// Templates that are being removed: none of them is made.
    closed: BTreeSet<String>,
    spell: Option<HandOutSpell>,
    /// What nobody is to have any more.
    stale: Vec<Arc<SandboxEntry>>,
}

#[derive(Debug)]
struct PoolQueue {
    origin: TemplateOrigin,
    bounds: PoolBounds,
    /// The oldest first; the freshest is handed out last.
    members: VecDeque<PoolMember>,
    /// How many are being made.
    making: usize,
    /// What the last one that was made holds of the machine's memory, MiB.
    memory_mib: Option<u64>,
    /// Creates of late, the older the less.
    demand: f64,
    /// When the next may be made after one could not be.
    not_before: Option<Instant>,
}

/// Members that were handed out one soon after the other.
#[derive(Debug, Clone, Copy)]
struct HandOutSpell {
    first: Instant,
    latest: Instant,
}

#[derive(Debug)]
struct PoolMember {
    entry: Arc<SandboxEntry>,
    since: Instant,
}

/// What became of a sandbox that was made for the pool.
#[derive(Debug)]
pub(crate) enum PoolOutcome {
    /// It can be had, and holds so many MiB of memory.
    Ready(Arc<SandboxEntry>, u64),
    /// Its template was rebuilt or removed meanwhile.
    Outdated(Arc<SandboxEntry>),
    /// There is none.
    Failed,
    /// It was not begun.
    Deferred,
}

/// A template of which no member is made as long as this lives.
#[derive(Debug)]
pub(crate) struct ClosedQueue<'a> {
    pool: &'a ReadyPool,
    template: String,
}

impl Drop for ClosedQueue<'_> {
    fn drop(&mut self) {
        self.pool.lock().closed.remove(&self.template);
    }
}

impl ReadyPool {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let base = PoolQueue::new(TemplateOrigin::base(), config.bounds(BASE_TEMPLATE));
        let queues = BTreeMap::from([(BASE_TEMPLATE.to_owned(), base)]);
        Self {
            config,
            contents: Mutex::new(PoolContents {
                queues,
                ..PoolContents::default()
            }),
            wanted: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is ever made ahead.
    pub(crate) fn is_off(&self) -> bool {
        self.config.max_total() == 0
    }

    /// Told when one was taken or there is another queue.
    pub(crate) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    /// How many are made at a time.
    pub(crate) fn max_creating(&self) -> usize {
        self.config.max_creating
    }

    /// Templates of which some wait, or shall: whether they are still what they were is to be looked at.
    pub(crate) fn templates(&self) -> Vec<String> {
        let contents = self.lock();
        let queues = contents.queues.keys().cloned();
        let configured = self.config.templates.iter().filter(|(_, one)| one.min.unwrap_or(0) > 0);
        let all: BTreeSet<String> = queues.chain(configured.map(|(name, _)| name.clone())).collect();
        all.into_iter().filter(|name| name != BASE_TEMPLATE).collect()
    }

    /// Somebody wants a sandbox of `origin`.
    pub(crate) fn note_demand(&self, origin: &TemplateOrigin) {
        if self.is_off() {
            return;
        }
        let mut contents = self.lock();
        if !contents.closed.contains(&origin.template) {
            contents.queue(origin, &self.config).demand += 1.0;
        }
    }

    /// `origin` is what there is of its template now: members of another build are nobody's from here on.
    pub(crate) fn note_current(&self, origin: &TemplateOrigin) {
        let mut contents = self.lock();
        if !contents.closed.contains(&origin.template) {
            let _there = contents.queue(origin, &self.config);
        }
    }

    /// There is no template of that name any more.
    pub(crate) fn note_gone(&self, template: &str) {
        self.lock().drop_queue(template);
    }

    /// Makes no more of a template, and answers those that wait.
    pub(crate) fn close(&self, template: &str) -> (ClosedQueue<'_>, Vec<Arc<SandboxEntry>>) {
        let mut contents = self.lock();
        contents.closed.insert(template.to_owned());
        let before = contents.stale.len();
        contents.drop_queue(template);
        let members = contents.stale.split_off(before);
        let template = template.to_owned();
        (ClosedQueue { pool: self, template }, members)
    }

    /// Takes out one of `origin`.
    pub(crate) fn take(&self, origin: &TemplateOrigin) -> Option<Arc<SandboxEntry>> {
        let taken = {
            let mut contents = self.lock();
            contents.note_taken(Instant::now());
            let queue = contents.queues.get_mut(&origin.template);
            queue
                .filter(|queue| queue.origin == *origin)
                .and_then(|queue| queue.members.pop_front())
        };
        self.wanted.notify_one();
        taken.map(|member| member.entry)
    }

    /// Takes out all.
    pub(crate) fn take_all(&self) -> Vec<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let stale = std::mem::take(&mut contents.stale);
        let queues = contents.queues.values_mut();
        let members = queues.flat_map(|queue| queue.members.drain(..).map(|member| member.entry));
        stale.into_iter().chain(members.collect::<Vec<_>>()).collect()
    }

    /// Puts in one that an earlier daemon made.
    pub(crate) fn adopt(&self, entry: Arc<SandboxEntry>, origin: &TemplateOrigin) {
        let mut contents = self.lock();
        let queue = contents.queue(origin, &self.config);
        queue.add(entry);
        // Somebody wanted them.
        queue.demand = queue.demand.max(f64_of(queue.members.len()));
    }

    /// Puts in one that was made; answers one that nobody is to have.
    pub(crate) fn finish(&self, origin: &TemplateOrigin, made: PoolOutcome) -> Option<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let queue = contents.queues.get_mut(&origin.template);
        let queue = queue.filter(|queue| queue.origin == *origin);
        let Some(queue) = queue else {
            return match made {
                PoolOutcome::Ready(entry, _) | PoolOutcome::Outdated(entry) => Some(entry),
                PoolOutcome::Failed | PoolOutcome::Deferred => None,
            };
        };
        queue.making = queue.making.saturating_sub(1);
        match made {
            PoolOutcome::Ready(entry, memory_mib) => {
                queue.memory_mib = Some(memory_mib);
                queue.add(entry);
                None
            }
            PoolOutcome::Outdated(entry) => Some(entry),
            PoolOutcome::Failed => {
                queue.not_before = Some(Instant::now() + AFTER_FAILURE);
                None
            }
            PoolOutcome::Deferred => None,
        }
    }

    /// Takes out those of a template whose interpreters are not to be had any more as they are: `is_such` is told below
    /// which zygote each was made.
    pub(crate) fn retire(&self, template: &str, is_such: impl Fn(Option<ProcessRef>) -> bool) {
        let mut contents = self.lock();
        let Some(queue) = contents.queues.get_mut(template) else {
            return;
        };
        let members = std::mem::take(&mut queue.members);
        let (old, kept) = members.into_iter().partition(|member| is_such(member.entry.zygote()));
        queue.members = kept;
        let old: VecDeque<PoolMember> = old;
        contents.stale.extend(old.into_iter().map(|member| member.entry));
        drop(contents);
        self.wanted.notify_one();
    }

    /// Whether all of a template that wait lie below this zygote.
    pub(crate) fn are_below(&self, template: &str, zygote: ProcessRef) -> bool {
        let contents = self.lock();
        let queue = contents.queues.get(template);
        let mut members = queue.into_iter().flat_map(|queue| &queue.members);
        members.all(|member| member.entry.zygote() == Some(zygote))
    }

    /// Takes out one that has died.
    pub(crate) fn forget(&self, entry: &Arc<SandboxEntry>) {
        for queue in self.lock().queues.values_mut() {
            queue.members.retain(|member| !Arc::ptr_eq(&member.entry, entry));
        }
    }

    /// A second has gone by.
    pub(crate) fn age(&self) {
        let mut contents = self.lock();
        for queue in contents.queues.values_mut() {
            queue.demand *= DECAY;
        }
        // What a queue is for comes back with the first create.
        let config = &self.config;
        contents
            .queues
            .retain(|name, queue| name == BASE_TEMPLATE || queue.wish(config).want > 0 || !queue.is_empty());
    }

    /// Takes out what is too old, what is too many, and what is of another build.
    pub(crate) fn surplus(&self) -> Vec<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let shares = contents.shares(&self.config);
        let mut out = std::mem::take(&mut contents.stale);
        for (queue, share) in contents.queues.values_mut().zip(shares) {
            while queue.members.len() > share || queue.is_oldest_older_than(self.config.max_age) {
                let Some(member) = queue.members.pop_front() else {
                    break;
                };
                out.push(member.entry);
            }
        }
        out
    }

    /// Takes out half of those that wait, the larger queues first: the machine needs what they hold.
    pub(crate) fn give_up_half(&self) -> Vec<Arc<SandboxEntry>> {
        let mut contents = self.lock();
        let waiting: usize = contents.queues.values().map(|queue| queue.members.len()).sum();
        let mut out = Vec::new();
        while out.len() < waiting.div_ceil(2) {
            let largest = contents.queues.values_mut().max_by_key(|queue| queue.members.len());
            match largest.and_then(|queue| queue.members.pop_front()) {
                Some(member) => out.push(member.entry),
                None => break,
            }
        }
        out
    }

    /// How long to wait before more are made; zero when one queue that shall have members has none.
    pub(crate) fn wait(&self) -> Duration {
        let contents = self.lock();
        let shares = contents.shares(&self.config);
        let mut queues = contents.queues.values().zip(shares);
        match contents.spell {
            Some(spell) if !queues.any(|(queue, share)| share > 0 && queue.is_empty()) => {
                spell.end().saturating_duration_since(Instant::now())
            }
            _ => Duration::ZERO,
        }
    }

    /// The next one to make: of the template that lacks the largest part of its share; `None` if none is lacking.
    pub(crate) fn next(&self) -> Option<TemplateOrigin> {
        let mut contents = self.lock();
        let shares = contents.shares(&self.config);
        let all: usize = contents.queues.values().map(PoolQueue::len).sum();
        if all >= self.config.max_total() {
            return None;
        }
        let now = Instant::now();
        let queues = contents.queues.values_mut().zip(shares);
        let lacking = queues.filter(|(queue, share)| {
            let may = queue.not_before.is_none_or(|time| time <= now);
            may && queue.len() < *share
        });
        let neediest = lacking
            .min_by(|(queue, share), (other, other_share)| (queue.len() * other_share).cmp(&(other.len() * share)));
        neediest.map(|(queue, _)| {
            queue.making += 1;
            queue.origin.clone()
        })
    }

    /// What those that are being made will hold of the machine's memory, MiB, as far as can be told.
    pub(crate) fn expected_mib(&self) -> u64 {
        let contents = self.lock();
        let queues = contents.queues.values();
        queues.fold(0, |sum, queue| {
            let making = u64::try_from(queue.making).unwrap_or(u64::MAX);
            sum.saturating_add(making.saturating_mul(queue.memory_mib.unwrap_or(FIRST_MIB)))
        })
    }

    /// How many of each template wait.
    pub(crate) fn waiting(&self) -> Vec<(String, usize)> {
        let contents = self.lock();
        let queues = contents.queues.iter();
        queues
            .map(|(name, queue)| (name.clone(), queue.members.len()))
            .collect()
    }
}

impl PoolContents {
    /// The queue of `origin`; what was of another build of the same template is stale.
    fn queue(&mut self, origin: &TemplateOrigin, config: &PoolConfig) -> &mut PoolQueue {
        let queue = self
            .queues
            .entry(origin.template.clone())
            .or_insert_with(|| PoolQueue::new(origin.clone(), config.bounds(&origin.template)));
        if queue.origin != *origin {
            let fresh = PoolQueue {
                demand: queue.demand,
                ..PoolQueue::new(origin.clone(), queue.bounds)
            };
            let old = std::mem::replace(queue, fresh);
            self.stale.extend(old.members.into_iter().map(|member| member.entry));
        }
        queue
    }

    fn drop_queue(&mut self, template: &str) {
        if let Some(queue) = self.queues.remove(template) {
            self.stale.extend(queue.members.into_iter().map(|member| member.entry));
        }
    }

    /// How many of each queue may wait, in their order.
    fn shares(&self, config: &PoolConfig) -> Vec<usize> {
        let wishes: Vec<PoolWish> = self.queues.values().map(|queue| queue.wish(config)).collect();
        shares(config.max_total(), &wishes)
    }

    fn note_taken(&mut self, now: Instant) {
        let goes_on = |spell: &HandOutSpell| now.saturating_duration_since(spell.latest) < QUIET_TIME;
        let first = self.spell.filter(goes_on).map_or(now, |spell| spell.first);
        self.spell = Some(HandOutSpell { first, latest: now });
    }
}

impl PoolQueue {
    fn new(origin: TemplateOrigin, bounds: PoolBounds) -> Self {
        Self {
            origin,
            bounds,
            members: VecDeque::new(),
            making: 0,
            memory_mib: None,
            demand: 0.0,
            not_before: None,
        }
    }

    fn add(&mut self, entry: Arc<SandboxEntry>) {
        let since = Instant::now();
        self.members.push_back(PoolMember { entry, since });
    }

    /// Those that wait and those that are being made.
    fn len(&self) -> usize {
        self.members.len() + self.making
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_oldest_older_than(&self, age: Duration) -> bool {
        let oldest = self.members.front();
        oldest.is_some_and(|member| member.since.elapsed() > age)
    }

    /// How many it would have if there were no others.
    fn wish(&self, config: &PoolConfig) -> PoolWish {
        let max = self.bounds.max.min(config.max_total());
        let demand = if self.demand < LEAST_DEMAND {
            0.0
        } else {
            self.demand.ceil()
        };
        // Creates of half a minute: far below where it would matter how a number is rounded.
        let demand = (0..=max).find(|count| f64_of(*count) >= demand).unwrap_or(max);
        let least = self.bounds.min.min(max);
        PoolWish {
            least,
            want: demand.max(least),
        }
    }
}

impl HandOutSpell {
    fn end(self) -> Instant {
        (self.latest + QUIET_TIME).min(self.first + MAX_WAIT)
    }
}

fn f64_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
