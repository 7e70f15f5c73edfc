//! What becomes of a sandbox that has no memory left and is to outlive that: one process is killed, by the kernel or by
//! us, and the sandbox ends only if that happens without end or is of no use.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use offleash_core::limits::LimitName;
use offleash_core::record::{LimitEffect, LimitHit};
use offleash_core::spec::MemoryEnd;
use offleash_sys::process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{LimitWatcher, killed};
use crate::limits::process_tree::ProcessTree;

/// So many kills within that time end the sandbox: more of them are not told from one another, and cost the host time.
const MAX_COUNT: usize = 20;
const WITHIN: Duration = Duration::from_secs(10);
/// How often they are told of at most.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// A process that ends with `SIGKILL` so shortly after a kill was counted has ended of that.
const LATELY: Duration = Duration::from_secs(1);
/// How long a kill of ours may take to help.
const HELPS_WITHIN: Duration = Duration::from_secs(1);

/// The kills for want of memory in a sandbox that outlives them.
#[derive(Debug, Default)]
pub(super) struct MemoryKills {
    /// As many as the kernel has counted.
    counted: u64,
    /// When the last ones were noticed, at most [`MAX_COUNT`] of them.
    times: VecDeque<Instant>,
    told: Option<Instant>,
    /// Some were not told of yet.
    untold: bool,
    /// Since when the sandbox has had more than it may in spite of a kill of ours.
    helping_since: Option<Instant>,
}

/// What there is to say of kills.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KillNews {
    Nothing,
    Some,
    TooMany,
}

impl MemoryKills {
    /// Takes note of how many the kernel has counted.
    fn note(&mut self, now: Instant, counted: u64) {
        let new = counted.saturating_sub(self.counted);
        self.counted = self.counted.max(counted);
        self.add(now, usize::try_from(new).unwrap_or(MAX_COUNT));
    }

    fn add(&mut self, now: Instant, new: usize) {
        self.times.extend(std::iter::repeat_n(now, new.min(MAX_COUNT)));
        self.times.drain(..self.times.len().saturating_sub(MAX_COUNT));
        self.untold |= new > 0;
    }

    fn news(&mut self, now: Instant) -> KillNews {
        let is_within = |time: &Instant| now.saturating_duration_since(*time) < WITHIN;
        if self.times.len() >= MAX_COUNT && self.times.front().is_some_and(is_within) {
            return KillNews::TooMany;
        }
        let is_told = |told: Instant| now.saturating_duration_since(told) < TOLD_EVERY;
        if !self.untold || self.told.is_some_and(is_told) {
            return KillNews::Nothing;
        }
        self.untold = false;
        self.told = Some(now);
        KillNews::Some
    }

    /// Whether there was one a moment ago.
    fn were_lately(&self, now: Instant) -> bool {
        let last = self.times.back();
        last.is_some_and(|last| now.saturating_duration_since(*last) < LATELY)
    }
}

impl LimitWatcher {
    /// The same for a sandbox of which that ends when it has no memory left.
    pub(crate) fn ending(mut self, end: MemoryEnd) -> Self {
        self.kills = match end {
            MemoryEnd::Sandbox => None,
            MemoryEnd::Process => Some(MemoryKills::default()),
        };
        self
    }

    /// As [`Sandbox::was_out_of_memory`](crate::sandbox::Sandbox::was_out_of_memory).
    pub(crate) fn was_out_of_memory(&mut self, now: Instant) -> Option<u64> {
        let limit = self.limits.memory?.0;
        let counted = self.group.as_ref().and_then(|group| group.events().ok()?.oom_kills);
        let counted = self.all_kills(counted).unwrap_or(0);
        let kills = self.kills.as_mut()?;
        kills.note(now, counted);
        kills.were_lately(now).then_some(limit)
    }

