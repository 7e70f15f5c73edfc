//! API keys, for the daemon and for the command that manages them.

use std::path::Path;

use offleash_core::tool::{MAX_GRANTS, ToolGrant};
use offleash_store::{HostIdentity, StateDirectory};
use offleash_supervisor::clock::now_ms;

use crate::caller::Caller;
use crate::error::DaemonError;
use crate::random::key_id;
use crate::registry::{ApiKey, Change, KeyRow, Quota, Registry, Scopes};
use crate::registry_handle::RegistryHandle;
use crate::sandbox_tools::parsed;

/// The keys of a state directory. A daemon that runs meanwhile knows of every change at once.
#[derive(Debug)]
pub struct KeyStore {
    state: StateDirectory,
    registry: Registry,
}

/// Longest name of a key.
const MAX_NAME: usize = 100;

impl KeyStore {
    /// Opens those of `state`, the user's own state directory if `None`.
    ///
    /// # Errors
    /// `State`, `Store`.
    pub fn open(state: Option<&Path>) -> Result<Self, DaemonError> {
        let state = StateDirectory::open(state, &HostIdentity::of_this_process())?;
        let registry = Registry::open(&state)?;
        Ok(Self { state, registry })
    }

    /// Opens those of `state` if there are any; makes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_existing(state: Option<&Path>) -> Result<Option<Self>, DaemonError> {
        let host = HostIdentity::of_this_process();
        let path = state.map_or_else(|| host.default_state(), Path::to_owned);
        match Registry::is_in(&path) {
            true => Self::open(state).map(Some),
            false => Ok(None),
        }
    }

    /// Makes a key. It is in nobody's hands but the caller's then: only its hash is kept.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be shown on a line, `Store`.
    pub fn create(&self, name: &str, scopes: Scopes, quota: Quota) -> Result<(ApiKey, KeyRow), DaemonError> {
        create(&self.registry, name, scopes, quota, None)
    }

    /// As [`Self::create`], with what the key is granted of the owner's tools, a grant each.
    ///
    /// # Errors
    /// As [`Self::create`], and `Invalid` for text that is no grant.
    pub fn create_with_tools(
        &self,
        name: &str,
        scopes: Scopes,
        quota: Quota,
        tools: &[String],
    ) -> Result<(ApiKey, KeyRow), DaemonError> {
        create(&self.registry, name, scopes, quota, Some(granted(tools)?))
    }

    /// Takes a key that was made elsewhere, so that several daemons have the same; answers whether it is new here. One that is
    /// valid already stays as it is.
    ///
    /// # Errors
    /// As [`Self::create_with_tools`], and `Invalid` for a key that was removed here before.
    pub fn take(
        &self,
        key: &ApiKey,
        name: &str,
        scopes: Scopes,
        quota: Quota,
        tools: Option<&[String]>,
    ) -> Result<(KeyRow, bool), DaemonError> {
        let hash = key.hash();
        if let Some(known) = self.registry.keys()?.into_iter().find(|row| row.hash == hash) {
            return match known.revoked_ms {
                None => Ok((known, false)),
                Some(_) => {
                    let why = format!("it was removed before, as key {}, and does not come back", known.id);
                    Err(DaemonError::invalid("key", why))
                }
            };
        }
        let tools = tools.map(granted).transpose()?;
        Ok((add(&self.registry, key, name, scopes, quota, tools)?, true))
    }

    /// All keys, revoked ones too, the oldest first.
    ///
    /// # Errors
    /// `Store`.
    pub fn list(&self) -> Result<Vec<KeyRow>, DaemonError> {
        Ok(self.registry.keys()?)
    }

    /// Makes a key invalid, for good. `which` is its id, or its name if only one valid key has it.
    ///
    /// # Errors
    /// `Invalid` when there is no such key or there are several, `Store`.
    pub fn revoke(&self, which: &str) -> Result<KeyRow, DaemonError> {
        let key = self.valid(which)?;
        self.registry.apply(vec![revoked(&key)])?;
        Ok(key)
    }

    /// As [`Self::revoke`], and has every sandbox of the key ended: by a daemon that runs within seconds, otherwise by the
    /// next one. `which` may be the id of a key that was revoked before.
    ///
    /// # Errors
    /// As [`Self::revoke`].
    pub fn revoke_with_sandboxes(&self, which: &str) -> Result<KeyRow, DaemonError> {
        let before = self.registry.key(which)?.filter(|key| key.revoked_ms.is_some());
        let end = |key: &KeyRow| Change::EndSandboxesOf { key: key.id.clone() };
        let (key, changes) = match before {
            Some(key) => (key.clone(), vec![end(&key)]),
            None => {
                let key = self.valid(which)?;
                let changes = vec![revoked(&key), end(&key)];
                (key, changes)
            }
        };
        self.registry.apply(changes)?;
        Ok(key)
    }

    /// How many sandboxes the key with that id has.
    ///
    /// # Errors
    /// `Store`.
    pub fn sandboxes_of(&self, id: &str) -> Result<usize, DaemonError> {
        Ok(self.registry.sandboxes_of(id)?)
    }

    /// Whether a daemon runs on the state directory.
    ///
    /// # Errors
    /// `State`.
    pub fn has_daemon(&self) -> Result<bool, DaemonError> {
        Ok(self.state.lock_for_daemon()?.is_none())
    }

    fn valid(&self, which: &str) -> Result<KeyRow, DaemonError> {
        let valid = self.registry.keys()?.into_iter().filter(|key| key.revoked_ms.is_none());
        let mut found: Vec<KeyRow> = valid.filter(|key| key.id == which || key.name == which).collect();
        if let Some(exact) = found.iter().position(|key| key.id == which) {
            found = vec![found.swap_remove(exact)];
        }
        only(found, which)
    }
}

