//! What a process is told that builds a template for a daemon: all that it needs, as JSON on its standard input.

use offleash_core::spec::NetworkSpec;
use offleash_core::template::{Recipe, TemplateName};
use offleash_core::text::Text;
use serde::{Deserialize, Serialize};

use super::InstructionOrder;
use crate::templates::{BuildRequest, USUAL_DISK};

/// A template that a daemon wants to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildOrder {
    /// The state directory.
    pub state: Text,
    /// What it is called.
    pub name: TemplateName,
    /// What it is built from, if not of instructions.
    pub recipe: Recipe,
    /// What a client of the API asked to be built.
    pub instructions: Option<Box<InstructionOrder>>,
    /// Variables of the build alone.
    pub env: Vec<(Text, Text)>,
}

impl BuildOrder {
    /// The same as every door asks for a build.
    pub fn request(&self) -> BuildRequest {
        let os = |text: &Text| text.as_os_str().to_owned();
        BuildRequest {
            name: self.name.clone(),
            recipe: self.recipe.clone(),
            disk: USUAL_DISK,
            env: self.env.iter().map(|(name, value)| (os(name), os(value))).collect(),
            network: NetworkSpec::default(),
            ids: None,
        }
    }
}
