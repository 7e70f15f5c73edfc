//! What templates of keys are called: by callers `NAME` or `NAME:TAG`, in the store by template and build.

use offleash_core::template::{CODE_INTERPRETER, CODE_INTERPRETER_ALIAS, MCP_GATEWAY, TemplateName};

use crate::error::DaemonError;
use crate::origin::BASE_TEMPLATE;

/// The tag that is meant where none is named.
pub(crate) const DEFAULT_TAG: &str = "default";
/// The letter and the digits of a template's id.
pub(crate) const ID_LETTER: char = 't';
pub(crate) const ID_DIGITS: usize = 19;
const BUILD_DIGITS: usize = 32;
const MAX_NAME: usize = 64;
const MAX_TAG: usize = 128;
/// Names that mean something else on every server.
const RESERVED: [&str; 7] = [
    BASE_TEMPLATE,
    "system",
    "image",
    "tags",
    CODE_INTERPRETER,
    CODE_INTERPRETER_ALIAS,
    MCP_GATEWAY,
];

/// A name as a caller writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaggedName {
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

impl TaggedName {
    /// Reads `NAME` or `NAME:TAG`, or the same with an id.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn parse(text: &str) -> Result<Self, DaemonError> {
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        let name = name.trim().to_lowercase();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_plain);
        if !is_name {
            let why = format!(
                "`{}` must have 1 to {MAX_NAME} characters of a-z, 0-9, `-` and `_`",
                name.escape_debug()
            );
            return Err(DaemonError::invalid("name", why));
        }
        Ok(Self {
            name,
            tag: tag.map(tag_of).transpose()?,
        })
    }

    /// The same for a template that is to be made: it may not be called what means another one.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn parse_new(text: &str) -> Result<Self, DaemonError> {
        let parsed = Self::parse(text)?;
        match RESERVED.contains(&parsed.name.as_str()) || is_id(&parsed.name) {
            true => Err(DaemonError::invalid(
                "name",
                format!("`{}` means another template", parsed.name),
            )),
            false => Ok(parsed),
        }
    }
}

/// A tag as it is kept.
///
/// # Errors
/// `Invalid`.
pub(crate) fn tag_of(text: &str) -> Result<String, DaemonError> {
    let tag = text.trim().to_lowercase();
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    match !tag.is_empty() && tag.len() <= MAX_TAG && tag.bytes().all(is_plain) {
        true => Ok(tag),
        false => {
            let why = format!(
                "`{}` must have 1 to {MAX_TAG} characters of a-z, 0-9, `-`, `_` and `.`",
                tag.escape_debug()
            );
            Err(DaemonError::invalid("tags", why))
        }
    }
}

/// Whether that could be the id of a template of a key.
pub(crate) fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() == 1 + ID_DIGITS && text.starts_with(ID_LETTER) && text.bytes().all(is_plain)
}

/// What a build of a template is called in the store.
pub(crate) fn in_store(template: &str, build: &str) -> Result<TemplateName, DaemonError> {
    let digits: String = build.chars().filter(|digit| *digit != '-').collect();
    let name = format!("{template}_{digits}").parse::<TemplateName>();
    name.map_err(|error| DaemonError::Host {
        tried: "name a build",
        source: Box::new(error),
    })
}

/// The id of the template of which that is a build in the store; `None` for a template of the machine.
pub(crate) fn of_store(name: &str) -> Option<&str> {
    let (template, build) = name.split_once('_')?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_build = build.len() == BUILD_DIGITS && build.bytes().all(is_digit);
    (is_id(template) && is_build).then_some(template)
}

/// What callers are told where a sandbox is of that.
pub(crate) fn shown(name: &str) -> &str {
    of_store(name).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_are_read_and_kept_in_one_form() {
        let tagged = TaggedName::parse(" My-App:V1.0 ").unwrap();
        assert_eq!((tagged.name.as_str(), tagged.tag.as_deref()), ("my-app", Some("v1.0")));
        assert_eq!(TaggedName::parse("a").unwrap().tag, None);
        for bad in ["", ":a", "a:", "a/b", "a b", "a:b:c", "ä", &"a".repeat(65), "../x"] {
            assert!(
                matches!(TaggedName::parse(bad), Err(DaemonError::Invalid { .. })),
                "{bad}"
            );
        }
        for taken in ["base", "code-interpreter-v1", "image", "tags", "t0123456789abcdefghi"] {
            assert!(TaggedName::parse_new(taken).is_err(), "{taken}");
        }
    }

    #[test]
    fn a_build_in_the_store_is_told_from_a_template_of_the_machine() {
        let (template, build) = ("t0123456789abcdefghi", "0badcafe-0000-4000-8000-00000000000f");
        let name = in_store(template, build).unwrap();
        assert_eq!(of_store(name.as_str()), Some(template));
        assert_eq!(shown(name.as_str()), template);
        for other in [
            "base",
            "tools",
            "t_0",
            "image:a",
            "t0123456789abcdefghi",
            "a_0badcafe000040008000000000000000",
        ] {
            assert_eq!((of_store(other), shown(other)), (None, other));
        }
    }
}
