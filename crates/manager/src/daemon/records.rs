//! What is kept of sandboxes over time: events, log lines, samples of use.

use std::sync::Arc;
use std::time::SystemTime;

use offleash_store::registry::{EventsWanted, LogLevel, Scope};

use super::Daemon;
use super::clock::{from_ms, now_ms, to_ms};
use super::error::DaemonError;
use super::inner::blocking;
use super::sampling::row_of;
use super::view::{Caller, Event, LogLine, Metric};
use offleash_store::registry::{MetricRow, SandboxState};

/// Most rows of one answer.
const MOST_ROWS: u32 = 1000;
/// Longest line of a log.
const LONGEST_LINE: usize = 8 * 1024;

impl Daemon {
    /// Samples of what a sandbox used, the oldest first. One that runs and was not sampled yet is asked.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub async fn metrics(
        &self,
        caller: &Caller,
        id: &str,
        from: Option<SystemTime>,
        to: Option<SystemTime>,
    ) -> Result<Vec<Metric>, DaemonError> {
        caller.require(Scope::Read)?;
        let entry = self.inner.table.find(caller, id)?;
        let (inner, id) = (Arc::clone(&self.inner), id.to_owned());
        let (from, to) = (from.map_or(0, to_ms), to.map_or(i64::MAX, to_ms));
        let rows = blocking("read samples", move || inner.registry.metrics(&id, from, to)).await??;
        let mut samples: Vec<Metric> = rows.iter().map(metric).collect();
        if samples.is_empty()
            && (from..=to).contains(&now_ms())
            && entry.state() == SandboxState::Running
            && let Ok(usage) = self.inner.keeper(&entry).usage().await
        {
            samples.push(metric(&row_of(&usage, now_ms(), 0.0)));
        }
        Ok(samples)
    }

    /// Lines about a sandbox with a number above `after`, the oldest first, at most `limit` and 1000.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub async fn logs(&self, caller: &Caller, id: &str, after: i64, limit: u32) -> Result<Vec<LogLine>, DaemonError> {
        caller.require(Scope::Read)?;
        self.inner.table.find(caller, id)?;
        let (inner, id) = (Arc::clone(&self.inner), id.to_owned());
        let rows = blocking("read log lines", move || {
            inner.registry.logs(&id, after, limit.min(MOST_ROWS))
        })
        .await??;
        let line = |row: offleash_store::registry::LogRow| LogLine {
            number: row.number,
            at: from_ms(row.at_ms),
            level: row.level,
            line: row.line,
        };
        Ok(rows.into_iter().map(line).collect())
    }

    /// Notes a line about a sandbox, cut where it is very long. The latest thousand are kept; some are lost when there
    /// are more than can be written.
    pub fn log(&self, id: &str, level: LogLevel, line: &str) {
        let end = line.floor_char_boundary(LONGEST_LINE);
        self.inner.log(id, level, &line[..end]);
    }

    /// What happened to the caller's sandboxes, or to one of them, which may be gone: events with a number above
    /// `after`, the oldest first, or the latest first.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub async fn events(
        &self,
        caller: &Caller,
        sandbox: Option<&str>,
        after: i64,
        descending: bool,
        limit: u32,
    ) -> Result<Vec<Event>, DaemonError> {
        caller.require(Scope::Read)?;
        let all = caller.scopes.allow(Scope::Admin);
        let (inner, sandbox) = (Arc::clone(&self.inner), sandbox.map(str::to_owned));
        let key_id = (!all).then(|| caller.key_id.clone());
        let rows = blocking("read events", move || {
            inner.registry.events(&EventsWanted {
                sandbox: sandbox.as_deref(),
                key_id: key_id.as_deref(),
                after,
                descending,
                limit: limit.min(MOST_ROWS),
            })
        });
        let event = |row: offleash_store::registry::EventRow| Event {
            number: row.number,
            sandbox: row.sandbox,
            template: row.template,
            at: from_ms(row.at_ms),
            kind: row.kind,
        };
        Ok(rows.await??.into_iter().map(event).collect())
    }
}

fn metric(row: &MetricRow) -> Metric {
    Metric {
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
