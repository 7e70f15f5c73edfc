//! Secrets of API keys: requests of their sandboxes use them, and nobody is told their values.
//!
//! A header of `network.rules` names one (`${e2b.secrets.NAME}`); the gateway of the sandbox puts the value in, into requests over
//! TLS to the hosts of that rule, and takes it out of the answers. What a sandbox's gateway knows follows what is on record
//! ([`SecretStore::renew`]): another value, a secret that is gone, a key that was removed.

use std::collections::BTreeMap;
use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use offleash_core::log_level::LogLevel;
use offleash_core::network::secret::SecretValue;
use offleash_supervisor::clock::{from_ms, own_ms};
use offleash_supervisor::service::order::{NetworkOrder, SecretOrder};

use crate::allowed_hosts;
use crate::caller::Caller;
use crate::daemon_core::DaemonCore;
use crate::error::DaemonError;
use crate::network;
use crate::random;
use crate::registry::{Change, RegistryError, SandboxState, SecretRow};
use crate::request::NetworkSettings;
use crate::sandboxes::{SandboxEntry, SandboxTurn};
use crate::secret_use::{BEGIN, END, SecretUse, SecretVersions, used};

/// Most secrets of a key.
const MAX_SECRETS: usize = 100;
const MAX_NAME: usize = 128;
/// What names of secrets do not begin with, because ids do.
const ID: &str = "sec_";
/// As E2B has it.
const MAX_LABELS: usize = 32;
const MAX_LABEL: usize = 128;
const MAX_LABEL_VALUE: usize = 1024;
const MAX_LABEL_BYTES: usize = 8192;

/// What is told of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretView {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How often it was given a value.
    pub version: i64,
    /// What its owner says of it.
    pub metadata: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: SystemTime,
    /// When it was given its value.
    pub updated_at: SystemTime,
}

/// The secrets of keys, and what gateways know of them.
#[derive(Debug)]
pub(crate) struct SecretStore {
    core: DaemonCore,
}

impl SecretStore {
    pub(crate) fn new(core: DaemonCore) -> Self {
        Self { core }
    }

