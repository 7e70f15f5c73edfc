//! What is kept of sandboxes over time: events, log lines, samples of use.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use offleash_core::id::SandboxName;
use offleash_core::log_level::LogLevel;
use offleash_supervisor::clock::{UnixMs, before, from_ms, now_ms, to_ms};

use crate::caller::Caller;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::history::reason_in;
use crate::host::SandboxHost;
use crate::registry::{EventRow, EventsQuery, Registry, RegistryError, SandboxState, Scope};
use crate::sampling::{row_of, sample_of};
use crate::template_names;
use crate::view::{LogLine, NameMatches, SandboxEvent, UsageSample};

/// Most rows of one answer.
const MAX_ROWS: u32 = 1000;

/// Which lines about a sandbox are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsRequest {
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

impl Default for LogsRequest {
    fn default() -> Self {
        Self {
            from: None,
            descending: false,
            level: LogLevel::Debug,
            containing: String::new(),
            limit: MAX_ROWS,
        }
    }
}

impl LogsRequest {
    /// Those of `lines`, which are in order.
    fn of(&self, mut lines: Vec<TimedLine>) -> Vec<LogLine> {
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
        let most = usize::try_from(self.limit.min(MAX_ROWS)).unwrap_or(usize::MAX);
        let line = |(at_ms, level, line)| LogLine {
            at: from_ms(at_ms),
            level,
            line,
        };
        wanted.take(most).map(line).collect()
    }
}

/// Which events are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventsRequest {
    /// Those of this sandbox, which may be gone; of all of the caller's if `None`.
    pub(crate) sandbox: Option<String>,
    /// Those with a number above this.
    pub(crate) after: i64,
    /// The latest first instead of the oldest.
    pub(crate) descending: bool,
    /// How many at most, and no more than 1000.
    pub(crate) limit: u32,
}

/// Reads what is kept of sandboxes.
#[derive(Debug)]
pub(crate) struct SandboxRecords {
    core: DaemonCore,
    /// How long lines of sandboxes that ended are kept.
    keep_logs: Duration,
}

impl SandboxRecords {
    pub(crate) fn new(core: DaemonCore, keep_logs: Duration) -> Self {
        Self { core, keep_logs }
    }

    /// Samples of what a sandbox used, the oldest first. One that runs and was not sampled yet is asked.
    ///
    /// # Errors
    /// `NotFound`, `Store`.
    pub(crate) async fn metrics(
        &self,
        caller: &Caller,
        id: &str,
        from: Option<SystemTime>,
        to: Option<SystemTime>,
    ) -> Result<Vec<UsageSample>, DaemonError> {
        let entry = self.core.sandboxes.find(caller, id)?;
        let (from, to) = (from.map_or(0, to_ms), to.map_or(i64::MAX, to_ms));
        let id = id.to_owned();
        let rows = self
            .core
            .registry
            .read("read samples", move |registry| registry.metrics(&id, from, to));
        let mut samples: Vec<UsageSample> = rows.await?.iter().map(sample_of).collect();
        if samples.is_empty()
            && (from..=to).contains(&now_ms())
            && entry.state() == SandboxState::Running
            && let Ok(usage) = self.core.host.supervisor(entry.id()).usage().await
        {
            samples.push(sample_of(&row_of(&usage, now_ms(), 0.0)));
        }
        Ok(samples)
    }

    /// Lines about a sandbox, which may have ended a while ago: what happened to it, what was run and refused in it, and how
    /// it ended.
    ///
    /// # Errors
    /// `NotFound`, `Store`.
    pub(crate) async fn logs(
        &self,
        caller: &Caller,
        id: &str,
        request: &LogsRequest,
    ) -> Result<Vec<LogLine>, DaemonError> {
        let lives = self.is_there_still(caller, id);
        if !lives && self.end(caller, id).await?.is_none() {
            return Err(DaemonError::not_found(id));
        }
        let (host, id) = (Arc::clone(&self.core.host), id.to_owned());
        let lines = self
            .core
            .registry
            .read("read log lines", move |registry| lines_of(registry, &host, &id, lives));
        let mut lines = lines.await?;
        // Those of one moment stay in the order in which they were written.
        lines.sort_by_key(|(at_ms, _, _)| *at_ms);
        Ok(request.of(lines))
    }

    /// Whether a sandbox is the caller's that has not ended, or is not forgotten yet.
    fn is_there_still(&self, caller: &Caller, id: &str) -> bool {
        let entry = self.core.sandboxes.get(id);
        entry.is_some_and(|entry| {
            entry.read(|facts| {
                let key_id = facts.key_id();
                key_id.is_some() && facts.row().state != SandboxState::Creating && caller.sees(key_id)
            })
        })
    }

