//! Builds a template: each step of the recipe is a run over the same layer, which is kept when all have succeeded.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use offleash_core::build::secrets::StepSecrets;
use offleash_core::error::Explained as _;
use offleash_core::limits::Limits;
use offleash_core::network::{NetworkRule, RuleVerdict};
use offleash_core::spec::{IdChoice, NetworkSpec, RootChoice, SandboxSpec};
use offleash_core::template::{PackageManager, Recipe, TemplateName};
use offleash_core::units::Bytes;
use offleash_isolation::limits::LayerMeter;
use offleash_store::{NewTemplate, StateDirectory, TemplateRecord, remove_directory};
use offleash_sys::signals::SignalQueue;

use super::error::TemplateError;
use super::lines::signals;
use super::remove_abandoned;
use super::step::{StepCommand, StepSandbox};
use offleash_planner::base::{ReadyBase, remove_layer};
use offleash_planner::recipes::steps::{self, RecipeStep};
use offleash_planner::recipes::{IndexConfiguration, RecipeIndexes};

/// What a template may take on disk whose owner does not say.
pub const USUAL_DISK: Bytes = Bytes(8 << 30);

/// Files, directories and links that a template may consist of.
pub(crate) const MAX_FILES: u64 = 2_000_000;

/// A template that is to be built.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    /// What it is called.
    pub name: TemplateName,
    /// What it is built from.
    pub recipe: Recipe,
    /// What it may take on disk.
    pub disk: Bytes,
    /// Variables of the build alone, which no record has.
    pub env: Vec<(OsString, OsString)>,
    /// What the build may reach beside the indexes of its packages.
    pub network: NetworkSpec,
    /// How user ids are mapped in it; as for a root of a sandbox's own if `None`.
    pub ids: Option<IdChoice>,
}

/// Whoever is told how a build goes on.
pub trait Progress {
    /// Step `number`, from 1, of so many begins.
    fn step(&mut self, number: usize, of: usize, title: &str);

    /// Something that the owner should know of the build.
    fn note(&mut self, told: &str);

    /// A line that the step printed, which cannot drive a terminal.
    fn line(&mut self, line: &str);

    /// These packages cannot be installed, and the template is made without them, because they are optional.
    fn left_out(&mut self, packages: &str, why: &str);

    /// Time has passed.
    fn idle(&mut self);
}

/// Builds a template and puts it in the place of the one that there was, if any.
///
/// The calling process must have one thread. It queues the signals that would end it, and ends the build by them.
///
/// # Errors
/// `Building`, `Empty`, `NoSuperuser`, `NoProgram`, `Step`, `TooLarge`, `Interrupted`, `Sandbox`; when the state directory
/// cannot be used. Nothing of the template is kept then, and the one before is as it was.
pub fn build(
    state: &StateDirectory,
    request: &BuildRequest,
    progress: &mut dyn Progress,
) -> Result<TemplateRecord, TemplateError> {
    let BuildRequest { name, recipe, .. } = request;
    if recipe.is_empty() {
        return Err(TemplateError::Empty { name: name.clone() });
    }
    let templates = state.templates()?;
    remove_abandoned(&templates);
    let new = templates
        .begin(name)?
        .ok_or_else(|| TemplateError::Building { name: name.clone() })?;
    let layer = new.layer();
    let built = carry_out(state.path(), request, new, progress);
    if built.is_err() {
        // What stays goes with the next build.
        let _removed = remove_layer(&layer).map(|()| layer.parent().map(remove_directory));
    }
    built
}

