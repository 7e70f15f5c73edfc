//! Whose templates are whose: what a name means for a caller.
//!
//! A key finds its own templates by name and by id, and those of others that are public by their id alone: no key can put a
//! template in the place of another's, or of the machine's.

use std::sync::Arc;

use offleash_core::template::TemplateName;

use crate::caller::Caller;
use crate::error::DaemonError;
use crate::registry::{BuildState, BuiltTemplateRow, Registry, RegistryError};
use crate::registry_handle::RegistryHandle;
use crate::template_names::{DEFAULT_TAG, TaggedName, in_store, of_store};

/// The templates that keys built.
#[derive(Debug)]
pub(crate) struct BuiltTemplates {
    registry: Arc<RegistryHandle>,
}

impl BuiltTemplates {
    pub(crate) fn new(registry: Arc<RegistryHandle>) -> Self {
        Self { registry }
    }

    pub(crate) fn look_up<T>(
        &self,
        read: impl FnOnce(&Registry) -> Result<T, RegistryError>,
    ) -> Result<T, DaemonError> {
        self.registry.look_up(read)
    }

    /// The caller's template of that name or id, also with a tag; for who may do everything, anybody's by its id.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Store`.
    pub(crate) fn own(&self, caller: &Caller, which: &str) -> Result<BuiltTemplateRow, DaemonError> {
        let unknown = || DaemonError::UnknownTemplate { name: which.to_owned() };
        let name = TaggedName::parse(which).map_err(|_| unknown())?.name;
        let found = self.look_up(|registry| registry.built_template(&caller.key_id, &name))?;
        found.filter(|row| caller.sees(Some(&row.key_id))).ok_or_else(unknown)
    }

    /// What `text` means for a caller who wants to use it: a build in the store; `None` if it is none of what keys built.
    ///
    /// # Errors
    /// `UnknownTemplate`, `Store`.
    pub(crate) fn resolve(&self, caller: &Caller, text: &str) -> Result<Option<TemplateName>, DaemonError> {
        let unknown = || DaemonError::UnknownTemplate { name: text.to_owned() };
        let may_use = |row: &BuiltTemplateRow| row.public || caller.sees(Some(&row.key_id));
        if let Some(id) = of_store(text) {
            // That of a sandbox, for another one like it.
            let row = self.look_up(|registry| registry.built_template("", id))?;
            row.filter(may_use).ok_or_else(unknown)?;
            return text.parse().map(Some).map_err(|_| unknown());
        }
        let Ok(TaggedName { name, tag }) = TaggedName::parse(text) else {
            return Ok(None);
        };
        let row = self.look_up(|registry| registry.built_template(&caller.key_id, &name))?;
        let Some(row) = row.filter(may_use) else {
            return Ok(None);
        };
        let tag = tag.as_deref().unwrap_or(DEFAULT_TAG);
        let build = self.build_of_tag(&row.id, tag)?.ok_or_else(unknown)?;
        in_store(&row.id, &build).map(Some)
    }

    /// The build that a tag means, if it is ready.
    pub(crate) fn build_of_tag(&self, template: &str, tag: &str) -> Result<Option<String>, DaemonError> {
        let tags = self.look_up(|registry| registry.tags_of(template))?;
        let Some(meant) = tags.into_iter().find(|row| row.tag == tag) else {
            return Ok(None);
        };
        let build = self.look_up(|registry| registry.template_build(&meant.build))?;
        Ok(build
            .filter(|build| build.state == BuildState::Ready)
            .map(|build| build.id))
    }
}
