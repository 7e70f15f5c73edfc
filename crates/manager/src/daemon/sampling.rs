//! Samples what sandboxes use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offleash_store::registry::{Change, MetricRow, SandboxState};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::inner::Inner;
use super::table::Entry;
use crate::clock::now_ms;
use crate::keeper::message::KeeperUsage;

/// How many sandboxes are asked at a time.
const AT_A_TIME: usize = 8;

/// CPU time at a moment.
type Mark = (Instant, u64);

/// Begins to sample, until the daemon is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    let every = inner.config.sample_every;
    if every.is_zero() {
        return;
    }
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut marks: HashMap<String, Mark> = HashMap::new();
        loop {
            tokio::time::sleep(every).await;
            let Some(inner) = weak.upgrade() else { return };
            marks = sample_all(&inner, marks).await;
        }
    });
}

/// Samples every sandbox that runs; answers what the next time is compared with.
async fn sample_all(inner: &Arc<Inner>, before: HashMap<String, Mark>) -> HashMap<String, Mark> {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut asked = JoinSet::new();
    for entry in inner.table.all() {
        let sampled = {
            let facts = entry.lock();
            facts.row.state == SandboxState::Running && facts.row.key_id.is_some()
        };
        if sampled {
            let (inner, places) = (Arc::clone(inner), Arc::clone(&places));
            asked.spawn(async move {
                let _place = places.acquire().await.ok()?;
                let usage = inner.keeper(&entry).usage().await.ok()?;
                Some((entry, Instant::now(), usage))
            });
        }
    }
    let mut marks = HashMap::new();
    while let Some(answer) = asked.join_next().await {
        if let Ok(Some((entry, when, usage))) = answer {
            let id = entry.id.as_str();
            note(inner, &entry, &usage, before.get(id).copied(), when);
            marks.insert(id.to_owned(), (when, usage.cpu_us));
        }
    }
    marks
}

fn note(inner: &Inner, entry: &Entry, usage: &KeeperUsage, before: Option<Mark>, when: Instant) {
    let at_ms = now_ms();
    let every = inner.config.sample_every.as_millis().max(1);
    inner.submit_droppable(Change::AddMetric {
        sandbox: entry.id.as_str().to_owned(),
        // Counted by the clock, so that a daemon that comes after this one goes on where it was.
        number: u64::try_from(u128::from(at_ms.unsigned_abs()) / every).unwrap_or(0),
        sample: row_of(
            usage,
            at_ms,
            before.map_or(0.0, |before| percent(before, (when, usage.cpu_us))),
        ),
    });
}

pub(super) fn row_of(usage: &KeeperUsage, at_ms: i64, cpu_used_pct: f64) -> MetricRow {
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

/// How much of one CPU was used between two marks, in percent.
fn percent(before: Mark, now: Mark) -> f64 {
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
