//! The root of a run's own, where the spec asks for one.

use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::plan::{Environment, SandboxUser};
use offleash_core::spec::{IdChoice, RootChoice, SandboxSpec};
use offleash_core::template::PythonModule;
use offleash_images::ImageRoot;
use offleash_store::{HeldSnapshot, HeldTemplate, SnapshotDirectories};

use super::LifecycleError;
use crate::images;
use crate::templates;
use offleash_planner::base::{BaseError, ReadyBase, ScratchLayer, inherit, is_copied, is_kept, kept_build};
use offleash_planner::{self, BaseTemplate};

/// The mark that keeps pip from a distribution's Python (PEP 668) is right on a machine, and not in a root that is thrown
/// away.
const PIP_MAY_INSTALL: (&str, &str) = ("PIP_BREAK_SYSTEM_PACKAGES", "1");

/// What a root of the sandbox's own lies over, and where it is written to.
#[derive(Debug)]
pub(crate) struct OwnRoot {
    lower: LowerRoot,
    layer: Layer,
    /// The usual user, if his home in what was built may belong to an id that this sandbox does not have.
    heir: Option<SandboxUser>,
}

/// What is below the writable layer; it stays as long as it is used.
#[derive(Debug)]
enum LowerRoot {
    Base {
        template: ReadyBase,
        /// What was built that lies between.
        built: Option<HeldTemplate>,
        /// The snapshot above that.
        snapshot: Option<HeldSnapshot>,
    },
    Image {
        root: Box<ImageRoot>,
        env: Environment,
        /// The template that it is.
        _template: Option<HeldTemplate>,
        /// The snapshot above it.
        snapshot: Option<HeldSnapshot>,
    },
}

#[derive(Debug)]
enum Layer {
    Given(PathBuf),
    Scratch(ScratchLayer),
}

impl OwnRoot {
    /// Makes ready what the spec asks for, in the state directory `state`; `None` without a root of its own.
    pub(crate) fn ready(
        spec: &SandboxSpec,
        ids: IdChoice,
        state: &Path,
        id: &RunId,
    ) -> Result<Option<Self>, LifecycleError> {
        let build = kept_build(state, id);
        let hold = |name| templates::hold(state, name, build.as_deref());
        let (built, snapshot, layer) = match &spec.root {
            RootChoice::System => return Ok(None),
            RootChoice::Image(image) => {
                let held = image.template.as_ref().map(hold);
                let env = image.env.iter().map(|(name, value)| (name.into(), value.into()));
                return Ok(Some(Self {
                    lower: LowerRoot::Image {
                        root: Box::new(images::open(state, image, ids)?),
                        env: env.collect(),
                        _template: held.transpose()?,
                        snapshot: image.snapshot.as_ref().map(|id| hold_snapshot(state, id)).transpose()?,
                    },
                    layer: layer_of(state, id, image.layer.as_ref())?,
                    heir: None,
                }));
            }
            RootChoice::Base {
                template,
                snapshot,
                layer,
            } => (template, snapshot, layer),
        };
        let built = built.as_ref().map(hold).transpose()?;
        let snapshot = snapshot.as_ref().map(|id| hold_snapshot(state, id)).transpose()?;
        let template = ReadyBase::ready(state, &offleash_planner::users(&spec.root, ids))?;
        let is_new = layer.is_none() && !is_copied(state, id) && !is_kept(state, id);
        let heir = (is_new && ids.is_one() && (built.is_some() || snapshot.is_some()))
            .then(|| offleash_planner::first_user(&spec.root, ids));
        Ok(Some(Self {
            lower: LowerRoot::Base {
                template,
                built,
                snapshot,
            },
            layer: layer_of(state, id, layer.as_ref())?,
            heir,
        }))
    }

    fn built(&self) -> Option<&HeldTemplate> {
        match &self.lower {
            LowerRoot::Base { built, .. } => built.as_ref(),
            LowerRoot::Image { .. } => None,
        }
    }

