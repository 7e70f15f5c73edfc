//! The changes that can be made to the registry, and how each is made.

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, named_params};

use super::allowed_hosts;
use super::allowed_hosts::AllowedHostRow;
use super::builds::{self, BuildLogRow, BuildState, BuiltTemplateRow, TemplateBuildRow, TemplateTagRow};
use super::error::RegistryError;
use super::rows::{EventRow, KeyAllowance, KeyRow, LogRow, MetricRow, SandboxRow};
use super::schema::{KEPT_EVENTS, KEPT_EVENTS_OF_KEY, KEPT_LOGS, KEPT_LOGS_OF_ALL, KEPT_METRICS};
use super::secrets::{self, SecretRow};
use super::snapshots::{self, SnapshotRow};
use super::webhooks::{self, WebhookRow};

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A new sandbox; its generation is taken as it is.
    AddSandbox(Box<SandboxRow>),
    /// A sandbox as it is now; its generation is one more than the one that is there.
    SetSandbox(Box<SandboxRow>),
    /// A sandbox is gone, its samples and its claim to its checkpoints with it; its log lines stay. Nothing happens if it was gone already.
    RemoveSandbox(String),
    /// A new key.
    AddKey(Box<KeyRow>),
    /// A key is not valid any more.
    RevokeKey {
        /// Its id.
        id: String,
        /// When.
        at_ms: UnixMs,
    },
    /// Whatever sandbox a key that is not valid any more has is to end, also one that it has only later.
    EndSandboxesOf {
        /// The key's id.
        key: String,
    },
    /// A new secret.
    AddSecret(Box<SecretRow>),
    /// A secret has another value.
    SetSecret(Box<SecretRow>),
    /// A secret is gone. Nothing happens if it was gone already.
    RemoveSecret(String),
    /// A snapshot or checkpoint that is about to be made.
    AddSnapshot(Box<SnapshotRow>),
    /// It is whole, and alone has its name.
    CompleteSnapshot(Box<SnapshotRow>),
    /// It is nobody's any more.
    ReleaseSnapshot(String),
    /// It is gone. Nothing happens if it was gone already.
    RemoveSnapshot(String),
    /// A new template of a key.
    AddTemplate(Box<BuiltTemplateRow>),
    /// Other keys may use a template, or may not.
    SetTemplatePublic {
        /// Its id.
        id: String,
        /// Whether they may.
        public: bool,
        /// When.
        at_ms: UnixMs,
    },
    /// A template is gone, with all that is known of it. Nothing happens if it was gone already.
    RemoveTemplate(String),
    /// A new build of a template.
    AddBuild(Box<TemplateBuildRow>),
    /// A build as it is now, which was in one of these states.
    SetBuild(Box<TemplateBuildRow>, &'static [BuildState]),
    /// A tag means a build.
    AssignTag(TemplateTagRow),
    /// A tag means nothing. Nothing happens if it meant nothing already.
    RemoveTag {
        /// The template.
        template: String,
        /// The tag.
        tag: String,
    },
    /// A line of a build.
    AddBuildLog(BuildLogRow),
    /// Something happened; its number is given by the registry.
    AddEvent(EventRow),
    /// A line; its number is given by the registry.
    AddLog(LogRow),
    /// The lines of a sandbox go.
    RemoveLogs(String),
    /// The lines of sandboxes go that are gone, unless an event says that one ended since `ended_ms`.
    ForgetLogs {
        /// When.
        ended_ms: UnixMs,
    },
    /// A host is not asked about any more. Nothing happens if that was so.
    AllowHost(AllowedHostRow),
    /// It is asked about again.
    ForgetAllowedHost(String),
    /// An endpoint of webhooks was told of all events up to one.
    SetWebhookCursor {
        /// The endpoint, by a digest of its address.
        endpoint: String,
        /// The number of the event.
        number: i64,
    },
    /// Other endpoints than these are forgotten, but for those of keys.
    KeepWebhooks(Vec<String>),
    /// A new webhook of a key.
    AddWebhook(Box<WebhookRow>),
    /// A webhook of a key as it is now.
    SetWebhook(Box<WebhookRow>),
    /// A webhook of a key is gone. Nothing happens if it was gone already.
    RemoveWebhook(String),
    /// A sample of a sandbox. Nothing happens if the sandbox is gone.
    AddMetric {
        /// The sandbox.
        sandbox: String,
        /// How many samples of it came before this one.
        number: u64,
        /// The sample.
        sample: MetricRow,
    },
}

