//! The root of a run's own, where the spec asks for one.

use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::plan::{Environment, User};
use offleash_core::spec::{IdChoice, RootChoice, SandboxSpec};
use offleash_core::template::PythonModule;
use offleash_store::HeldTemplate;

use super::ManagerError;
use crate::templates;
use offleash_planner::base::{BaseError, Scratch, Template, inherit, is_copied};
use offleash_planner::{self, BaseTemplate};

/// The mark that keeps pip from a distribution's Python (PEP 668) is right on a machine, and not in a root that is thrown
/// away.
const PIP_MAY_INSTALL: (&str, &str) = ("PIP_BREAK_SYSTEM_PACKAGES", "1");

/// What a root of the sandbox's own lies over, and where it is written to.
#[derive(Debug)]
pub(crate) struct OwnRoot {
    template: Template,
    /// What was built that lies between; it stays as long as it is used.
    built: Option<HeldTemplate>,
    layer: Layer,
    /// The usual user, if his home in what was built may belong to an id that this sandbox does not have.
    heir: Option<User>,
}

#[derive(Debug)]
enum Layer {
    Given(PathBuf),
    Scratch(Scratch),
}

impl OwnRoot {
    /// Makes ready what the spec asks for, in the state directory `state`; `None` without a root of its own.
    pub(crate) fn ready(
        spec: &SandboxSpec,
        ids: IdChoice,
        state: &Path,
        id: &RunId,
    ) -> Result<Option<Self>, ManagerError> {
        let RootChoice::Base { template: built, layer } = &spec.root else {
            return Ok(None);
        };
        let built = built.as_ref().map(|name| templates::hold(state, name)).transpose()?;
        let template = Template::ready(state, &offleash_planner::users(&spec.root, ids))?;
        let is_new = layer.is_none() && !is_copied(state, id);
        let heir = (is_new && ids == IdChoice::Single && built.is_some())
            .then(|| offleash_planner::first_user(&spec.root, ids));
        let layer = match layer {
            Some(given) => Layer::Given(given.clone()),
            None if is_copied(state, id) => Layer::Scratch(Scratch::copied(state, id)?),
            None => Layer::Scratch(Scratch::new(state, id)?),
        };
        Ok(Some(Self {
            template,
            built,
            layer,
            heir,
        }))
    }

    fn variables(&self) -> Environment {
        let env = self.built.iter().flat_map(|built| &built.record().recipe.env);
        let env = env.map(|(name, value)| (name.as_str(), value.as_str()));
        let all = [PIP_MAY_INSTALL].into_iter().chain(env);
        all.map(|(name, value)| (name.into(), value.into())).collect()
    }

    /// Whether a sandbox of `spec` that is made now would have a root of the same.
    pub(crate) fn is_current(&self, spec: &SandboxSpec, ids: IdChoice, state: &Path) -> bool {
        let RootChoice::Base { template, .. } = &spec.root else {
            return false;
        };
        let built = template.as_ref().map(|name| templates::hold(state, name));
        let is_same = match (&self.built, &built) {
            (None, None) => true,
            (Some(one), Some(Ok(other))) => one.record().build == other.record().build,
            _ => false,
        };
        is_same && self.template.is_current(&offleash_planner::users(&spec.root, ids))
    }

    /// What interpreters of Python import that are started before it is known what they are to run; `None` when none is to
    /// be.
    pub(crate) fn imports(&self) -> Option<Vec<PythonModule>> {
        self.built.as_ref()?.record().recipe.ready_imports()
    }

    /// What the owner should know of what was built, if anything.
    pub(crate) fn note(&self) -> Option<String> {
        templates::outdated(self.built.as_ref()?.record())
    }

    /// What it consists of.
    pub(crate) fn parts(&self) -> Result<BaseTemplate, BaseError> {
        let built = self.built.as_ref().map(HeldTemplate::layer);
        let layer = match &self.layer {
            Layer::Given(path) => path,
            Layer::Scratch(scratch) => scratch.path(),
        };
        let parts = self.template.over(layer, built.as_deref())?;
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
