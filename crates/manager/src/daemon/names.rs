//! Names of sandboxes: which ones a name stands for.
//!
//! A name is one living sandbox's among those of a key. Who sees the sandboxes of several keys may find several, and then the
//! own one comes first; and one that lives comes before those that had the name earlier.

use std::sync::Arc;

use offleash_core::id::SandboxName;
use offleash_store::registry::Scope;

use super::Daemon;
use super::error::DaemonError;
use super::inner::blocking;
use super::view::Caller;

impl Daemon {
    /// The ids of the sandboxes that `name` stands for: the caller's own, else those of other keys of which it may know. If
    /// none lives, and `ended`, those that ended last, in the same order, one of each key. More than one only of other keys.
    ///
    /// # Errors
    /// `Forbidden`, `Store`.
    pub async fn called(&self, caller: &Caller, name: &SandboxName, ended: bool) -> Result<Vec<String>, DaemonError> {
        caller.require(Scope::Read)?;
        let living = self.inner.table.called(caller, name.as_str());
        if !living.is_empty() || !ended {
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
        let found = if own.is_empty() { others } else { own };
        Ok(found.into_iter().map(|end| end.sandbox).collect())
    }
}
