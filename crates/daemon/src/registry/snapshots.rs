//! Snapshots of sandboxes and checkpoints of them: whose they are, and whether they are whole.

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, Row};

use super::Registry;
use super::error::RegistryError;
use super::making::{execute, found, insert};
use super::reading::column;

/// The table, which a registry of an earlier daemon is given when it is opened. No reference to `keys`, as with sandboxes,
/// and none to those: snapshots outlive theirs.
pub(super) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS snapshots (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    name TEXT,
    state TEXT NOT NULL,
    template TEXT NOT NULL,
    spec TEXT NOT NULL,
    parent TEXT,
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    held_us INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS snapshots_by_key ON snapshots (key_id, created_ms);
CREATE INDEX IF NOT EXISTS snapshots_by_sandbox ON snapshots (sandbox, created_ms);
";

/// What somebody can do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// Make sandboxes of it.
    Snapshot,
    /// Put one sandbox back.
    Checkpoint,
}

/// Where in its life it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotState {
    /// It is being made.
    Making,
    /// It is whole.
    Ready,
    /// It is nobody's any more, and goes when no sandbox uses it.
    Removing,
}

/// A snapshot or a checkpoint as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its id, which is also the name of its directory in `snapshots` of the state directory.
    pub id: String,
    /// Whose it is.
    pub key_id: String,
    /// What somebody can do with it.
    pub kind: SnapshotKind,
    /// Of which sandbox, which may be gone if it is a snapshot.
    pub sandbox: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// Where in its life it is.
    pub state: SnapshotState,
    /// The template of the sandbox.
    pub template: String,
    /// What else of the sandbox it is, as JSON; the daemon knows what is in it.
    pub spec: String,
    /// The checkpoint that the sandbox was at before.
    pub parent: Option<String>,
    /// Bytes on disk that its files take, also those that it shares.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// How long the sandbox stood still for it, microseconds.
    pub held_us: u64,
    /// When it was made.
    pub created_ms: UnixMs,
}

words!(SnapshotKind, "kind of snapshot": Snapshot = "snapshot", Checkpoint = "checkpoint");
words!(SnapshotState, "state of a snapshot": Making = "making", Ready = "ready", Removing = "removing");

impl Registry {
    /// All snapshots and checkpoints, the oldest first.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn all_snapshots(&self) -> Result<Vec<SnapshotRow>, RegistryError> {
        self.snapshots_where("1 ORDER BY created_ms, id", [])
    }

    /// Those of a key.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn snapshots_of_key(&self, key: &str) -> Result<Vec<SnapshotRow>, RegistryError> {
        self.snapshots_where("key_id = ?1 ORDER BY created_ms, id", [key])
    }

    /// Those of a sandbox.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn snapshots_of_sandbox(&self, sandbox: &str) -> Result<Vec<SnapshotRow>, RegistryError> {
        self.snapshots_where("sandbox = ?1 ORDER BY created_ms, id", [sandbox])
    }

    /// The one of this id.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn snapshot(&self, id: &str) -> Result<Option<SnapshotRow>, RegistryError> {
        Ok(self.snapshots_where("id = ?1", [id])?.pop())
    }

    /// Those of this id or name.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn snapshots_called(&self, which: &str) -> Result<Vec<SnapshotRow>, RegistryError> {
        self.snapshots_where("id = ?1 OR name = ?1", [which])
    }

    fn snapshots_where(
        &self,
        condition: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<Vec<SnapshotRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading snapshots", error);
        let query = format!("SELECT * FROM snapshots WHERE {condition}");
        let mut statement = reader.prepare_cached(&query).map_err(tried)?;
        let mut rows = statement.query(parameters).map_err(tried)?;
        let mut snapshots = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            snapshots.push(snapshot_row(row)?);
        }
        Ok(snapshots)
    }
}

fn snapshot_row(row: &Row<'_>) -> Result<SnapshotRow, RegistryError> {
    let number = |name| column::<i64>(row, name).map(i64::cast_unsigned);
    let word = |name| column::<String>(row, name);
    let unknown = |error: super::UnknownWord| RegistryError::damaged(error.to_string());
    Ok(SnapshotRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        kind: word("kind")?.parse().map_err(unknown)?,
        sandbox: column(row, "sandbox")?,
        name: column(row, "name")?,
        state: word("state")?.parse().map_err(unknown)?,
        template: column(row, "template")?,
        spec: column(row, "spec")?,
        parent: column(row, "parent")?,
        bytes: number("bytes")?,
        files: number("files")?,
        held_us: number("held_us")?,
        created_ms: column(row, "created_ms")?,
    })
}

/// Adds one.
pub(super) fn add(connection: &Connection, row: &SnapshotRow) -> Result<(), RegistryError> {
    let query =
        "INSERT INTO snapshots (id, key_id, kind, sandbox, name, state, template, spec, parent, bytes, files, held_us,
            created_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
    let parameters = (
        &row.id,
        &row.key_id,
        row.kind.as_str(),
        &row.sandbox,
        &row.name,
        row.state.as_str(),
        &row.template,
        &row.spec,
        &row.parent,
        row.bytes.cast_signed(),
        row.files.cast_signed(),
        row.held_us.cast_signed(),
        row.created_ms,
    );
    insert(connection, "a snapshot of this id", query, parameters)
}

/// One is whole: it has the name, and no other of the key, or of the sandbox if it is a checkpoint.
pub(super) fn complete(connection: &Connection, row: &SnapshotRow) -> Result<(), RegistryError> {
    let others = "UPDATE snapshots SET name = NULL
        WHERE name = ?1 AND key_id = ?2 AND kind = ?3 AND (kind = 'snapshot' OR sandbox = ?4)";
    execute(
        connection,
        others,
        (&row.name, &row.key_id, row.kind.as_str(), &row.sandbox),
    )?;
    let query = "UPDATE snapshots SET state = 'ready', name = ?2, spec = ?3, bytes = ?4, files = ?5, held_us = ?6,
        template = ?7
        WHERE id = ?1 AND state = 'making'";
    let parameters = (
        &row.id,
        &row.name,
        &row.spec,
        row.bytes.cast_signed(),
        row.files.cast_signed(),
        row.held_us.cast_signed(),
        &row.template,
    );
    found(execute(connection, query, parameters)?, "snapshot", &row.id)
}

/// One is nobody's any more.
pub(super) fn release(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    let query = "UPDATE snapshots SET state = 'removing', name = NULL WHERE id = ?1 AND state != 'removing'";
    found(execute(connection, query, [id])?, "snapshot", id)
}

/// The checkpoints of a sandbox that is gone are nobody's any more.
pub(super) fn release_checkpoints_of(connection: &Connection, sandbox: &str) -> Result<(), RegistryError> {
    let query = "UPDATE snapshots SET state = 'removing', name = NULL WHERE sandbox = ?1 AND kind = 'checkpoint'";
    execute(connection, query, [sandbox]).map(|_| ())
}

/// One is gone.
pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM snapshots WHERE id = ?1", [id]).map(|_| ())
}
