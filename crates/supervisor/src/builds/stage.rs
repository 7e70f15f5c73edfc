//! A stage as far as it is built: how its programs are started, and the key of what follows.

use std::path::Path;

use offleash_core::build::{BuildStep, StepAction};
use offleash_images::{ImageConfig, ImageDigest};

use crate::images::normal;

/// Another one makes every key another.
const FORM: &str = "offleash step 1";

/// What there is of a stage.
#[derive(Debug, Clone)]
pub(super) struct StageState {
    /// The image with all layers so far.
    pub(super) image: ImageDigest,
    /// How its programs are started.
    pub(super) config: ImageConfig,
    /// The key of the last step.
    key: ImageDigest,
    /// Whether this stage itself has said what is run; what its base says gives way to an entrypoint.
    has_command: bool,
}

impl StageState {
    /// A stage that begins with an image, for sandboxes that `form` tells from others.
    pub(super) fn new(image: ImageDigest, config: ImageConfig, form: &str) -> Self {
        Self {
            key: digest(&[FORM, form, &image.to_string()]),
            image,
            config,
            has_command: false,
        }
    }

    /// Another stage that begins with this one.
    pub(super) fn fork(&self) -> Self {
        Self {
            has_command: false,
            ..self.clone()
        }
    }

    /// The key of what a step makes that copies, or otherwise depends on, `contents`.
    pub(super) fn key_of(&self, step: &BuildStep, contents: &str) -> ImageDigest {
        // Titles are for people.
        let action = serde_json::to_string(&step.action).unwrap_or_default();
        digest(&[&self.key.to_string(), &action, contents])
    }

    /// Goes on after a step that made a layer.
    pub(super) fn advance(&mut self, key: ImageDigest, image: ImageDigest) {
        self.key = key;
        self.image = image;
    }

    /// Does what a step says that makes no layer.
    pub(super) fn apply(&mut self, step: &BuildStep) {
        let directory = match &step.action {
            StepAction::Workdir(path) => Some(self.absolute(path)),
            _ => None,
        };
        let config = &mut self.config;
        match &step.action {
            StepAction::Env { name, value } => match config.env.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => own.clone_from(value),
                None => config.env.push((name.clone(), value.clone())),
            },
            StepAction::Workdir(_) => config.working_directory = directory.unwrap_or_default(),
            StepAction::User(user) => config.user.clone_from(user),
            StepAction::Command(command) => {
                config.command.clone_from(command);
                self.has_command = true;
            }
            StepAction::Entrypoint(entrypoint) => {
                config.entrypoint.clone_from(entrypoint);
                if !self.has_command {
                    config.command.clear();
                }
            }
            StepAction::Label { name, value } => drop(config.labels.insert(name.clone(), value.clone())),
            StepAction::Run(_) | StepAction::Copy(_) => return,
        }
        self.key = self.key_of(step, "");
    }

    /// A path of a step, from the root.
    pub(super) fn absolute(&self, path: &str) -> String {
        let whole = normal(&Path::new("/").join(&self.config.working_directory).join(path));
        let mut text = whole.to_string_lossy().into_owned();
        // It says that a directory is meant.
        if path.ends_with('/') && !text.ends_with('/') {
            text.push('/');
        }
        text
    }
}

fn digest(parts: &[&str]) -> ImageDigest {
    let mut bytes = Vec::new();
    for part in parts {
        // So that no two lists of parts are the same bytes.
        bytes.extend_from_slice(format!("{}:", part.len()).as_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    ImageDigest::of(&bytes)
}

#[cfg(test)]
mod tests {
    use offleash_core::build::RunStep;

    use super::*;

    fn step(action: StepAction) -> BuildStep {
        BuildStep {
            title: String::new(),
            action,
        }
    }

    fn run(command: &str, arguments: &[(&str, &str)]) -> BuildStep {
        let owned = arguments
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        step(StepAction::Run(RunStep {
            command: vec![command.to_owned()],
            arguments: owned.collect(),
            ..RunStep::default()
        }))
    }

    fn stage() -> StageState {
        let config = ImageConfig {
            command: vec!["base".to_owned()],
            ..ImageConfig::default()
        };
        StageState::new(ImageDigest::of(b"base"), config, "range")
    }

    #[test]
    fn a_key_depends_on_all_that_a_step_depends_on() {
        let other = StageState::new(ImageDigest::of(b"other"), ImageConfig::default(), "range");
        let single = StageState::new(ImageDigest::of(b"base"), ImageConfig::default(), "single");
        let mut after_env = stage();
        after_env.apply(&step(StepAction::Env {
            name: "A".to_owned(),
            value: "1".to_owned(),
        }));
        let mut after_run = stage();
        let key = after_run.key_of(&run("x", &[]), "");
        after_run.advance(key, ImageDigest::of(b"base"));
        let mut keys = vec![
            stage().key_of(&run("x", &[]), ""),
            stage().key_of(&run("y", &[]), ""),
            stage().key_of(&run("x", &[("A", "1")]), ""),
            stage().key_of(&run("x", &[("A", "2")]), ""),
            stage().key_of(&run("x", &[]), "contents"),
        ];
        keys.extend([other, single, after_env, after_run].map(|stage| stage.key_of(&run("x", &[]), "")));
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
        let titled = BuildStep {
            title: "told otherwise".to_owned(),
            ..run("x", &[])
        };
        assert_eq!(stage().key_of(&titled, ""), stage().key_of(&run("x", &[]), ""));
    }

    #[test]
    fn an_entrypoint_takes_away_the_command_of_the_base_and_not_its_own() {
        let entrypoint = step(StepAction::Entrypoint(vec!["e".to_owned()]));
        let command = step(StepAction::Command(vec!["c".to_owned()]));
        let mut first = stage();
        first.apply(&entrypoint);
        assert!(first.config.command.is_empty());
        first.apply(&command);
        first.apply(&entrypoint);
        assert_eq!(first.config.command, ["c"]);
        let mut next = first.fork();
        next.apply(&entrypoint);
        assert!(next.config.command.is_empty());
    }

    #[test]
    fn directories_are_below_the_present_one() {
        let mut stage = stage();
        for (path, expected) in [
            ("a", "/a"),
            ("b/../c", "/a/c"),
            ("/d/", "/d/"),
            ("..", "/"),
            ("../..", "/"),
        ] {
            stage.apply(&step(StepAction::Workdir(path.to_owned())));
            assert_eq!(stage.config.working_directory, expected);
        }
        assert_eq!(stage.absolute("x/"), "/x/");
        assert_eq!(stage.absolute("/"), "/");
        assert_eq!(stage.absolute("."), "/");
    }
}
