//! Decides what a sandbox may do with a path.
//!
//! Pure: paths are compared as names, component by component; resolving links is the caller's business. The most
//! specific rule wins, in this order:
//!
//! 1. the rule that names the deeper part of the path: `/a/b` beats `/a` for `/a/b/c`, and so does `/a/*`;
//! 2. the rule with more components free of wildcards: `/a/b` beats `/a/*` for `/a/b`;
//! 3. `deny`, then `protect`, then `read`, then `write`.
//!
//! A rule for a directory holds for everything beneath it. `X/**` is everything beneath `X` and is as specific as `X`.
//! The order in which rules are written never matters.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::glob::Glob;
use crate::text::Text;

/// Rules of the file system, in addition to what is visible anyway (system directories, workspace, mounts).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathRules {
    /// May be read.
    pub read: Vec<PathPattern>,
    /// May be read and written.
    pub write: Vec<PathPattern>,
    /// May not be seen at all.
    pub deny: Vec<PathPattern>,
    /// May be read, while changes are not applied unless named.
    pub protect: Vec<PathPattern>,
}

/// What the rules say about one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathAccess {
    /// Read and write.
    Write,
    /// Read only.
    Read,
    /// Read; changes are not applied unless named.
    Protected,
    /// Nothing.
    Denied,
}

/// A decision and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathVerdict {
    /// What is allowed.
    pub access: PathAccess,
    /// The rule, such as `filesystem.deny: **/.env`.
    pub rule: String,
}

/// Where patterns begin that do not begin at the root.
#[derive(Debug, Clone, Copy, Default)]
pub struct PatternAnchors<'a> {
    /// For `src/*.rs`; without one such patterns match nothing.
    pub workspace: Option<&'a Path>,
    /// For `~/.ssh`; without one such patterns match nothing.
    pub home: Option<&'a Path>,
}

impl PathRules {
    /// What the most specific rule says about `path`, which is absolute; `None` when no rule is about it.
    pub fn decide(&self, path: &Path, anchors: PatternAnchors<'_>) -> Option<PathVerdict> {
        self.all()
            .filter_map(|(access, pattern)| Some(((pattern.reach(path, anchors)?, access), pattern)))
            .max_by_key(|(strength, _)| *strength)
            .map(|((_, access), pattern)| PathVerdict {
                access,
                rule: rule_text(access, pattern),
            })
    }

    /// Every rule with what it grants.
    pub fn all(&self) -> impl Iterator<Item = (PathAccess, &PathPattern)> {
        [
            (PathAccess::Write, &self.write),
            (PathAccess::Read, &self.read),
            (PathAccess::Protected, &self.protect),
            (PathAccess::Denied, &self.deny),
        ]
        .into_iter()
        .flat_map(|(access, list)| list.iter().map(move |pattern| (access, pattern)))
    }

    /// Adds the rules of `other`.
    pub fn extend(&mut self, other: &PathRules) {
        self.read.extend_from_slice(&other.read);
        self.write.extend_from_slice(&other.write);
        self.deny.extend_from_slice(&other.deny);
        self.protect.extend_from_slice(&other.protect);
    }
}

/// The text by which denials and `explain` call a rule.
pub fn rule_text(access: PathAccess, pattern: &PathPattern) -> String {
    let list = match access {
        PathAccess::Write => "write",
        PathAccess::Read => "read",
        PathAccess::Protected => "protect",
        PathAccess::Denied => "deny",
    };
    format!("filesystem.{list}: {pattern}")
}

/// A path with wildcards: absolute (`/etc/*.key`), of the home directory (`~/.ssh`) or of the workspace (`src/**`).
///
/// `**` stands for any number of directories, the other wildcards stay within one name: `*`, `?`, `[a-z]`, `[!a]`;
/// `\` takes a wildcard's meaning away. Letter case matters. `..` is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    text: Vec<u8>,
    anchor: PatternAnchor,
    parts: Vec<PatternPart>,
    /// Whether only what is beneath is meant: the pattern ended in `/**`.
    beneath: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternAnchor {
    Root,
    Home,
    Workspace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    Name(Glob),
    AnyDepth,
}

