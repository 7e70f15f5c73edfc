//! How far the endpoints of webhooks have been told of events.

use rusqlite::{Connection, OptionalExtension as _};

use super::Registry;
use super::error::RegistryError;
use super::making::execute;

/// The table. An endpoint is in it by a digest: its address may have a secret in it.
pub(super) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS webhook_cursors (
    endpoint TEXT PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT;
";

impl Registry {
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

/// Endpoints that are in no configuration any more are forgotten.
pub(super) fn keep_only(connection: &Connection, endpoints: &[String]) -> Result<(), RegistryError> {
    let kept = super::making::to_json(&endpoints)?;
    let query = "DELETE FROM webhook_cursors WHERE endpoint NOT IN (SELECT value FROM json_each(?1))";
    execute(connection, query, [kept]).map(|_| ())
}
