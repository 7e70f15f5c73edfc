//! What is left out: files in the language of `.gitignore` (gitignore(5)), those of a directory for all below it.
//!
//! Pure but for the reading of the files. The last line that matches decides, lines of deeper directories after those above; what
//! is below a directory that is left out is left out, whatever lines say.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use offleash_core::build::patterns::RelativePattern;
use offleash_core::text::Text;

use crate::failure::Failure;

/// The files that are heeded in each directory, the later ones deciding.
const FILES: [&str; 2] = [".gitignore", ".offleashignore"];
/// What is left out anyway: it is git's own, with hooks and configuration that run what is in them.
const GIT: &str = ".git";
const MAX_FILE: u64 = 1 << 20;
const MAX_LINES: usize = 10_000;

/// Whether a file of that name says what is left out.
pub(super) fn is_heeded(name: &str) -> bool {
    FILES.contains(&name)
}

/// One line.
#[derive(Debug, Clone)]
struct IgnoreLine {
    pattern: RelativePattern,
    lets_in: bool,
    of_directories: bool,
}

/// The lines of one file, which are about what is below a directory.
#[derive(Debug, Clone, Default)]
struct IgnoreList(Vec<IgnoreLine>);

/// What is left out of a directory and all below it.
#[derive(Debug, Clone, Default)]
pub(super) struct IgnoreStack {
    /// Each with how many names lead to the directory that it is of.
    lists: Vec<(usize, IgnoreList)>,
    heeds_files: bool,
}

impl IgnoreList {
    /// Reads the lines; one that is no pattern is told of with its number.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate().take(MAX_LINES) {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if let Some(line) = parsed(line).map_err(|reason| (number + 1, reason))? {
                lines.push(line);
            }
        }
        Ok(Self(lines))
    }

    /// Whether the last line that is about a path leaves it out; `None` if none is.
    fn verdict(&self, path: &[&[u8]], is_directory: bool) -> Option<bool> {
        let about = |line: &&IgnoreLine| (is_directory || !line.of_directories) && line.pattern.matches(path);
        self.0.iter().rev().find(about).map(|line| !line.lets_in)
    }
}

fn parsed(line: &str) -> Result<Option<IgnoreLine>, String> {
    if line.starts_with('#') {
        return Ok(None);
    }
    let mut text = line.trim_end_matches(' ');
    // One that is escaped stays.
    let escaped = text.len() - text.trim_end_matches('\\').len();
    if escaped % 2 == 1 && text.len() < line.len() {
        text = line.get(..=text.len()).unwrap_or(text);
    }
    let lets_in = text.starts_with('!');
    let text = text.strip_prefix('!').unwrap_or(text);
    let of_directories = text.ends_with('/');
    let bare = text.trim_end_matches('/');
    if bare.is_empty() {
        return Ok(None);
    }
    // Without a slash but at its end it is about names at every depth.
    let whole = match bare.contains('/') {
        true => bare.to_owned(),
        false => format!("**/{bare}"),
    };
    let pattern = RelativePattern::parse(&whole).map_err(|error| error.to_string())?;
    Ok(Some(IgnoreLine {
        pattern,
        lets_in,
        of_directories,
    }))
}

impl IgnoreStack {
    /// Those of the directory that is brought over: `given` beside what it has itself, unless `heeds_files` is not said.
    pub(super) fn of(root: &Path, given: &[PathBuf], heeds_files: bool) -> Result<Self, Failure> {
        let mut stack = Self {
            lists: Vec::new(),
            heeds_files,
        };
        for path in given {
            let list = read(path)?.ok_or_else(|| {
                Failure::new(format!("there is no `{}`", Text::from(path.as_path())))
                    .with_hint("`--ignore-file` names a file with lines as `.gitignore` has them")
            })?;
            stack.lists.push((0, list));
        }
        stack.add(root, 0)?;
        Ok(stack)
    }

    /// Those of a directory below, to which `depth` names lead.
    pub(super) fn below(&self, directory: &Path, depth: usize) -> Result<Self, Failure> {
        let mut stack = self.clone();
        stack.add(directory, depth)?;
        Ok(stack)
    }

    fn add(&mut self, directory: &Path, depth: usize) -> Result<(), Failure> {
        if self.heeds_files {
            for name in FILES {
                self.lists
                    .extend(read(&directory.join(name))?.map(|list| (depth, list)));
            }
        }
        Ok(())
    }