/// Whether a change must be on the disk before it is told.
pub(super) fn concerns_keys(change: &Change) -> bool {
    matches!(
        change,
        Change::AddKey(_)
            | Change::RevokeKey { .. }
            | Change::EndSandboxesOf { .. }
            | Change::AddSecret(_)
            | Change::SetSecret(_)
            | Change::RemoveSecret(_)
            | Change::ForgetAllowedHost(_)
            | Change::SetWebhook(_)
            | Change::RemoveWebhook(_)
            | Change::CompleteSnapshot(_)
            | Change::ReleaseSnapshot(_)
    )
}

/// Makes one change, within a transaction of the caller's.
pub(super) fn make(connection: &Connection, change: &Change) -> Result<(), RegistryError> {
    match change {
        Change::AddSandbox(row) => add_sandbox(connection, row),
        Change::SetSandbox(row) => set_sandbox(connection, row),
        Change::RemoveSandbox(id) => {
            execute(connection, "DELETE FROM sandboxes WHERE id = ?1", [id])?;
            snapshots::release_checkpoints_of(connection, id)
        }
        Change::AddKey(row) => add_key(connection, row),
        Change::RevokeKey { id, at_ms } => revoke_key(connection, id, *at_ms),
        Change::EndSandboxesOf { key } => end_sandboxes_of(connection, key),
        Change::AddSecret(row) => secrets::add(connection, row),
        Change::SetSecret(row) => secrets::set(connection, row),
        Change::RemoveSecret(id) => secrets::remove(connection, id),
        Change::AddSnapshot(row) => snapshots::add(connection, row),
        Change::CompleteSnapshot(row) => snapshots::complete(connection, row),
        Change::ReleaseSnapshot(id) => snapshots::release(connection, id),
        Change::RemoveSnapshot(id) => snapshots::remove(connection, id),
        Change::AddTemplate(row) => builds::add_template(connection, row),
        Change::SetTemplatePublic { id, public, at_ms } => builds::set_public(connection, id, *public, *at_ms),
        Change::RemoveTemplate(id) => builds::remove_template(connection, id),
        Change::AddBuild(row) => builds::add_build(connection, row),
        Change::SetBuild(row, before) => builds::set_build(connection, row, before),
        Change::AssignTag(row) => builds::assign_tag(connection, row),
        Change::RemoveTag { template, tag } => builds::remove_tag(connection, template, tag),
        Change::AddBuildLog(row) => builds::add_log(connection, row),
        Change::AddEvent(row) => add_event(connection, row),
        Change::AddLog(row) => add_log(connection, row),
        Change::RemoveLogs(id) => execute(connection, "DELETE FROM logs WHERE sandbox = ?1", [id]).map(|_| ()),
        Change::ForgetLogs { ended_ms } => forget_logs(connection, *ended_ms),
        Change::AllowHost(row) => allowed_hosts::add(connection, row),
        Change::ForgetAllowedHost(id) => allowed_hosts::remove(connection, id),
        Change::SetWebhookCursor { endpoint, number } => webhooks::set_cursor(connection, endpoint, *number),
        Change::KeepWebhooks(endpoints) => webhooks::keep_only(connection, endpoints),
        Change::AddWebhook(row) => webhooks::add(connection, row),
        Change::SetWebhook(row) => webhooks::set(connection, row),
        Change::RemoveWebhook(id) => webhooks::remove(connection, id),
        Change::AddMetric {
            sandbox,
            number,
            sample,
        } => add_metric(connection, sandbox, *number, sample),
    }
}

pub(super) fn execute(
    connection: &Connection,
    query: &str,
    parameters: impl rusqlite::Params,
) -> Result<usize, RegistryError> {
    try_execute(connection, query, parameters).map_err(|error| RegistryError::of("writing to the registry", error))
}

fn try_execute(connection: &Connection, query: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<usize> {
    connection.prepare_cached(query)?.execute(parameters)
}

/// As `execute`, for what must not be there twice.
pub(super) fn insert(
    connection: &Connection,
    what: &'static str,
    query: &str,
    parameters: impl rusqlite::Params,
) -> Result<(), RegistryError> {
    match try_execute(connection, query, parameters) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
            Err(RegistryError::Exists { what })
        }
        Err(error) => Err(RegistryError::of("writing to the registry", error)),
        Ok(_) => Ok(()),
    }
}