    /// Makes a secret of the caller's.
    ///
    /// # Errors
    /// `Invalid`, `SecretExists`, `Store`.
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        name: &str,
        value: String,
        metadata: BTreeMap<String, String>,
    ) -> Result<SecretView, DaemonError> {
        let name = name.to_ascii_lowercase();
        check_name(&name)?;
        check_value(&value)?;
        check_metadata(&metadata)?;
        if self.all_of(&caller.key_id)?.len() >= MAX_SECRETS {
            return Err(DaemonError::invalid(
                "secrets",
                format!("a key has {MAX_SECRETS} at most"),
            ));
        }
        let now = own_ms();
        let row = SecretRow {
            id: random::secret_id()?,
            key_id: caller.key_id.clone(),
            name,
            version: 1,
            value,
            metadata,
            created_ms: now,
            updated_ms: now,
        };
        let view = SecretView::of(&row);
        self.write(Change::AddSecret(Box::new(row)), &view.name).await?;
        self.find(caller, &view.id)?;
        self.renew(Some(&caller.key_id)).await;
        Ok(view)
    }

    /// The caller's secrets after a place, by their names, and the place where there are more.
    ///
    /// # Errors
    /// `Invalid` for a limit that is not between 1 and 100 or a place that is none, `Store`.
    pub(crate) fn list(
        &self,
        caller: &Caller,
        limit: usize,
        after: Option<&str>,
    ) -> Result<(Vec<SecretView>, Option<String>), DaemonError> {
        if !(1..=MAX_SECRETS).contains(&limit) {
            return Err(DaemonError::invalid(
                "limit",
                format!("must be between 1 and {MAX_SECRETS}"),
            ));
        }
        let place = |text: &str| String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok();
        let wrong = || DaemonError::invalid("nextToken", "is none that a page ended with");
        let after = after.map(|text| place(text).ok_or_else(wrong)).transpose()?;
        let all = self.all_of(&caller.key_id)?;
        let mut rest = all
            .iter()
            .filter(|row| after.as_ref().is_none_or(|after| row.name > *after));
        let page: Vec<SecretView> = rest.by_ref().take(limit).map(SecretView::of).collect();
        let is_more = rest.next().is_some();
        let next = page.last().filter(|_| is_more);
        let next = next.map(|last| BASE64URL_NOPAD.encode(last.name.as_bytes()));
        Ok((page, next))
    }

    /// One of the caller's secrets, by its id or its name.
    ///
    /// # Errors
    /// `UnknownSecret`, also for another key's; `Store`.
    pub(crate) fn get(&self, caller: &Caller, which: &str) -> Result<SecretView, DaemonError> {
        self.find(caller, which).map(|row| SecretView::of(&row))
    }

    /// Gives one of the caller's secrets another value, which requests use from now on; `metadata` replaces what is said of it.
    ///
    /// # Errors
    /// `UnknownSecret`, `Invalid`, `Store`.
    pub(crate) async fn update(
        &self,
        caller: &Caller,
        which: &str,
        value: String,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretView, DaemonError> {
        check_value(&value)?;
        metadata.as_ref().map(check_metadata).transpose()?;
        let before = self.find(caller, which)?;
        let row = SecretRow {
            value,
            metadata: metadata.unwrap_or(before.metadata),
            updated_ms: own_ms(),
            ..before
        };
        let id = row.id.clone();
        self.write(Change::SetSecret(Box::new(row)), which).await?;
        self.renew(Some(&caller.key_id)).await;
        self.get(caller, &id)
    }

    /// Removes one of the caller's secrets; requests that need it are refused from now on.
    ///
    /// # Errors
    /// `UnknownSecret`, `Store`.
    pub(crate) async fn remove(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        let id = self.find(caller, which)?.id;
        self.write(Change::RemoveSecret(id), which).await?;
        self.renew(Some(&caller.key_id)).await;
        Ok(())
    }

    fn all_of(&self, key: &str) -> Result<Vec<SecretRow>, DaemonError> {
        self.core.registry.look_up(|registry| registry.secrets(key))
    }

    fn find(&self, caller: &Caller, which: &str) -> Result<SecretRow, DaemonError> {
        let name = which.to_ascii_lowercase();
        let mut all = self.all_of(&caller.key_id)?.into_iter();
        let found = all.find(|row| row.id == which || row.name == name);
        found.ok_or_else(|| DaemonError::UnknownSecret { name: which.to_owned() })
    }

    /// The value of a secret of `key`, which was not revoked.
    ///
    /// # Errors
    /// `UnknownSecret`, `Store`.
    pub(crate) fn value(&self, key: &str, which: &str) -> Result<SecretValue, DaemonError> {
        let unknown = || DaemonError::UnknownSecret { name: which.to_owned() };
        let rows = match self.is_valid(key)? {
            true => self.all_of(key)?,
            false => Vec::new(),
        };
        let name = which.to_ascii_lowercase();
        let found = rows.into_iter().find(|row| row.id == which || row.name == name);
        let value = found.ok_or_else(unknown)?.value.into_bytes();
        SecretValue::new(value).map_err(|error| DaemonError::invalid("value", error.to_string()))
    }

    async fn write(&self, change: Change, name: &str) -> Result<(), DaemonError> {
        let name = name.to_owned();
        match self.core.registry.apply(vec![change]).await {
            Err(RegistryError::Exists { .. }) => Err(DaemonError::SecretExists { name }),
            Err(RegistryError::Stale { .. }) => Err(DaemonError::UnknownSecret { name }),
            written => Ok(written?),
        }
    }
}

/// What gateways are told.
impl SecretStore {
    /// What the gateway of a sandbox of `key` and `template` is told, and of which secrets that tells it.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` for what cannot be told, `Store`.
    pub(crate) fn network_order(
        &self,
        key: Option<&str>,
        template: &str,
        settings: &NetworkSettings,
    ) -> Result<(NetworkOrder, SecretVersions), DaemonError> {
        let rules = network::order(settings)?;
        let (secrets, told) = self.orders(key, settings)?;
        let mut order = NetworkOrder {
            internet: rules.internet,
            allow: rules.allow,
            deny: rules.deny,
            ask: rules.ask,
            ask_timeout_ms: None,
            headers: rules.headers,
            way_out: rules.way_out,
            named_by_owner: rules.named_by_owner,
            secrets,
        };
        allowed_hosts::apply(&self.core, &mut order, key, template)?;
        Ok((order, told))
    }

    /// What a gateway is told of the secrets that `settings` use, and what it then was told.
    fn orders(
        &self,
        key: Option<&str>,
        settings: &NetworkSettings,
    ) -> Result<(Vec<SecretOrder>, SecretVersions), DaemonError> {
        let used = used(settings);
        if used.is_empty() {
            return Ok((Vec::new(), SecretVersions::new()));
        }
        let rows = match key {
            Some(key) if self.is_valid(key)? => self.all_of(key)?,
            _ => Vec::new(),
        };
        let (mut orders, mut told) = (Vec::new(), SecretVersions::new());
        for (name, SecretUse { hosts, headers }) in used {
            let row = rows.iter().find(|row| row.name == name.to_ascii_lowercase());
            told.insert(name.clone(), row.map(|row| (row.id.clone(), row.version)));
            orders.push(SecretOrder {
                placeholder: format!("{BEGIN}{name}{END}"),
                name,
                value: row.map(|row| row.value.clone()),
                hosts: hosts.into_iter().collect(),
                headers: headers.into_iter().collect(),
            });
        }
        Ok((orders, told))
    }