    /// Whether a path is left out that is in this directory; names from the one that is brought over on.
    pub(super) fn leaves_out(&self, path: &[&[u8]], is_directory: bool) -> bool {
        if self.heeds_files && path.last().is_some_and(|name| *name == GIT.as_bytes()) {
            return true;
        }
        let verdicts = self.lists.iter().rev();
        verdicts
            .filter_map(|(depth, list)| list.verdict(path.get(*depth..)?, is_directory))
            .next()
            .unwrap_or(false)
    }
}

/// The lines of a file; `None` if it is not there, or a link: those are not followed.
fn read(path: &Path) -> Result<Option<IgnoreList>, Failure> {
    let failed = |error: &io::Error| super::super::copy::here("read", path, error);
    match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(&error)),
        Ok(metadata) if !metadata.is_file() => return Ok(None),
        Ok(_) => {}
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| failed(&error))?;
    file.take(MAX_FILE)
        .read_to_end(&mut text)
        .map_err(|error| failed(&error))?;
    IgnoreList::parse(&String::from_utf8_lossy(&text))
        .map(Some)
        .map_err(|(line, reason)| {
            Failure::new(format!("{}:{line}: {reason}", Text::from(path)))
                .with_hint("correct the line, or heed no such files with `--no-ignore`")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(lines: &str, path: &str, is_directory: bool) -> bool {
        let list = IgnoreList::parse(lines).unwrap();
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        list.verdict(&names, is_directory).unwrap_or(false)
    }

    #[test]
    fn lines_mean_what_git_says_they_do() {
        for (lines, path, is_directory, expected) in [
            ("*.log", "a.log", false, true),
            ("*.log", "deep/down/a.log", false, true),
            ("/a.log", "deep/a.log", false, false),
            ("/a.log", "a.log", false, true),
            ("build/", "build", true, true),
            ("build/", "build", false, false),
            ("build/", "sub/build", true, true),
            ("docs/*.md", "docs/a.md", false, true),
            ("docs/*.md", "x/docs/a.md", false, false),
            ("docs/*.md", "docs/x/a.md", false, false),
            ("**/tmp", "a/b/tmp", true, true),
            ("a/**/z", "a/z", false, true),
            ("a/**/z", "a/b/c/z", false, true),
            ("a/**", "a/b", false, true),
            ("a/**", "a", true, false),
            ("*.log\n!keep.log", "keep.log", false, false),
            ("!keep.log\n*.log", "keep.log", false, true),
            ("# a comment\n\n  \n", "# a comment", false, false),
            ("\\#name", "#name", false, true),
            ("\\!name", "!name", false, true),
            ("name  ", "name", false, true),
            ("name\\ ", "name ", false, true),
            ("x[0-9].c\r\n", "x5.c", false, true),
            ("x[!0-9].c", "x5.c", false, false),
        ] {
            assert_eq!(left_out(lines, path, is_directory), expected, "{lines:?} {path}");
        }
        assert_eq!(IgnoreList::parse("a\n[b").unwrap_err().0, 2);
    }

    #[test]
    fn deeper_files_decide_after_those_above() {
        let site = tempfile::tempdir().unwrap();
        let below = site.path().join("below");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(site.path().join(".gitignore"), "*.log\n").unwrap();
        std::fs::write(below.join(".gitignore"), "!kept.log\n/only-here\n").unwrap();
        let stack = IgnoreStack::of(site.path(), &[], true).unwrap();
        let deeper = stack.below(&below, 1).unwrap();
        let names = |path: &'static str| path.split('/').map(str::as_bytes).collect::<Vec<_>>();
        assert!(stack.leaves_out(&names("kept.log"), false));
        assert!(!deeper.leaves_out(&names("below/kept.log"), false));
        assert!(deeper.leaves_out(&names("below/other.log"), false));
        assert!(deeper.leaves_out(&names("below/only-here"), false));
        assert!(stack.leaves_out(&names(".git"), true) && deeper.leaves_out(&names("below/.git"), true));
        let heedless = IgnoreStack::of(site.path(), &[], false).unwrap();
        assert!(!heedless.leaves_out(&names("a.log"), false) && !heedless.leaves_out(&names(".git"), true));
        assert!(IgnoreStack::of(site.path(), &[site.path().join("none")], true).is_err());
    }
}
