//! The proxy of somebody's network, through which the gateway connects.
//!
//! Pure: what was asked for ([`ProxySource`]) says where its URL is, and the caller reads it. A URL with a password
//! stands in a variable or a file, never among arguments, which every user of the machine sees, nor in a policy.

#[cfg(test)]
mod tests;

use core::fmt;
use core::str::FromStr;

use zeroize::Zeroizing;

use crate::error::{ErrorKind, Explained};
use crate::network::host::{Host, HostError};
use crate::network::host_pattern::{HostPattern, HostPatternError};
use crate::text::Text;

/// Variables in which programs look for a proxy; the first that is set counts.
pub const PROXY_VARIABLES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HTTP_PROXY",
    "http_proxy",
];

/// Variables in which programs look for hosts that are reached without it.
pub const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The longest URL that is read.
const LONGEST_URL: usize = 4096;

/// Where the URL of a proxy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxySource {
    /// Here: a URL without a password.
    Url(UpstreamProxy),
    /// In those of [`PROXY_VARIABLES`], with the hosts of [`NO_PROXY_VARIABLES`].
    Environment,
    /// In this variable of whoever starts offleash.
    Variable(String),
    /// In a file of the host; `~/` is the home directory.
    File(String),
}

/// A proxy that is asked by `CONNECT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamProxy {
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// What it is told of who asks.
    pub credentials: Option<ProxyCredentials>,
    /// Hosts that are reached without it.
    pub direct: Vec<HostPattern>,
}

/// A user's name and password as `Basic` wants them (RFC 7617, 2), shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyCredentials(Zeroizing<String>);

/// Text that says no proxy. Never holds more of a URL than its scheme and host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Nothing was written.
    #[error("the upstream proxy is empty")]
    Empty,
    /// It is longer than any URL of a proxy.
    #[error("the upstream proxy has {0} bytes")]
    TooLong(usize),
    /// A kind of proxy that is not asked here.
    #[error("an upstream proxy by `{0}` is not supported")]
    Scheme(Text),
    /// Something follows the host and the port.
    #[error("the URL of the upstream proxy has more than a host and a port")]
    Path,
    /// The host cannot be read.
    #[error("the host of the upstream proxy: {0}")]
    Host(HostError),
    /// The port is none.
    #[error("the port of the upstream proxy is not a number from 1 to 65535")]
    Port,
    /// The name or the password has what no header holds.
    #[error("the name or the password for the upstream proxy has a control character or a broken %-form")]
    Credentials,
    /// The URL is without a port where it was written for offleash.
    #[error("the URL of the upstream proxy names no port")]
    NoPort,
    /// A user's name or a password where others can read it.
    #[error("the URL of the upstream proxy has an `@`: a user name or a password would stand where others can read it")]
    PasswordInSight,
    /// A host that is to be reached directly cannot be read.
    #[error("host `{host}`, which is to be reached without the upstream proxy: {reason}")]
    Direct {
        /// What was written.
        host: Text,
        /// What is wrong with it.
        reason: HostPatternError,
    },
    /// It is not where it was said to be.
    #[error("the upstream proxy is to be read from {place}, and {reason}")]
    Unreadable {
        /// Where.
        place: String,
        /// Why it could not be.
        reason: String,
    },
}

impl FromStr for ProxySource {
    type Err = ProxyError;

    /// Reads `http://HOST:PORT`, `env`, `env:VARIABLE` or `file:PATH`.
    fn from_str(text: &str) -> Result<Self, ProxyError> {
        if text == "env" {
            return Ok(Self::Environment);
        }
        if let Some(name) = text.strip_prefix("env:").filter(|name| !name.is_empty()) {
            return Ok(Self::Variable(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            return Ok(Self::File(path.to_owned()));
        }
        if text.contains('@') {
            return Err(ProxyError::PasswordInSight);
        }
        let proxy = UpstreamProxy::parse(text)?;
        // Proxies listen at 3128, 8080 and elsewhere; in variables port 80 may be left out.
        if !names_port(text.trim_ascii()) {
            return Err(ProxyError::NoPort);
        }
        Ok(Self::Url(proxy))
    }
}

/// Whether a URL that was read has a port in it.
fn names_port(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, authority)| authority);
    let behind_brackets = authority.rsplit(']').next().unwrap_or_default();
    behind_brackets.contains(':')
}

