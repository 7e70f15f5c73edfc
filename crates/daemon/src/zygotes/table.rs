//! Which zygotes there are, and where new sandboxes find theirs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use offleash_core::spec::{ProcessRef, ZygoteRole};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::making::IMPORT_TIMEOUT;
use crate::config::ZygotesConfig;
use crate::origin::TemplateOrigin;

/// How long none is made for a template after one failed, at most: a second after the first one in a row, and twice as long
/// after each further one.
const AFTER_FAILURES: Duration = Duration::from_secs(300);
/// One that was needed within this time does not make room for that of another template.
const NEEDED_FOR: Duration = Duration::from_secs(60);
/// How often it is looked at, at most, whether one is needed: code may run thousands of times a second.
const LOOK_APART: Duration = Duration::from_millis(250);
/// How long one may take to end, and how often that is looked at.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const END_LOOK: Duration = Duration::from_millis(10);

/// All of them.
#[derive(Debug)]
pub(super) struct ZygoteTable {
    config: ZygotesConfig,
    contents: Mutex<ZygoteContents>,
    /// Told when one is ready or has failed.
    settled: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct ZygoteContents {
    by_template: HashMap<String, HeldZygote>,
    /// When it was last looked at whether a template needs one.
    looked: HashMap<String, Instant>,
    made: u64,
}

/// The slot of one among all.
#[derive(Debug, Clone)]
pub(super) struct ZygoteSlot {
    template: String,
    number: u64,
}

#[derive(Debug)]
struct HeldZygote {
    /// Which one it is of all that there were.
    number: u64,
    /// Which build of the template.
    build: Option<String>,
    /// Below which process sandboxes are made, once it is ready.
    first: Option<ProcessRef>,
    used: Instant,
    stop: watch::Sender<StopRequest>,
    /// When it ended without having been asked to.
    failed: Option<Instant>,
    /// How many have failed in a row.
    failures: u32,
    /// Why the last one failed.
    reason: Option<String>,
}

/// How one is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    None,
    /// When nothing lies below it any more.
    Unused,
    AtOnce,
}

