//! Which headers of requests are set or taken away on their way out.
//!
//! Pure: the gateway applies them to requests that other rules let through.

use core::fmt;

use crate::error::{ErrorKind, Explained};
use crate::network::host::Host;
use crate::network::host_pattern::{HostPattern, HostPatternError, Specificity};
use crate::text::Text;

/// The longest value of a header; servers refuse longer ones.
const MAX_VALUE: usize = 4096;

/// Headers that say where a message is for and where it ends, or are about one connection alone: they are the gateway's.
const OF_THE_CONNECTION: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A rule about one header of all requests to a host. Displayed as refusals call it, without the value.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HeaderRule {
    host: HostPattern,
    /// In small letters.
    name: String,
    /// `None` takes it away.
    value: Option<String>,
}

/// Text that is no rule for headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderRuleError {
    /// It is not a host, a space, a header and, where one is set, its value.
    #[error("header rule `{0}` is not a host, a space and a header")]
    Shape(Text),
    /// The host cannot be read.
    #[error("header rule for `{host}`: {reason}")]
    Host {
        /// What was given for one.
        host: Text,
        /// What is wrong with it.
        reason: HostPatternError,
    },
    /// It is about the subdomains of a public suffix, or every address.
    #[error("header rule for `{0}` would mean hosts that have nothing to do with each other")]
    TooWide(Text),
    /// What should be the name of a header is none.
    #[error("`{0}` is no name of a header")]
    Name(Text),
    /// The header is the gateway's own.
    #[error("header `{0}` is about the connection and cannot be changed")]
    Connection(String),
    /// There is no value. An empty one would be the same as none to many servers.
    #[error("header `{0}` is given no value")]
    NoValue(String),
    /// The value has bytes that no value has. It is not repeated: it may be confidential.
    #[error("the value for header `{0}` has a line end, another control character or a letter that is not ASCII")]
    Value(String),
    /// The value is too long.
    #[error("the value for header `{name}` has {bytes} bytes")]
    LongValue {
        /// The header.
        name: String,
        /// How many.
        bytes: usize,
    },
}

impl HeaderRule {
    /// Reads `HOST NAME: VALUE`: the header is set, in place of what the sandbox may have sent.
    ///
    /// # Errors
    /// [`HeaderRuleError`] says what is wrong with it.
    pub fn parse_set(text: &str) -> Result<Self, HeaderRuleError> {
        let shape = || HeaderRuleError::Shape(text.split(':').next().unwrap_or_default().into());
        let (host, header) = text.split_once(' ').ok_or_else(shape)?;
        let (name, value) = header.split_once(':').ok_or_else(shape)?;
        let name = parse_name(name)?;
        let value = value.trim_matches([' ', '\t']);
        let is_text = value
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t'));
        match value.len() {
            0 => return Err(HeaderRuleError::NoValue(name)),
            bytes if bytes > MAX_VALUE => return Err(HeaderRuleError::LongValue { name, bytes }),
            _ if !is_text => return Err(HeaderRuleError::Value(name)),
            _ => {}
        }
        Ok(Self {
            host: parse_host(host)?,
            name,
            value: Some(value.to_owned()),
        })
    }

    /// Reads `HOST NAME`: the header is taken away.
    ///
    /// # Errors
    /// [`HeaderRuleError`] says what is wrong with it.
    pub fn parse_remove(text: &str) -> Result<Self, HeaderRuleError> {
        let (host, name) = text
            .split_once(' ')
            .ok_or_else(|| HeaderRuleError::Shape(text.into()))?;
        Ok(Self {
            host: parse_host(host)?,
            name: parse_name(name)?,
            value: None,
        })
    }

    /// Whether requests to `host` are meant.
    pub fn concerns(&self, host: &Host) -> bool {
        self.host.matches(host)
    }

    /// The hosts that are meant.
    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    /// The name of the header, in small letters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is set to; `None` when it is taken away.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// How specific its hosts are; of two rules that set the same header, the more specific one counts.
    pub fn specificity(&self) -> Specificity {
        self.host.specificity()
    }
}

fn parse_host(text: &str) -> Result<HostPattern, HeaderRuleError> {
    let host = HostPattern::parse(text).map_err(|reason| HeaderRuleError::Host {
        host: text.into(),
        reason,
    })?;
    if host.is_too_wide() {
        return Err(HeaderRuleError::TooWide(text.into()));
    }
    Ok(host)
}

/// A token (RFC 9110, section 5.6.2) in small letters.
fn parse_name(text: &str) -> Result<String, HeaderRuleError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || text.len() > 256 || !text.bytes().all(is_token) {
        return Err(HeaderRuleError::Name(text.into()));
    }
    let name = text.to_ascii_lowercase();
    if OF_THE_CONNECTION.contains(&name.as_str()) {
        return Err(HeaderRuleError::Connection(name));
    }
    Ok(name)
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.value.is_some() {
            "set_headers"
        } else {
            "remove_headers"
        };
        write!(f, "network.{key}: {} {}", self.host, self.name)
    }
}

impl fmt::Debug for HeaderRule {
    /// Without the value, which may be confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderRule({self})")
    }
}

impl Explained for HeaderRuleError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Shape(_) => {
                "write `api.example.com X-Team: agents` to set a header, `api.example.com Cookie` to remove one"
            }
            Self::Host { reason, .. } => return reason.hint(),
            Self::TooWide(_) => "name a domain that belongs to somebody, such as *.example.com",
            Self::Name(_) => "a name is letters, digits and hyphens, right before the colon",
            Self::Connection(_) => "leave it out; the gateway writes it as the connection needs it",
            Self::NoValue(name) => {
                return Some(format!(
                    "write the value behind the colon, as in `{name}: value`; a rule that removes headers takes one away"
                ));
            }
            Self::Value(_) | Self::LongValue { .. } => "a value is one line of printable ASCII, of at most 4096 bytes",
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests;
