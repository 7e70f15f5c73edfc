//! What is kept of sandboxes over time: events, log lines, samples of use.

use std::sync::Arc;
use std::time::SystemTime;

use offleash_store::registry::{
    EventRow, EventsWanted, LogLevel, MetricRow, RegistryError, SandboxState, Scope, UnixMs,
};

use super::Daemon;
use super::error::DaemonError;
use super::history::{lines_of_keeper, reason_in};
use super::inner::{Inner, blocking};
use super::sampling::row_of;
use super::view::{Caller, Event, LogLine, Metric};
use crate::clock::{before, from_ms, now_ms, to_ms};

/// Most rows of one answer.
const MOST_ROWS: u32 = 1000;

/// Which lines about a sandbox are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsWanted {
    /// Those that are not older, or with `descending` not newer; all if `None`.
    pub from: Option<SystemTime>,
    /// The latest first.
    pub descending: bool,
    /// Those that are so serious at least.
    pub level: LogLevel,
    /// Those that have this in them.
    pub containing: String,
    /// How many at most, and no more than 1000.
    pub limit: u32,
}

impl Default for LogsWanted {
    fn default() -> Self {
        Self {
            from: None,
            descending: false,
            level: LogLevel::Debug,
            containing: String::new(),
            limit: MOST_ROWS,
        }
    }
}

impl LogsWanted {
    /// Those of `lines`, which are in order.
    fn of(&self, mut lines: Vec<(UnixMs, LogLevel, String)>) -> Vec<LogLine> {
        if self.descending {
            lines.reverse();
        }
        let from = self.from.map(to_ms);
        let wanted = lines.into_iter().filter(|(at_ms, level, line)| {
            let in_time = from.is_none_or(|from| {
                if self.descending {
                    *at_ms <= from
                } else {
                    *at_ms >= from
                }
            });
            in_time && *level >= self.level && line.contains(&self.containing)
        });
        let most = usize::try_from(self.limit.min(MOST_ROWS)).unwrap_or(usize::MAX);
        let line = |(at_ms, level, line)| LogLine {
            at: from_ms(at_ms),
            level,
            line,
        };
        wanted.take(most).map(line).collect()
    }
}

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

    /// Lines about a sandbox, which may have ended a while ago ([`super::DaemonConfig::keep_logs`]): what happened to it,
    /// what was run and refused in it, and how it ended.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `Store`.
    pub async fn logs(&self, caller: &Caller, id: &str, wanted: LogsWanted) -> Result<Vec<LogLine>, DaemonError> {
        caller.require(Scope::Read)?;
        let lives = self.is_there_still(caller, id);
        if !lives && self.end(caller, id).await?.is_none() {
            return Err(DaemonError::not_found(id));
        }
        let (inner, id) = (Arc::clone(&self.inner), id.to_owned());
        let mut lines = blocking("read log lines", move || lines_of(&inner, &id, lives)).await??;
        // Those of one moment stay in the order in which they were written.
        lines.sort_by_key(|(at_ms, _, _)| *at_ms);
        Ok(wanted.of(lines))
    }

    /// Whether a sandbox is the caller's that has not ended, or is not forgotten yet.
    fn is_there_still(&self, caller: &Caller, id: &str) -> bool {
        self.inner.table.get(id).is_some_and(|entry| {
            let facts = entry.lock();
            let key_id = facts.row.key_id.as_deref();
            key_id.is_some() && facts.row.state != SandboxState::Creating && caller.sees(key_id)
        })
    }

    /// The end of a sandbox of the caller's, where it was not long ago.
    async fn end(&self, caller: &Caller, id: &str) -> Result<Option<EventRow>, DaemonError> {
        let (inner, id) = (Arc::clone(&self.inner), id.to_owned());
        let earliest = before(now_ms(), inner.config.keep_logs);
        let end = blocking("look up the end of a sandbox", move || inner.registry.end_of(&id)).await??;
        Ok(end.filter(|end| end.at_ms >= earliest && caller.sees(end.key_id.as_deref())))
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
            name: row.name,
            template: row.template,
            at: from_ms(row.at_ms),
            reason: reason_in(row.detail.as_deref()),
            kind: row.kind,
        };
        Ok(rows.await??.into_iter().map(event).collect())
    }
}

/// The lines about a sandbox: of the registry, and until they are kept there those of its keeper. Blocks for a moment.
fn lines_of(inner: &Inner, id: &str, lives: bool) -> Result<Vec<(UnixMs, LogLevel, String)>, RegistryError> {
    let is_kept = || inner.registry.end_of(id).map(|end| end.is_some());
    let mut kept = is_kept()?;
    loop {
        let noted = match id.parse() {
            Ok(id) if lives && !kept => lines_of_keeper(&inner.directories, &id),
            _ => Vec::new(),
        };
        let rows = inner.registry.logs(id)?;
        let was_kept = std::mem::replace(&mut kept, is_kept()?);
        // Those that were kept meanwhile would be told twice.
        if kept == was_kept {
            let rows = rows.into_iter().map(|row| (row.at_ms, row.level, row.line));
            let noted = noted.into_iter().map(|noted| (noted.at_ms, noted.level(), noted.line));
            return Ok(rows.chain(noted).collect());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_chosen_by_time_level_and_text() {
        let lines = || {
            let line = |at_ms, level, line: &str| (at_ms, level, line.to_owned());
            vec![
                line(1, LogLevel::Info, "one"),
                line(2, LogLevel::Warn, "two"),
                line(2, LogLevel::Info, "other two"),
                line(3, LogLevel::Error, "three"),
            ]
        };
        let chosen = |change: &dyn Fn(&mut LogsWanted)| {
            let mut wanted = LogsWanted::default();
            change(&mut wanted);
            let told = wanted.of(lines()).into_iter().map(|line| line.line);
            told.collect::<Vec<_>>()
        };
        assert_eq!(chosen(&|_| {}), ["one", "two", "other two", "three"]);
        assert_eq!(
            chosen(&|wanted| wanted.from = Some(from_ms(2))),
            ["two", "other two", "three"]
        );
        assert_eq!(chosen(&|wanted| wanted.level = LogLevel::Warn), ["two", "three"]);
        assert_eq!(chosen(&|wanted| wanted.containing = "two".into()), ["two", "other two"]);
        assert_eq!(chosen(&|wanted| wanted.limit = 1), ["one"]);
        let backward = |wanted: &mut LogsWanted| {
            wanted.descending = true;
            wanted.from = Some(from_ms(2));
            wanted.limit = 2;
        };
        assert_eq!(chosen(&backward), ["other two", "two"]);
    }
}
