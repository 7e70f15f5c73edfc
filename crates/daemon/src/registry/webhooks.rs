//! Webhooks that keys registered, and how far the endpoints of all webhooks have been told of events.

use std::collections::BTreeMap;
use std::fmt;

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::Registry;
use super::error::RegistryError;
use super::making::{execute, found, insert, to_json};
use super::reading::{column, from_json};

/// The tables. An endpoint of the owner's has its cursor by a digest, as its address may have a secret in it; one of a key's by its
/// id. No reference to `keys`: the owner of the daemon has none.
pub(super) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS webhooks (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    enabled INTEGER NOT NULL,
    types TEXT NOT NULL,
    secret TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS webhooks_by_key ON webhooks (key_id, created_ms);

CREATE TABLE IF NOT EXISTS webhook_cursors (
    endpoint TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT;
";

/// A webhook that a key registered. `Debug` does not show its secret, nor its address, which may hold one.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookRow {
    /// Its id.
    pub id: String,
    /// Of whose sandboxes it is told.
    pub key_id: String,
    /// What its owner calls it.
    pub name: String,
    /// Where messages go.
    pub url: String,
    /// Whether any do.
    pub enabled: bool,
    /// Of which types they are.
    pub types: Vec<String>,
    /// With what they are signed.
    pub secret: String,
    /// When it was registered.
    pub created_ms: UnixMs,
}

/// What is known of a sandbox to which something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFacts {
    /// Its labels.
    pub metadata: BTreeMap<String, String>,
    /// When it began.
    pub started_ms: UnixMs,
}

impl fmt::Debug for WebhookRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookRow({} of {})", self.id, self.key_id)
    }
}

impl Registry {
    /// The webhooks that keys registered, the oldest first; of one key if it is named.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn webhooks(&self, key: Option<&str>) -> Result<Vec<WebhookRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading webhooks", error);
        let query = "SELECT * FROM webhooks WHERE ?1 IS NULL OR key_id = ?1 ORDER BY created_ms, id";
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query([key]).map_err(tried)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            all.push(webhook_row(row)?);
        }
        Ok(all)
    }

    /// One of them; `None` where it is gone.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn webhook(&self, id: &str) -> Result<Option<WebhookRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading a webhook", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM webhooks WHERE id = ?1")
            .map_err(tried)?;
        let mut rows = statement.query([id]).map_err(tried)?;
        rows.next().map_err(tried)?.map(webhook_row).transpose()
    }

    /// What is known of a sandbox to which something happened: as it is, or, after its end, when it began.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn event_facts(&self, sandbox: &str) -> Result<Option<EventFacts>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading what a webhook is told", error);
        // Of what has ended nobody knows the labels any more.
        let query = "SELECT metadata, started_ms FROM sandboxes WHERE id = ?1
            UNION ALL SELECT '{}', min(at_ms) FROM events WHERE sandbox = ?1 HAVING count(*) > 0 LIMIT 1";
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query([sandbox]).map_err(tried)?;
        let Some(row) = rows.next().map_err(tried)? else {
            return Ok(None);
        };
        Ok(Some(EventFacts {
            metadata: from_json("metadata", &column::<String>(row, "metadata")?)?,
            started_ms: column(row, "started_ms")?,
        }))
    }

    /// The number of the last event of which an endpoint needs not be told any more; `None` for one that was never told.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn webhook_cursor(&self, endpoint: &str) -> Result<Option<i64>, RegistryError> {
        let query = "SELECT number FROM webhook_cursors WHERE endpoint = ?1";
        let reader = self.reader();
        let found = reader.prepare_cached(query);
        let found = found.and_then(|mut statement| statement.query_row([endpoint], |row| row.get(0)).optional());
        found.map_err(|error| RegistryError::of("reading what webhooks were told", error))
    }

    /// The number of the latest event; zero where there was none.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn last_event(&self) -> Result<i64, RegistryError> {
        let query = "SELECT coalesce(max(number), 0) FROM events";
        let reader = self.reader();
        let found = reader.prepare_cached(query);
        let found = found.and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        found.map_err(|error| RegistryError::of("looking up the latest event", error))
    }
}

/// An endpoint was told of everything up to this number.
pub(super) fn set_cursor(connection: &Connection, endpoint: &str, number: i64) -> Result<(), RegistryError> {
    let query = "INSERT INTO webhook_cursors VALUES (?1, ?2) ON CONFLICT (endpoint) DO UPDATE SET number = ?2";
    execute(connection, query, (endpoint, number)).map(|_| ())
}

/// Endpoints that are in no configuration any more, and of no key, are forgotten.
pub(super) fn keep_only(connection: &Connection, endpoints: &[String]) -> Result<(), RegistryError> {
    let kept = super::making::to_json(&endpoints)?;
    let query = "DELETE FROM webhook_cursors WHERE endpoint NOT IN (SELECT value FROM json_each(?1))
        AND endpoint NOT IN (SELECT id FROM webhooks)";
    execute(connection, query, [kept]).map(|_| ())
}

fn webhook_row(row: &Row<'_>) -> Result<WebhookRow, RegistryError> {
    Ok(WebhookRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        name: column(row, "name")?,
        url: column(row, "url")?,
        enabled: column(row, "enabled")?,
        types: from_json("types", &column::<String>(row, "types")?)?,
        secret: column(row, "secret")?,
        created_ms: column(row, "created_ms")?,
    })
}

/// Adds one, unless its key was revoked meanwhile. It is told of what happens from now on.
pub(super) fn add(connection: &Connection, row: &WebhookRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO webhooks (id, key_id, name, url, enabled, types, secret, created_ms)
        SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
        WHERE NOT EXISTS (SELECT 1 FROM keys WHERE id = ?2 AND revoked_ms IS NOT NULL)";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.name,
        &row.url,
        row.enabled,
        to_json(&row.types)?,
        &row.secret,
        row.created_ms,
    );
    insert(connection, "a webhook of this id", query, parameters)?;
    let query = "INSERT INTO webhook_cursors SELECT ?1, coalesce(max(number), 0) FROM events";
    execute(connection, query, [&row.id]).map(|_| ())
}

/// Has one be as it is here.
pub(super) fn set(connection: &Connection, row: &WebhookRow) -> Result<(), RegistryError> {
    let query =
        "UPDATE webhooks SET name = ?3, url = ?4, enabled = ?5, types = ?6, secret = ?7 WHERE id = ?1 AND key_id = ?2";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.name,
        &row.url,
        row.enabled,
        to_json(&row.types)?,
        &row.secret,
    );
    let changed = execute(connection, query, parameters)?;
    found(changed, "webhook", &row.id)
}

pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM webhook_cursors WHERE endpoint = ?1", [id])?;
    execute(connection, "DELETE FROM webhooks WHERE id = ?1", [id]).map(|_| ())
}

/// Removes all of a key.
pub(super) fn remove_of(connection: &Connection, key: &str) -> Result<(), RegistryError> {
    let query = "DELETE FROM webhook_cursors WHERE endpoint IN (SELECT id FROM webhooks WHERE key_id = ?1)";
    execute(connection, query, [key])?;
    execute(connection, "DELETE FROM webhooks WHERE key_id = ?1", [key]).map(|_| ())
}