    /// Whether a key was not revoked; the owner of the daemon has none.
    fn is_valid(&self, key: &str) -> Result<bool, DaemonError> {
        let row = self.core.registry.look_up(|registry| registry.key(key))?;
        Ok(row.is_none_or(|row| row.revoked_ms.is_none()))
    }

    /// Tells the gateways of sandboxes whose secrets are other ones than they were told: of those of `key`, or of all. What
    /// cannot be told now is told later.
    pub(crate) async fn renew(&self, key: Option<&str>) {
        for entry in self.core.sandboxes.all() {
            let is_meant = entry.read(|facts| {
                let is_of_key = key.is_none_or(|key| facts.key_id() == Some(key));
                is_of_key
                    && facts.row().state == SandboxState::Running
                    && !used(&facts.specification().network).is_empty()
            });
            if is_meant {
                let turn = entry.turn().await;
                if entry.state() == SandboxState::Running {
                    self.renew_one(&entry, &turn).await;
                }
            }
        }
    }

    /// The same for one. Whether it knows what it should.
    pub(crate) async fn renew_one(&self, entry: &SandboxEntry, _turn: &SandboxTurn<'_>) -> bool {
        let (key, before) = entry.read(|facts| (facts.key_id().map(str::to_owned), facts.told().cloned()));
        let specification = entry.specification();
        let Ok((order, told)) = self.network_order(key.as_deref(), &entry.template(), &specification.network) else {
            return false;
        };
        if before.as_ref() == Some(&told) || (before.is_none() && told.is_empty()) {
            return true;
        }
        match self.core.host.supervisor(entry.id()).set_network(order).await {
            Ok(()) => {
                entry.set_told(Some(told));
                true
            }
            Err(error) => {
                let line = format!("its secrets cannot be put in: {error}");
                self.core.registry.log(entry.name(), LogLevel::Warn, line);
                false
            }
        }
    }
}

impl SecretView {
    fn of(row: &SecretRow) -> Self {
        Self {
            id: row.id.clone(),
            name: row.name.clone(),
            version: row.version,
            metadata: row.metadata.clone(),
            created_at: from_ms(row.created_ms),
            updated_at: from_ms(row.updated_ms),
        }
    }
}

fn check_name(name: &str) -> Result<(), DaemonError> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}/".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(plain) {
        let why = format!("expected 1 to {MAX_NAME} characters of ASCII without spaces, braces and `/`");
        return Err(DaemonError::invalid("name", why));
    }
    if name.starts_with(ID) {
        return Err(DaemonError::invalid("name", format!("`{ID}` is what ids begin with")));
    }
    Ok(())
}

fn check_value(value: &str) -> Result<(), DaemonError> {
    let kept = SecretValue::new(value.as_bytes().to_vec());
    let kept = kept.map_err(|error| DaemonError::invalid("value", error.to_string()))?;
    // A line end at the end is no part of one, and what is kept is what is sent.
    if kept.expose() != value.as_bytes() || !value.is_ascii() {
        return Err(DaemonError::invalid(
            "value",
            "has a line end, or a letter that is not ASCII",
        ));
    }
    Ok(())
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), DaemonError> {
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let is_long = metadata
        .iter()
        .any(|(key, value)| key.len() > MAX_LABEL || value.len() > MAX_LABEL_VALUE);
    if metadata.len() > MAX_LABELS || bytes > MAX_LABEL_BYTES || is_long {
        let why = format!(
            "at most {MAX_LABELS} entries, of {MAX_LABEL} and {MAX_LABEL_VALUE} bytes, {MAX_LABEL_BYTES} in all"
        );
        return Err(DaemonError::invalid("metadata", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_secret_is_refused() {
        for name in ["", "a b", "a/b", "a{b", "a}", "é", "sec_x", &"x".repeat(129)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("openai-api-key").is_ok());
        for value in ["", "short", "12345678\n", "1234\r\n5678", "12345678\0", "ééééééééé"] {
            assert!(check_value(value).is_err(), "{value:?}");
        }
        assert!(check_value("sk-12345678").is_ok());
        let label = |key: usize, value: usize| BTreeMap::from([("k".repeat(key), "v".repeat(value))]);
        assert!(check_metadata(&label(128, 1024)).is_ok());
        assert!(check_metadata(&label(129, 1)).is_err() && check_metadata(&label(1, 1025)).is_err());
        let many = |count: usize| (0..count).map(|n| (n.to_string(), String::new())).collect();
        assert!(check_metadata(&many(32)).is_ok() && check_metadata(&many(33)).is_err());
    }
}
