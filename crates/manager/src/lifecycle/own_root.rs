//! The root of a run's own, where the spec asks for one.

use std::path::{Path, PathBuf};

use offleash_core::id::RunId;
use offleash_core::spec::{IdChoice, RootChoice, SandboxSpec};

use super::ManagerError;
use crate::base::{BaseError, Scratch, Template};
use crate::planning::{self, BaseTemplate};

/// What a root of the sandbox's own lies over, and where it is written to.
#[derive(Debug)]
pub(crate) struct OwnRoot {
    template: Template,
    layer: Layer,
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
        let RootChoice::Base { layer } = &spec.root else {
            return Ok(None);
        };
        let template = Template::ready(state, &planning::users(&spec.root, ids))?;
        let layer = match layer {
            Some(given) => Layer::Given(given.clone()),
            None => Layer::Scratch(Scratch::new(state, id)?),
        };
        Ok(Some(Self { template, layer }))
    }

    /// What it consists of.
    pub(crate) fn parts(&self) -> Result<BaseTemplate, BaseError> {
        match &self.layer {
            Layer::Given(path) => self.template.over(path),
            Layer::Scratch(scratch) => self.template.over(scratch.path()),
        }
    }

    /// Removes the layer, unless it was given; the sandbox must be gone.
    pub(crate) fn discard(self) -> Result<(), BaseError> {
        match self.layer {
            Layer::Given(_) => Ok(()),
            Layer::Scratch(scratch) => scratch.remove(),
        }
    }
}
