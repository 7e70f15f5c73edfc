//! What a process tells that builds a template for a daemon: a line of JSON each on its standard output.

use std::fmt::Debug;

use offleash_core::template::TemplateName;
use serde::{Deserialize, Serialize};

/// The role of a process of ours that builds a template.
pub const BUILD_ROLE: &str = "build-template";

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
        /// Which, from 1; which instruction where it is built of those, 0 for what is done to the base.
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
        /// What of that is for whoever asked; nothing if it says something of the machine.
        shown: Option<String>,
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