    /// What is said of the kernel's kills, of which there were `counted`; at the `limit`.
    pub(super) fn check_kills(&mut self, now: Instant, counted: u64, limit: u64, hits: &mut Vec<LimitHit>) {
        let Some(kills) = &mut self.kills else {
            if counted > 0 {
                self.seen.out_of_memory = true;
                hits.push(killed(LimitName::Memory, limit));
            }
            return;
        };
        kills.note(now, counted);
        match kills.news(now) {
            KillNews::Nothing => {}
            KillNews::Some => hits.push(ended(limit)),
            KillNews::TooMany => {
                self.seen.out_of_memory = true;
                hits.push(killed(LimitName::Memory, limit));
            }
        }
    }

    /// The processes have less than they may.
    pub(super) fn note_enough_memory(&mut self) {
        if let Some(kills) = &mut self.kills {
            kills.helping_since = None;
        }
    }

    /// Whether a kill of ours has not helped, so that memory has to be measured exactly before the sandbox ends for it.
    pub(super) fn is_of_no_help(&self, now: Instant) -> bool {
        let since = self.kills.as_ref().and_then(|kills| kills.helping_since);
        since.is_some_and(|since| now.saturating_duration_since(since) >= HELPS_WITHIN)
    }

    /// The processes have more than they may, and no group that the kernel keeps below the `limit`: the largest of
    /// `processes` is killed and, where that does not help, the sandbox ends.
    pub(super) fn relieve(&mut self, now: Instant, processes: &[u32], limit: u64, hits: &mut Vec<LimitHit>) {
        let is_of_no_help = self.is_of_no_help(now);
        if let Some(kills) = self.kills.as_mut().filter(|_| !is_of_no_help) {
            let waits = kills.helping_since.is_some();
            if waits || kill_largest(&self.tree, processes) {
                if !waits {
                    kills.helping_since = Some(now);
                    kills.add(now, 1);
                }
                let counted = kills.counted;
                self.check_kills(now, counted, limit, hits);
                return;
            }
        }
        self.seen.out_of_memory = true;
        hits.push(killed(LimitName::Memory, limit));
    }

    /// Whether the sandbox ends with kills that it should have outlived.
    pub(super) fn ends_out_of_memory(&self, now: Instant) -> bool {
        self.seen.out_of_memory || self.kills.as_ref().is_some_and(|kills| kills.were_lately(now))
    }
}

/// Kills the largest of `processes` but for the first one, with which all would end; whether there was one.
fn kill_largest(tree: &ProcessTree, processes: &[u32]) -> bool {
    let others = processes.iter().skip(1);
    let Some(pid) = others.max_by_key(|pid| tree.usage(&[**pid]).anonymous_bytes) else {
        return false;
    };
    let Some(named) = i32::try_from(*pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(pidfd) = pidfd_open(named, PidfdFlags::empty()) else {
        return false;
    };
    // Looked for again now that the descriptor is ours: if the number has come to mean another process before, that is none
    // of the sandbox's, and if it does so later, the signal goes nowhere.
    tree.processes().contains(pid) && process::kill(pidfd.as_fd()).is_ok()
}

fn ended(limit: u64) -> LimitHit {
    LimitHit {
        limit: LimitName::Memory,
        value: limit,
        effect: LimitEffect::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_told_now_and_then_and_too_many_end_the_sandbox() {
        let mut kills = MemoryKills::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(kills.news(start), KillNews::Nothing);
        kills.note(start, 1);
        assert!(kills.were_lately(at(900)) && !kills.were_lately(at(1000)));
        assert_eq!(
            (kills.news(start), kills.news(start)),
            (KillNews::Some, KillNews::Nothing)
        );
        // The same number is no news.
        kills.note(at(2000), 1);
        assert!(!kills.were_lately(at(2000)));
        kills.note(at(2000), 3);
        assert_eq!(
            (kills.news(at(2000)), kills.news(at(5000))),
            (KillNews::Nothing, KillNews::Some)
        );
        // As many as are borne for ever, and then one within the time that is one too many.
        for number in 0..100 {
            kills.note(at(20_000 + number * 530), 4 + number);
            assert_ne!(kills.news(at(20_000 + number * 530)), KillNews::TooMany, "{number}");
        }
        kills.note(at(100_000), u64::MAX);
        assert_eq!(kills.news(at(100_000)), KillNews::TooMany);
        assert!(kills.times.len() <= MAX_COUNT);
    }
}
