//! Names of sandboxes: which ones a name stands for.
//!
//! A name is one living sandbox's among those of a key, and stands for that only to the key itself. Who sees the sandboxes of
//! several keys is told which of others have it, and has to say their ids: a name that nobody of his has now may be taken by
//! anybody, who would get what was meant for another.

use std::sync::Arc;

use offleash_core::id::SandboxName;
use offleash_store::registry::Scope;

use super::Daemon;
use super::error::DaemonError;
use super::inner::blocking;
use super::view::Caller;

/// What has a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Called {
    /// The id of the caller's own.
    pub own: Option<String>,
    /// Those of others of which the caller may know, where it has none of its own.
    pub others: Vec<String>,
}

impl Daemon {
    /// What `name` stands for: the caller's own living one or, if `ended`, the last of its own that had it.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub async fn called(&self, caller: &Caller, name: &SandboxName, ended: bool) -> Result<Called, DaemonError> {
        caller.require(Scope::Read)?;
        let living = self.inner.table.called(caller, name.as_str());
        if living.own.is_some() || !ended {
            return Ok(living);
        }
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        let key_id = (!caller.scopes.allow(Scope::Admin)).then(|| caller.key_id.clone());
        let ends = blocking("look up a name", move || {
            inner.registry.ends_of_name(name.as_str(), key_id.as_deref())
        });
        let (own, others): (Vec<_>, Vec<_>) = ends
            .await??
            .into_iter()
            .partition(|end| caller.is(end.key_id.as_deref()));
        let own = own.into_iter().next().map(|end| end.sandbox);
        Ok(match own {
            Some(own) => Called {
                own: Some(own),
                others: Vec::new(),
            },
            None if living.others.is_empty() => Called {
                own: None,
                others: others.into_iter().map(|end| end.sandbox).collect(),
            },
            None => living,
        })
    }
}
