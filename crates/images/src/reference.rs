//! Names of images, as Docker reads them: `python:3.12-slim`, `ghcr.io/owner/name@sha256:…`.

use std::fmt;
use std::str::FromStr;

use offleash_core::error::{ErrorKind, Explained};

use crate::digest::ImageDigest;

/// The registry of names that name none.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// Where names of one word belong there.
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";
const MAX_NAME_LENGTH: usize = 255;
const MAX_TAG_LENGTH: usize = 128;

/// The whole name of an image: registry, repository, and a tag, a digest or both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<ImageDigest>,
}

/// A text that is no name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no name of an image: {reason}", text.escape_debug())]
pub struct ReferenceError {
    /// What was given.
    pub text: String,
    /// What is wrong.
    pub reason: &'static str,
}

impl Explained for ReferenceError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some("names are like `python:3.12-slim`, `ghcr.io/owner/name:tag` or `name@sha256:…`".to_owned())
    }
}

impl ImageReference {
    /// The registry's host, with a port if one was named.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in the registry, `library/python`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `None` where a digest alone was named.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that was named.
    pub fn digest(&self) -> Option<ImageDigest> {
        self.digest
    }

    /// What the registry is asked for: the digest, or else the tag.
    pub(crate) fn asked_for(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// The short form, as one would type it.
    pub fn familiar(&self) -> String {
        let whole = self.to_string();
        let short = whole.strip_prefix("docker.io/").unwrap_or(&whole);
        short.strip_prefix(OFFICIAL).unwrap_or(short).to_owned()
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text).map_err(|reason| ReferenceError {
            text: text.chars().take(MAX_NAME_LENGTH).collect(),
            reason,
        })
    }
}

fn parse(text: &str) -> Result<ImageReference, &'static str> {
    let (named, digest) = match text.split_once('@') {
        Some((named, digest)) => {
            let digest = digest.parse().map_err(|_| "behind `@` there is no SHA-256 digest")?;
            (named, Some(digest))
        }
        None => (text, None),
    };
    // A colon behind the last slash begins a tag, another one a port.
    let after_path = named.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match named[after_path..].find(':') {
        Some(colon) => (&named[..after_path + colon], Some(&named[after_path + colon + 1..])),
        None => (named, None),
    };
    if name.len() > MAX_NAME_LENGTH {
        return Err("it is longer than 255 characters");
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
        _ => (DEFAULT_REGISTRY, name.to_owned()),
    };
    check_registry(registry)?;
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY.to_owned(),
        other => other.to_ascii_lowercase(),
    };
    let repository = match path.contains('/') {
        false if registry == DEFAULT_REGISTRY && !path.is_empty() => format!("{OFFICIAL}{path}"),
        _ => path,
    };
    check_repository(&repository)?;
    let tag = match tag {
        Some(tag) => Some(check_tag(tag)?.to_owned()),
        None => digest.is_none().then(|| DEFAULT_TAG.to_owned()),
    };
    Ok(ImageReference {
        registry,
        repository,
        tag,
        digest,
    })
}