    /// The end of a sandbox of the caller's, where it was not long ago.
    async fn end(&self, caller: &Caller, id: &str) -> Result<Option<EventRow>, DaemonError> {
        let earliest = before(now_ms(), self.keep_logs);
        let id = id.to_owned();
        let end = self
            .core
            .registry
            .read("look up the end of a sandbox", move |registry| registry.end_of(&id));
        let end = end.await?;
        Ok(end.filter(|end| end.at_ms >= earliest && caller.sees(end.key_id.as_deref())))
    }

    /// What happened to the caller's sandboxes, or to one of them.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn events(
        &self,
        caller: &Caller,
        request: EventsRequest,
    ) -> Result<Vec<SandboxEvent>, DaemonError> {
        let all = caller.scopes.allow(Scope::Admin);
        let key_id = (!all).then(|| caller.key_id.clone());
        let rows = self.core.registry.read("read events", move |registry| {
            registry.events(&EventsQuery {
                sandbox: request.sandbox.as_deref(),
                key_id: key_id.as_deref(),
                after: request.after,
                descending: request.descending,
                limit: request.limit.min(MAX_ROWS),
            })
        });
        Ok(rows.await?.into_iter().map(told).collect())
    }

    /// What `name` stands for: the caller's own living one or, if `ended`, the last of its own that had it.
    ///
    /// A name is one living sandbox's among those of a key, and stands for that only to the key itself. Who sees the sandboxes
    /// of several keys is told which of others have it, and has to say their ids: a name that nobody of his has now may be
    /// taken by anybody, who would get what was meant for another.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) async fn called(
        &self,
        caller: &Caller,
        name: &SandboxName,
        ended: bool,
    ) -> Result<NameMatches, DaemonError> {
        let living = self.core.sandboxes.called(caller, name.as_str());
        if living.own.is_some() || !ended {
            return Ok(living);
        }
        let name = name.clone();
        let key_id = (!caller.scopes.allow(Scope::Admin)).then(|| caller.key_id.clone());
        let ends = self.core.registry.read("look up a name", move |registry| {
            registry.ends_of_name(name.as_str(), key_id.as_deref())
        });
        let (own, others): (Vec<_>, Vec<_>) = ends
            .await?
            .into_iter()
            .partition(|end| caller.is(end.key_id.as_deref()));
        let own = own.into_iter().next().map(|end| end.sandbox);
        Ok(match own {
            Some(own) => NameMatches {
                own: Some(own),
                others: Vec::new(),
            },
            None if living.others.is_empty() => NameMatches {
                own: None,
                others: others.into_iter().map(|end| end.sandbox).collect(),
            },
            None => living,
        })
    }
}

/// A line, its time and how serious it is.
type TimedLine = (UnixMs, LogLevel, String);

/// The lines about a sandbox: of the registry, and until they are kept there those of its supervisor. Blocks for a moment.
fn lines_of(registry: &Registry, host: &SandboxHost, id: &str, lives: bool) -> Result<Vec<TimedLine>, RegistryError> {
    let is_kept = || registry.end_of(id).map(|end| end.is_some());
    let mut kept = is_kept()?;
    loop {
        let noted = match id.parse() {
            Ok(id) if lives && !kept => host.supervisor_lines(&id),
            _ => Vec::new(),
        };
        let rows = registry.logs(id)?;
        let was_kept = std::mem::replace(&mut kept, is_kept()?);
        // Those that were kept meanwhile would be told twice.
        if kept == was_kept {
            let rows = rows.into_iter().map(|row| (row.at_ms, row.level, row.line));
            let noted = noted.into_iter().map(|noted| (noted.at_ms, noted.level(), noted.line));
            return Ok(rows.chain(noted).collect());
        }
    }
}

/// An event, as it is told.
pub(crate) fn told(row: EventRow) -> SandboxEvent {
    SandboxEvent {
        number: row.number,
        sandbox: row.sandbox,
        name: row.name,
        template: template_names::shown(&row.template).to_owned(),
        at: from_ms(row.at_ms),
        reason: reason_in(row.detail.as_deref()),
        kind: row.kind,
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
        let chosen = |change: &dyn Fn(&mut LogsRequest)| {
            let mut wanted = LogsRequest::default();
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
        let backward = |wanted: &mut LogsRequest| {
            wanted.descending = true;
            wanted.from = Some(from_ms(2));
            wanted.limit = 2;
        };
        assert_eq!(chosen(&backward), ["other two", "two"]);
    }
}
