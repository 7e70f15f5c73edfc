//! How many processes and threads a sandbox has started, as its pid namespace numbers them.
//!
//! Nothing outside counts that. But the kernel gives numbers out in their order, and `NSpid` of `proc_pid_status(5)` is the
//! number inside: the newest process says how many there were before it, those that have ended long since included.
//! Of the processes that were not there at the last look a few are looked at, so that many cost no more than some.

use std::collections::HashSet;
use std::fs;

/// How many processes are looked at each time, the newest.
const MAX_LOOKED_AT: usize = 4;
/// A number that is lower than the last by more than this was given out after all numbers had been.
const WRAP: u64 = 16_384;

/// Counts what is started.
#[derive(Debug, Default)]
pub(crate) struct ForkCounter {
    /// Where in a line of `NSpid` the number in the sandbox's namespace stands; `None` before the first look.
    place: Option<usize>,
    seen: HashSet<u32>,
    newest: u64,
    total: u64,
}

impl ForkCounter {
    /// How many were started so far, as far as that is known; `None` where the sandbox has no namespace of its own.
    pub(crate) fn look(&mut self, init: u32, processes: &[u32]) -> Option<u64> {
        let place = match self.place {
            Some(place) => place,
            None => {
                let place = numbers_of(init)?.len().checked_sub(1)?;
                *self.place.insert(place)
            }
        };
        if place == 0 {
            return None;
        }
        let mut new: Vec<u32> = processes
            .iter()
            .copied()
            .filter(|pid| !self.seen.contains(pid))
            .collect();
        self.seen = processes.iter().copied().collect();
        new.sort_unstable();
        let looked_at = new.iter().rev().take(MAX_LOOKED_AT);
        let numbers = looked_at.filter_map(|pid| numbers_of(*pid)?.get(place).copied());
        if let Some(newest) = numbers.max() {
            self.note(newest);
        }
        Some(self.total)
    }

    fn note(&mut self, newest: u64) {
        let has_wrapped = newest.saturating_add(WRAP) < self.newest;
        let more = if has_wrapped {
            newest
        } else {
            newest.saturating_sub(self.newest)
        };
        if more > 0 {
            self.total = self.total.saturating_add(more);
            self.newest = newest;
        }
    }
}

/// The numbers of a process, the outermost namespace's first.
fn numbers_of(pid: u32) -> Option<Vec<u64>> {
    // A name may hold any bytes.
    let text = fs::read(format!("/proc/{pid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_grow_are_starts_and_those_that_begin_anew_are_too() {
        let mut counter = ForkCounter::default();
        for (newest, total) in [
            (1, 1),
            (10, 10),
            (8, 10),
            (30_000, 30_000),
            (301, 30_301),
            (400, 30_400),
        ] {
            counter.note(newest);
            assert_eq!(counter.total, total, "{newest}");
        }
    }

    #[test]
    fn a_process_without_a_namespace_of_its_own_is_not_counted() {
        let own = std::process::id();
        let numbers = numbers_of(own).unwrap();
        assert_eq!(numbers[0], u64::from(own));
        let mut counter = ForkCounter::default();
        let found = counter.look(own, &[own]);
        assert_eq!(found.is_none(), numbers.len() == 1);
    }
}