fn add_sandbox(connection: &Connection, row: &SandboxRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO sandboxes (id, key_id, state, template, spec, metadata, started_ms, end_ms, auto_pause,
            auto_resume, access_token, traffic_token, supervisor_pid, supervisor_start, supervisor_boot, generation, idempotency_key)
        VALUES (:id, :key_id, :state, :template, :spec, :metadata, :started_ms, :end_ms, :auto_pause,
            :auto_resume, :access_token, :traffic_token, :supervisor_pid, :supervisor_start, :supervisor_boot, :generation,
            :idempotency_key)";
    write_sandbox(row, |parameters| {
        insert(connection, "a sandbox of this id or request", query, parameters)
    })
}

fn set_sandbox(connection: &Connection, row: &SandboxRow) -> Result<(), RegistryError> {
    let query = "UPDATE sandboxes SET key_id = :key_id, state = :state, template = :template, spec = :spec,
            metadata = :metadata, started_ms = :started_ms, end_ms = :end_ms, auto_pause = :auto_pause,
            auto_resume = :auto_resume, access_token = :access_token, traffic_token = :traffic_token,
            supervisor_pid = :supervisor_pid, supervisor_start = :supervisor_start, supervisor_boot = :supervisor_boot,
            generation = :generation,
            idempotency_key = :idempotency_key
        WHERE id = :id AND generation = :generation - 1";
    let changed = write_sandbox(row, |parameters| execute(connection, query, parameters))?;
    found(changed, "sandbox", &row.id)
}

fn write_sandbox<T>(
    row: &SandboxRow,
    write: impl FnOnce(&[(&str, &dyn rusqlite::ToSql)]) -> Result<T, RegistryError>,
) -> Result<T, RegistryError> {
    let metadata = to_json(&row.metadata)?;
    let supervisor_pid = row.supervisor.map(|supervisor| supervisor.pid);
    let supervisor_start = row.supervisor.map(|supervisor| supervisor.start_ticks.cast_signed());
    let supervisor_boot = row
        .supervisor
        .and_then(|supervisor| supervisor.boot)
        .map(|boot| boot.to_string());
    write(named_params! {
        ":id": row.id,
        ":key_id": row.key_id,
        ":state": row.state.as_str(),
        ":template": row.template,
        ":spec": row.spec,
        ":metadata": metadata,
        ":started_ms": row.started_ms,
        ":end_ms": row.end_ms,
        ":auto_pause": row.auto_pause,
        ":auto_resume": row.auto_resume,
        ":access_token": row.access_token,
        ":traffic_token": row.traffic_token,
        ":supervisor_pid": supervisor_pid,
        ":supervisor_start": supervisor_start,
        ":supervisor_boot": supervisor_boot,
        ":generation": row.generation,
        ":idempotency_key": row.idempotency_key,
    })
}

fn add_key(connection: &Connection, row: &KeyRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO keys (id, name, prefix, hash, scopes, quota, created_ms, revoked_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let parameters = (
        &row.id,
        &row.name,
        &row.prefix,
        row.hash,
        to_json(&row.scopes)?,
        to_json(&KeyAllowance {
            quota: row.quota,
            tools: row.tools.clone(),
        })?,
        row.created_ms,
        row.revoked_ms,
    );
    insert(connection, "this key", query, parameters)
}

fn revoke_key(connection: &Connection, id: &str, at_ms: UnixMs) -> Result<(), RegistryError> {
    let query = "UPDATE keys SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms IS NULL";
    let changed = execute(connection, query, (id, at_ms))?;
    found(changed, "key", id)?;
    webhooks::remove_of(connection, id)?;
    secrets::remove_of(connection, id)
}

fn end_sandboxes_of(connection: &Connection, key: &str) -> Result<(), RegistryError> {
    let query = "UPDATE keys SET ends_sandboxes = 1 WHERE id = ?1 AND revoked_ms IS NOT NULL";
    let changed = execute(connection, query, [key])?;
    found(changed, "key", key)
}

fn add_event(connection: &Connection, row: &EventRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO events (key_id, sandbox, template, at_ms, kind, detail, name)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let parameters = (
        &row.key_id,
        &row.sandbox,
        &row.template,
        row.at_ms,
        row.kind.as_str(),
        &row.detail,
        &row.name,
    );
    execute(connection, query, parameters)?;
    let key = row.key_id.as_deref().unwrap_or_default();
    let of_key = tally(
        connection,
        "SELECT number FROM tallies WHERE kind = 'events' AND key_id = ?1",
        [key],
    )?;
    remove_oldest(connection, KeptRows::Events, key, of_key - KEPT_EVENTS_OF_KEY)?;
    cut(connection, KeptRows::Events, KEPT_EVENTS)
}

fn add_log(connection: &Connection, row: &LogRow) -> Result<(), RegistryError> {
    // A late line is about a sandbox that is gone, of which the events still tell whose it was.
    let query = "INSERT INTO logs (sandbox, at_ms, level, line, key_id) VALUES (?1, ?2, ?3, ?4, coalesce(
        (SELECT key_id FROM sandboxes WHERE id = ?1),
        (SELECT key_id FROM events WHERE sandbox = ?1 ORDER BY number DESC LIMIT 1)))";
    let parameters = (&row.sandbox, row.at_ms, row.level.as_str(), &row.line);
    execute(connection, query, parameters)?;
    let oldest = "DELETE FROM logs WHERE sandbox = ?1 AND number <=
        (SELECT number FROM logs WHERE sandbox = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)";
    execute(connection, oldest, (&row.sandbox, KEPT_LOGS))?;
    cut(connection, KeptRows::Logs, KEPT_LOGS_OF_ALL)
}

