//! What the host has outside of the workspace that leads into it: configuration of git, and links of the home directory.
//!
//! These are the user's own and out of a sandbox's reach, so they are opened as git opens them.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use offleash_core::protected::protected_non_directory_rule;
use offleash_core::text::Text;
use offleash_core::trusted::{GitNames, NamedTarget, git_names};
use rustix::fs::{Mode, OFlags};

use super::forms::lexical;
use crate::node::NodeKind;
use crate::tree::{entries_in, reopen};

const SYSTEM: &str = "/etc/gitconfig";
const MAX_FILES: usize = 32;
const MAX_FILE: u64 = 1 << 20;
/// How many names of a home directory are looked at.
const MAX_NAMES: usize = 10_000;

/// The files that git reads in every repository, and those that they include, with what they name.
pub(super) fn configuration(home: Option<&Path>) -> Vec<(Text, Vec<GitNames>)> {
    let mut waiting = vec![PathBuf::from(SYSTEM)];
    waiting.extend(
        home.iter()
            .flat_map(|home| [home.join(".config/git/config"), home.join(".gitconfig")]),
    );
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        if found.len() >= MAX_FILES || !seen.insert(path.clone()) {
            continue;
        }
        let Some(text) = read(&path) else { continue };
        let mut names = git_names(&text);
        for name in &mut names {
            if let NamedTarget::Include(included) = &mut name.what {
                let absolute = absolute(included, &path, home);
                *included = absolute.as_os_str().as_bytes().to_vec();
                waiting.push(absolute);
            }
        }
        found.push((Text::from(path), names));
    }
    found
}

fn absolute(path: &[u8], file: &Path, home: Option<&Path>) -> PathBuf {
    use std::ffi::OsStr;
    let whole = match (path.strip_prefix(b"~/"), home) {
        (Some(rest), Some(home)) => home.join(OsStr::from_bytes(rest)),
        _ => file.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(path)),
    };
    lexical(&whole)
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&place).ok()?;
    if crate::node::kind_of(&stat) != NodeKind::File {
        return None;
    }
    let file = File::from(reopen(&place, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?);
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Protected names of a home directory that are links: how each is called, where it leads, and why it is protected.
pub(super) fn links(home: &Path) -> Vec<(Text, PathBuf, String)> {
    let mut found = Vec::new();
    for below in [Path::new(""), Path::new(".config")] {
        let directory = home.join(below);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::open(&directory, flags, Mode::empty()) else {
            continue;
        };
        let entries = entries_in(&opened).unwrap_or_default();
        for (name, kind) in entries.into_iter().take(MAX_NAMES) {
            let inner = below.join(&name);
            let rule = protected_non_directory_rule(inner.as_os_str().as_bytes());
            let (NodeKind::Symlink, Some(rule)) = (kind, rule) else {
                continue;
            };
            if let Ok(target) = std::fs::read_link(directory.join(&name)) {
                let shown = Text::from(Path::new("~").join(&inner));
                let rule = format!("protected name {}: {}", rule.pattern, rule.why);
                found.push((shown, lexical(&directory.join(target)), rule));
            }
        }
    }
    found
}