fn carry_out(
    state: &Path,
    request: &BuildRequest,
    new: NewTemplate,
    progress: &mut dyn Progress,
) -> Result<TemplateRecord, TemplateError> {
    let mut recipe = request.recipe.clone();
    // Before anything is installed: changes of the host meanwhile make it outdated.
    let base = ReadyBase::system_stamp();
    let signals = signals().map_err(|source| TemplateError::Host {
        action: "queue signals",
        source,
    })?;
    let indexes = RecipeIndexes::of(&recipe, &request.env, &IndexConfiguration::this());
    indexes.notes.iter().for_each(|note| progress.note(note));
    let build = StepSandbox {
        spec: spec(request, &new.layer(), &indexes)?,
        state,
    };
    let ids = build.ids()?;
    if !recipe.apt.is_empty() && ids.is_one() {
        match steps::left_out(&recipe, PackageManager::Apt) {
            Some(packages) => progress.left_out(&packages, &told(&TemplateError::NoSuperuser)),
            None => return Err(TemplateError::NoSuperuser),
        }
        recipe.apt.clear();
    }
    let steps = steps::of(&recipe, &indexes);
    for (number, step) in steps.iter().enumerate() {
        progress.step(number + 1, steps.len(), &step.title);
        match (take(&build, step, &request.env, &signals, progress), &step.optional) {
            (Ok(()), _) => {}
            (Err(error @ (TemplateError::Step { .. } | TemplateError::Recipe(_))), Some(packages)) => {
                progress.left_out(packages, &told(&error));
            }
            (Err(error), _) => return Err(error),
        }
    }
    let mut record = TemplateRecord::new(request.name.clone(), request.recipe.clone(), base, ids);
    for part in parts(&new.layer())? {
        // Overlayfs worked in it, and nothing of it is used again.
        remove_layer(&part.join("work"))?;
        let used = LayerMeter::new(&part)
            .map_err(|source| TemplateError::Host {
                action: "measure the template",
                source,
            })?
            .measure();
        record.bytes += used.bytes;
        record.files += used.inodes;
    }
    Ok(new.commit(record)?)
}

/// An error with what mends it, in a line.
fn told(error: &TemplateError) -> String {
    let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    format!("{error}{hint}")
}

/// The parts of a layer: `root`, `usr` …
fn parts(layer: &Path) -> Result<Vec<PathBuf>, TemplateError> {
    let listed = std::fs::read_dir(layer).map_err(|source| TemplateError::Host {
        action: "list the parts of the template",
        source,
    })?;
    Ok(listed.flatten().map(|found| found.path()).collect())
}

/// What a build may reach: what its owner says, and the indexes of its packages.
pub(crate) fn network_of(request: &BuildRequest, indexes: &RecipeIndexes) -> Result<NetworkSpec, TemplateError> {
    let recipe = &request.recipe;
    let mut network = request.network.clone();
    for rule in &recipe.allow {
        network.policy.rules.push(NetworkRule::parse(RuleVerdict::Allow, rule)?);
    }
    add_indexes(&mut network, indexes)?;
    Ok(network)
}

/// Lets a build reach indexes of packages.
pub(crate) fn add_indexes(network: &mut NetworkSpec, indexes: &RecipeIndexes) -> Result<(), TemplateError> {
    for rule in &indexes.rules {
        network.policy.rules.push(NetworkRule::parse(RuleVerdict::Allow, rule)?);
    }
    network.policy.inward.extend_from_slice(&indexes.inward);
    network.requests.headers.extend_from_slice(&indexes.headers);
    network.requests.methods.rules.extend_from_slice(&indexes.methods);
    network.host_ports.extend_from_slice(&indexes.host_ports);
    Ok(())
}

fn spec(request: &BuildRequest, layer: &Path, indexes: &RecipeIndexes) -> Result<SandboxSpec, TemplateError> {
    let recipe = &request.recipe;
    let network = network_of(request, indexes)?;
    let mut spec = SandboxSpec {
        root: RootChoice::Base {
            template: None,
            snapshot: None,
            layer: Some(layer.to_owned()),
        },
        ids: request.ids,
        network,
        limits: Limits {
            workspace: Some(request.disk),
            file_size: Some(request.disk),
            inodes: Some(MAX_FILES),
            output: None,
            ..Limits::default()
        },
        ..SandboxSpec::default()
    };
    let of_recipe = recipe.env.iter().map(|(name, value)| (name.into(), value.into()));
    spec.env.set = of_recipe.chain(request.env.iter().cloned()).collect();
    Ok(spec)
}

fn take(
    build: &StepSandbox<'_>,
    step: &RecipeStep,
    env: &[(OsString, OsString)],
    signals: &SignalQueue,
    progress: &mut dyn Progress,
) -> Result<(), TemplateError> {
    let mut spec = build.spec.clone();
    // What the owner passes wins over what a step usually has.
    let usual = step
        .env
        .iter()
        .filter(|(name, _)| !env.iter().any(|(own, _)| own == name));
    spec.env.set.extend(usual.cloned());
    let command = StepCommand {
        title: &step.title,
        argv: step.argv.clone(),
        cwd: Some("/"),
        user: Some(offleash_planner::system::SUPERUSER),
        secrets: &StepSecrets::default(),
        meaning: &|code| steps::missing(step, code).map(Into::into),
    };
    let sandbox = StepSandbox { spec, ..*build };
    sandbox.run(command, signals, progress)
}