/// Whether the first part of a name is a host rather than part of a path.
fn is_registry(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':']) || part.starts_with('[')
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    const WRONG: &str = "its registry is no host with or without a port";
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or(WRONG)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| WRONG)?;
            ("v6", rest.strip_prefix(':').or((!rest.is_empty()).then_some("")))
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, None),
        },
    };
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !label.starts_with('-')
    };
    let has_port = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    match host.split('.').all(is_label) && has_port {
        true => Ok(()),
        false => Err(WRONG),
    }
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("its name has upper-case letters");
    }
    match !repository.is_empty() && repository.split('/').all(is_component) {
        true => Ok(()),
        false => Err("its name is not of a-z, 0-9, and single `.`, `-`, `_` between them"),
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(component: &str) -> bool {
    let is_plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let mut rest = component;
    loop {
        let after = rest.trim_start_matches(is_plain);
        if after.len() == rest.len() {
            return false;
        }
        if after.is_empty() {
            return true;
        }
        let separator = after.len() - after.trim_start_matches(|character| !is_plain(character)).len();
        let is_separator = match &after[..separator] {
            "." | "_" | "__" => true,
            dashes => dashes.bytes().all(|byte| byte == b'-'),
        };
        if !is_separator {
            return false;
        }
        rest = &after[separator..];
    }
}

fn check_tag(tag: &str) -> Result<&str, &'static str> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_tag = (1..=MAX_TAG_LENGTH).contains(&tag.len())
        && tag.bytes().take(1).all(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-');
    match is_tag {
        true => Ok(tag),
        false => Err("its tag is not of up to 128 letters, digits, `_`, `.` and `-`"),
    }
}

impl serde::Serialize for ImageReference {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ImageReference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_completed_as_docker_does_it() {
        let digest = ImageDigest::of(b"x");
        for (text, whole, familiar) in [
            ("python", "docker.io/library/python:latest", "python:latest"),
            (
                "python:3.12-slim",
                "docker.io/library/python:3.12-slim",
                "python:3.12-slim",
            ),
            ("owner/name", "docker.io/owner/name:latest", "owner/name:latest"),
            ("docker.io/python:3", "docker.io/library/python:3", "python:3"),
            ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest"),
            ("localhost/name", "localhost/name:latest", "localhost/name:latest"),
            (
                "localhost:5000/a/b/c:t",
                "localhost:5000/a/b/c:t",
                "localhost:5000/a/b/c:t",
            ),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("ghcr.io/o/n__m-x", "ghcr.io/o/n__m-x:latest", "ghcr.io/o/n__m-x:latest"),
        ] {
            let reference: ImageReference = text.parse().unwrap();
            assert_eq!(
                (reference.to_string().as_str(), reference.familiar().as_str()),
                (whole, familiar)
            );
        }
        let reference: ImageReference = format!("python@{digest}").parse().unwrap();
        assert_eq!((reference.tag(), reference.digest()), (None, Some(digest)));
        let reference: ImageReference = format!("python:3@{digest}").parse().unwrap();
        assert_eq!(
            (reference.tag(), reference.asked_for()),
            (Some("3"), digest.to_string())
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for wrong in [
            "",
            ":",
            "/",
            "a/",
            "/a",
            "a//b",
            "a:",
            "Python",
            "a..b",
            "a/.",
            "a/..",
            "../a",
            "a___b",
            "-a",
            "a-",
            "a@sha256:0",
            "a@",
            "localhost:port/a",
            "localhost:0/a",
            "localhost:99999/a",
            "a b",
            "a:b:c",
            "a:-b",
            "http://a/b",
            "[::1/a",
            "a\0b",
            "ä",
            "a:ä",
            "host.:80/a",
            "a.b/",
        ] {
            assert!(wrong.parse::<ImageReference>().is_err(), "{wrong:?}");
        }
        assert!("a".repeat(300).parse::<ImageReference>().is_err());
        assert!(format!("a:{}", "b".repeat(129)).parse::<ImageReference>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok(reference) = text.parse::<ImageReference>() {
                prop_assert_eq!(reference.to_string().parse::<ImageReference>(), Ok(reference));
            }
        }

        #[test]
        fn a_whole_name_is_read_as_itself(
            text in "([a-z]{1,5}(\\.[a-z]{1,3})?(:[1-9][0-9]{0,3})?/)?[a-z0-9]{1,5}([._-][a-z0-9]{1,5}){0,2}(:[A-Za-z0-9_.-]{1,9})?"
        ) {
            if let Ok(reference) = text.parse::<ImageReference>() {
                let again: ImageReference = reference.to_string().parse().unwrap();
                prop_assert_eq!(&again, &reference);
                let again: ImageReference = reference.familiar().parse().unwrap();
                prop_assert_eq!(&again, &reference);
            }
        }
    }
}
