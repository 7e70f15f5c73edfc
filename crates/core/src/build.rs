//! Builds: what is done to a base, step by step, to make a template of it.
//!
//! Plain data, whoever wrote the steps: a Dockerfile, a recipe, or a client of the API. Variables are expanded and names of
//! stages resolved before. Deliberately not here: reading a Dockerfile (`planner`), and carrying steps out (`supervisor`).

pub mod instruction;
pub mod patterns;
pub mod secrets;

use self::instruction::UploadHash;
use self::secrets::StepSecrets;
use crate::template::TemplateName;

/// How many stages a build may have.
pub const MAX_STAGES: usize = 100;
/// How many steps a build may have, over all its stages.
pub const MAX_STEPS: usize = 1_000;
/// What the name of a template begins with where an image could be meant.
pub const TEMPLATE_SCHEME: &str = "template://";

/// A build: its stages in their order, of which the last one is what is built.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BuildPlan {
    /// The stages; each may use those before it.
    pub stages: Vec<BuildStage>,
}

/// A base, and what is done to it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BuildStage {
    /// What it begins with.
    pub base: BuildBase,
    /// What is done, in this order.
    pub steps: Vec<BuildStep>,
}

/// What a stage begins with, or what files are copied from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildBase {
    /// An image of a registry, by its name.
    Image(String),
    /// A template that was built from an image.
    Template(TemplateName),
    /// A stage before this one, by its number from 0.
    Stage(usize),
    /// No file at all.
    Scratch,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BuildStep {
    /// What it is called in messages.
    pub title: String,
    /// What it does.
    pub action: StepAction,
}

/// What a step does. The first two change files, and make a layer each; the others change how programs are started.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepAction {
    /// Runs a command in a sandbox.
    Run(RunStep),
    /// Copies files.
    Copy(CopyStep),
    /// Sets a variable of all later commands.
    Env {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Changes the directory of later commands; below the present one if it is not absolute.
    Workdir(String),
    /// Changes the user of later commands: a name or an id, with a group or without.
    User(String),
    /// What every command of the template begins with.
    Entrypoint(Vec<String>),
    /// What a sandbox runs where nobody says anything else.
    Command(Vec<String>),
    /// Something that the author wrote down.
    Label {
        /// Its name.
        name: String,
        /// What it says.
        value: String,
    },
}

/// A command that is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunStep {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables of this command alone, below those of the stage; a change of one has the step run again.
    pub arguments: Vec<(String, String)>,
    /// Those of which no form of the step that is written down has anything; a change of one has the step run again, too.
    #[serde(skip)]
    pub secrets: StepSecrets,
    /// Who runs it, if not the user of the stage.
    pub user: Option<String>,
}

/// Files that are copied.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CopyStep {
    /// Where they come from.
    pub from: CopySource,
    /// Their paths there, with the wildcards of one name.
    pub sources: Vec<String>,
    /// Where they are put: a directory if it ends with `/`, is one already, or there are several sources.
    pub destination: String,
    /// To whom they belong, `user[:group]`, by names of the stage's accounts or by ids; the superuser if absent.
    pub owner: Option<String>,
    /// Their permission bits; as they are if absent.
    pub mode: Option<u32>,
    /// Whether archives are unpacked.
    pub extracts: bool,
}

/// Where files come from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopySource {
    /// The directory that the build is given.
    Context,
    /// An archive that was uploaded.
    Upload(UploadHash),
    /// Another base.
    Base(BuildBase),
    /// Files that the step itself holds.
    Inline(Vec<InlineFile>),
}

/// A file that a step holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InlineFile {
    /// What it is called where the destination is a directory.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// A build that is larger than any may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the build has {found} {what}, and {limit} at most are taken")]
pub struct BuildTooLarge {
    /// `stages` or `steps`.
    pub what: &'static str,
    /// How many there are.
    pub found: usize,
    /// How many there may be.
    pub limit: usize,
}

impl BuildPlan {
    /// That it has no more stages and steps than there may be, whoever wrote it.
    ///
    /// # Errors
    /// [`BuildTooLarge`].
    pub fn check(&self) -> Result<(), BuildTooLarge> {
        let steps = self.stages.iter().map(|stage| stage.steps.len()).sum();
        let counted = [("stages", self.stages.len(), MAX_STAGES), ("steps", steps, MAX_STEPS)];
        let over = counted.into_iter().find(|(_, found, limit)| found > limit);
        match over {
            Some((what, found, limit)) => Err(BuildTooLarge { what, found, limit }),
            None => Ok(()),
        }
    }
}

impl BuildStep {
    /// Whether it makes a layer.
    pub fn makes_layer(&self) -> bool {
        matches!(self.action, StepAction::Run(_) | StepAction::Copy(_))
    }
}

impl BuildBase {
    /// What `name` means where an image is named, no stage being called so: `scratch`, `template://NAME` or an image.
    ///
    /// # Errors
    /// When no template can have that name.
    pub fn named(name: &str) -> Result<Self, crate::template::TemplateNameError> {
        match name.strip_prefix(TEMPLATE_SCHEME) {
            Some(name) => TemplateName::meant_by(name).map(Self::Template),
            None if name == "scratch" => Ok(Self::Scratch),
            None => Ok(Self::Image(name.to_owned())),
        }
    }
}

impl std::fmt::Display for BuildBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Image(name) => f.write_str(name),
            Self::Template(name) => write!(f, "{TEMPLATE_SCHEME}{name}"),
            Self::Stage(number) => write!(f, "stage {number}"),
            Self::Scratch => f.write_str("scratch"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_so_many_stages_and_steps_at_most() {
        let step = BuildStep {
            title: String::new(),
            action: StepAction::Workdir("/".to_owned()),
        };
        let plan = |stages: usize, steps: usize| {
            let stage = BuildStage {
                base: BuildBase::Scratch,
                steps: vec![step.clone(); steps],
            };
            BuildPlan {
                stages: vec![stage; stages],
            }
        };
        plan(MAX_STAGES, MAX_STEPS / MAX_STAGES).check().unwrap();
        assert_eq!(plan(MAX_STAGES + 1, 0).check().unwrap_err().what, "stages");
        let error = plan(2, MAX_STEPS / 2 + 1).check().unwrap_err();
        assert_eq!((error.what, error.found), ("steps", MAX_STEPS + 2));
    }

    #[test]
    fn a_base_is_an_image_a_template_or_nothing() {
        for (name, base) in [
            ("scratch", BuildBase::Scratch),
            ("python:3.12", BuildBase::Image("python:3.12".to_owned())),
            ("template", BuildBase::Image("template".to_owned())),
            ("template://tools", BuildBase::Template("tools".parse().unwrap())),
        ] {
            assert_eq!(BuildBase::named(name).as_ref(), Ok(&base));
            assert_eq!(base.to_string(), name);
        }
        assert!(BuildBase::named("template://../x").is_err());
    }
}
