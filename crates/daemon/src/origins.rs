//! Finds what sandboxes are to be made from: the base, a template, an image.

use std::sync::Arc;

use crate::admission::AdmissionControl;
use crate::built_templates::BuiltTemplates;
use crate::caller::Caller;
use crate::error::DaemonError;
use crate::images::ImageService;
use crate::origin::{HeldOrigin, TemplateOrigin, image_name};
use crate::sandboxes::SandboxEntry;
use crate::templates::TemplateStore;

/// Finds what sandboxes are made from.
#[derive(Debug)]
pub(crate) struct OriginFinder {
    admission: Arc<AdmissionControl>,
    templates: Arc<TemplateStore>,
    images: Arc<ImageService>,
    built: Arc<BuiltTemplates>,
}

impl OriginFinder {
    pub(crate) fn new(
        admission: Arc<AdmissionControl>,
        templates: Arc<TemplateStore>,
        images: Arc<ImageService>,
        built: Arc<BuiltTemplates>,
    ) -> Self {
        Self {
            admission,
            templates,
            images,
            built,
        }
    }

    /// What `name` means for a caller: a template of its own, one of the machine, or an image behind [`crate::IMAGE_PREFIX`]. It is built, pulled or unpacked
    /// where that is needed and may be.
    ///
    /// # Errors
    /// As [`TemplateStore::ready`] and [`ImageService::ready`].
    pub(crate) async fn ready(&self, caller: &Caller, name: &str) -> Result<HeldOrigin, DaemonError> {
        match image_name(name) {
            Some(image) => {
                // It may be pulled, which takes room.
                self.admission.check()?;
                Ok(HeldOrigin::Image(self.images.ready(caller, image).await?))
            }
            None => match self.built.resolve(caller, name)? {
                Some(build) => Ok(self.templates.ready(build.as_str()).await?.into()),
                None => Ok(self.templates.ready(name).await?.into()),
            },
        }
    }

    /// What a snapshot lies over: a template of this name, or the image with this very digest, whatever it is called by now.
    ///
    /// # Errors
    /// `Invalid` for an image without its digest, `MissingOrigin` when that is not here; as [`Self::ready`].
    pub(crate) async fn of_snapshot(
        &self,
        caller: &Caller,
        name: &str,
        build: Option<&str>,
    ) -> Result<HeldOrigin, DaemonError> {
        let Some(image) = image_name(name) else {
            return self.ready(caller, name).await;
        };
        let digest = build.ok_or_else(|| DaemonError::invalid("build", "is the digest of the image, and absent"))?;
        Ok(HeldOrigin::Image(self.images.of_digest(caller, image, digest).await?))
    }

    /// What the files of a sandbox lie over, as it was when they were written.
    ///
    /// # Errors
    /// `Conflict` when that is another build by now: what was written says nothing of what lies below. As [`Self::again`].
    pub(crate) async fn same(&self, entry: &SandboxEntry) -> Result<HeldOrigin, DaemonError> {
        let held = self.again(&entry.origin()).await?;
        match held.origin().build == entry.specification().build {
            true => Ok(held),
            false => Err(DaemonError::conflict(
                entry.name(),
                "cannot be made again: its template was built anew since it was made",
            )),
        }
    }

    /// As [`Self::same`], also where that was built anew and what was there before is still here, since somebody holds it. Only
    /// who is made again of files that were kept can have it.
    ///
    /// # Errors
    /// As [`Self::same`].
    pub(crate) async fn held(&self, entry: &SandboxEntry) -> Result<HeldOrigin, DaemonError> {
        match self.templates.held_build(&entry.origin()).await? {
            Some(held) => Ok(held.into()),
            None => self.same(entry).await,
        }
    }

    /// What a sandbox with that origin was made from: the same image, and the template of that name as it is now.
    ///
    /// # Errors
    /// As [`TemplateStore::ready`] and [`ImageService::pinned`].
    pub(crate) async fn again(&self, origin: &TemplateOrigin) -> Result<HeldOrigin, DaemonError> {
        match (image_name(&origin.template), &origin.build) {
            (Some(image), Some(digest)) => Ok(HeldOrigin::Image(self.images.pinned(image, digest).await?)),
            _ => Ok(self.templates.ready(&origin.template).await?.into()),
        }
    }
}
