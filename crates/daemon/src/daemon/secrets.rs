//! What callers ask of their secrets.

use std::collections::BTreeMap;

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::secrets::SecretView;

impl Daemon {
    /// Makes a secret of the caller's.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid`, `SecretExists`, `Store`.
    pub async fn create_secret(
        &self,
        caller: &Caller,
        name: &str,
        value: String,
        metadata: BTreeMap<String, String>,
    ) -> Result<SecretView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.secrets.create(caller, name, value, metadata).await
    }

    /// The caller's secrets after a place, by their names, and the place where there are more.
    ///
    /// # Errors
    /// `Forbidden`, `Invalid` for a limit that is not between 1 and 100 or a place that is none, `Store`.
    pub fn list_secrets(
        &self,
        caller: &Caller,
        limit: usize,
        after: Option<&str>,
    ) -> Result<(Vec<SecretView>, Option<String>), DaemonError> {
        caller.require(Scope::Read)?;
        self.services.secrets.list(caller, limit, after)
    }

    /// One of the caller's secrets, by its id or its name.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSecret`, also for another key's; `Store`.
    pub fn secret(&self, caller: &Caller, which: &str) -> Result<SecretView, DaemonError> {
        caller.require(Scope::Read)?;
        self.services.secrets.get(caller, which)
    }

    /// Gives one of the caller's secrets another value, which requests use from now on; `metadata` replaces what is said of it.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSecret`, `Invalid`, `Store`.
    pub async fn update_secret(
        &self,
        caller: &Caller,
        which: &str,
        value: String,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretView, DaemonError> {
        caller.require(Scope::Create)?;
        self.services.secrets.update(caller, which, value, metadata).await
    }

    /// Removes one of the caller's secrets; requests that need it are refused from now on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSecret`, `Store`.
    pub async fn remove_secret(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        self.services.secrets.remove(caller, which).await
    }
}