impl UpstreamProxy {
    /// Reads `http://[USER:PASSWORD@]HOST[:PORT]`, of which a variable or a file may leave out the scheme, and have a line
    /// end behind it.
    ///
    /// # Errors
    /// [`ProxyError`] says what is wrong, and nothing of the password.
    pub fn parse(text: &str) -> Result<Self, ProxyError> {
        let text = text.trim_ascii();
        match text.len() {
            0 => return Err(ProxyError::Empty),
            1..=LONGEST_URL => {}
            bytes => return Err(ProxyError::TooLong(bytes)),
        }
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                return Err(ProxyError::Scheme(scheme.into()));
            }
            // What stands there instead may be a password.
            Some(_) => return Err(ProxyError::Path),
            None => text,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        if authority.contains(['/', '?', '#']) {
            return Err(ProxyError::Path);
        }
        let brackets = authority.rfind(']').unwrap_or(0);
        let (host, port) = match authority.get(brackets..).and_then(|end| end.rfind(':')) {
            Some(colon) => authority.split_at(brackets + colon),
            None => (authority, ":80"),
        };
        let port = port.strip_prefix(':').and_then(|port| port.parse().ok());
        Ok(Self {
            host: Host::parse(host).map_err(ProxyError::Host)?,
            port: port.filter(|port| *port != 0).ok_or(ProxyError::Port)?,
            credentials: user.map(ProxyCredentials::parse).transpose()?,
            direct: Vec::new(),
        })
    }

    /// Whether `host` is reached without it.
    pub fn spares(&self, host: &Host) -> bool {
        self.direct.iter().any(|pattern| pattern.matches(host))
    }
}

impl ProxyCredentials {
    fn parse(user: &str) -> Result<Self, ProxyError> {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let name = Zeroizing::new(unescape(name).ok_or(ProxyError::Credentials)?);
        let password = Zeroizing::new(unescape(password).ok_or(ProxyError::Credentials)?);
        // The first colon ends the name (RFC 7617, 2).
        if name.contains(':') || name.chars().chain(password.chars()).any(char::is_control) {
            return Err(ProxyError::Credentials);
        }
        Ok(Self(Zeroizing::new(format!("{}:{}", *name, *password))))
    }

    /// The name and the password with a colon between them, for whoever writes them into a header.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Hosts in the way of `NO_PROXY`: with commas between them, and a name stands for those below it, too. `None` when
/// everything is reached directly.
///
/// # Errors
/// [`ProxyError::Direct`] for what is none.
pub fn parse_no_proxy(text: &str) -> Result<Option<Vec<HostPattern>>, ProxyError> {
    let mut direct = Vec::new();
    for entry in text.split(',').map(str::trim_ascii).filter(|entry| !entry.is_empty()) {
        if entry == "*" {
            return Ok(None);
        }
        let base = entry.strip_prefix("*.").or(entry.strip_prefix('.')).unwrap_or(entry);
        let parse = |text: &str| {
            HostPattern::parse(text).map_err(|reason| ProxyError::Direct {
                host: entry.into(),
                reason,
            })
        };
        // IPv6 addresses stand without brackets here.
        let bare = base.parse::<core::net::IpAddr>().is_ok_and(|address| address.is_ipv6());
        let pattern = if bare {
            parse(&format!("[{base}]"))?
        } else {
            parse(base)?
        };
        if let HostPattern::Name(name) = &pattern {
            direct.push(HostPattern::Below(name.clone()));
        }
        direct.push(pattern);
    }
    Ok(Some(direct))
}

/// Reads a host that is reached directly.
///
/// # Errors
/// [`ProxyError::Direct`] for what is none.
pub fn parse_direct(text: &str) -> Result<HostPattern, ProxyError> {
    HostPattern::parse(text).map_err(|reason| ProxyError::Direct {
        host: text.into(),
        reason,
    })
}

/// The characters that %-forms stand for (RFC 3986, 2.1), if they are UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        if *byte == b'%' {
            let (digits, behind) = behind.split_first_chunk::<2>()?;
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let number = digit(digits[0])? * 16 + digit(digits[1])?;
            bytes.push(u8::try_from(number).ok()?);
            rest = behind;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for ProxyCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// Without the name and the password.
impl fmt::Display for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl fmt::Display for ProxySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(proxy) => proxy.fmt(f),
            Self::Environment => f.write_str("env"),
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl Explained for ProxyError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::PasswordInSight => "put the URL into a variable or a file, and say `env:VARIABLE` or `file:PATH`",
            Self::NoPort | Self::Port => "write the port behind the host, as in `http://HOST:3128`",
            Self::Scheme(_) => "proxies are asked by `CONNECT` over plain TCP: `http://HOST:PORT`",
            Self::Direct { reason, .. } => return reason.hint(),
            Self::Unreadable { .. } => {
                "`env:VARIABLE` reads a variable that is exported, `file:PATH` a file that you may read, `env` HTTPS_PROXY \
                 and its kin; `http://HOST:PORT` needs neither"
            }
            _ => "write `http://HOST:PORT`, `env`, `env:VARIABLE` or `file:PATH`",
        };
        Some(hint.to_owned())
    }
}
