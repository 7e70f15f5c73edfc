//! Secrets of API keys: requests of their sandboxes use them, and nobody is told their values.
//!
//! A header of `network.rules` names one (`${e2b.secrets.NAME}`); the gateway of the sandbox puts the value in, into requests over
//! TLS to the hosts of that rule, and takes it out of the answers. What a sandbox's gateway knows follows what is on record
//! ([`renew`]): another value, a secret that is gone, a key that was removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use data_encoding::BASE64URL_NOPAD;
use offleash_core::network::secret::SecretValue;
use offleash_store::registry::{Change, LogLevel, RegistryError, SandboxState, Scope, SecretRow};

use super::creating::network_order;
use super::error::DaemonError;
use super::inner::Inner;
use super::request::NetworkSettings;
use super::table::Entry;
use super::view::Caller;
use super::{Daemon, random};
use crate::clock::{from_ms, own_ms};
use crate::keeper::order::SecretOrder;

/// What stands in a header for a secret.
const BEGIN: &str = "${e2b.secrets.";
const END: char = '}';
/// Most secrets of a key.
const MOST: usize = 100;
const LONGEST_NAME: usize = 128;
/// What names of secrets do not begin with, because ids do.
const ID: &str = "sec_";
/// As E2B has it.
const MOST_LABELS: usize = 32;
const LONGEST_LABEL: usize = 128;
const LONGEST_LABEL_VALUE: usize = 1024;
const MOST_LABEL_BYTES: usize = 8192;

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

/// What a gateway was told: the names that are used, and which version of each there was.
pub(super) type Told = BTreeMap<String, Option<(String, i64)>>;