/// A pattern that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathPatternError {
    /// Nothing was written.
    #[error("a path pattern is empty: expected a path such as /data, ~/.ssh or src/**")]
    Empty,
    /// A NUL byte, which no path contains.
    #[error("path pattern `{}` contains a NUL byte", .0.escape_debug())]
    Nul(String),
    /// It has a `..`, which means different things before and after links are resolved.
    #[error("path pattern `{}` contains `..`: write the path that is meant", .0.escape_debug())]
    Parent(String),
    /// It names another user's home directory.
    #[error("path pattern `{}` names another user's home directory: write its absolute path", .0.escape_debug())]
    OtherHome(String),
    /// A wildcard cannot be read.
    #[error("path pattern `{}`: {reason}", pattern.escape_debug())]
    Wildcard {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// How deep into a path a pattern reaches, and how many components on the way are free of wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PatternReach {
    depth: usize,
    literal: usize,
}

impl PathPattern {
    /// The pattern that means exactly `path`, whatever characters it has.
    ///
    /// # Errors
    /// As for any pattern: empty, NUL, `..`.
    pub fn literal(path: &Path) -> Result<Self, PathPatternError> {
        let special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let escaped = path.as_os_str().as_bytes().iter().flat_map(|byte| {
            let escape = special(byte).then_some(b'\\');
            escape.into_iter().chain([*byte])
        });
        Self::parse(&escaped.collect::<Vec<u8>>())
    }

