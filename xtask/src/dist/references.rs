//! Manual pages and completions, as the program itself writes them.

use std::fs;
use std::path::Path;

use super::binary::printed;
use crate::error::TaskError;

/// What a program says of its own commands.
#[derive(Debug)]
pub(crate) struct References {
    /// A page for each command: names such as `offleash-run.1`, and texts; sorted.
    pub(crate) pages: Vec<(String, Vec<u8>)>,
    /// For Bash.
    pub(crate) bash: Vec<u8>,
    /// For the Z shell.
    pub(crate) zsh: Vec<u8>,
    /// For fish.
    pub(crate) fish: Vec<u8>,
}

impl References {
    /// Has a program that runs here write them.
    ///
    /// # Errors
    /// `Start` and `Ended` when it does not, `Answer` when it has another version than the release.
    pub(crate) fn of(program: &Path, version: &str) -> Result<Self, TaskError> {
        let said = String::from_utf8_lossy(&printed(program, &["--version"])?)
            .trim()
            .to_owned();
        if said != format!("offleash {version}") {
            return Err(TaskError::Answer {
                from: "the program to be packaged",
                why: format!(
                    "`{}` calls itself `{said}`, and the workspace has version {version}",
                    program.display()
                ),
            });
        }
        let place = tempfile::tempdir().map_err(TaskError::file("creating a directory in", std::env::temp_dir()))?;
        let directory = place.path().to_string_lossy().into_owned();
        printed(program, &["man", "--directory", &directory])?;
        let completions = |shell| printed(program, &["completions", shell]);
        Ok(Self {
            pages: pages(place.path())?,
            bash: completions("bash")?,
            zsh: completions("zsh")?,
            fish: completions("fish")?,
        })
    }
}

fn pages(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(directory).map_err(TaskError::file("reading", directory))? {
        let entry = entry.map_err(TaskError::file("reading", directory))?;
        let text = fs::read(entry.path()).map_err(TaskError::file("reading", entry.path()))?;
        pages.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    pages.sort();
    Ok(pages)
}
