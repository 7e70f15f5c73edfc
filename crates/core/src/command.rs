//! Decides which executables may be run.
//!
//! Pure: decisions are about the resolved executable, never about the text of a command line, where quoting, variables
//! and aliases would hide it. Finding the file and making the decision hold is the business of planning and backends.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use crate::path_rules::{PathPattern, PathPatternError, PatternAnchors};

/// Which executables may be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandRules {
    /// The only ones that may be run. `None` is all; an empty list is none at all.
    pub allow: Option<Vec<CommandPattern>>,
    /// Never run, even when allowed.
    pub deny: Vec<CommandPattern>,
}

/// A decision and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandVerdict {
    /// Whether it may be run.
    pub allowed: bool,
    /// The rule, such as `commands.deny: curl`.
    pub rule: String,
}

impl CommandRules {
    /// Whether the executable with this absolute path, links resolved, may be run. `deny` wins over `allow`.
    pub fn decide(&self, resolved: &Path) -> CommandVerdict {
        if let Some(pattern) = self.deny.iter().find(|pattern| pattern.matches(resolved)) {
            return CommandVerdict {
                allowed: false,
                rule: format!("commands.deny: {pattern}"),
            };
        }
        let Some(allow) = &self.allow else {
            return CommandVerdict {
                allowed: true,
                rule: "default: every command is allowed".to_owned(),
            };
        };
        match allow.iter().find(|pattern| pattern.matches(resolved)) {
            Some(pattern) => CommandVerdict {
                allowed: true,
                rule: format!("commands.allow: {pattern}"),
            },
            None if allow.is_empty() => CommandVerdict {
                allowed: false,
                rule: "commands.allow: empty, so nothing is allowed".to_owned(),
            },
            None => CommandVerdict {
                allowed: false,
                rule: "commands.allow: not in the list".to_owned(),
            },
        }
    }

    /// Whether every command is allowed.
    pub fn is_unrestricted(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }
}

/// A command: a name (`git`, `python3*`), which matches every executable whose file is called so, or an absolute path
/// (`/usr/bin/git`, `/opt/**`). A path means a file, or everything in it when it ends in `/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandPattern {
    pattern: PathPattern,
    by_name: bool,
}

/// A command pattern that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandPatternError {
    /// It is neither a name nor absolute.
    #[error("command `{}` is neither a name nor an absolute path", .0.escape_debug())]
    Relative(String),
    /// It is no pattern at all.
    #[error(transparent)]
    Pattern(#[from] PathPatternError),
}

impl CommandPattern {
    /// Whether the executable at this absolute path, links resolved, is meant.
    pub fn matches(&self, resolved: &Path) -> bool {
        if self.by_name {
            return resolved.file_name().is_some_and(|name| self.matches_name(name));
        }
        let beneath = self.pattern.is_beneath() && self.pattern.covers(resolved, PatternAnchors::default());
        beneath || (!self.pattern.is_beneath() && self.pattern.names(resolved, PatternAnchors::default()))
    }

    /// Whether this is a bare name that matches `name`.
    pub fn matches_name(&self, name: &OsStr) -> bool {
        let root = PatternAnchors {
            workspace: Some(Path::new("/")),
            home: None,
        };
        self.by_name && !name.as_bytes().contains(&b'/') && self.pattern.names(&Path::new("/").join(name), root)
    }

    /// The pattern of paths, unless this is a bare name.
    pub fn as_path_pattern(&self) -> Option<&PathPattern> {
        (!self.by_name).then_some(&self.pattern)
    }
}

impl FromStr for CommandPattern {
    type Err = CommandPatternError;

    fn from_str(text: &str) -> Result<Self, CommandPatternError> {
        let by_name = !text.contains('/');
        let names_no_file = matches!(text, "." | "**");
        if names_no_file || text.starts_with('~') || (!by_name && !text.starts_with('/')) {
            return Err(CommandPatternError::Relative(text.to_owned()));
        }
        Ok(Self {
            pattern: text.parse()?,
            by_name,
        })
    }
}

impl fmt::Display for CommandPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<CommandPattern> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn allowed(allow: Option<&[&str]>, deny: &[&str], path: &str) -> bool {
        let rules = CommandRules {
            allow: allow.map(patterns),
            deny: patterns(deny),
        };
        rules.decide(Path::new(path)).allowed
    }

    #[test]
    fn an_empty_allow_list_allows_nothing() {
        assert!(!allowed(Some(&[]), &[], "/usr/bin/true"));
        assert!(allowed(None, &[], "/usr/bin/true"));
    }

    #[test]
    fn deny_wins_over_allow() {
        assert!(!allowed(Some(&["git"]), &["git"], "/usr/bin/git"));
        assert!(!allowed(Some(&["/usr/bin/git"]), &["g*"], "/usr/bin/git"));
    }

    #[test]
    fn names_match_the_file_and_paths_match_the_path() {
        for (pattern, path, expected) in [
            ("git", "/usr/bin/git", true),
            ("git", "/opt/git", true),
            ("git", "/usr/bin/git2", false),
            ("git", "/git/bin/x", false),
            ("python3*", "/usr/bin/python3.12", true),
            ("/usr/bin/git", "/usr/bin/git", true),
            ("/usr/bin/git", "/opt/git", false),
            ("/usr/bin/*", "/usr/bin/git", true),
            ("/usr/bin/*", "/usr/bin/x/git", false),
            ("/opt/**", "/opt/a/b", true),
            ("/opt/**", "/opt", false),
            ("/opt", "/opt/a", false),
            ("*", "/usr/bin/anything", true),
        ] {
            assert_eq!(allowed(Some(&[pattern]), &[], path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_verdict_names_its_rule() {
        let rules = CommandRules {
            allow: None,
            deny: patterns(&["curl"]),
        };
        assert_eq!(rules.decide(Path::new("/usr/bin/curl")).rule, "commands.deny: curl");
    }

    #[test]
    fn relative_paths_are_refused() {
        for text in ["bin/git", "./git", "~/bin/x", "", ".", "..", "**", "/a/../b"] {
            assert!(text.parse::<CommandPattern>().is_err(), "{text:?}");
        }
    }
}
