//! `offleash run --python` and `--js`: which Python, and what they run.

use std::ffi::OsString;
use std::path::Path;

use offleash_core::level::{Level, LevelChoice};
use offleash_core::spec::{RootChoice, SandboxSpec};
use offleash_core::template::TemplateName;
use offleash_supervisor::lifecycle::open_state;
use offleash_supervisor::templates::{self, TemplateError};

use crate::args::SandboxArgs;
use crate::failure::Failure;

/// The name by which it is found inside.
const PYTHON: &str = "python3";

/// Which Python runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Python {
    /// That of a template, or of whatever root was asked for.
    AsAsked,
    /// The host's, because the usual template is not built.
    OfTheHost,
}

impl Python {
    /// Takes the usual template where it is built and nothing says otherwise.
    pub(crate) fn choose(
        arguments: &SandboxArgs,
        spec: &mut SandboxSpec,
        state: Option<&Path>,
    ) -> Result<Self, Failure> {
        let has_its_own = matches!(
            spec.level,
            LevelChoice::Escalating | LevelChoice::Exactly(Level::Simulated | Level::Wasm)
        );
        if has_its_own || arguments.root.is_some() || arguments.template.is_some() || spec.root != RootChoice::System {
            return Ok(Self::AsAsked);
        }
        // Only this level has roots of their own.
        let can_be_had = matches!(spec.level, LevelChoice::Auto | LevelChoice::Exactly(Level::Process));
        let name = TemplateName::code_interpreter();
        if !can_be_had || !templates::exists(&open_state(state)?, &name)? {
            return Ok(Self::OfTheHost);
        }
        spec.root = RootChoice::Base {
            template: Some(name),
            snapshot: None,
            layer: None,
        };
        Ok(Self::AsAsked)
    }
}

/// What is said when the host's Python runs instead.
pub(crate) fn not_built() -> String {
    let missing = TemplateError::Missing {
        name: TemplateName::code_interpreter(),
    };
    let hint = offleash_core::error::Explained::hint(&missing).unwrap_or_default();
    format!("this is the host's python3 with its packages; for one with more, {hint}")
}

/// The name by which that of JavaScript is found.
const JAVASCRIPT: &str = "node";

/// The command of JavaScript, likewise.
pub(crate) fn javascript_command(code: Option<&OsString>, words: &[OsString]) -> Vec<OsString> {
    let mut argv = vec![OsString::from(JAVASCRIPT)];
    if let Some(code) = code {
        argv.extend(["-e".into(), code.clone()]);
    }
    argv.extend_from_slice(words);
    argv
}

/// The command: `-c` and words are the interpreter's.
pub(crate) fn command(code: Option<&OsString>, words: &[OsString]) -> Vec<OsString> {
    let mut argv = vec![OsString::from(PYTHON)];
    if let Some(code) = code {
        argv.extend(["-c".into(), code.clone()]);
    }
    argv.extend_from_slice(words);
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_words_are_the_interpreter_s() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            command(Some(&"1+1".into()), &words(&["x"])),
            ["python3", "-c", "1+1", "x"]
        );
        assert_eq!(command(None, &words(&["a.py", "-v"])), ["python3", "a.py", "-v"]);
        assert_eq!(command(None, &[]), ["python3"]);
        assert_eq!(
            javascript_command(Some(&"1+1".into()), &words(&["x"])),
            ["node", "-e", "1+1", "x"]
        );
    }
}
