//! Makes the rules for commands hold: which executables are hidden, and which are the only ones.
//!
//! A rule means the file that a name leads to. `deny` hides that file, so that no other name, link or copy of the path
//! runs it; where one file has many names (busybox, rustup) denying one denies all. `allow` is a list of files for the
//! backend, together with the loaders and interpreters that the kernel needs for them. Neither contains: an allowed
//! interpreter, the dynamic loader among them, runs whatever it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use offleash_core::command::{CommandPattern, CommandRules};
use offleash_core::path_rules::PatternAnchors;
use offleash_core::text::Text;

use super::error::PlanError;
use super::program_search::{self, ResolvedProgram};
use super::regular_file::open_regular_file;
use super::rules;
use super::tree::EntryTree;
use super::view::{HostNode, PlanView};

/// A program that may start another, at most so often: script, interpreter, loader, and again.
const MAX_INTERPRETERS: usize = 8;

/// Refuses the command if a rule does: by the name or path that it is called by, or by the file that this leads to.
pub(super) fn check(command: &OsStr, rules: &CommandRules, program: Option<&ResolvedProgram>) -> Result<(), PlanError> {
    let called = program.map_or(Path::new(command), |program| program.called.as_path());
    let file = program.map_or(called, |program| program.found.inside.as_path());
    let name = Path::new(command).file_name().unwrap_or_default();
    let means =
        |pattern: &&CommandPattern| pattern.matches_name(name) || pattern.matches(called) || pattern.matches(file);
    let rule = match rules.deny.iter().find(means) {
        Some(pattern) => format!("commands.deny: {pattern}"),
        // `python3` is allowed by that name, although the file that it leads to is called `python3.12`.
        None if rules.allow.iter().flatten().any(|pattern| means(&pattern)) => return Ok(()),
        None => match rules.decide(file) {
            verdict if verdict.allowed => return Ok(()),
            verdict => verdict.rule,
        },
    };
    Err(PlanError::CommandDenied {
        command: Text::from(command),
        rule,
    })
}

/// The programs in the search path: the names by which they can be called, and the files that these lead to.
struct SearchedPrograms {
    by_name: Vec<(PathBuf, HostNode)>,
}

impl SearchedPrograms {
    fn list(search_path: &[PathBuf], view: PlanView<'_>) -> Self {
        let mut seen = BTreeSet::new();
        let mut by_name = Vec::new();
        for directory in search_path {
            let Some(directory) = view
                .resolve(directory)
                .filter(|found| seen.insert(found.inside.clone()))
            else {
                continue;
            };
            for name in view.names_in(&directory) {
                let path = directory.inside.join(name);
                if let Some(found) = view.resolve(&path).filter(HostNode::is_executable) {
                    by_name.push((path, found));
                }
            }
        }
        Self { by_name }
    }

    /// The files that a pattern means: by the name they are called by, by their own, and by either's path.
    fn meant_by<'a>(&'a self, pattern: &'a CommandPattern) -> impl Iterator<Item = &'a HostNode> {
        let means = move |(path, found): &&(PathBuf, HostNode)| pattern.matches(path) || pattern.matches(&found.inside);
        self.by_name.iter().filter(means).map(|(_, found)| found)
    }
}

/// Hides the executables that are denied, with all their hard links in the search path.
pub(super) fn deny(rules: &CommandRules, search_path: &[PathBuf], tree: &mut EntryTree) -> Result<(), PlanError> {
    if rules.deny.is_empty() {
        return Ok(());
    }
    let programs = SearchedPrograms::list(search_path, tree.view());
    let mut hidden: BTreeMap<PathBuf, String> = BTreeMap::new();
    for pattern in &rules.deny {
        let rule = format!("commands.deny: {pattern}");
        let mut files: BTreeSet<(u64, u64)> = BTreeSet::new();
        for found in programs.meant_by(pattern) {
            files.insert((found.metadata.dev(), found.metadata.ino()));
        }
        for found in elsewhere(pattern, tree.view(), &rule)? {
            files.insert((found.metadata.dev(), found.metadata.ino()));
            hidden.insert(found.inside, rule.clone());
        }
        for (_, found) in &programs.by_name {
            if files.contains(&(found.metadata.dev(), found.metadata.ino())) {
                hidden.insert(found.inside.clone(), rule.clone());
            }
        }
    }
    for (path, rule) in hidden {
        tree.hide(&path, false, rule);
    }
    Ok(())
}

/// The executables that a pattern names by path, also outside the search path.
fn elsewhere(pattern: &CommandPattern, view: PlanView<'_>, rule: &str) -> Result<Vec<HostNode>, PlanError> {
    let Some(paths) = pattern.as_path_pattern() else {
        return Ok(Vec::new());
    };
    let mut executables = Vec::new();
    for found in rules::inside(paths, PatternAnchors::default(), view, rule)? {
        collect(&found.inside, paths.is_beneath(), view, &mut executables, rule)?;
    }
    Ok(executables)
}

