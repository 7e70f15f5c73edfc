//! Dockerfiles: which steps they mean.
//!
//! Pure: a text and its arguments become a [`BuildPlan`]. `docs/templates.md` has a table of what is understood.
//! Deliberately not here: what a base is, and carrying steps out.

mod error;
mod lines;
mod lower;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use offleash_core::build::{BuildBase, BuildPlan, BuildStage, MAX_STAGES, MAX_STEPS};
use offleash_core::processor::ImagePlatform;

pub use self::error::{DockerfileError, DockerfileFault};
pub use self::lines::MAX_DOCKERFILE;
use self::lines::{SourceFile, SourceInstruction, divide};
use self::lower::{StageLowering, from_of};

/// The only platform that sandboxes are of.
const PLATFORM: ImagePlatform = ImagePlatform::OURS;
/// What builders of Docker declare by themselves.
const AUTOMATIC: [(&str, &str); 8] = [
    ("TARGETPLATFORM", PLATFORM.name),
    ("TARGETOS", "linux"),
    ("TARGETARCH", PLATFORM.architecture),
    ("TARGETVARIANT", ""),
    ("BUILDPLATFORM", PLATFORM.name),
    ("BUILDOS", "linux"),
    ("BUILDARCH", PLATFORM.architecture),
    ("BUILDVARIANT", ""),
];
/// Every instruction, with what is done.
const INSTRUCTIONS: [&str; 18] = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "ARG",
    "WORKDIR",
    "USER",
    "CMD",
    "ENTRYPOINT",
    "SHELL",
    "LABEL",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "VOLUME",
    "MAINTAINER",
    "ONBUILD",
];

/// A text with what its variables mean, as instructions write them; quotes are a part of it.
///
/// # Errors
/// When an expansion is malformed or of a kind that is not understood.
pub fn expand_variables(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, DockerfileFault> {
    words::expand_text(text, '\\', lookup)
}

/// What is said beside the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DockerfileOptions {
    /// Values of `ARG`.
    pub build_args: BTreeMap<String, String>,
    /// The stage that is built, by name or number; the last one if absent.
    pub target: Option<String>,
}

/// A Dockerfile whose stages are known.
#[derive(Debug, Clone)]
pub struct Dockerfile {
    escape: char,
    build_args: BTreeMap<String, String>,
    /// What `ARG` before the first stage says.
    globals: BTreeMap<String, String>,
    stages: Vec<SourceStage>,
    /// Those that the target needs, it included, in their order.
    needed: Vec<usize>,
    notes: Vec<String>,
}

/// A stage as it is written.
#[derive(Debug, Clone)]
struct SourceStage {
    name: Option<String>,
    base: BuildBase,
    line: usize,
    instructions: Vec<SourceInstruction>,
}

/// What a Dockerfile means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerfilePlan {
    /// Its steps.
    pub plan: BuildPlan,
    /// What the owner should know, a line each.
    pub notes: Vec<String>,
}

impl Dockerfile {
    /// Reads the text of one.
    ///
    /// # Errors
    /// At the first instruction that is none; when there is no stage, or not the one that is to be built.
    pub fn parse(text: &str, options: &DockerfileOptions) -> Result<Self, DockerfileError> {
        let SourceFile { escape, instructions } = divide(text)?;
        if let Some(unknown) = instructions
            .iter()
            .find(|found| !INSTRUCTIONS.contains(&found.keyword.as_str()))
        {
            return Err(DockerfileFault::UnknownInstruction(unknown.keyword.clone()).at(unknown.line));
        }
        let mut dockerfile = Self {
            escape,
            build_args: options.build_args.clone(),
            globals: BTreeMap::new(),
            stages: Vec::new(),
            needed: Vec::new(),
            notes: Vec::new(),
        };
        let mut declared = BTreeSet::new();
        for instruction in instructions {
            let line = instruction.line;
            dockerfile
                .add(instruction, &mut declared)
                .map_err(|fault| fault.at(line))?;
        }
        if dockerfile.stages.is_empty() {
            return Err(DockerfileFault::malformed("there is no `FROM`").at(0));
        }
        for name in options.build_args.keys().filter(|name| !declared.contains(*name)) {
            let told = format!("no `ARG` declares the build argument `{}`", name.escape_debug());
            dockerfile.notes.push(told);
        }
        let target = match &options.target {
            None => dockerfile.stages.len() - 1,
            Some(name) => dockerfile
                .stage_named(name)
                .ok_or_else(|| DockerfileFault::UnknownStage(name.clone()).at(0))?,
        };
        dockerfile.find_needed(target)?;
        Ok(dockerfile)
    }

    fn add(&mut self, instruction: SourceInstruction, declared: &mut BTreeSet<String>) -> Result<(), DockerfileFault> {
        match (instruction.keyword.as_str(), self.stages.last_mut()) {
            ("FROM", _) => {
                if self.stages.len() == MAX_STAGES {
                    return Err(DockerfileFault::Malformed(format!(
                        "there are more than {MAX_STAGES} stages"
                    )));
                }
                let from = from_of(&instruction, self.escape, &|name| self.global(name))?;
                let base = match self.stage_named(&from.image) {
                    Some(stage) => BuildBase::Stage(stage),
                    None => BuildBase::named(&from.image)?,
                };
                self.stages.push(SourceStage {
                    name: from.name,
                    base,
                    line: instruction.line,
                    instructions: Vec::new(),
                });
            }
            ("ARG", None) => {
                for word in words::split(&instruction.rest, self.escape) {
                    let (name, default) = match word.split_once('=') {
                        Some((name, default)) => (name, Some(default)),
                        None => (word.as_str(), None),
                    };
                    declared.insert(name.to_owned());
                    let value = match (self.build_args.get(name), default) {
                        (Some(value), _) => Some(value.clone()),
                        (None, Some(default)) => Some(words::expand(default, self.escape, &|name| self.global(name))?),
                        (None, None) => None,
                    };
                    if let Some(value) = value {
                        self.globals.insert(name.to_owned(), value);
                    }
                }
            }
            (keyword, None) => {
                return Err(DockerfileFault::Malformed(format!(
                    "`{keyword}` stands before the first `FROM`"
                )));
            }
            (keyword, Some(stage)) => {
                if keyword == "ARG" {
                    let names = words::split(&instruction.rest, self.escape);
                    declared.extend(names.iter().map(|word| {
                        let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
                        name.to_owned()
                    }));
                }
                stage.instructions.push(instruction);
            }
        }
        Ok(())
    }

