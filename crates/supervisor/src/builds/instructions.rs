//! A build that a client of the API asked for: its base is pulled where that may be, and its instructions become steps.

use offleash_core::build::instruction::BuildInstruction;
use offleash_core::build::{BuildBase, BuildPlan, BuildStage};
use offleash_core::network::HeaderScope;
use offleash_core::template::{Recipe, StartCommand, TemplateLimits, TemplateName};
use offleash_core::text::Text;
use offleash_core::units::Bytes;
use offleash_images::{
    ImageConfig, ImageDigest, ImageError, ImageReference, ImageStore, KeptName, LayerTree, NoProgress, PullOrder,
    RegistrySettings,
};
use offleash_planner::instructions::{E2B_USER, InstructionBase, steps_of};
use offleash_planner::recipes::{IndexConfiguration, RecipeIndexes};
use offleash_store::StateDirectory;
use serde::{Deserialize, Serialize};

use super::executor::digest_of_template;
use super::{CallerBuild, ImageBuild};
use crate::images::{Accounts, CallerIds, usual_ownership};
use crate::service::order::NetworkOrder;
use crate::templates::{TemplateError, USUAL_DISK, add_indexes};

/// What a client of the API asked to be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstructionOrder {
    /// The key that it is for.
    pub key: String,
    /// What it begins with: an image or a template.
    pub base: BuildBase,
    /// How registries are reached, if the image may be pulled where it is not here.
    pub pull: Option<RegistrySettings>,
    /// What is done.
    pub instructions: Vec<BuildInstruction>,
    /// Where the archives are that the key uploaded.
    pub uploads: Text,
    /// What commands may reach.
    pub network: NetworkOrder,
    /// Whether commands ask the indexes of packages that this machine's configuration names, with its credentials.
    pub own_indexes: bool,
    /// Whether everything is carried out whatever is known of it.
    pub force: bool,
    /// What is started in sandboxes of it; what the base starts where nothing is said.
    pub start: StartCommand,
    /// What they may use.
    pub limits: TemplateLimits,
    /// What commands of the build may use.
    pub usage: BuildUsage,
}

/// What commands of a build may use, where that is less than usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildUsage {
    /// CPUs at once.
    pub cpus: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// What a step may write, and all archives together may hold, MiB.
    pub disk_mib: Option<u64>,
}

/// A build, and which instruction each of its steps is of.
#[derive(Debug)]
pub struct InstructionBuild {
    /// What is to be built.
    pub build: ImageBuild,
    /// The number of the instruction of each step, from 1; 0 for what is done to the base.
    pub of: Vec<usize>,
}

/// The build of an order; the image that it begins with is here afterwards. The calling process must have one thread.
///
/// # Errors
/// `Instruction`, `Image`, `Missing`, `OverHost`, `Network`; when the state directory cannot be used.
pub fn of_instructions(
    state: &StateDirectory,
    name: &TemplateName,
    order: &InstructionOrder,
) -> Result<InstructionBuild, TemplateError> {
    let store = ImageStore::open(state)?;
    let mut start = order.start.clone();
    let (base, digest) = match &order.base {
        BuildBase::Image(image) => {
            let digest = find_or_pull(&store, image, order)?.to_string();
            // By its digest: a name may mean another image in a moment.
            (BuildBase::Image(digest.clone()), digest)
        }
        BuildBase::Template(template) => {
            let templates = state.templates()?;
            if start.is_empty()
                && let Some(held) = templates.hold(template)?
            {
                start.clone_from(&held.record().start);
            }
            let digest = digest_of_template(&templates, template)?;
            (order.base.clone(), digest)
        }
        BuildBase::Stage(_) | BuildBase::Scratch => return Err(TemplateError::NoStage),
    };
    let known = known_of(&store, &digest, matches!(order.base, BuildBase::Image(_)))?;
    let found = steps_of(&order.instructions, &known)?;
    let mut network = order
        .network
        .spec()
        .map_err(|source| TemplateError::NetworkOrder { source })?;
    let mut env = Vec::new();
    if order.own_indexes {
        let indexes = RecipeIndexes::of_machine(&IndexConfiguration::this());
        // They may be in the owner's networks. No rule of the key's names any other place there.
        network.policy.public_only = false;
        // No header is the key's: those of the owner may go where nothing is encrypted, as the owner's configuration has it.
        network.requests.scope = HeaderScope::default();
        add_indexes(&mut network, &indexes)?;
        env = indexes.env;
    }
    let build = ImageBuild {
        name: name.clone(),
        plan: BuildPlan {
            stages: vec![BuildStage {
                base,
                steps: found.steps,
            }],
        },
        recipe: Recipe::default(),
        context: None,
        disk: order.usage.disk_mib.map_or(USUAL_DISK, Bytes::mib).min(USUAL_DISK),
        env,
        network,
        ids: None,
        uses_cache: !order.force,
        caller: CallerBuild {
            key: Some(order.key.clone()),
            uploads: Some(order.uploads.as_path().to_owned()),
            forced_from: found.forced_from,
            start,
            limits: order.limits,
            usage: order.usage,
        },
    };
    Ok(InstructionBuild { build, of: found.of })
}

/// The image of that whole name.
///
/// One that is pulled with somebody's password is kept by that one's key and not by its name: nobody else finds it.
fn find_or_pull(store: &ImageStore, name: &str, order: &InstructionOrder) -> Result<ImageDigest, ImageError> {
    let login = order.pull.as_ref().and_then(|settings| settings.login.as_ref());
    let found = store.find(name);
    let settings = match (&order.pull, &found) {
        (Some(settings), Err(ImageError::Missing { .. })) => settings,
        // Whoever shows a password wants what the registry has for it.
        (Some(settings), _) if login.is_some() => settings,
        _ => return Ok(found?.digest),
    };
    let reference: ImageReference = name.parse()?;
    let private = login.map(|login| {
        let whose = format!("{} {} {reference}", order.key, login.username);
        KeptName::Step(ImageDigest::of(whose.as_bytes()))
    });
    let pull = PullOrder {
        settings: settings.clone(),
        ownership: usual_ownership(),
        kept: private,
    };
    Ok(store.pull(&reference, &pull, &CallerIds, &NoProgress)?.record.digest)
}

/// What instructions must know of an image.
fn known_of(store: &ImageStore, digest: &str, is_image: bool) -> Result<InstructionBase, TemplateError> {
    let root = store.open_image(digest, usual_ownership(), &CallerIds, &NoProgress)?;
    let ImageConfig { env, user, .. } = root.config.clone();
    let tree = LayerTree::of_image(&root)?;
    Ok(InstructionBase {
        env,
        user,
        has_bash: tree.has("/bin/bash")?,
        has_shell: tree.has("/bin/sh")?,
        has_account: Accounts::of(&root)?.has(E2B_USER),
        is_image,
    })
}