fn collect(
    path: &Path,
    with_content: bool,
    view: PlanView<'_>,
    executables: &mut Vec<HostNode>,
    rule: &str,
) -> Result<(), PlanError> {
    let mut todo = vec![path.to_path_buf()];
    let mut looked_at = 0;
    while let Some(path) = todo.pop() {
        looked_at += 1;
        if looked_at > rules::MAX_PATHS {
            return Err(PlanError::TooManyPaths {
                rule: rule.to_owned(),
                most: rules::MAX_PATHS,
            });
        }
        let Some(found) = view.resolve(&path) else { continue };
        let is_link = found.inside != path;
        if found.is_executable() {
            executables.push(found);
        } else if found.metadata.is_dir() && with_content && !is_link {
            let names = view.names_in(&found);
            todo.extend(names.into_iter().map(|name| found.inside.join(name)));
        }
    }
    Ok(())
}

/// The only files that may be executed, or none when every file may: what is allowed, and what the kernel starts for it.
pub(super) fn only(
    rules: &CommandRules,
    search_path: &[PathBuf],
    view: PlanView<'_>,
) -> Result<Vec<PathBuf>, PlanError> {
    let Some(allow) = &rules.allow else {
        return Ok(Vec::new());
    };
    let programs = SearchedPrograms::list(search_path, view);
    let mut allowed = BTreeSet::new();
    for pattern in allow {
        let found =
            programs
                .meant_by(pattern)
                .cloned()
                .chain(elsewhere(pattern, view, &format!("commands.allow: {pattern}"))?);
        for found in found {
            add_with_interpreters(found, search_path, view, &mut allowed);
        }
    }
    Ok(allowed.into_iter().collect())
}

fn add_with_interpreters(
    found: HostNode,
    search_path: &[PathBuf],
    view: PlanView<'_>,
    allowed: &mut BTreeSet<PathBuf>,
) {
    let mut next = Some(found);
    let mut todo = Vec::new();
    for _ in 0..MAX_INTERPRETERS {
        let Some(found) = next.take().or_else(|| todo.pop()) else {
            return;
        };
        if allowed.insert(found.inside.clone()) {
            todo.extend(interpreters(&found.host, search_path, view));
        }
    }
}

/// What the kernel starts to run a file: the program of its `#!` line (and the one that `env` starts), or its loader.
fn interpreters(host: &Path, search_path: &[PathBuf], view: PlanView<'_>) -> Vec<HostNode> {
    let mut head = Vec::new();
    let Ok(file) = open_regular_file(host) else {
        return Vec::new();
    };
    if file.take(4096).read_to_end(&mut head).is_err() {
        return Vec::new();
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let program = words.next().map(OsStr::from_bytes);
        let is_env = program.is_some_and(|program| Path::new(program).ends_with("env"));
        let started = words.find(|word| is_env && !word.starts_with(b"-") && !word.contains(&b'='));
        let started =
            started.and_then(|name| program_search::find(OsStr::from_bytes(name), search_path, Path::new("/"), view));
        let started = started.map(|program| program.found);
        return program
            .and_then(|program| view.resolve(Path::new(program)))
            .into_iter()
            .chain(started)
            .collect();
    }
    let loader = loader_of(&head).and_then(|path| view.resolve(Path::new(&path)));
    loader.into_iter().collect()
}

/// The `PT_INTERP` of a 64-bit ELF file, from its first bytes (elf(5)).
fn loader_of(head: &[u8]) -> Option<OsString> {
    const PROGRAM_INTERPRETER: [u8; 4] = 3_u32.to_ne_bytes();
    if !head.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let number = |offset: usize| -> Option<usize> {
        let bytes = head.get(offset..offset.checked_add(8)?)?;
        usize::try_from(u64::from_ne_bytes(bytes.try_into().ok()?)).ok()
    };
    let short = |offset: usize| {
        Some(usize::from(u16::from_ne_bytes(
            head.get(offset..offset + 2)?.try_into().ok()?,
        )))
    };
    let (table, size, count) = (number(32)?, short(54)?, short(56)?);
    let headers = (0..count).filter_map(|index| table.checked_add(size.checked_mul(index)?));
    let interpreter = headers
        .into_iter()
        .find(|start| head.get(*start..start.saturating_add(4)) == Some(&PROGRAM_INTERPRETER))?;
    let (offset, length) = (
        number(interpreter.checked_add(8)?)?,
        number(interpreter.checked_add(32)?)?,
    );
    let path = head.get(offset..offset.checked_add(length)?)?;
    Some(OsString::from_vec(path.strip_suffix(b"\0").unwrap_or(path).to_vec()))
}