    fn global(&self, name: &str) -> Option<String> {
        let automatic = || AUTOMATIC.iter().find(|(known, _)| *known == name);
        self.globals
            .get(name)
            .cloned()
            .or_else(|| automatic().map(|(_, value)| (*value).to_owned()))
    }

    /// The stage of this name, the last one of several.
    fn stage_named(&self, name: &str) -> Option<usize> {
        let is_it = |stage: &SourceStage| stage.name.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name));
        self.stages.iter().rposition(is_it)
    }

    /// What `COPY --from` means in the stage `of`: a stage before it, or another base.
    fn source_named(&self, name: &str, of: usize) -> Result<BuildBase, DockerfileFault> {
        let is_it = |stage: &SourceStage| stage.name.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name));
        if let Some(stage) = self.stages[..of].iter().rposition(is_it) {
            return Ok(BuildBase::Stage(stage));
        }
        if let Ok(number) = name.parse::<usize>() {
            return match number < of {
                true => Ok(BuildBase::Stage(number)),
                false => Err(DockerfileFault::UnknownStage(name.to_owned())),
            };
        }
        match BuildBase::named(name)? {
            BuildBase::Scratch => Err(DockerfileFault::malformed("there is no file in `scratch`")),
            base => Ok(base),
        }
    }

    fn find_needed(&mut self, target: usize) -> Result<(), DockerfileError> {
        let mut needed = BTreeSet::new();
        let mut todo = vec![target];
        while let Some(stage) = todo.pop() {
            if !needed.insert(stage) {
                continue;
            }
            for base in self.bases_of(stage)? {
                if let BuildBase::Stage(other) = base {
                    todo.push(other);
                }
            }
        }
        self.needed = needed.into_iter().collect();
        Ok(())
    }

    /// What a stage begins with and copies from.
    fn bases_of(&self, number: usize) -> Result<Vec<BuildBase>, DockerfileError> {
        let stage = &self.stages[number];
        let mut bases = vec![stage.base.clone()];
        for instruction in &stage.instructions {
            if instruction.keyword == "COPY" {
                let from = lower::copied_from(instruction);
                let base = from.map(|name| self.source_named(&name, number)).transpose();
                bases.extend(base.map_err(|fault| fault.at(instruction.line))?);
            }
        }
        Ok(bases)
    }

    /// The images and templates that are needed.
    ///
    /// # Errors
    /// None that [`Self::parse`] has not had.
    pub fn bases(&self) -> Result<BTreeSet<BuildBase>, DockerfileError> {
        let mut all = BTreeSet::new();
        for stage in &self.needed {
            let bases = self.bases_of(*stage)?.into_iter();
            all.extend(bases.filter(|base| matches!(base, BuildBase::Image(_) | BuildBase::Template(_))));
        }
        Ok(all)
    }

    /// The steps, where `env_of` says which variables a base has.
    ///
    /// # Errors
    /// At the first instruction that is not written as it has to be, or not supported.
    pub fn plan(
        &self,
        env_of: &dyn Fn(&BuildBase) -> Vec<(String, String)>,
    ) -> Result<DockerfilePlan, DockerfileError> {
        let mut notes = self.notes.clone();
        let mut plan = BuildPlan::default();
        let mut environments: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
        let numbers: BTreeMap<usize, usize> = self.needed.iter().enumerate().map(|(new, old)| (*old, new)).collect();
        let renumbered = |base: BuildBase| match base {
            BuildBase::Stage(old) => BuildBase::Stage(numbers.get(&old).copied().unwrap_or_default()),
            base => base,
        };
        let mut steps = 0;
        for number in &self.needed {
            let stage = &self.stages[*number];
            let env = match &stage.base {
                BuildBase::Stage(earlier) => environments.get(earlier).cloned().unwrap_or_default(),
                BuildBase::Scratch => Vec::new(),
                base => env_of(base),
            };
            let mut lowering = StageLowering::new(self.escape, &self.build_args, env);
            for instruction in &stage.instructions {
                let source = |name: &str| self.source_named(name, *number).map(&renumbered);
                lowering
                    .add(instruction, &|name| self.global(name), &source)
                    .map_err(|fault| fault.at(instruction.line))?;
            }
            steps += lowering.steps.len();
            if steps > MAX_STEPS {
                return Err(
                    DockerfileFault::Malformed(format!("there are more than {MAX_STEPS} steps")).at(stage.line),
                );
            }
            for note in lowering.notes {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            environments.insert(*number, lowering.env);
            plan.stages.push(BuildStage {
                base: renumbered(stage.base.clone()),
                steps: lowering.steps,
            });
        }
        Ok(DockerfilePlan { plan, notes })
    }
}

#[cfg(test)]
mod tests;
