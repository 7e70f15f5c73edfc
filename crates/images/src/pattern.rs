//! Which images somebody may use: names in which `*` stands for any text.

use std::fmt;
use std::str::FromStr;

use offleash_core::error::{ErrorKind, Explained};

use crate::reference::{DEFAULT_REGISTRY, ImageReference};

/// Names of images: `python`, `ghcr.io/owner/*`, `python:3.*`. In the registry a `*` stands for text without a slash, and
/// elsewhere for any. Without a registry it is Docker Hub's, without a tag each tag and digest is meant. `*` alone is every
/// image, also one that has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePattern {
    text: String,
    /// `None` is every image.
    parts: Option<PatternParts>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PatternParts {
    registry: String,
    repository: String,
    tag: Option<String>,
}

/// A text that is no pattern of names of images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no pattern of names of images", text.escape_debug())]
pub struct PatternError {
    /// What was given.
    pub text: String,
}

impl Explained for PatternError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some("patterns are like `python`, `python:3.*`, `ghcr.io/owner/*` or `*`".to_owned())
    }
}

impl ImagePattern {
    /// Every image.
    pub fn every() -> Self {
        Self {
            text: "*".to_owned(),
            parts: None,
        }
    }

    /// Whether an image of that name is meant, or one that has none.
    pub fn matches(&self, name: Option<&ImageReference>) -> bool {
        let Some(parts) = &self.parts else { return true };
        name.is_some_and(|name| {
            let tag = name.tag().unwrap_or_default();
            is_like(&parts.registry, name.registry())
                && is_like(&parts.repository, name.repository())
                && parts.tag.as_ref().is_none_or(|pattern| is_like(pattern, tag))
        })
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ImagePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Self::every());
        }
        let wrong = || PatternError { text: text.to_owned() };
        // It is read as a name in which an asterisk is a letter, so that both are read in one way.
        let like_a_name = text.replace('*', "a");
        let tagged = text.rfind('/').map_or(text, |slash| &text[slash + 1..]);
        let has_tag = tagged.contains(':');
        let name: ImageReference = like_a_name.parse().map_err(|_| wrong())?;
        if name.digest().is_some() {
            return Err(wrong());
        }
        let (path, tag) = match text.rsplit_once(':').filter(|_| has_tag) {
            Some((path, tag)) => (path, Some(tag.to_owned())),
            None => (text, None),
        };
        let first = path.split_once('/').map(|(first, _)| first.to_ascii_lowercase());
        let (registry, repository) = match (name.registry(), first) {
            (DEFAULT_REGISTRY, Some(first)) if first.contains('.') => (DEFAULT_REGISTRY.to_owned(), after_slash(path)),
            (DEFAULT_REGISTRY, _) => (DEFAULT_REGISTRY.to_owned(), path),
            (_, Some(first)) => (first, after_slash(path)),
            (_, None) => return Err(wrong()),
        };
        let repository = match repository.contains('/') {
            false if registry == DEFAULT_REGISTRY => format!("library/{repository}"),
            _ => repository.to_owned(),
        };
        Ok(Self {
            text: text.to_owned(),
            parts: Some(PatternParts {
                registry,
                repository,
                tag,
            }),
        })
    }
}

fn after_slash(path: &str) -> &str {
    path.split_once('/').map_or("", |(_, rest)| rest)
}

/// Whether `text` is like `pattern`, in which each `*` stands for any text.
fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_whole_names() {
        for (pattern, meant, not_meant) in [
            (
                "python",
                &["python", "python:3.12-slim", "docker.io/library/python:x"][..],
                &["pythonx", "owner/python", "ghcr.io/library/python"][..],
            ),
            ("python:3.*", &["python:3.12", "python:3."], &["python:2.7", "python"]),
            (
                "owner/*",
                &["owner/a", "owner/a/b:t"],
                &["owner2/a", "ghcr.io/owner/a", "python"],
            ),
            (
                "ghcr.io/owner/*",
                &["ghcr.io/owner/a:1", "ghcr.io/owner/a/b"],
                &["ghcr.io/other/a", "evil.ghcr.io/owner/a", "owner/a"],
            ),
            (
                "*.example.com/a",
                &["x.example.com/a"],
                &["example.com.evil/a", "evil.io/x.example.com/a", "x.example.com/ab"],
            ),
            (
                "localhost:5000/*",
                &["localhost:5000/a"],
                &["localhost:5001/a", "localhost/a"],
            ),
            ("*", &["python", "ghcr.io/a/b"], &[]),
            ("*/*", &["owner/a", "python"], &["ghcr.io/a/b"]),
        ] {
            let parsed: ImagePattern = pattern.parse().unwrap();
            let is_meant = |name: &&str| parsed.matches(Some(&name.parse().unwrap()));
            assert_eq!(
                meant.iter().filter(|name| !is_meant(name)).collect::<Vec<_>>(),
                Vec::<&&str>::new(),
                "{pattern}"
            );
            assert_eq!(
                not_meant.iter().filter(|name| is_meant(name)).collect::<Vec<_>>(),
                Vec::<&&str>::new(),
                "{pattern}"
            );
        }
    }

    #[test]
    fn what_pins_a_digest_is_like_what_has_no_tag() {
        let digest = format!("python@sha256:{}", "0".repeat(64));
        let matches = |pattern: &str| {
            pattern
                .parse::<ImagePattern>()
                .unwrap()
                .matches(Some(&digest.parse().unwrap()))
        };
        assert!(matches("python") && matches("*") && !matches("python:3.*"));
    }

    #[test]
    fn an_image_without_a_name_is_meant_by_every_image_alone() {
        assert!(ImagePattern::every().matches(None));
        assert!(!"*/*".parse::<ImagePattern>().unwrap().matches(None));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["", "Upper", "a b", "a:b:c", "a@sha256:0", "https://a/b", "/a", "a/"] {
            assert!(text.parse::<ImagePattern>().is_err(), "{text}");
        }
    }
}
