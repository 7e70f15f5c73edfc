//! Builds of templates from images: steps that are layers, each made once.
//!
//! A [`BuildPlan`] is plain data, whoever wrote it. Each step has a key: a digest of what it begins with, of what it does and
//! of the contents that it copies. What a step made is an image of the store, kept by that key; a step whose key is known is
//! not carried out. A template is kept by its build's id. Deliberately not here: what a Dockerfile says (`planner`), and
//! archives and layers (`images`).

mod executor;
mod instructions;
mod order;
mod recipe;
mod secret_mark;
mod stage;
mod uploads;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use offleash_core::build::patterns::IgnoreRules;
use offleash_core::build::{BuildBase, BuildPlan};
use offleash_core::spec::{IdChoice, NetworkSpec};
use offleash_core::template::{Recipe, StartCommand, TemplateLimits, TemplateName};
use offleash_core::units::Bytes;
use offleash_images::{ImageStore, KeptName, PruneReport};
use offleash_store::{StateDirectory, TemplateImage, TemplateRecord, TemplateStore, remove_directory};

use self::executor::BuildExecutor;
pub use self::instructions::{BuildUsage, InstructionBuild, InstructionOrder, of_instructions};
pub use self::order::BuildOrder;
pub use self::recipe::of_recipe;
use crate::images::CallerIds;
use crate::templates::{Progress, TemplateError, remove_abandoned};
use offleash_planner::base::remove_layer;

/// A template that is to be built from an image.
#[derive(Debug, Clone)]
pub struct ImageBuild {
    /// What it is called.
    pub name: TemplateName,
    /// What is done.
    pub plan: BuildPlan,
    /// The recipe that the plan was made of; an empty one where it was another text.
    pub recipe: Recipe,
    /// Where files are copied from.
    pub context: Option<BuildContext>,
    /// What a step may write, and a layer hold.
    pub disk: Bytes,
    /// Variables of the build alone, which no record, layer or key has.
    pub env: Vec<(OsString, OsString)>,
    /// What the build may reach.
    pub network: NetworkSpec,
    /// How user ids are mapped in its sandboxes; as for any root of their own if `None`.
    pub ids: Option<IdChoice>,
    /// Whether a step is taken from an earlier build if it is known.
    pub uses_cache: bool,
    /// What one for a caller of a server has beside.
    pub caller: CallerBuild,
}

/// What a build for a caller of a server has beside.
#[derive(Debug, Clone, Default)]
pub struct CallerBuild {
    /// The caller's key: what steps made for it is found for no other.
    pub key: Option<String>,
    /// Where the archives are that it uploaded, each called by its hash.
    pub uploads: Option<PathBuf>,
    /// The first step, from 1, that is carried out whatever is known of it, and each after it.
    pub forced_from: Option<usize>,
    /// What is started in sandboxes of the template.
    pub start: StartCommand,
    /// What they may use.
    pub limits: TemplateLimits,
    /// What commands of the build may use.
    pub usage: BuildUsage,
}

/// The directory of a build.
#[derive(Debug, Clone, Default)]
pub struct BuildContext {
    /// Where it is.
    pub directory: PathBuf,
    /// What of it is left out.
    pub ignore: IgnoreRules,
}

/// Builds a template and puts it in the place of the one that there was, if any. Images that it begins with are here.
///
/// The calling process must have one thread. It queues the signals that would end it, and ends the build by them.
///
/// # Errors
/// `Plan`, `Building`, `Step`, `Build`, `TooLarge`, `Interrupted`, `Sandbox`, `OverHost`, `Missing`, `NoContext`; when the state
/// directory cannot be used. Steps before the one that failed are kept for the next build; nothing of that one is, and the
/// template from before is as it was.
pub fn build(
    state: &StateDirectory,
    build: &ImageBuild,
    progress: &mut dyn Progress,
) -> Result<TemplateRecord, TemplateError> {
    build.plan.check()?;
    let templates = state.templates()?;
    remove_abandoned(&templates);
    let store = ImageStore::open(state)?;
    forget_orphans(&templates, &store)?;
    let new = templates.begin(&build.name)?.ok_or_else(|| TemplateError::Building {
        name: build.name.clone(),
    })?;
    let scratch = new.layer();
    let kept = KeptName::Template(new.build().to_owned());
    let built = BuildExecutor::new(state.path(), &store, build, scratch.clone())
        .and_then(|executor| executor.carry_out(&kept, progress))
        .and_then(|built| {
            let image = TemplateImage {
                digest: built.digest.to_string(),
                from: build
                    .plan
                    .stages
                    .last()
                    .map(|stage| stage.base.to_string())
                    .unwrap_or_default(),
                steps: built.steps,
            };
            if let Some(same) = same_build(&templates, build, &image, built.ids) {
                return Ok(BuildOutcome::Unchanged(same));
            }
            let mut record = TemplateRecord::new(build.name.clone(), build.recipe.clone(), String::new(), built.ids);
            let listing = store.inspect(&image.digest)?;
            if let Some((_, report)) = listing.unpacked.last() {
                record.bytes = report.bytes;
                record.files = report.entries;
            }
            record.image = Some(image);
            record.start.clone_from(&build.caller.start);
            record.limits = build.caller.limits;
            Ok(BuildOutcome::New(new.commit(record)?))
        });
    if !matches!(built, Ok(BuildOutcome::New(_))) {
        // The first failure is what is told; what stays goes with the next build.
        let _forgotten = store.forget_kept(&kept);
        let _removed = remove_layer(&scratch).map(|()| scratch.parent().map(remove_directory));
    }
    built.map(|built| match built {
        BuildOutcome::New(record) | BuildOutcome::Unchanged(record) => record,
    })
}

