//! CPU time that a sandbox has taken.

use std::time::{Duration, Instant};

use offleash_core::limits::LimitName;
use offleash_core::record::LimitHit;
use offleash_sys::cgroup::ControlGroup;

use super::{LimitWatcher, killed};
use crate::limits::schedule;

impl LimitWatcher {
    pub(super) fn check_cpu(&mut self, now: Instant, hits: &mut Vec<LimitHit>) {
        if self.limits.cpu_time.is_none() || now < self.cpu_due {
            return;
        }
        let used_us = self.cpu_us();
        self.compare_cpu(used_us, hits);
        self.cpu_due = now + self.until_cpu_is_due(used_us);
    }

    pub(super) fn until_cpu_is_due(&self, used_us: u64) -> Duration {
        let limit_us = self
            .limits
            .cpu_time
            .map_or(u64::MAX, |limit| limit.0.saturating_mul(1000));
        let earliest = schedule::cpu_exhausted_at_the_earliest(limit_us.saturating_sub(used_us), self.host_cpus);
        // Not more often than every few milliseconds, or the last ones before the limit would be spent on looking.
        earliest.clamp(Duration::from_millis(5), Duration::from_secs(3600))
    }

    pub(super) fn compare_cpu(&self, used_us: u64, hits: &mut Vec<LimitHit>) {
        if let Some(limit) = self
            .limits
            .cpu_time
            .filter(|limit| used_us >= limit.0.saturating_mul(1000))
        {
            hits.push(killed(LimitName::CpuTime, limit.0));
        }
    }

    /// CPU time so far, of the group or of the processes; it never goes down.
    pub(super) fn cpu_us(&mut self) -> u64 {
        if let Some(Ok(Some(used))) = self.group.as_ref().map(ControlGroup::cpu_us) {
            return used;
        }
        let (user, system) = self.tree.cpu_us(&self.tree.processes());
        self.seen.user_us = self.seen.user_us.max(user);
        self.seen.system_us = self.seen.system_us.max(system);
        self.seen.user_us.saturating_add(self.seen.system_us)
    }
}
