//! What callers ask of templates.

use offleash_supervisor::templates::TemplateListing;

use super::Daemon;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::Scope;
use crate::template_names;

impl Daemon {
    /// The templates that were built, by name.
    ///
    /// # Errors
    /// `Forbidden`, `Templates`.
    pub async fn templates(&self, caller: &Caller) -> Result<Vec<TemplateListing>, DaemonError> {
        caller.require(Scope::Read)?;
        let mut listed = self.services.templates.list().await?;
        // Those of keys are told by `built_templates`.
        listed.retain(|listing| template_names::of_store(listing.record.name.as_str()).is_none());
        Ok(listed)
    }

    /// Whether a create with this template would find it: built, or built then.
    ///
    /// # Errors
    /// `Forbidden`, `Templates`.
    pub async fn has_template(&self, caller: &Caller, name: &str) -> Result<bool, DaemonError> {
        caller.require(Scope::Read)?;
        match template_names::of_store(name) {
            Some(_) => Ok(false),
            None => self.services.templates.has(name).await,
        }
    }

    /// Removes a template that no sandbox of anybody uses; members of the warm pool are ended. What is left of its files
    /// goes with the next build.
    ///
    /// # Errors
    /// `Forbidden`, `UnknownTemplate`, `TemplateInUse`, `Templates`.
    pub async fn remove_template(&self, caller: &Caller, name: &str) -> Result<(), DaemonError> {
        caller.require(Scope::Admin)?;
        self.services.template_remover.remove(name).await
    }
}