/// What is kept up to a number of rows.
#[derive(Debug, Clone, Copy)]
enum KeptRows {
    Events,
    Logs,
}

impl KeptRows {
    fn table(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Logs => "logs",
        }
    }
}

/// Removes what is above `most` from the key that has most, so that nobody's rows go because of another's.
fn cut(connection: &Connection, kept: KeptRows, most: i64) -> Result<(), RegistryError> {
    let total = "SELECT sum(number) FROM tallies WHERE kind = ?1";
    let surplus = tally(connection, total, [kept.table()])? - most;
    if surplus <= 0 {
        return Ok(());
    }
    let richest: String = connection
        .prepare_cached("SELECT key_id FROM tallies WHERE kind = ?1 ORDER BY number DESC LIMIT 1")
        .and_then(|mut statement| statement.query_row([kept.table()], |row| row.get(0)))
        .map_err(|error| RegistryError::of("writing to the registry", error))?;
    remove_oldest(connection, kept, &richest, surplus)
}

fn tally(connection: &Connection, query: &str, parameters: impl rusqlite::Params) -> Result<i64, RegistryError> {
    connection
        .prepare_cached(query)
        .and_then(|mut statement| statement.query_row(parameters, |row| row.get(0)))
        .map_err(|error| RegistryError::of("writing to the registry", error))
}

/// Removes the oldest `surplus` rows of a key, none if there is no surplus.
fn remove_oldest(connection: &Connection, kept: KeptRows, key: &str, surplus: i64) -> Result<(), RegistryError> {
    if surplus <= 0 {
        return Ok(());
    }
    let table = kept.table();
    let query = format!(
        "DELETE FROM {table} WHERE number IN
            (SELECT number FROM {table} WHERE coalesce(key_id, '') = ?1 ORDER BY number LIMIT ?2)"
    );
    execute(connection, &query, (key, surplus)).map(|_| ())
}

fn forget_logs(connection: &Connection, ended_ms: UnixMs) -> Result<(), RegistryError> {
    let query = "DELETE FROM logs WHERE sandbox NOT IN (SELECT id FROM sandboxes)
        AND sandbox NOT IN (SELECT sandbox FROM events WHERE kind IN ('killed', 'died') AND at_ms >= ?1)";
    execute(connection, query, [ended_ms]).map(|_| ())
}

fn add_metric(connection: &Connection, sandbox: &str, number: u64, row: &MetricRow) -> Result<(), RegistryError> {
    let query = "INSERT OR REPLACE INTO metrics (sandbox, place, at_ms, cpu_milli, cpu_used_pct, memory_used,
            memory_total, memory_cache, disk_used, disk_total)
        SELECT id, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 FROM sandboxes WHERE id = ?1";
    let parameters = (
        sandbox,
        number.cast_signed().rem_euclid(KEPT_METRICS),
        row.at_ms,
        row.cpu_milli,
        row.cpu_used_pct,
        row.memory_used.cast_signed(),
        row.memory_total.cast_signed(),
        row.memory_cache.cast_signed(),
        row.disk_used.cast_signed(),
        row.disk_total.cast_signed(),
    );
    execute(connection, query, parameters).map(|_| ())
}

pub(super) fn found(changed: usize, what: &'static str, id: &str) -> Result<(), RegistryError> {
    if changed == 1 {
        Ok(())
    } else {
        Err(RegistryError::Stale {
            what,
            id: id.to_owned(),
        })
    }
}

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<String, RegistryError> {
    serde_json::to_string(value).map_err(|error| RegistryError::Failed {
        tried: "writing to the registry",
        source: std::sync::Arc::new(error),
    })
}
