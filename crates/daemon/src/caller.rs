//! Who asks the daemon for something, and what he may.

use offleash_core::tool::ToolGrant;

use crate::error::DaemonError;
use crate::registry::{Quota, Scope, Scopes};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The key's id; `local` for the owner of the daemon's own socket.
    pub key_id: String,
    /// What it may do.
    pub scopes: Scopes,
    /// How much it may have.
    pub quota: Quota,
    /// What it was granted of the owner's tools, if anything was said.
    pub tools: Option<Vec<ToolGrant>>,
}

/// The owner of the daemon, who needs no key.
pub const LOCAL_KEY: &str = "local";

impl Caller {
    /// The owner of the daemon: may do everything, without a quota.
    pub fn local() -> Self {
        Self {
            key_id: LOCAL_KEY.to_owned(),
            scopes: Scopes(vec![Scope::Admin]),
            quota: Quota::default(),
            tools: None,
        }
    }

    /// Whether it is the owner of the daemon, who speaks for the machine; an admin's key does not.
    pub(crate) fn is_owner(&self) -> bool {
        self.key_id == LOCAL_KEY
    }

    /// Fails unless the caller has `scope`.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn require(&self, scope: Scope) -> Result<(), DaemonError> {
        if self.scopes.allow(scope) {
            Ok(())
        } else {
            Err(DaemonError::Forbidden { scope: scope.as_str() })
        }
    }

    /// Whether a sandbox of `key_id` exists for the caller.
    pub(crate) fn sees(&self, key_id: Option<&str>) -> bool {
        self.scopes.allow(Scope::Admin) || self.is(key_id)
    }

    /// Whether a sandbox of `key_id` is the caller's own.
    pub(crate) fn is(&self, key_id: Option<&str>) -> bool {
        key_id == Some(&self.key_id)
    }
}