    fn variables(&self) -> Environment {
        if let LowerRoot::Image { env, .. } = &self.lower {
            return env.clone();
        }
        let env = self.built().into_iter().flat_map(|built| &built.record().recipe.env);
        let env = env.map(|(name, value)| (name.as_str(), value.as_str()));
        let all = [PIP_MAY_INSTALL].into_iter().chain(env);
        all.map(|(name, value)| (name.into(), value.into())).collect()
    }

    /// Whether a sandbox of `spec` that is made now would have a root of the same.
    pub(crate) fn is_current(&self, spec: &SandboxSpec, ids: IdChoice, state: &Path) -> bool {
        let template = match (&spec.root, &self.lower) {
            (RootChoice::Image(image), LowerRoot::Image { root: own, .. }) => {
                return image.digest == own.digest.to_string();
            }
            (RootChoice::Base { template, .. }, _) => template,
            _ => return false,
        };
        let built = template.as_ref().map(|name| templates::hold(state, name, None));
        let LowerRoot::Base {
            template: own,
            built: own_built,
            ..
        } = &self.lower
        else {
            return false;
        };
        let is_same = match (own_built, &built) {
            (None, None) => true,
            (Some(one), Some(Ok(other))) => one.record().build == other.record().build,
            _ => false,
        };
        is_same && own.is_current(&offleash_planner::users(&spec.root, ids))
    }

    /// What interpreters of Python import that are started before it is known what they are to run; `None` when none is to
    /// be.
    pub(crate) fn imports(&self) -> Option<Vec<PythonModule>> {
        self.built()?.record().recipe.ready_imports()
    }

    /// What the owner should know of what was built, if anything.
    pub(crate) fn note(&self) -> Option<String> {
        if let LowerRoot::Image { root, .. } = &self.lower {
            return images::note(&root.report);
        }
        templates::outdated(self.built()?.record())
    }

    /// What it consists of.
    pub(crate) fn parts(&self) -> Result<BaseTemplate, BaseError> {
        let layer = match &self.layer {
            Layer::Given(path) => path,
            Layer::Scratch(scratch) => scratch.path(),
        };
        let parts = match &self.lower {
            LowerRoot::Image { root, snapshot, .. } => {
                images::parts(root, layer, snapshot.as_ref().map(HeldSnapshot::layer).as_deref())?
            }
            LowerRoot::Base {
                template,
                built,
                snapshot,
            } => template.over(
                layer,
                built.as_ref().map(HeldTemplate::layer).as_deref(),
                snapshot.as_ref().map(HeldSnapshot::layer).as_deref(),
            )?,
        };
        if let (Some(heir), Some(root)) = (&self.heir, parts.parts.first()) {
            inherit(root, &heir.home)?;
        }
        Ok(BaseTemplate {
            variables: self.variables(),
            ..parts
        })
    }

    /// Removes the layer, unless it was given; the sandbox must be gone.
    pub(crate) fn discard(self) -> Result<(), BaseError> {
        match self.layer {
            Layer::Given(_) => Ok(()),
            Layer::Scratch(scratch) => scratch.remove(),
        }
    }
}

/// Keeps a snapshot in place as long as the sandbox is there.
fn hold_snapshot(state: &Path, id: &RunId) -> Result<HeldSnapshot, LifecycleError> {
    let lost = |source| LifecycleError::Host {
        action: "open the snapshot",
        source,
    };
    let held = SnapshotDirectories::of(state).and_then(|snapshots| snapshots.hold(id));
    held.map_err(|error| lost(error.source))?
        .ok_or_else(|| lost(std::io::ErrorKind::NotFound.into()))
}

/// The layer that was given, one that was copied for the sandbox or that it had before, or a new one.
fn layer_of(state: &Path, id: &RunId, given: Option<&PathBuf>) -> Result<Layer, BaseError> {
    match given {
        Some(given) => Ok(Layer::Given(given.clone())),
        None if is_copied(state, id) => ScratchLayer::copied(state, id).map(Layer::Scratch),
        None if is_kept(state, id) => ScratchLayer::kept(state, id).map(Layer::Scratch),
        None => ScratchLayer::new(state, id).map(Layer::Scratch),
    }
}
