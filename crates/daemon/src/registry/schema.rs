//! The tables. There is one schema: a database has it, or has nothing and is given it in one transaction.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::error::RegistryError;

/// How long another process may keep the database locked; `key create` does for a moment.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells our databases from others (`offl`).
const APPLICATION_ID: i64 = 0x6f66_666c;

/// Events that are kept, of all keys and of each; log lines, of all keys; log lines and samples, of each sandbox.
pub(super) const KEPT_EVENTS: i64 = 20_000;
pub(super) const KEPT_EVENTS_OF_KEY: i64 = 10_000;
pub(super) const KEPT_LOGS_OF_ALL: i64 = 100_000;
pub(super) const KEPT_LOGS: i64 = 1_000;
pub(super) const KEPT_METRICS: i64 = 1_000;

/// The schema's number, `user_version` of a database. A database of another one is of another version of offleash.
const SCHEMA: i64 = 1;

const TABLES: &str = "
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    scopes TEXT NOT NULL,
    quota TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER,
    ends_sandboxes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX keys_by_prefix ON keys (prefix);

-- No reference to `keys`: the owner of the daemon has sandboxes without a key.
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    key_id TEXT,
    state TEXT NOT NULL,
    template TEXT NOT NULL,
    spec TEXT NOT NULL,
    metadata TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    auto_pause INTEGER NOT NULL,
    auto_resume INTEGER NOT NULL,
    access_token TEXT,
    traffic_token TEXT,
    supervisor_pid INTEGER,
    supervisor_start INTEGER,
    supervisor_boot TEXT,
    generation INTEGER NOT NULL,
    idempotency_key TEXT
) STRICT;
CREATE UNIQUE INDEX sandboxes_by_request ON sandboxes (key_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- No reference to `keys`, as with sandboxes.
CREATE TABLE secrets (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    value TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX secrets_by_name ON secrets (key_id, name);

-- Outlive their sandboxes.
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key_id TEXT,
    sandbox TEXT NOT NULL,
    name TEXT,
    template TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT
) STRICT;
CREATE INDEX events_by_sandbox ON events (sandbox, number);
CREATE INDEX events_by_key ON events (coalesce(key_id, ''), number);
CREATE INDEX events_by_name ON events (name, number) WHERE name IS NOT NULL;

-- Outlive their sandboxes, too.
CREATE TABLE logs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key_id TEXT,
    sandbox TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    level TEXT NOT NULL,
    line TEXT NOT NULL
) STRICT;
CREATE INDEX logs_by_sandbox ON logs (sandbox, number);
CREATE INDEX logs_by_key ON logs (coalesce(key_id, ''), number);

-- A ring for each sandbox: the place of a sample is its number modulo the size of the ring.
CREATE TABLE metrics (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    cpu_milli INTEGER NOT NULL,
    cpu_used_pct REAL NOT NULL,
    memory_used INTEGER NOT NULL,
    memory_total INTEGER NOT NULL,
    memory_cache INTEGER NOT NULL,
    disk_used INTEGER NOT NULL,
    disk_total INTEGER NOT NULL,
    PRIMARY KEY (sandbox, place)
) STRICT, WITHOUT ROWID;
";

/// How many rows each key has, so that what is too much goes from whoever has most. Sandboxes without a key are those of
/// the key ''. Triggers count, because rows go in several ways and counting them at each insertion would read them all.
const TALLIES: &str = "
CREATE TABLE tallies (
    kind TEXT NOT NULL,
    key_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (kind, key_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER logs_added AFTER INSERT ON logs BEGIN
    INSERT INTO tallies VALUES ('logs', coalesce(NEW.key_id, ''), 1)
        ON CONFLICT (kind, key_id) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER logs_removed AFTER DELETE ON logs BEGIN
    UPDATE tallies SET number = number - 1 WHERE kind = 'logs' AND key_id = coalesce(OLD.key_id, '');
    DELETE FROM tallies WHERE kind = 'logs' AND key_id = coalesce(OLD.key_id, '') AND number = 0;
END;
CREATE TRIGGER events_added AFTER INSERT ON events BEGIN
    INSERT INTO tallies VALUES ('events', coalesce(NEW.key_id, ''), 1)
        ON CONFLICT (kind, key_id) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER events_removed AFTER DELETE ON events BEGIN
    UPDATE tallies SET number = number - 1 WHERE kind = 'events' AND key_id = coalesce(OLD.key_id, '');
    DELETE FROM tallies WHERE kind = 'events' AND key_id = coalesce(OLD.key_id, '') AND number = 0;
END;
";

/// Opens the database for writing; makes an empty one, mode 0600, if there is none.
pub(super) fn open_file(path: &Path) -> Result<Connection, RegistryError> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => RegistryError::Full,
        std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => RegistryError::ReadOnly,
        _ => RegistryError::Failed {
            tried: "opening the registry",
            source: std::sync::Arc::new(error),
        },
    })?;
    super::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
}

/// Checks that the database is whole and ours; one that is empty is given the tables.
pub(super) fn prepare(connection: &mut Connection) -> Result<(), RegistryError> {
    let tried = |error| RegistryError::of("reading the registry", error);
    // Looked at before anything is written: not even the journal's mode of a foreign file is changed.
    let found = pragma(connection, "user_version")?;
    let application = pragma(connection, "application_id")?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(tried)?;
    if application != APPLICATION_ID && (application != 0 || found != 0 || tables != 0) {
        return Err(RegistryError::damaged("it is the database of another program"));
    }
    if found != SCHEMA && tables != 0 {
        return Err(RegistryError::OtherSchema { found, known: SCHEMA });
    }
    let check: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(tried)?;
    if check != "ok" {
        return Err(RegistryError::damaged(check));
    }
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .map_err(|error| RegistryError::of("preparing the registry", error))?;
    if tables == 0 {
        make(connection)?;
    }
    for added in [
        super::snapshots::TABLE,
        super::builds::TABLES,
        super::webhooks::TABLE,
        super::allowed_hosts::TABLE,
    ] {
        let added = connection.execute_batch(added);
        added.map_err(|error| RegistryError::of("preparing the registry", error))?;
    }
    Ok(())
}

/// Makes the tables. Another process may have made them since we looked.
fn make(connection: &mut Connection) -> Result<(), RegistryError> {
    let tried = |error| RegistryError::of("making the registry", error);
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(tried)?;
    if pragma(&transaction, "user_version")? == SCHEMA {
        return Ok(());
    }
    for part in [TABLES, TALLIES] {
        transaction.execute_batch(part).map_err(tried)?;
    }
    for (name, value) in [("user_version", SCHEMA), ("application_id", APPLICATION_ID)] {
        transaction.pragma_update(None, name, value).map_err(tried)?;
    }
    transaction.commit().map_err(tried)
}

fn pragma(connection: &Connection, name: &str) -> Result<i64, RegistryError> {
    connection
        .pragma_query_value(None, name, |row| row.get(0))
        .map_err(|error| RegistryError::of("reading the registry", error))
}