    /// Reads a pattern that need not be UTF-8.
    ///
    /// # Errors
    /// When it is empty, has a NUL byte, a `..` or an unreadable wildcard.
    pub fn parse(text: &[u8]) -> Result<Self, PathPatternError> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        if text.is_empty() {
            return Err(PathPatternError::Empty);
        }
        if text.contains(&0) {
            return Err(PathPatternError::Nul(shown()));
        }
        let (anchor, rest) = match text {
            [b'/', rest @ ..] => (PatternAnchor::Root, rest),
            [b'~', b'/', rest @ ..] => (PatternAnchor::Home, rest),
            [b'~'] => (PatternAnchor::Home, &text[1..]),
            [b'~', ..] => return Err(PathPatternError::OtherHome(shown())),
            _ => (PatternAnchor::Workspace, text),
        };
        let mut parts = Vec::new();
        for name in rest.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(PathPatternError::Parent(shown())),
                b"**" if parts.last() == Some(&PatternPart::AnyDepth) => {}
                b"**" => parts.push(PatternPart::AnyDepth),
                name => {
                    let glob = Glob::parse(name).map_err(|error| PathPatternError::Wildcard {
                        pattern: shown(),
                        reason: error.to_string(),
                    })?;
                    parts.push(PatternPart::Name(glob));
                }
            }
        }
        let beneath = parts.pop_if(|last| *last == PatternPart::AnyDepth).is_some();
        Ok(Self {
            text: text.to_vec(),
            anchor,
            parts,
            beneath,
        })
    }

    /// Whether it has wildcards, so that it may mean several paths.
    pub fn is_glob(&self) -> bool {
        self.beneath || self.parts.iter().any(|part| part.literal().is_none())
    }

    /// Whether only what is beneath the named directories is meant (`X/**`).
    pub fn is_beneath(&self) -> bool {
        self.beneath
    }

    /// Whether it means the workspace itself (`.`).
    pub fn is_workspace(&self) -> bool {
        self.anchor == PatternAnchor::Workspace && self.parts.is_empty()
    }

    /// The directory above everything that can match, or the path itself when there is no wildcard; `None` when the
    /// pattern has no anchor here.
    pub fn base(&self, anchors: PatternAnchors<'_>) -> Option<PathBuf> {
        let mut base = self.root(anchors)?.to_path_buf();
        for name in self.parts.iter().map_while(PatternPart::literal) {
            base.push(std::ffi::OsStr::from_bytes(&name));
        }
        Some(base)
    }

    /// How many components a path that the pattern names can have at most; `None` when there is no such bound.
    pub fn deepest(&self, anchors: PatternAnchors<'_>) -> Option<usize> {
        let bounded = !self.parts.contains(&PatternPart::AnyDepth);
        if bounded {
            Some(names(self.root(anchors)?).len() + self.parts.len())
        } else {
            None
        }
    }

    /// Whether `path` is one of the paths that the pattern names (`X/**` names `X`, as all of which it speaks).
    pub fn names(&self, path: &Path, anchors: PatternAnchors<'_>) -> bool {
        let Some((_, rest)) = self.relative(path, anchors) else {
            return false;
        };
        match_lengths(&self.parts, &rest)[rest.len()]
    }

    /// Whether a rule with this pattern is about `path`: it names the path or a directory above it.
    pub fn covers(&self, path: &Path, anchors: PatternAnchors<'_>) -> bool {
        self.reach(path, anchors).is_some()
    }

    fn root<'a>(&self, anchors: PatternAnchors<'a>) -> Option<&'a Path> {
        match self.anchor {
            PatternAnchor::Root => Some(Path::new("/")),
            PatternAnchor::Home => anchors.home,
            PatternAnchor::Workspace => anchors.workspace,
        }
    }

    /// The number of components of the anchor, and the components of `path` after it.
    fn relative<'a>(&self, path: &'a Path, anchors: PatternAnchors<'_>) -> Option<(usize, Vec<&'a [u8]>)> {
        let root = self.root(anchors)?;
        let rest = path.strip_prefix(root).ok()?;
        Some((names(root).len(), names(rest)))
    }

    fn reach(&self, path: &Path, anchors: PatternAnchors<'_>) -> Option<PatternReach> {
        let (above, rest) = self.relative(path, anchors)?;
        let last = if self.beneath {
            rest.len().checked_sub(1)?
        } else {
            rest.len()
        };
        let deepest = match_lengths(&self.parts, &rest)[..=last]
            .iter()
            .rposition(|matched| *matched)?;
        let literal = self.parts.iter().filter(|part| part.literal().is_some()).count();
        Some(PatternReach {
            depth: above + deepest,
            literal: above + literal,
        })
    }
}

impl PatternPart {
    fn literal(&self) -> Option<Vec<u8>> {
        match self {
            PatternPart::Name(glob) => glob.literal(),
            PatternPart::AnyDepth => None,
        }
    }
}

fn names(path: &Path) -> Vec<&[u8]> {
    path.components()
        .filter_map(|component| {
            if let Component::Normal(name) = component {
                Some(name.as_bytes())
            } else {
                None
            }
        })
        .collect()
}

/// For every count from none to all of `path`'s components: whether `parts` match exactly so many of them.
fn match_lengths(parts: &[PatternPart], path: &[&[u8]]) -> Vec<bool> {
    let mut matched = vec![false; path.len() + 1];
    matched[0] = true;
    for part in parts {
        matched = match part {
            PatternPart::AnyDepth => {
                let first = matched.iter().position(|here| *here).unwrap_or(matched.len());
                (0..matched.len()).map(|count| count >= first).collect()
            }
            PatternPart::Name(glob) => {
                let step = |count: usize| count > 0 && matched[count - 1] && glob.matches(path[count - 1]);
                (0..matched.len()).map(step).collect()
            }
        };
    }
    matched
}

impl FromStr for PathPattern {
    type Err = PathPatternError;

    fn from_str(text: &str) -> Result<Self, PathPatternError> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Text(self.text.clone()).fmt(f)
    }
}

#[cfg(test)]
mod tests;
