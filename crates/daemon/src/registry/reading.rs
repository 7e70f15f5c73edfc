//! What is read from the registry.

use std::collections::BTreeMap;
use std::str::FromStr;

use offleash_supervisor::clock::UnixMs;
use rusqlite::Row;

use super::Registry;
use super::error::RegistryError;
use super::rows::{EventRow, KeyAllowance, KeyRow, LogRow, MetricRow, SandboxRow, SupervisorProcess};

/// Which events are wanted.
#[derive(Debug, Clone, Default)]
pub struct EventsQuery<'a> {
    /// Of this sandbox; of all if `None`.
    pub sandbox: Option<&'a str>,
    /// Of this key's sandboxes; of everybody's if `None`.
    pub key_id: Option<&'a str>,
    /// Those with a higher number.
    pub after: i64,
    /// The latest first.
    pub descending: bool,
    /// How many at most.
    pub limit: u32,
}

impl Registry {
    /// All sandboxes, in no particular order.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("listing sandboxes", error);
        let mut statement = reader.prepare_cached("SELECT * FROM sandboxes").map_err(tried)?;
        let mut rows = statement.query([]).map_err(tried)?;
        let mut sandboxes = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            sandboxes.push(sandbox_row(row)?);
        }
        Ok(sandboxes)
    }

    /// Events, by their number.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn events(&self, wanted: &EventsQuery<'_>) -> Result<Vec<EventRow>, RegistryError> {
        let order = if wanted.descending { "DESC" } else { "ASC" };
        let query = format!(
            "SELECT * FROM events WHERE (?1 IS NULL OR sandbox = ?1) AND (?2 IS NULL OR key_id = ?2) AND number > ?3
             ORDER BY number {order} LIMIT ?4"
        );
        let reader = self.reader();
        let tried = |error| RegistryError::of("listing events", error);
        let mut statement = reader.prepare_cached(&query).map_err(tried)?;
        let parameters = (wanted.sandbox, wanted.key_id, wanted.after, wanted.limit);
        let mut rows = statement.query(parameters).map_err(tried)?;
        let mut events = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            events.push(event_row(row)?);
        }
        Ok(events)
    }

    /// The event of a sandbox's end, which is the last one of it; `None` where it has not ended, or long ago.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn end_of(&self, sandbox: &str) -> Result<Option<EventRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("looking up an event", error);
        let query =
            "SELECT * FROM events WHERE sandbox = ?1 AND kind IN ('killed', 'died') ORDER BY number DESC LIMIT 1";
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query([sandbox]).map_err(tried)?;
        rows.next().map_err(tried)?.map(event_row).transpose()
    }

    /// The ends of the sandboxes that were called `name` and ended last, one of each key, the latest first; of one key alone
    /// if it is named.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn ends_of_name(&self, name: &str, key_id: Option<&str>) -> Result<Vec<EventRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("looking up a name", error);
        let query = "SELECT * FROM events WHERE number IN (
                SELECT max(number) FROM events
                WHERE name = ?1 AND kind IN ('killed', 'died') AND (?2 IS NULL OR key_id = ?2) GROUP BY key_id)
             ORDER BY number DESC";
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query((name, key_id)).map_err(tried)?;
        let mut ends = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            ends.push(event_row(row)?);
        }
        Ok(ends)
    }

    /// The lines about a sandbox, the oldest first.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn logs(&self, sandbox: &str) -> Result<Vec<LogRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading log lines", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM logs WHERE sandbox = ?1 ORDER BY number")
            .map_err(tried)?;
        let mut rows = statement.query([sandbox]).map_err(tried)?;
        let mut lines = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            lines.push(LogRow {
                number: column(row, "number")?,
                sandbox: column(row, "sandbox")?,
                at_ms: column(row, "at_ms")?,
                level: word(row, "level")?,
                line: column(row, "line")?,
            });
        }
        Ok(lines)
    }

    /// Samples of a sandbox from `from_ms` to `to_ms`, the oldest first.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn metrics(&self, sandbox: &str, from_ms: UnixMs, to_ms: UnixMs) -> Result<Vec<MetricRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading samples", error);
        let mut statement = reader
            .prepare_cached(
                "SELECT * FROM metrics WHERE sandbox = ?1 AND at_ms BETWEEN ?2 AND ?3 ORDER BY at_ms, place",
            )
            .map_err(tried)?;
        let mut rows = statement.query((sandbox, from_ms, to_ms)).map_err(tried)?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            samples.push(MetricRow {
                at_ms: column(row, "at_ms")?,
                cpu_milli: column(row, "cpu_milli")?,
                cpu_used_pct: column(row, "cpu_used_pct")?,
                memory_used: size(row, "memory_used")?,
                memory_total: size(row, "memory_total")?,
                memory_cache: size(row, "memory_cache")?,
                disk_used: size(row, "disk_used")?,
                disk_total: size(row, "disk_total")?,
            });
        }
        Ok(samples)
    }
}

