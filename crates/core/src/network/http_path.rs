//! The path of a request in its one canonical form.
//!
//! A rule for paths holds only if the server reads the path as we do. What servers are known to read differently is
//! refused: dot segments, empty segments, backslashes, separators in percent form, whatever would appear if the path
//! were decoded twice. What is left is compared, and sent on, in this form.

use core::fmt;
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::text::Text;

/// Longest target that is looked at; servers refuse longer ones.
const MAX_TARGET: usize = 8192;

/// The target of a request (RFC 9112, section 3.2.1) in canonical form: unreserved characters are not percent-encoded,
/// other escapes are in capitals (RFC 3986, section 6.2.2), and no segment is `.`, `..` or empty, except the last,
/// which may be empty. The query is kept as it is. Displayed as it is to be sent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CanonicalPath {
    path: String,
    query: Option<String>,
}

/// A target whose path has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It is longer than servers accept.
    #[error("a request target has {bytes} bytes")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// It does not begin with a slash.
    #[error("request target `{0}` does not begin with a slash")]
    NotAbsolute(Text),
    /// It contains a byte that no target has: a space, a control character, `\`, `#`, or one that is not ASCII.
    #[error("request target `{target}` contains the byte 0x{byte:02x}, which no target has")]
    Byte {
        /// What was given.
        target: Text,
        /// The first such byte.
        byte: u8,
    },
    /// A `%` is not followed by two hexadecimal digits.
    #[error("path of request target `{0}` has a `%` without two hexadecimal digits")]
    Escape(Text),
    /// A slash, a backslash or a control character in percent form, or a percent sign that makes an escape when the
    /// path is decoded once more.
    #[error("path of request target `{target}` contains `{escape}`")]
    Encoded {
        /// What was given.
        target: Text,
        /// What servers read differently.
        escape: String,
    },
    /// Its escapes are not UTF-8, so that a lenient decoder may read anything out of them.
    #[error("path of request target `{0}` is not UTF-8")]
    NotText(Text),
    /// A segment is `.` or `..`, perhaps with parameters after a `;`.
    #[error("path of request target `{0}` has a segment that is `.` or `..`")]
    Dots(Text),
    /// Two slashes in a row, perhaps with parameters between them.
    #[error("path of request target `{0}` has an empty segment")]
    EmptySegment(Text),
}

impl CanonicalPath {
    /// Reads the target of a request in origin form: `/v1/items?page=2`.
    ///
    /// # Errors
    /// [`PathError`] says why its path means something else to other programs.
    pub fn parse(target: &[u8]) -> Result<Self, PathError> {
        if target.len() > MAX_TARGET {
            return Err(PathError::TooLong { bytes: target.len() });
        }
        let text = plain(target)?;
        if !text.starts_with('/') {
            return Err(PathError::NotAbsolute(target.into()));
        }
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        let path = decode_unreserved(path, target)?;
        refuse_double_encoding(&path, target)?;
        check_segments(&path, target)?;
        Ok(Self {
            path,
            query: query.map(str::to_owned),
        })
    }

    /// The path, without the query.
    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// What follows the `?`, if there is one.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }
}

/// The target as text, if every byte of it may stand in one.
fn plain(target: &[u8]) -> Result<&str, PathError> {
    let is_allowed = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'#');
    if let Some(byte) = target.iter().find(|byte| !is_allowed(byte)) {
        return Err(PathError::Byte {
            target: target.into(),
            byte: *byte,
        });
    }
    core::str::from_utf8(target).map_err(|_| PathError::NotText(target.into()))
}

/// Decodes what need not be encoded, and refuses what a server may take for structure.
fn decode_unreserved(path: &str, target: &[u8]) -> Result<String, PathError> {
    let mut canonical = String::with_capacity(path.len());
    let mut meant = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        canonical.push_str(before);
        meant.extend_from_slice(before.as_bytes());
        let byte = hex_byte(after).ok_or_else(|| PathError::Escape(target.into()))?;
        rest = &after[2..];
        if byte.is_ascii_control() || matches!(byte, b'/' | b'\\') {
            return Err(PathError::Encoded {
                target: target.into(),
                escape: format!("%{}", &after[..2]),
            });
        }
        meant.push(byte);
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            canonical.push(char::from(byte));
        } else {
            canonical.push_str(&format!("%{byte:02X}"));
        }
    }
    canonical.push_str(rest);
    meant.extend_from_slice(rest.as_bytes());
    match core::str::from_utf8(&meant) {
        Ok(_) => Ok(canonical),
        Err(_) => Err(PathError::NotText(target.into())),
    }
}

/// Refuses an escaped percent sign that makes another escape: some servers decode twice. Looked for in canonical form,
/// because the digits may have been escaped themselves.
fn refuse_double_encoding(path: &str, target: &[u8]) -> Result<(), PathError> {
    let mut after_signs = path.split("%25").skip(1);
    match after_signs.find(|after| hex_byte(after).is_some()) {
        Some(after) => Err(PathError::Encoded {
            target: target.into(),
            escape: format!("%25{}", &after[..2]),
        }),
        None => Ok(()),
    }
}

/// The byte that the first two characters spell.
fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.get(..2)?;
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| are_digits)
}

fn check_segments(path: &str, target: &[u8]) -> Result<(), PathError> {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        // Some servers cut parameters off before they resolve dots (`/..;/admin`).
        let name = segment.split(';').next().unwrap_or_default();
        let name = name.split("%3B").next().unwrap_or_default();
        if name == "." || name == ".." {
            return Err(PathError::Dots(target.into()));
        }
        if name.is_empty() && !(is_last && segment.is_empty()) {
            return Err(PathError::EmptySegment(target.into()));
        }
    }
    Ok(())
}

impl FromStr for CanonicalPath {
    type Err = PathError;

    fn from_str(target: &str) -> Result<Self, PathError> {
        Self::parse(target.as_bytes())
    }
}

impl fmt::Display for CanonicalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        match &self.query {
            Some(query) => write!(f, "?{query}"),
            None => Ok(()),
        }
    }
}

impl Explained for PathError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotAbsolute(_) => "a path begins with a slash, such as /v1/items",
            Self::Dots(_) | Self::EmptySegment(_) => "write the path that is meant, without `.`, `..` and `//`",
            Self::Encoded { .. } => {
                "servers disagree about such escapes; a host that needs them can be allowed without rules for requests"
            }
            Self::Byte { .. } | Self::Escape(_) | Self::NotText(_) => "percent-encode the path as UTF-8 (RFC 3986)",
            Self::TooLong { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests;