/// A secret that headers name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) hosts: BTreeSet<String>,
    pub(super) headers: BTreeSet<String>,
}

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
        let name = name.to_ascii_lowercase();
        check_name(&name)?;
        check_value(&value)?;
        check_metadata(&metadata)?;
        if self.inner.registry.secrets(&caller.key_id)?.len() >= MOST {
            return Err(DaemonError::invalid("secrets", format!("a key has {MOST} at most")));
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
        self.write_secret(Change::AddSecret(Box::new(row)), &view.name).await?;
        self.find_secret(caller, &view.id)?;
        renew(&self.inner, Some(&caller.key_id)).await;
        Ok(view)
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
        if !(1..=MOST).contains(&limit) {
            return Err(DaemonError::invalid("limit", format!("must be between 1 and {MOST}")));
        }
        let place = |text: &str| String::from_utf8(BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok();
        let wrong = || DaemonError::invalid("nextToken", "is none that a page ended with");
        let after = after.map(|text| place(text).ok_or_else(wrong)).transpose()?;
        let all = self.inner.registry.secrets(&caller.key_id)?;
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
    /// `Forbidden`, `UnknownSecret`, also for another key's; `Store`.
    pub fn secret(&self, caller: &Caller, which: &str) -> Result<SecretView, DaemonError> {
        caller.require(Scope::Read)?;
        self.find_secret(caller, which).map(|row| SecretView::of(&row))
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
        check_value(&value)?;
        metadata.as_ref().map(check_metadata).transpose()?;
        let before = self.find_secret(caller, which)?;
        let row = SecretRow {
            value,
            metadata: metadata.unwrap_or(before.metadata),
            updated_ms: own_ms(),
            ..before
        };
        let id = row.id.clone();
        self.write_secret(Change::SetSecret(Box::new(row)), which).await?;
        renew(&self.inner, Some(&caller.key_id)).await;
        self.secret(caller, &id)
    }

    /// Removes one of the caller's secrets; requests that need it are refused from now on.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownSecret`, `Store`.
    pub async fn remove_secret(&self, caller: &Caller, which: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Create)?;
        let id = self.find_secret(caller, which)?.id;
        self.write_secret(Change::RemoveSecret(id), which).await?;
        renew(&self.inner, Some(&caller.key_id)).await;
        Ok(())
    }

    fn find_secret(&self, caller: &Caller, which: &str) -> Result<SecretRow, DaemonError> {
        let name = which.to_ascii_lowercase();
        let mut all = self.inner.registry.secrets(&caller.key_id)?.into_iter();
        let found = all.find(|row| row.id == which || row.name == name);
        found.ok_or_else(|| DaemonError::UnknownSecret { name: which.to_owned() })
    }

    async fn write_secret(&self, change: Change, name: &str) -> Result<(), DaemonError> {
        let name = name.to_owned();
        match self.inner.apply(vec![change]).await {
            Err(RegistryError::Exists { .. }) => Err(DaemonError::SecretExists { name }),
            Err(RegistryError::Stale { .. }) => Err(DaemonError::UnknownSecret { name }),
            written => Ok(written?),
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
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(plain) {
        let why = format!("expected 1 to {LONGEST_NAME} characters of ASCII without spaces, braces and `/`");
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
        .any(|(key, value)| key.len() > LONGEST_LABEL || value.len() > LONGEST_LABEL_VALUE);
    if metadata.len() > MOST_LABELS || bytes > MOST_LABEL_BYTES || is_long {
        let why = format!(
            "at most {MOST_LABELS} entries, of {LONGEST_LABEL} and {LONGEST_LABEL_VALUE} bytes, {MOST_LABEL_BYTES} in all"
        );
        return Err(DaemonError::invalid("metadata", why));
    }
    Ok(())
}

/// The names of secrets in the value of a header; `Err` for a placeholder that is none of a secret, or not whole.
pub(super) fn names_in(value: &str) -> Result<Vec<&str>, ()> {
    let mut names = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.find("${e2b.") {
        let name = rest[at..].strip_prefix(BEGIN).and_then(|rest| rest.split_once(END));
        let (name, behind) = name.filter(|(name, _)| !name.is_empty()).ok_or(())?;
        names.push(name);
        rest = behind;
    }
    Ok(names)
}

/// The secrets that the headers of a sandbox name, by these names.
pub(super) fn used(settings: &NetworkSettings) -> BTreeMap<String, Used> {
    let mut used: BTreeMap<String, Used> = BTreeMap::new();
    for (host, headers) in &settings.headers {
        for (header, value) in headers {
            for name in names_in(value).unwrap_or_default() {
                let of_name = used.entry(name.to_owned()).or_default();
                of_name.hosts.insert(host.clone());
                of_name.headers.insert(header.to_ascii_lowercase());
            }
        }
    }
    used
}

/// What a gateway is told of the secrets that `settings` use, and what it then was told.
pub(super) fn orders(
    inner: &Inner,
    key: Option<&str>,
    settings: &NetworkSettings,
) -> Result<(Vec<SecretOrder>, Told), DaemonError> {
    let used = used(settings);
    if used.is_empty() {
        return Ok((Vec::new(), Told::new()));
    }
    let is_valid =
        |key: &str| Ok::<_, DaemonError>(inner.registry.key(key)?.is_none_or(|row| row.revoked_ms.is_none()));
    let rows = match key {
        Some(key) if is_valid(key)? => inner.registry.secrets(key)?,
        _ => Vec::new(),
    };
    let (mut orders, mut told) = (Vec::new(), Told::new());
    for (name, Used { hosts, headers }) in used {
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

/// Tells the gateways of sandboxes whose secrets are other ones than they were told: of those of `key`, or of all. What cannot be
/// told now is told later.
pub(super) async fn renew(inner: &Arc<Inner>, key: Option<&str>) {
    for entry in inner.table.all() {
        let is_meant = {
            let facts = entry.lock();
            let is_of_key = key.is_none_or(|key| facts.row.key_id.as_deref() == Some(key));
            is_of_key && facts.row.state == SandboxState::Running && !used(&facts.specification.network).is_empty()
        };
        if is_meant {
            let _turn = entry.transition.lock().await;
            if entry.state() == SandboxState::Running {
                renew_one(inner, &entry).await;
            }
        }
    }
}

/// The same for one, whose transition is held. Whether it knows what it should.
pub(super) async fn renew_one(inner: &Inner, entry: &Entry) -> bool {
    let (key, specification, before) = {
        let facts = entry.lock();
        (
            facts.row.key_id.clone(),
            Arc::clone(&facts.specification),
            facts.told.clone(),
        )
    };
    let Ok((order, told)) = network_order(inner, key.as_deref(), &specification.network) else {
        return false;
    };
    if before.as_ref() == Some(&told) || (before.is_none() && told.is_empty()) {
        return true;
    }
    match inner.keeper(entry).set_network(order).await {
        Ok(()) => {
            entry.lock().told = Some(told);
            true
        }
        Err(error) => {
            let line = format!("its secrets cannot be put in: {error}");
            inner.log(entry.id.as_str(), LogLevel::Warn, line);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_whole_or_not_at_all() {
        assert_eq!(names_in("Bearer x"), Ok(vec![]));
        assert_eq!(
            names_in("a ${e2b.secrets.one} ${e2b.secrets.Two-2}"),
            Ok(vec!["one", "Two-2"])
        );
        for bad in [
            "${e2b.identity.tokens.aws}",
            "${e2b.secrets.}",
            "${e2b.secrets.x",
            "${e2b.secrets.a} ${e2b.",
        ] {
            assert_eq!(names_in(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_for_the_hosts_and_headers_that_name_it() {
        let headers = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect()
        };
        let settings = NetworkSettings {
            headers: BTreeMap::from([
                (
                    "a.test".to_owned(),
                    headers(&[("Authorization", "Bearer ${e2b.secrets.k}"), ("X", "y")]),
                ),
                ("b.test".to_owned(), headers(&[("X-Key", "${e2b.secrets.k}")])),
            ]),
            ..NetworkSettings::default()
        };
        let used = used(&settings);
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        assert_eq!(used.len(), 1);
        assert_eq!(used["k"].hosts, texts(&["a.test", "b.test"]));
        assert_eq!(used["k"].headers, texts(&["authorization", "x-key"]));
    }

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
