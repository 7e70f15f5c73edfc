//! What a builder is told to build for a daemon: all that it needs, as JSON on its standard input. What it tells is a line of
//! JSON each on its standard output.

use std::fmt::Debug;

use offleash_core::spec::NetworkSpec;
use offleash_core::template::{Recipe, TemplateName};
use offleash_core::text::Text;
use serde::{Deserialize, Serialize};

use super::build::{BuildRequest, USUAL_DISK};

/// The role of a process of ours that builds a template.
pub const BUILD_ROLE: &str = "build-template";

/// A template that a daemon wants to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildOrder {
    /// The state directory.
    pub state: Text,
    /// What it is called.
    pub name: TemplateName,
    /// What it is built from.
    pub recipe: Recipe,
    /// Variables of the build alone.
    pub env: Vec<(Text, Text)>,
}

/// How a build for a daemon goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BuildEvent {
    /// It is begun.
    Begins {
        /// What it installs, in a line.
        installs: String,
    },
    /// A step begins.
    Step {
        /// Which, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// What it does.
        title: String,
    },
    /// Something that the owner should know of the build.
    Note {
        /// That.
        told: String,
    },
    /// The step printed a line, which cannot drive a terminal.
    Line {
        /// That.
        line: String,
    },
    /// The template is made without these packages, which are optional.
    LeftOut {
        /// Which.
        packages: String,
        /// Why.
        why: String,
    },
    /// The template is there.
    Built {
        /// What it takes on disk.
        bytes: u64,
        /// Its files, directories and links.
        files: u64,
    },
    /// There is no template of it.
    Failed {
        /// What the step printed last.
        last_lines: Vec<String>,
        /// Why.
        told: String,
    },
}

impl BuildEvent {
    /// Whether none comes after this one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Built { .. } | Self::Failed { .. })
    }
}

/// Whoever is told of the builds of a daemon, one of which goes on at a time.
pub trait BuildWatcher: Debug + Send + Sync {
    /// This happened to the build of template `name`.
    fn tell(&self, name: &TemplateName, event: &BuildEvent);
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