/// What a build came to.
enum BuildOutcome {
    New(TemplateRecord),
    /// The template that was there is the same; what lies over it goes on.
    Unchanged(TemplateRecord),
}

/// The template that there is, if it is just what was built now.
fn same_build(
    templates: &TemplateStore,
    build: &ImageBuild,
    image: &TemplateImage,
    ids: IdChoice,
) -> Option<TemplateRecord> {
    // One that cannot be read is replaced.
    let held = templates.hold(&build.name).ok()??;
    let record = held.record();
    let is_same = record.image.as_ref() == Some(image) && record.ids == ids && record.recipe == build.recipe;
    let is_used_alike = record.start == build.caller.start && record.limits == build.caller.limits;
    (is_same && is_used_alike).then(|| record.clone())
}

/// The variables of a base that is here.
///
/// # Errors
/// `Missing`, `OverHost`; when there is no such image.
pub fn env_of(state: &StateDirectory, base: &BuildBase) -> Result<Vec<(String, String)>, TemplateError> {
    let store = ImageStore::open(state)?;
    let name = match base {
        BuildBase::Image(name) => name.clone(),
        BuildBase::Template(name) => executor::digest_of_template(&state.templates()?, name)?,
        BuildBase::Stage(_) | BuildBase::Scratch => return Ok(Vec::new()),
    };
    Ok(store.inspect(&name)?.config.env)
}

/// What was removed of builds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunedBuilds {
    /// Steps that no build finds any more.
    pub steps: u64,
    /// What went with them.
    pub report: PruneReport,
}

/// Removes what steps made that no template consists of, or, with `all`, forgets every step; and what nothing else needs.
/// What a template or a sandbox uses stays. The calling process must have one thread.
///
/// # Errors
/// When something cannot be removed; the rest may be gone.
pub fn prune(state: &StateDirectory, all: bool) -> Result<PrunedBuilds, TemplateError> {
    let templates = state.templates()?;
    remove_abandoned(&templates);
    let store = ImageStore::open(state)?;
    forget_orphans(&templates, &store)?;
    let kept = store.kept()?;
    let mut used: BTreeSet<Vec<_>> = BTreeSet::new();
    for (name, digest) in &kept {
        // Of one that is damaged nothing can be told, and nothing is lost.
        if let (KeptName::Template(_), Ok(layers)) = (name, store.layers_of(digest)) {
            used.insert(layers);
        }
    }
    let mut pruned = PrunedBuilds::default();
    for (name, digest) in kept {
        let is_of_template = |layers: &Vec<_>| used.iter().any(|whole| whole.starts_with(layers));
        let stays = match name {
            KeptName::Template(_) => true,
            KeptName::Step(_) => !all && store.layers_of(&digest).is_ok_and(|layers| is_of_template(&layers)),
        };
        if !stays {
            store.forget_kept(&name)?;
            pruned.steps += 1;
        }
    }
    pruned.report = store.prune(false, &CallerIds)?;
    Ok(pruned)
}

/// Forgets images of builds of which there is no template any more.
fn forget_orphans(templates: &TemplateStore, store: &ImageStore) -> Result<(), TemplateError> {
    // First what is kept: a build that begins meanwhile is among those that are looked for afterwards.
    let kept = store.kept()?;
    let builds = templates.builds()?;
    let orphans: Vec<KeptName> = kept
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| matches!(name, KeptName::Template(build) if !builds.contains(build)))
        .collect();
    if orphans.is_empty() {
        return Ok(());
    }
    // One that was being renamed just then may have been passed over.
    let again = templates.builds()?;
    for name in orphans {
        if matches!(&name, KeptName::Template(build) if !again.contains(build)) {
            store.forget_kept(&name)?;
        }
    }
    Ok(())
}