impl ZygoteTable {
    pub(super) fn new(config: ZygotesConfig) -> Self {
        Self {
            config,
            contents: Mutex::default(),
            settled: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ZygoteContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are none at all.
    pub(super) fn is_off(&self) -> bool {
        self.config.max == 0
    }

    /// How long after `now` it is to be looked at whether a template needs one, so that looks keep apart; `None` if one will
    /// look anyway.
    pub(super) fn next_look(&self, template: &str, now: Instant) -> Option<Duration> {
        let mut contents = self.lock();
        contents
            .looked
            .retain(|_, looked| now.duration_since(*looked) < LOOK_APART);
        let at = match contents.looked.get(template) {
            None => now,
            Some(looked) if *looked > now => return None,
            Some(looked) => *looked + LOOK_APART,
        };
        contents.looked.insert(template.to_owned(), at);
        Some(at.duration_since(now))
    }

    /// Where a sandbox of this origin is to be made.
    pub(super) fn descent(&self, origin: &TemplateOrigin) -> ZygoteRole {
        let mut contents = self.lock();
        contents.leave_other_build(origin);
        let Some(held) = contents.by_template.get_mut(&origin.template) else {
            return ZygoteRole::Alone;
        };
        held.used = Instant::now();
        held.first.map_or(ZygoteRole::Alone, ZygoteRole::Below)
    }

    /// Why there is none of a template, if one failed; also while another one is being made.
    pub(super) fn why_none(&self, template: &str) -> Option<String> {
        let contents = self.lock();
        let held = contents.by_template.get(template)?;
        held.reason.clone().filter(|_| held.first.is_none())
    }

    /// Waits until that of a template is ready, if one is being made.
    pub(super) async fn settled(&self, template: &str) {
        let mut changes = self.settled.subscribe();
        let is_settled = || {
            let contents = self.lock();
            let held = contents.by_template.get(template);
            held.is_none_or(|held| held.first.is_some() || held.failed.is_some())
        };
        let waited = async { while !is_settled() && changes.changed().await.is_ok() {} };
        // Whoever makes it waits no longer either.
        let _in_time = timeout(IMPORT_TIMEOUT, waited).await;
    }

    /// Ends that of a template, with whatever lies below it, and waits until it is gone.
    pub(super) async fn close(&self, template: &str) {
        if let Some(held) = self.lock().by_template.get(template) {
            held.stop.send_replace(StopRequest::AtOnce);
        }
        let until = tokio::time::Instant::now() + END_TIMEOUT;
        while self.lives(template) && tokio::time::Instant::now() < until {
            sleep(END_LOOK).await;
        }
    }

    /// Has all end as soon as nothing lies below them any more.
    pub(super) fn let_go(&self) {
        for held in self.lock().by_template.values() {
            held.stop.send_replace(StopRequest::Unused);
        }
    }

    /// The templates of which new sandboxes find one, and its first process.
    pub(super) fn ready(&self) -> Vec<(String, ProcessRef)> {
        let contents = self.lock();
        let all = contents.by_template.iter();
        all.filter_map(|(template, held)| Some((template.clone(), held.first?)))
            .collect()
    }

    fn lives(&self, template: &str) -> bool {
        let contents = self.lock();
        let held = contents.by_template.get(template);
        held.is_some_and(|held| held.failed.is_none())
    }

    /// Takes a slot for the zygote of an origin, unless there is one, one failed lately, or others need all slots. One that is
    /// there is needed from now on for a while.
    pub(super) fn begin(&self, origin: &TemplateOrigin) -> Option<(ZygoteSlot, watch::Receiver<StopRequest>)> {
        let mut contents = self.lock();
        contents.leave_other_build(origin);
        let now = Instant::now();
        let (mut failures, mut reason) = (0, None);
        if let Some(held) = contents.by_template.get_mut(&origin.template) {
            held.used = now;
            let failed = held.failed?;
            if failed.elapsed() < held.pause() {
                return None;
            }
            (failures, reason) = (held.failures, held.reason.clone());
        }
        if !contents.make_room(self.config.max, &origin.template) {
            return None;
        }
        let (stop, stopped) = watch::channel(StopRequest::None);
        contents.made += 1;
        let slot = ZygoteSlot {
            template: origin.template.clone(),
            number: contents.made,
        };
        let held = HeldZygote {
            number: slot.number,
            build: origin.build.clone(),
            first: None,
            used: now,
            stop,
            failed: None,
            failures,
            reason,
        };
        contents.by_template.insert(origin.template.clone(), held);
        Some((slot, stopped))
    }

    /// Changes what is in a slot, unless it was given to another one.
    fn change<T>(&self, slot: &ZygoteSlot, change: impl FnOnce(&mut HeldZygote) -> T) -> Option<T> {
        let mut contents = self.lock();
        let held = contents.by_template.get_mut(&slot.template);
        held.filter(|held| held.number == slot.number).map(change)
    }

    /// It takes requests.
    pub(super) fn is_ready(&self, slot: &ZygoteSlot, first: ProcessRef) {
        self.change(slot, |held| held.first = Some(first));
        self.settled.send_replace(());
    }

    /// No sandbox is made below it any more.
    pub(super) fn is_closed(&self, slot: &ZygoteSlot) {
        self.change(slot, |held| held.first = None);
    }

    pub(super) fn is_idle(&self, slot: &ZygoteSlot) -> bool {
        let is_idle = self.change(slot, |held| held.used.elapsed() >= self.config.idle);
        is_idle.unwrap_or(true)
    }

    /// It has failed after `lived`; its slot is kept for a while so that no other one is made. Answers whether that it failed
    /// like this is new.
    pub(super) fn fail(&self, slot: &ZygoteSlot, lived: Duration, reason: &str) -> bool {
        let is_new = self.change(slot, |held| {
            held.first = None;
            held.failed = Some(Instant::now());
            held.failures = if lived < AFTER_FAILURES { held.failures + 1 } else { 1 };
            held.reason.replace(reason.to_owned()).as_deref() != Some(reason)
        });
        self.settled.send_replace(());
        is_new.unwrap_or(true)
    }

    /// Gives the slot back.
    pub(super) fn end(&self, slot: &ZygoteSlot) {
        let mut contents = self.lock();
        let held = contents.by_template.get(&slot.template);
        if held.is_some_and(|held| held.number == slot.number) {
            contents.by_template.remove(&slot.template);
        }
        drop(contents);
        self.settled.send_replace(());
    }
}

impl ZygoteContents {
    /// Has one end that is of another build than the template is now.
    fn leave_other_build(&mut self, origin: &TemplateOrigin) {
        let held = self.by_template.get(&origin.template);
        if held.is_some_and(|held| held.build != origin.build)
            && let Some(old) = self.by_template.remove(&origin.template)
        {
            old.stop.send_replace(StopRequest::Unused);
        }
    }

    /// Whether there is a slot for one of `template` among `max`; one that was not needed for some time ends for it.
    fn make_room(&mut self, max: usize, template: &str) -> bool {
        let live = |(name, held): &(&String, &HeldZygote)| held.failed.is_none() && name.as_str() != template;
        if self.by_template.iter().filter(live).count() < max {
            return true;
        }
        let longest = self.by_template.iter().filter(live).min_by_key(|(_, held)| held.used);
        let name = longest
            .filter(|(_, held)| held.used.elapsed() >= NEEDED_FOR)
            .map(|(name, _)| name.clone());
        let left = name.and_then(|name| self.by_template.remove(&name));
        left.is_some_and(|held| {
            held.stop.send_replace(StopRequest::Unused);
            max > 0
        })
    }
}

impl HeldZygote {
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        Duration::from_secs(1 << doublings).min(AFTER_FAILURES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(template: &str, build: &str) -> TemplateOrigin {
        TemplateOrigin {
            template: template.to_owned(),
            build: Some(build.to_owned()),
        }
    }

    fn zygotes(max: usize) -> ZygoteTable {
        ZygoteTable::new(ZygotesConfig {
            max,
            ..ZygotesConfig::default()
        })
    }

    fn process(pid: u32) -> ProcessRef {
        ProcessRef { pid, start_ticks: 1 }
    }

    #[test]
    fn it_is_looked_now_and_then_for_each_template() {
        let all = zygotes(8);
        let (begin, soon) = (Instant::now(), Duration::from_millis(50));
        assert_eq!(all.next_look("a", begin), Some(Duration::ZERO));
        // What was run after a look is not forgotten, and looked for once.
        assert_eq!(all.next_look("a", begin + soon), Some(LOOK_APART - soon));
        assert_eq!(all.next_look("a", begin + 2 * soon), None);
        assert_eq!(all.next_look("b", begin + 2 * soon), Some(Duration::ZERO));
        let second = begin + LOOK_APART;
        assert_eq!(all.next_look("a", second + soon), Some(LOOK_APART - soon));
        assert_eq!(all.next_look("a", second + 2 * LOOK_APART), Some(Duration::ZERO));
    }

    #[test]
    fn each_template_has_one_of_the_build_that_it_is_now() {
        let all = zygotes(8);
        let (first, second) = (origin("a", "1"), origin("a", "2"));
        let (slot, stopped) = all.begin(&first).unwrap();
        assert!(all.begin(&first).is_none());
        assert_eq!(all.descent(&first), ZygoteRole::Alone);
        all.is_ready(&slot, process(7));
        assert_eq!(all.descent(&first), ZygoteRole::Below(process(7)));
        assert_eq!(all.ready(), [("a".to_owned(), process(7))]);
        let (other, _stopped) = all.begin(&second).unwrap();
        assert_eq!(*stopped.borrow(), StopRequest::Unused);
        assert_eq!(all.descent(&second), ZygoteRole::Alone);
        // What is said of the one before concerns nobody.
        all.is_ready(&slot, process(7));
        all.end(&slot);
        all.is_ready(&other, process(8));
        assert_eq!(all.descent(&second), ZygoteRole::Below(process(8)));
    }

    #[test]
    fn one_that_fails_is_made_again_after_a_while_and_its_reason_is_told_once() {
        let all = zygotes(8);
        let wanted = origin("a", "1");
        let (slot, _stopped) = all.begin(&wanted).unwrap();
        assert_eq!(all.why_none("a"), None);
        assert!(all.fail(&slot, Duration::ZERO, "why"));
        assert_eq!(all.why_none("a").as_deref(), Some("why"));
        assert!(all.begin(&wanted).is_none());
        let past = |all: &ZygoteTable| {
            let long_ago = Instant::now().checked_sub(AFTER_FAILURES).unwrap();
            all.lock().by_template.get_mut("a").unwrap().failed = Some(long_ago);
        };
        past(&all);
        let (slot, _stopped) = all.begin(&wanted).unwrap();
        assert_eq!(all.why_none("a").as_deref(), Some("why"), "the next one is not ready");
        assert!(!all.fail(&slot, Duration::ZERO, "why"));
        assert_eq!(all.lock().by_template["a"].pause(), Duration::from_secs(2));
        past(&all);
        let (slot, _stopped) = all.begin(&wanted).unwrap();
        assert!(all.fail(&slot, AFTER_FAILURES, "another"));
        assert_eq!(all.lock().by_template["a"].pause(), Duration::from_secs(1));
        assert_eq!(all.descent(&wanted), ZygoteRole::Alone);
    }

    #[test]
    fn no_more_are_held_than_may_be_and_the_one_that_nobody_needs_makes_room() {
        assert!(zygotes(0).begin(&origin("a", "1")).is_none());
        let all = zygotes(1);
        let (_place, stopped) = all.begin(&origin("a", "1")).unwrap();
        assert!(all.begin(&origin("b", "1")).is_none());
        let long_ago = Instant::now().checked_sub(NEEDED_FOR).unwrap();
        all.lock().by_template.get_mut("a").unwrap().used = long_ago;
        assert!(all.begin(&origin("b", "1")).is_some());
        assert_eq!(*stopped.borrow(), StopRequest::Unused);
        assert!(all.begin(&origin("a", "1")).is_none());
    }
}
