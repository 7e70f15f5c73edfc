//! The text of a network rule: `HOST[:PORTS][/PROTOCOL]`.

use core::fmt;
use core::str::FromStr;

use crate::error::{ErrorKind, Explained};
use crate::network::cidr::Cidr;
use crate::network::host::Host;
use crate::network::host_pattern::{HostPattern, HostPatternError, Specificity};
use crate::network::ports::{PortSet, PortsError};
use crate::text::Text;

/// Longest text of a rule: a name, and many ports.
const MAX_TEXT: usize = 1024;

/// What a rule is about: `example.com`, `*.example.com:443`, `10.0.0.0/8:22/tcp`, `[2001:db8::1]:8000-8100`.
///
/// Displayed in canonical form, which parses back to the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(remote = "Self")]
pub struct NetworkPattern {
    host: HostPattern,
    /// `None` when the rule names none.
    ports: Option<PortSet>,
    /// `None` when the rule names none; never [`SpokenProtocol::Auto`].
    protocol: Option<SpokenProtocol>,
}

/// What a connection has to speak. Ordered by how much is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpokenProtocol {
    /// Anything; nothing is looked at.
    Tcp,
    /// Anything; but when the client speaks first, and begins with TLS or HTTP, its server name or `Host` must be the
    /// name of the connection.
    Auto,
    /// HTTP without TLS, whose `Host` is the name of the connection in every request.
    Http,
    /// TLS whose server name (RFC 6066, section 3) is the name of the connection. A connection to an address has no
    /// name to agree with; it must be TLS.
    Tls,
}

/// Text that is no rule, or one that would mean too much.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing was written.
    #[error("a network rule is empty")]
    Empty,
    /// It is longer than any rule.
    #[error("a network rule has {bytes} bytes")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// It begins as a URL does.
    #[error("network rule `{0}` is a URL, not a host")]
    Url(Text),
    /// The host cannot be read.
    #[error("network rule `{rule}`: {reason}")]
    Host {
        /// The rule.
        rule: Text,
        /// What is wrong with the host.
        reason: HostPatternError,
    },
    /// The ports cannot be read.
    #[error("network rule `{rule}`: {reason}")]
    Ports {
        /// The rule.
        rule: Text,
        /// What is wrong with the ports.
        reason: PortsError,
    },
    /// What follows the last slash is no protocol.
    #[error("network rule `{rule}`: `{protocol}` is no protocol")]
    Protocol {
        /// The rule.
        rule: Text,
        /// What was given for one.
        protocol: Text,
    },
    /// It denies, and names a protocol: whether a host is reached is decided before anything is spoken.
    #[error("network rule `{rule}` denies, and a rule that denies holds for every protocol")]
    ProtocolDenied {
        /// The rule.
        rule: Text,
    },
    /// It would let connections through to hosts that have nothing in common.
    #[error("network rule `{rule}` would mean {}", everybody(host))]
    TooWide {
        /// The rule.
        rule: Text,
        /// Its host.
        host: HostPattern,
    },
}

fn everybody(host: &HostPattern) -> String {
    match host {
        HostPattern::Below(base) => format!("all that anybody registers below `{base}`"),
        _ => "every address".to_owned(),
    }
}