fn event_row(row: &Row<'_>) -> Result<EventRow, RegistryError> {
    Ok(EventRow {
        number: column(row, "number")?,
        key_id: column(row, "key_id")?,
        sandbox: column(row, "sandbox")?,
        name: column(row, "name")?,
        template: column(row, "template")?,
        at_ms: column(row, "at_ms")?,
        kind: word(row, "kind")?,
        detail: column(row, "detail")?,
    })
}

fn sandbox_row(row: &Row<'_>) -> Result<SandboxRow, RegistryError> {
    let metadata: String = column(row, "metadata")?;
    let pid: Option<i32> = column(row, "supervisor_pid")?;
    let start: Option<i64> = column(row, "supervisor_start")?;
    let boot: Option<String> = column(row, "supervisor_boot")?;
    let boot = boot
        .map(|text| text.parse())
        .transpose()
        .map_err(|error| RegistryError::damaged(format!("column `supervisor_boot`: {error}")))?;
    Ok(SandboxRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        state: word(row, "state")?,
        template: column(row, "template")?,
        spec: column(row, "spec")?,
        metadata: from_json::<BTreeMap<String, String>>("metadata", &metadata)?,
        started_ms: column(row, "started_ms")?,
        end_ms: column(row, "end_ms")?,
        auto_pause: column(row, "auto_pause")?,
        auto_resume: column(row, "auto_resume")?,
        access_token: column(row, "access_token")?,
        traffic_token: column(row, "traffic_token")?,
        supervisor: pid.zip(start).map(|(pid, start)| SupervisorProcess {
            pid,
            start_ticks: start.cast_unsigned(),
            boot,
        }),
        generation: column(row, "generation")?,
        idempotency_key: column(row, "idempotency_key")?,
    })
}

pub(super) fn key_row(row: &Row<'_>) -> Result<KeyRow, RegistryError> {
    let scopes: String = column(row, "scopes")?;
    let allowance: String = column(row, "quota")?;
    let allowance: KeyAllowance = from_json("quota", &allowance)?;
    Ok(KeyRow {
        id: column(row, "id")?,
        name: column(row, "name")?,
        prefix: column(row, "prefix")?,
        hash: column(row, "hash")?,
        scopes: from_json("scopes", &scopes)?,
        quota: allowance.quota,
        tools: allowance.tools,
        created_ms: column(row, "created_ms")?,
        revoked_ms: column(row, "revoked_ms")?,
    })
}

pub(super) fn column<T: rusqlite::types::FromSql>(row: &Row<'_>, name: &'static str) -> Result<T, RegistryError> {
    row.get(name)
        .map_err(|error| RegistryError::damaged(format!("column `{name}`: {error}")))
}

/// A number of bytes; the database has no unsigned ones.
fn size(row: &Row<'_>, name: &'static str) -> Result<u64, RegistryError> {
    column::<i64>(row, name).map(i64::cast_unsigned)
}

fn word<T: FromStr<Err: std::fmt::Display>>(row: &Row<'_>, name: &'static str) -> Result<T, RegistryError> {
    let word: String = column(row, name)?;
    word.parse()
        .map_err(|error| RegistryError::damaged(format!("column `{name}`: {error}")))
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, RegistryError> {
    serde_json::from_str(text).map_err(|error| RegistryError::damaged(format!("column `{name}`: {error}")))
}
