//! Secrets of API keys: what may be told of them, and their values, which only the daemon reads.

use std::collections::BTreeMap;
use std::fmt;

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, Row};

use super::Registry;
use super::error::RegistryError;
use super::making::{execute, found, insert, to_json};
use super::reading::{column, from_json};

/// A secret as the registry has it. `Debug` does not show its value.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// Names it for good.
    pub id: String,
    /// The key that it belongs to, and nobody else.
    pub key_id: String,
    /// What its owner calls it; no two of a key have the same name.
    pub name: String,
    /// How often it was given a value.
    pub version: i64,
    /// What goes into requests.
    pub value: String,
    /// What its owner says of it.
    pub metadata: BTreeMap<String, String>,
    /// When it was made.
    pub created_ms: UnixMs,
    /// When it was given this value.
    pub updated_ms: UnixMs,
}

impl fmt::Debug for SecretRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretRow({} of {}, version {})", self.id, self.key_id, self.version)
    }
}

impl Registry {
    /// The secrets of a key, by their names.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn secrets(&self, key: &str) -> Result<Vec<SecretRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading secrets", error);
        let mut statement = reader
            .prepare_cached("SELECT * FROM secrets WHERE key_id = ?1 ORDER BY name")
            .map_err(tried)?;
        let mut rows = statement.query([key]).map_err(tried)?;
        let mut secrets = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            secrets.push(secret_row(row)?);
        }
        Ok(secrets)
    }
}

/// Adds one, unless its key was revoked meanwhile.
pub(super) fn add(connection: &Connection, row: &SecretRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO secrets (id, key_id, name, version, value, metadata, created_ms, updated_ms)
        SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
        WHERE NOT EXISTS (SELECT 1 FROM keys WHERE id = ?2 AND revoked_ms IS NOT NULL)";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.name,
        row.version,
        &row.value,
        to_json(&row.metadata)?,
        row.created_ms,
        row.updated_ms,
    );
    insert(connection, "a secret of this name", query, parameters)
}

/// Gives one another value.
pub(super) fn set(connection: &Connection, row: &SecretRow) -> Result<(), RegistryError> {
    let query = "UPDATE secrets SET version = version + 1, value = ?3, metadata = ?4, updated_ms = ?5
        WHERE id = ?1 AND key_id = ?2";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.value,
        to_json(&row.metadata)?,
        row.updated_ms,
    );
    let changed = execute(connection, query, parameters)?;
    found(changed, "secret", &row.id)
}

pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM secrets WHERE id = ?1", [id]).map(|_| ())
}

/// Removes all of a key.
pub(super) fn remove_of(connection: &Connection, key: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM secrets WHERE key_id = ?1", [key]).map(|_| ())
}

fn secret_row(row: &Row<'_>) -> Result<SecretRow, RegistryError> {
    let metadata: String = column(row, "metadata")?;
    Ok(SecretRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        name: column(row, "name")?,
        version: column(row, "version")?,
        value: column(row, "value")?,
        metadata: from_json("metadata", &metadata)?,
        created_ms: column(row, "created_ms")?,
        updated_ms: column(row, "updated_ms")?,
    })
}
