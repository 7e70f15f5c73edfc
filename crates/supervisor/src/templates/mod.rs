//! Templates: what is built once in a sandbox and lies below the writable layers of others afterwards.
//!
//! A template is the layer of a sandbox with a root of its own in which a recipe was carried out: packages installed,
//! commands run. Their scripts are as untrusted as any code, so they have no more than a sandbox has: the network of
//! their package indexes alone, and a limited disk. What they leave is only ever looked at from inside sandboxes.
//! Deliberately not here: what a recipe may say (`core`), and where templates are (`store`).

mod build;
mod error;
mod lines;
mod order;
mod step;

use std::path::Path;

use offleash_core::build::TEMPLATE_SCHEME;
use offleash_core::spec::ImageSpec;
use offleash_core::template::TemplateName;
use offleash_images::ImageStore;
use offleash_store::{
    AbandonedLayer, FileError, HeldTemplate, HostIdentity, StateDirectory, TakeOutcome, TemplateRecord, TemplateStore,
    remove_directory,
};

pub use self::build::{BuildRequest, Progress, USUAL_DISK, build};
pub(crate) use self::build::{MAX_FILES, add_indexes, network_of};
pub use self::error::TemplateError;
pub(crate) use self::lines::signals;
pub use self::order::{BUILD_ROLE, BuildEvent, BuildWatcher};
pub(crate) use self::step::{StepCommand, StepSandbox};
use crate::images;
use offleash_planner::base::{ReadyBase, remove_layer};

/// A template in a list.
#[derive(Debug, Clone)]
pub struct TemplateListing {
    /// What it is.
    pub record: TemplateRecord,
    /// Whether the host's packages have changed since it was built.
    pub outdated: bool,
    /// Whether sandboxes use it now.
    pub in_use: bool,
}

/// Every template of the state directory, by name. What no record can be read of is left out.
///
/// # Errors
/// When the state directory cannot be used.
pub fn list(state: &StateDirectory) -> Result<Vec<TemplateListing>, TemplateError> {
    let templates = state.templates()?;
    let now = ReadyBase::system_stamp();
    let mut listed = Vec::new();
    for name in templates.names()? {
        let in_use = templates.is_used(&name)?;
        if let Ok(Some(held)) = templates.hold(&name) {
            listed.push(TemplateListing {
                outdated: is_outdated(held.record(), &now),
                record: held.record().clone(),
                in_use,
            });
        }
    }
    Ok(listed)
}

/// One template.
///
/// # Errors
/// `Missing`; when the state directory cannot be used.
pub fn inspect(state: &StateDirectory, name: &TemplateName) -> Result<TemplateListing, TemplateError> {
    let templates = state.templates()?;
    let in_use = templates.is_used(name)?;
    let held = templates
        .hold(name)?
        .ok_or_else(|| TemplateError::Missing { name: name.clone() })?;
    Ok(TemplateListing {
        outdated: is_outdated(held.record(), &ReadyBase::system_stamp()),
        record: held.record().clone(),
        in_use,
    })
}

/// Whether there is a template of this name that can be used.
///
/// # Errors
/// When the state directory cannot be used.
pub fn exists(state: &StateDirectory, name: &TemplateName) -> Result<bool, TemplateError> {
    Ok(state.templates()?.hold(name)?.is_some())
}

/// That there is a template of this name that can be used.
///
/// # Errors
/// `Missing`; when the state directory cannot be used.
pub fn require(state: &StateDirectory, name: &TemplateName) -> Result<(), TemplateError> {
    if exists(state, name)? {
        return Ok(());
    }
    Err(TemplateError::Missing { name: name.clone() })
}

/// Removes what builders that died left, and what was replaced and is not used any more. The calling process must have
/// one thread.
///
/// # Errors
/// When the state directory cannot be used.
pub fn clean(state: &StateDirectory) -> Result<(), TemplateError> {
    remove_abandoned(&state.templates()?);
    Ok(())
}

/// Removes a template. The calling process must have one thread.
///
/// # Errors
/// `Missing`, `InUse`; when files cannot be removed, which the next command tries again.
pub fn remove(state: &StateDirectory, name: &TemplateName) -> Result<(), TemplateError> {
    match state.templates()?.take(name)? {
        TakeOutcome::Taken(abandoned) => discard(&abandoned),
        TakeOutcome::InUse => Err(TemplateError::InUse { name: name.clone() }),
        TakeOutcome::Missing => Err(TemplateError::Missing { name: name.clone() }),
    }
}

/// Keeps a template in place for a sandbox: that build of it, or as it is now.
pub(crate) fn hold(state: &Path, name: &TemplateName, build: Option<&str>) -> Result<HeldTemplate, TemplateError> {
    let state = StateDirectory::open(Some(state), &HostIdentity::of_this_process())?;
    let templates = state.templates()?;
    let held = match build {
        Some(build) => templates.hold_build(name, build)?,
        None => templates.hold(name)?,
    };
    held.ok_or_else(|| TemplateError::Missing { name: name.clone() })
}

/// What is to be said of a template that was built on other packages than the host has now.
///
/// It is used all the same: it holds whole files, and where they do not fit the host's any more, programs in it fail and
/// nothing else does.
pub fn outdated(record: &TemplateRecord) -> Option<String> {
    is_outdated(record, &ReadyBase::system_stamp()).then(|| {
        format!(
            "the host's packages have changed since template `{}` was built ({}); if something in it fails, build it again \
             with `offleash template build`",
            record.name, record.built_at
        )
    })
}

/// One that is an image holds all of its system itself.
fn is_outdated(record: &TemplateRecord, now: &str) -> bool {
    record.image.is_none() && record.base != now
}

/// What a sandbox of a template, or of that build of it, is that is an image; `None` for one that lies over the host's system.
///
/// # Errors
/// `Missing`; when the image cannot be opened.
pub fn image_root(state: &Path, name: &TemplateName, build: Option<&str>) -> Result<Option<ImageSpec>, TemplateError> {
    let held = hold(state, name, build)?;
    let Some(image) = &held.record().image else {
        return Ok(None);
    };
    let store = ImageStore::in_directory(state)?;
    let spec = images::specify(&store, &image.digest)?;
    Ok(Some(ImageSpec {
        name: format!("{TEMPLATE_SCHEME}{name}"),
        template: Some(name.clone()),
        ..spec
    }))
}

/// What cannot be removed now stays until the next time.
pub(crate) fn remove_abandoned(templates: &TemplateStore) {
    for abandoned in templates.abandoned().into_iter().flatten() {
        let _removed = discard(&abandoned);
    }
}

fn discard(abandoned: &AbandonedLayer) -> Result<(), TemplateError> {
    remove_layer(&abandoned.layer())?;
    remove_directory(abandoned.path()).map_err(|error: FileError| TemplateError::File(error))
}
