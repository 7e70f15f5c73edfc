//! Hosts that were allowed for good: sandboxes of a key that are made of a template are not asked about them any more.

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, Row};

use super::Registry;
use super::error::RegistryError;
use super::making::execute;
use super::reading::column;

/// The table. No reference to `keys`: the owner of the daemon has none.
pub(super) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS allowed_hosts (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    template TEXT NOT NULL,
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    rule TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (key_id, template, rule)
) STRICT;
";

/// A host that was allowed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHostRow {
    /// Its id.
    pub id: String,
    /// For whose sandboxes.
    pub key_id: String,
    /// For those of which template.
    pub template: String,
    /// The host, as a question names it.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What is allowed, in the words of a policy: host, port, and the protocol where it is not the usual one.
    pub rule: String,
    /// The sandbox that asked.
    pub sandbox: String,
    /// When it was allowed.
    pub created_ms: UnixMs,
}

impl Registry {
    /// The hosts that are allowed for good, by whose they are, template and rule; of one key if it is named.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn allowed_hosts(&self, key: Option<&str>) -> Result<Vec<AllowedHostRow>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading allowed hosts", error);
        let query = "SELECT * FROM allowed_hosts WHERE ?1 IS NULL OR key_id = ?1 ORDER BY key_id, template, rule";
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query([key]).map_err(tried)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            all.push(allowed_host_row(row)?);
        }
        Ok(all)
    }
}

fn allowed_host_row(row: &Row<'_>) -> Result<AllowedHostRow, RegistryError> {
    Ok(AllowedHostRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        template: column(row, "template")?,
        host: column(row, "host")?,
        port: column(row, "port")?,
        rule: column(row, "rule")?,
        sandbox: column(row, "sandbox")?,
        created_ms: column(row, "created_ms")?,
    })
}

pub(super) fn add(connection: &Connection, row: &AllowedHostRow) -> Result<(), RegistryError> {
    let query = "INSERT OR IGNORE INTO allowed_hosts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.template,
        &row.host,
        row.port,
        &row.rule,
        &row.sandbox,
        row.created_ms,
    );
    execute(connection, query, parameters).map(|_| ())
}

pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM allowed_hosts WHERE id = ?1", [id]).map(|_| ())
}