fn revoked(key: &KeyRow) -> Change {
    Change::RevokeKey {
        id: key.id.clone(),
        at_ms: now_ms(),
    }
}

/// The one key that is meant.
fn only(mut found: Vec<KeyRow>, which: &str) -> Result<KeyRow, DaemonError> {
    let which = which.escape_debug();
    match found.pop() {
        None => Err(DaemonError::invalid("key", format!("no valid key is called `{which}`"))),
        Some(key) if found.is_empty() => Ok(key),
        Some(last) => {
            let all: Vec<String> = found.into_iter().chain([last]).map(|key| key.id).collect();
            let why = format!(
                "several valid keys are called `{which}`: {}; name one by its id",
                all.join(", ")
            );
            Err(DaemonError::invalid("key", why))
        }
    }
}

fn granted(tools: &[String]) -> Result<Vec<ToolGrant>, DaemonError> {
    if tools.len() > MAX_GRANTS {
        let why = format!("{MAX_GRANTS} grants are the most that a key may have");
        return Err(DaemonError::invalid("tools", why));
    }
    parsed(tools)
}

fn create(
    registry: &Registry,
    name: &str,
    scopes: Scopes,
    quota: Quota,
    tools: Option<Vec<ToolGrant>>,
) -> Result<(ApiKey, KeyRow), DaemonError> {
    let key = ApiKey::generate().map_err(DaemonError::host("read random bytes"))?;
    let row = add(registry, &key, name, scopes, quota, tools)?;
    Ok((key, row))
}

fn add(
    registry: &Registry,
    key: &ApiKey,
    name: &str,
    scopes: Scopes,
    quota: Quota,
    tools: Option<Vec<ToolGrant>>,
) -> Result<KeyRow, DaemonError> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let why = format!("expected 1 to {MAX_NAME} bytes without control characters");
        return Err(DaemonError::invalid("name", why));
    }
    if scopes.0.is_empty() {
        return Err(DaemonError::invalid("scopes", "a key needs at least one"));
    }
    let quotas = [
        quota.sandboxes.map(u64::from),
        quota.cpus.map(u64::from),
        quota.memory_mib,
        quota.disk_mib,
    ];
    if quotas.contains(&Some(0)) {
        let why = "with nothing it could make no sandbox; a key for looking has the scope `read` alone";
        return Err(DaemonError::invalid("quota", why));
    }
    let row = KeyRow {
        id: key_id()?,
        name: name.to_owned(),
        prefix: key.prefix().to_owned(),
        hash: key.hash(),
        scopes,
        quota,
        tools,
        created_ms: now_ms(),
        revoked_ms: None,
    };
    registry.apply(vec![Change::AddKey(Box::new(row.clone()))])?;
    Ok(row)
}

/// Who has `key`.
///
/// # Errors
/// `Unauthorized`, `Store`.
pub(crate) fn authenticate(registry: &RegistryHandle, key: &str) -> Result<Caller, DaemonError> {
    let key: ApiKey = key.parse().map_err(|_| DaemonError::Unauthorized)?;
    let found = registry
        .look_up(|registry| registry.authenticate(&key))?
        .ok_or(DaemonError::Unauthorized)?;
    Ok(Caller {
        key_id: found.id,
        scopes: found.scopes,
        quota: found.quota,
        tools: found.tools,
    })
}
