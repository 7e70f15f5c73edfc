//! Which files of a directory are left out of a build (`.dockerignore`), and which ones a pattern of `COPY` means.
//!
//! Patterns are of whole paths, relative to the directory: `*`, `?` and `[…]` within one name, `**` for any number of
//! names. A pattern of a directory is about all that is in it. The last line that matches decides; one with `!` lets in.

use crate::glob::Glob;

/// More lines than these are none of a person's.
const MAX_PATTERNS: usize = 10_000;

/// A pattern that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no pattern of paths: {reason}", pattern.escape_debug())]
pub struct PathPatternError {
    /// As it was written.
    pub pattern: String,
    /// Why.
    pub reason: String,
}

/// One name of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NamePattern {
    /// `**`.
    AnyNames,
    Name(Glob),
}

/// A pattern of paths below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelativePattern {
    names: Vec<NamePattern>,
}

/// What a `.dockerignore` leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    rules: Vec<(RelativePattern, bool)>,
}

impl RelativePattern {
    /// Reads one; a slash at its beginning or end means nothing.
    ///
    /// # Errors
    /// When it holds `..`, or a class of characters that is not closed.
    pub fn parse(text: &str) -> Result<Self, PathPatternError> {
        let wrong = |reason: String| PathPatternError {
            pattern: text.chars().take(200).collect(),
            reason,
        };
        let mut names = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => return Err(wrong("it leads out of the directory".to_owned())),
                "**" => names.push(NamePattern::AnyNames),
                name => {
                    // Go writes `[^a]` for what others write `[!a]`.
                    let name = name.replace("[^", "[!");
                    let glob = Glob::parse(name.as_bytes()).map_err(|error| wrong(error.to_string()))?;
                    names.push(NamePattern::Name(glob));
                }
            }
        }
        // What is in a directory, and not the directory.
        if names.last() == Some(&NamePattern::AnyNames) {
            names.extend(Glob::parse(b"*").ok().map(NamePattern::Name));
        }
        Ok(Self { names })
    }

    /// Whether it means exactly this path.
    pub fn matches(&self, path: &[&[u8]]) -> bool {
        matches_names(&self.names, path)
    }

    /// Whether it means this path, or a directory that it is in.
    pub fn covers(&self, path: &[&[u8]]) -> bool {
        (1..=path.len()).any(|length| self.matches(&path[..length]))
    }

    /// How many names a path has that it means; `None` where that differs.
    pub fn depth(&self) -> Option<usize> {
        let is_any = |name: &NamePattern| *name == NamePattern::AnyNames;
        (!self.names.iter().any(is_any)).then_some(self.names.len())
    }
}

fn matches_names(pattern: &[NamePattern], path: &[&[u8]]) -> bool {
    // The last `**` that could take one name more, and where it is in the path.
    let (mut at, mut of) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    loop {
        match pattern.get(of) {
            Some(NamePattern::AnyNames) => {
                back = Some((of, at));
                of += 1;
                continue;
            }
            Some(NamePattern::Name(glob)) if path.get(at).is_some_and(|name| glob.matches(name)) => {
                at += 1;
                of += 1;
                continue;
            }
            None if at == path.len() => return true,
            _ => {}
        }
        match back {
            Some((any, taken)) if taken < path.len() => {
                back = Some((any, taken + 1));
                at = taken + 1;
                of = any + 1;
            }
            _ => return false,
        }
    }
}

impl IgnoreRules {
    /// Reads the lines of a `.dockerignore`.
    ///
    /// # Errors
    /// At the first line that is no pattern, and where there are more than 10,000.
    pub fn parse(text: &str) -> Result<Self, PathPatternError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().map(str::trim);
        let mut rules = Vec::new();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (line, lets_in) = match line.strip_prefix('!') {
                Some(rest) => (rest.trim(), true),
                None => (line, false),
            };
            if rules.len() == MAX_PATTERNS {
                return Err(PathPatternError {
                    pattern: line.chars().take(200).collect(),
                    reason: format!("there are more than {MAX_PATTERNS} lines"),
                });
            }
            rules.push((RelativePattern::parse(line)?, lets_in));
        }
        Ok(Self { rules })
    }

    /// Whether a path is left out.
    pub fn leaves_out(&self, path: &[&[u8]]) -> bool {
        let about = self.rules.iter().rev().find(|(pattern, _)| pattern.covers(path));
        about.is_some_and(|(_, lets_in)| !lets_in)
    }

    /// Whether something in a directory may be let in although the directory is left out.
    pub fn lets_in(&self) -> bool {
        self.rules.iter().any(|(_, lets_in)| *lets_in)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(path: &str) -> Vec<&[u8]> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .map(str::as_bytes)
            .collect()
    }

    #[test]
    fn the_last_line_about_a_path_decides() {
        let rules = IgnoreRules::parse(
            "# comment\n\n*.log\n**/*.tmp\n/target/\nnode_modules\ndocs/**\n!docs/keep\n!important.log\nsecret?\n[a-c]x\n**/deep/**/end\n",
        )
        .unwrap();
        for (path, is_out) in [
            ("a.log", true),
            ("sub/a.log", false),
            ("important.log", false),
            ("a.tmp", true),
            ("x/y/z.tmp", true),
            ("target", true),
            ("target/debug/x", true),
            ("sub/target", false),
            ("node_modules/a/b", true),
            ("docs", false),
            ("docs/x", true),
            ("docs/keep", false),
            ("docs/keep/x", false),
            ("secret1", true),
            ("secret", false),
            ("bx", true),
            ("dx", false),
            ("deep/end", true),
            ("a/deep/b/c/end/d", true),
        ] {
            assert_eq!(rules.leaves_out(&names(path)), is_out, "{path}");
        }
        assert!(rules.lets_in());
    }

    #[test]
    fn what_is_no_pattern_is_an_error() {
        for wrong in ["../x", "a/../b", "[a"] {
            assert!(IgnoreRules::parse(wrong).is_err(), "{wrong}");
        }
        assert!(IgnoreRules::parse(&"a\n".repeat(MAX_PATTERNS + 1)).is_err());
        assert!(!IgnoreRules::parse("").unwrap().leaves_out(&names("a")));
    }

    /// What `matches_names` does, as one would write it without a thought of time.
    fn plain(pattern: &[NamePattern], path: &[&[u8]]) -> bool {
        match pattern.split_first() {
            None => path.is_empty(),
            Some((NamePattern::AnyNames, rest)) => (0..=path.len()).any(|taken| plain(rest, &path[taken..])),
            Some((NamePattern::Name(glob), rest)) => {
                path.first().is_some_and(|name| glob.matches(name)) && plain(rest, &path[1..])
            }
        }
    }

    proptest! {
        #[test]
        fn any_pattern_matches_as_the_plain_one_does(
            pattern in proptest::collection::vec(prop_oneof![Just("**"), Just("a"), Just("b"), Just("*")], 0..6),
            path in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 0..7),
        ) {
            let pattern = RelativePattern::parse(&pattern.join("/")).unwrap();
            let path: Vec<&[u8]> = path.iter().map(|name| name.as_bytes()).collect();
            prop_assert_eq!(pattern.matches(&path), plain(&pattern.names, &path));
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,60}") {
            if let Ok(rules) = IgnoreRules::parse(&text) {
                let _decided = rules.leaves_out(&[b"a", b"b"]);
            }
        }
    }
}
