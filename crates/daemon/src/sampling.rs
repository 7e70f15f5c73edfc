//! Samples what sandboxes use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offleash_supervisor::clock::{from_ms, now_ms};
use offleash_supervisor::service::message::SupervisorUsage;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::alerts::AlertKeeper;
use crate::daemon_core::DaemonCore;
use crate::registry::{Change, MetricRow, SandboxState};
use crate::sandboxes::SandboxEntry;
use crate::view::UsageSample;

/// How many sandboxes are asked at a time.
const AT_A_TIME: usize = 8;

/// CPU time at a moment.
type CpuMark = (Instant, u64);

/// Samples what sandboxes use.
#[derive(Debug)]
pub(crate) struct UsageSampler {
    core: DaemonCore,
    every: Duration,
    alerts: Arc<AlertKeeper>,
}

impl UsageSampler {
    pub(crate) fn new(core: DaemonCore, every: Duration, alerts: Arc<AlertKeeper>) -> Self {
        Self { core, every, alerts }
    }

    /// Begins to sample, until the daemon is gone.
    pub(crate) fn start(self: &Arc<Self>) {
        let every = self.every;
        if every.is_zero() {
            return;
        }
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut marks: HashMap<String, CpuMark> = HashMap::new();
            loop {
                tokio::time::sleep(every).await;
                let Some(sampler) = weak.upgrade() else { return };
                marks = sampler.sample_all(marks).await;
            }
        });
    }

    /// Samples every sandbox that runs; answers what the next time is compared with.
    async fn sample_all(&self, before: HashMap<String, CpuMark>) -> HashMap<String, CpuMark> {
        let places = Arc::new(Semaphore::new(AT_A_TIME));
        let mut asked = JoinSet::new();
        for entry in self.core.sandboxes.all() {
            let is_sampled = entry.read(|facts| facts.row().state == SandboxState::Running && facts.key_id().is_some());
            if is_sampled {
                let (host, places) = (Arc::clone(&self.core.host), Arc::clone(&places));
                asked.spawn(async move {
                    let _place = places.acquire().await.ok()?;
                    let usage = host.supervisor(entry.id()).usage().await.ok()?;
                    Some((entry, Instant::now(), usage))
                });
            }
        }
        let mut marks = HashMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some((entry, when, usage))) = answer {
                if usage.untold_alerts > 0 {
                    self.alerts.heed_in_background(Arc::clone(&entry));
                }
                self.note(&entry, &usage, before.get(entry.name()).copied(), when);
                marks.insert(entry.name().to_owned(), (when, usage.cpu_us));
            }
        }
        marks
    }

    fn note(&self, entry: &SandboxEntry, usage: &SupervisorUsage, before: Option<CpuMark>, when: Instant) {
        let at_ms = now_ms();
        let every = self.every.as_millis().max(1);
        let used = before.map_or(0.0, |before| percent(before, (when, usage.cpu_us)));
        let sample = row_of(usage, at_ms, used);
        entry.note_sample(sample_of(&sample));
        self.core.registry.submit_droppable(Change::AddMetric {
            sandbox: entry.name().to_owned(),
            // Counted by the clock, so that a daemon that comes after this one goes on where it was.
            number: u64::try_from(u128::from(at_ms.unsigned_abs()) / every).unwrap_or(0),
            sample,
        });
    }
}

pub(crate) fn row_of(usage: &SupervisorUsage, at_ms: i64, cpu_used_pct: f64) -> MetricRow {
    MetricRow {
        at_ms,
        cpu_milli: u32::try_from(usage.cpus_millis).unwrap_or(u32::MAX),
        cpu_used_pct,
        memory_used: usage.memory_bytes,
        memory_total: usage.memory_limit_bytes,
        memory_cache: usage.memory_cache_bytes,
        disk_used: usage.disk_bytes,
        disk_total: usage.disk_limit_bytes,
    }
}

pub(crate) fn sample_of(row: &MetricRow) -> UsageSample {
    UsageSample {
        at: from_ms(row.at_ms),
        cpus: row.cpu_milli.div_ceil(1000),
        cpu_used_pct: row.cpu_used_pct,
        memory_used: row.memory_used,
        memory_total: row.memory_total,
        memory_cache: row.memory_cache,
        disk_used: row.disk_used,
        disk_total: row.disk_total,
    }
}

/// How much of one CPU was used between two marks, in percent.
fn percent(before: CpuMark, now: CpuMark) -> f64 {
    let elapsed = now.0.saturating_duration_since(before.0);
    let used = Duration::from_micros(now.1.saturating_sub(before.1));
    if elapsed.is_zero() {
        return 0.0;
    }
    let percent = used.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    (percent * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_a_cpu_is_what_was_used_in_between() {
        let start = Instant::now();
        let later = start + Duration::from_secs(2);
        assert!((percent((start, 1_000_000), (later, 2_000_000)) - 50.0).abs() < 0.01);
        assert!((percent((start, 0), (later, 4_000_000)) - 200.0).abs() < 0.01);
        // A counter that was set back, and no time at all.
        assert!(percent((start, 5), (later, 0)).abs() < 0.01);
        assert!(percent((start, 0), (start, 5)).abs() < 0.01);
    }
}
