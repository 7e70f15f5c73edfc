//! Versions of languages, and what callers say which they want.

use std::fmt;
use std::str::FromStr;

/// The longest text that may say which version is wanted.
const MAX_LENGTH: usize = 64;

/// Three numbers, as in `3.11.7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuntimeVersion([u32; 3]);

impl RuntimeVersion {
    /// The first version that a program says of itself, however it says it: `go version go1.19.8 linux/amd64`.
    pub(super) fn found_in(text: &str) -> Option<Self> {
        let starts = text.char_indices().filter(|(_, letter)| letter.is_ascii_digit());
        for (start, _) in starts {
            let rest = &text[start..];
            let end = rest
                .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
                .unwrap_or(rest.len());
            let numbers: Vec<&str> = rest[..end].split('.').filter(|part| !part.is_empty()).collect();
            if numbers.len() < 2 {
                continue;
            }
            let number = |place: usize| numbers.get(place).map_or(Some(0), |text| text.parse().ok());
            return Some(Self([number(0)?, number(1)?, number(2)?]));
        }
        None
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Which versions are meant, as npm writes it: `*`, `3`, `3.x`, `3.11.7`, `^3.1`, `~3.1.2`, `>=3.10`, several with blanks between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionSelector(Vec<VersionBound>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VersionBound {
    /// The least version.
    from: RuntimeVersion,
    /// The first that is too late; none is if absent.
    to: Option<RuntimeVersion>,
}

/// A text that says no version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a version such as `*`, `3.x`, `3.11.7`, `^3.1`, `~3.1` or `>=3.10`")]
pub(crate) struct VersionSelectorError;

impl VersionSelector {
    /// Whether `version` is meant.
    pub(crate) fn matches(&self, version: RuntimeVersion) -> bool {
        let is_within = |bound: &VersionBound| version >= bound.from && bound.to.is_none_or(|to| version < to);
        self.0.iter().all(is_within)
    }
}

impl FromStr for VersionSelector {
    type Err = VersionSelectorError;

    fn from_str(text: &str) -> Result<Self, VersionSelectorError> {
        if text.trim().is_empty() || text.len() > MAX_LENGTH {
            return Err(VersionSelectorError);
        }
        text.split_whitespace().map(bound).collect::<Result<_, _>>().map(Self)
    }
}

fn bound(word: &str) -> Result<VersionBound, VersionSelectorError> {
    let operators = [">=", "<=", ">", "<", "^", "~", "="];
    let operator = operators.into_iter().find(|operator| word.starts_with(operator));
    let numbers = numbers(&word[operator.map_or(0, str::len)..])?;
    let from = filled(&numbers);
    // The first version behind all that begin with these numbers.
    let behind = |count: usize| (count > 0).then(|| next(from, count.min(numbers.len())));
    Ok(match operator {
        None | Some("=") => VersionBound {
            from,
            to: behind(numbers.len()),
        },
        Some("^") => {
            let leading = numbers.iter().position(|number| *number != 0);
            let to = behind(leading.map_or(numbers.len(), |place| place + 1));
            VersionBound { from, to }
        }
        Some("~") => VersionBound { from, to: behind(2) },
        Some(">=") => VersionBound { from, to: None },
        Some(">") => VersionBound {
            from: behind(numbers.len()).ok_or(VersionSelectorError)?,
            to: None,
        },
        Some("<") => VersionBound {
            from: RuntimeVersion([0; 3]),
            to: Some(from),
        },
        Some(_) => VersionBound {
            from: RuntimeVersion([0; 3]),
            to: behind(numbers.len()),
        },
    })
}

/// The numbers of a version, up to the first that may be any.
fn numbers(text: &str) -> Result<Vec<u32>, VersionSelectorError> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut numbers = Vec::new();
    let mut any = false;
    for (place, part) in text.split('.').enumerate() {
        match part {
            _ if place > 2 => return Err(VersionSelectorError),
            "*" | "x" | "X" => any = true,
            _ if any => return Err(VersionSelectorError),
            part if part.bytes().all(|byte| byte.is_ascii_digit()) => {
                numbers.push(part.parse().map_err(|_| VersionSelectorError)?);
            }
            _ => return Err(VersionSelectorError),
        }
    }
    Ok(numbers)
}

fn filled(numbers: &[u32]) -> RuntimeVersion {
    let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
    RuntimeVersion([number(0), number(1), number(2)])
}

/// The first version whose first `count` numbers, at least one, are later than those of `version`.
fn next(version: RuntimeVersion, count: usize) -> RuntimeVersion {
    let mut numbers = version.0;
    let last = count.clamp(1, 3) - 1;
    numbers[last] = numbers[last].saturating_add(1);
    numbers[last + 1..].fill(0);
    RuntimeVersion(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_say_their_version_in_many_ways() {
        for (said, version) in [
            ("3.11.7", Some("3.11.7")),
            ("go version go1.19.8 linux/amd64", Some("1.19.8")),
            ("openjdk version \"17.0.9\" 2023-10-17", Some("17.0.9")),
            ("5.2.15(1)-release", Some("5.2.15")),
            ("Lua 5.4  Copyright", Some("5.4.0")),
            ("rustc 1.90.0-nightly (1159e78c4 2025-09-14)", Some("1.90.0")),
            ("ruby 3", None),
            ("99999999999.1", None),
            ("", None),
        ] {
            let found = RuntimeVersion::found_in(said).map(|version| version.to_string());
            assert_eq!(found.as_deref(), version, "{said}");
        }
    }

    #[test]
    fn selectors_mean_what_npm_says() {
        let version = RuntimeVersion([3, 11, 7]);
        for (selector, is_meant) in [
            ("*", true),
            ("x", true),
            ("3", true),
            ("3.x", true),
            ("3.11.*", true),
            ("3.11.7", true),
            ("=3.11.7", true),
            ("v3.11.7", true),
            ("^3.2", true),
            ("^3.11.8", false),
            ("~3.11.2", true),
            ("~3.10", false),
            (">=3.10", true),
            (">=3.10 <3.12", true),
            (">=3.10 <3.11", false),
            (">3.11", false),
            (">3.11.6", true),
            ("<=3.11", true),
            ("<=3.10", false),
            ("2.x", false),
            ("3.11.8", false),
        ] {
            let parsed: VersionSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(version), is_meant, "{selector}");
        }
        let early = RuntimeVersion([0, 2, 9]);
        assert!("^0.2.3".parse::<VersionSelector>().unwrap().matches(early));
        assert!(!"^0.1.3".parse::<VersionSelector>().unwrap().matches(early));
        let long = "1".repeat(65);
        for bad in [
            "",
            " ",
            "latest",
            "3.11.7.1",
            "3.*.7",
            "^",
            "4294967296",
            "-1",
            &long,
            "3\0",
        ] {
            assert!(bad.parse::<VersionSelector>().is_err(), "{bad:?}");
        }
    }
}