impl NetworkPattern {
    /// Reads the pattern of a rule that denies, which may be wider than one that allows.
    ///
    /// # Errors
    /// As `FromStr`, without [`PatternError::TooWide`].
    pub fn parse_deny(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(PatternError::TooLong { bytes: text.len() });
        }
        if text.contains("://") {
            return Err(PatternError::Url(text.into()));
        }
        let (rest, protocol) = split_protocol(text)?;
        let (host, ports) = split_ports(rest);
        let host = HostPattern::parse(host).map_err(|reason| PatternError::Host {
            rule: text.into(),
            reason,
        })?;
        let ports = ports
            .map(PortSet::parse)
            .transpose()
            .map_err(|reason| PatternError::Ports {
                rule: text.into(),
                reason,
            })?;
        Ok(Self { host, ports, protocol })
    }

    /// This pattern, unless it is too wide for a rule that lets connections through.
    ///
    /// # Errors
    /// [`PatternError::TooWide`] for the subdomains of a public suffix and for every address.
    pub fn narrow(self) -> Result<Self, PatternError> {
        if self.host.is_too_wide() {
            return Err(PatternError::TooWide {
                rule: self.to_string().into(),
                host: self.host,
            });
        }
        Ok(self)
    }

    /// This pattern, unless it names a protocol.
    ///
    /// # Errors
    /// [`PatternError::ProtocolDenied`] for one that does: no rule that denies looks at it.
    pub fn of_every_protocol(self) -> Result<Self, PatternError> {
        if self.protocol.is_some() {
            return Err(PatternError::ProtocolDenied {
                rule: self.to_string().into(),
            });
        }
        Ok(self)
    }

    /// The hosts that are meant.
    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    /// The ports that are named; `None` when none are.
    pub fn ports(&self) -> Option<&PortSet> {
        self.ports.as_ref()
    }

    /// The same with other ports.
    pub(crate) fn with_ports(self, ports: PortSet) -> Self {
        Self {
            ports: Some(ports),
            ..self
        }
    }

    /// What a connection to `port` has to speak: what the rule names, or TLS on 443, HTTP on 80, and [`SpokenProtocol::Auto`]
    /// elsewhere.
    pub fn protocol(&self, port: u16) -> SpokenProtocol {
        self.protocol.unwrap_or_else(|| SpokenProtocol::usual(port))
    }

    /// Whether `host` is meant.
    pub fn matches(&self, host: &Host) -> bool {
        self.host.matches(host)
    }

    /// Whether it means addresses of `network` alone.
    pub fn is_within(&self, network: &Cidr) -> bool {
        matches!(&self.host, HostPattern::Network(own) if network.covers(own))
    }

    /// How specific the host is.
    pub fn specificity(&self) -> Specificity {
        self.host.specificity()
    }
}

impl SpokenProtocol {
    /// What is spoken on `port` when nothing says otherwise.
    pub fn usual(port: u16) -> Self {
        match port {
            443 => Self::Tls,
            80 => Self::Http,
            _ => Self::Auto,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Auto => "auto",
            Self::Http => "http",
            Self::Tls => "tls",
        }
    }
}

/// Takes the protocol off the end. What follows a slash and begins with a digit is the prefix of a network.
fn split_protocol(text: &str) -> Result<(&str, Option<SpokenProtocol>), PatternError> {
    let Some((rest, last)) = text.rsplit_once('/') else {
        return Ok((text, None));
    };
    let protocol = match last {
        "tcp" => SpokenProtocol::Tcp,
        "tls" => SpokenProtocol::Tls,
        "http" => SpokenProtocol::Http,
        prefix if prefix.starts_with(|first: char| first.is_ascii_digit()) => return Ok((text, None)),
        _ => {
            return Err(PatternError::Protocol {
                rule: text.into(),
                protocol: last.into(),
            });
        }
    };
    Ok((rest, Some(protocol)))
}

/// Takes the ports off the end: what follows the first colon that is not part of an IPv6 address.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    let brackets = text.rfind(']').unwrap_or(0);
    let is_bare_v6 = brackets == 0 && text.matches(':').count() > 1;
    match text[brackets..].find(':') {
        Some(colon) if !is_bare_v6 => (&text[..brackets + colon], Some(&text[brackets + colon + 1..])),
        _ => (text, None),
    }
}

impl FromStr for NetworkPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse_deny(text)?.narrow()
    }
}

impl fmt::Display for NetworkPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        if let Some(ports) = &self.ports {
            write!(f, ":{ports}")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, "/{}", protocol.name())?;
        }
        Ok(())
    }
}

string_in_serde!(NetworkPattern);

impl fmt::Display for SpokenProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Explained for PatternError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Empty | Self::TooLong { .. } => "write a host, such as example.com or *.example.com:443",
            Self::Url(_) => "write the host alone, such as example.com, with a port after a colon",
            Self::Ports { .. } => "write ports as 22,443 or 8000-8100, or `*` for all",
            Self::Protocol { .. } => "protocols are tcp, tls and http; paths belong into a rule for requests",
            Self::ProtocolDenied { .. } => "leave the protocol out; ports may be named, as in example.com:80",
            Self::TooWide { .. } => "name a domain that belongs to somebody, such as *.example.com",
            Self::Host { reason, .. } => return reason.hint(),
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests;
