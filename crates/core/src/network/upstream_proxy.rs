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
use crate::network::confidential;
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
const MAX_URL: usize = 4096;

/// Where the URL of a proxy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxySource {
    /// Here: a URL, in which a password was written nowhere that others can read.
    Url(UpstreamProxy),
    /// In those of [`PROXY_VARIABLES`], with the hosts of [`NO_PROXY_VARIABLES`].
    Environment,
    /// In this variable of whoever starts offleash.
    Variable(String),
    /// In a file of the host; `~/` is the home directory.
    File(String),
}

/// How a proxy is asked, and who resolves names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ProxyKind {
    /// By `CONNECT` (RFC 9110, 9.3.6); it resolves names.
    Http,
    /// By SOCKS 5 (RFC 1928) for addresses; names are resolved here.
    Socks5,
    /// By SOCKS 5 for names as they are.
    Socks5h,
}

impl ProxyKind {
    const ALL: [Self; 3] = [Self::Http, Self::Socks5, Self::Socks5h];

    /// As it stands in a URL.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Socks5 => "socks5",
            Self::Socks5h => "socks5h",
        }
    }

    /// Where it listens when a URL does not say.
    fn usual_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Socks5 | Self::Socks5h => 1080,
        }
    }

    /// Whether names are left to it.
    pub fn resolves_names(self) -> bool {
        self != Self::Socks5
    }
}

/// A proxy that connects for the gateway.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UpstreamProxy {
    /// How it is asked.
    pub kind: ProxyKind,
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// What it is told of who asks.
    pub credentials: Option<ProxyCredentials>,
    /// Hosts that are reached without it.
    pub direct: Vec<HostPattern>,
}

/// A user's name and password, shown to nobody: what `Basic` (RFC 7617, 2) or SOCKS (RFC 1929, 2) can say.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProxyCredentials {
    #[serde(with = "confidential")]
    name: Zeroizing<String>,
    #[serde(with = "confidential")]
    password: Zeroizing<String>,
}

/// The longest name and the longest password that SOCKS can say, bytes.
const MAX_OF_SOCKS: usize = 255;

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
    /// The name or the password has what cannot be said to the proxy.
    #[error("the name or the password for the upstream proxy has a control character or a broken %-form")]
    Credentials,
    /// The name or the password is longer than SOCKS can say, or there is a password without a name.
    #[error("the name and the password for a SOCKS proxy have 1 to {MAX_OF_SOCKS} bytes each")]
    LongCredentials,
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

    /// Reads `http://HOST:PORT` and its like, `env`, `env:VARIABLE` or `file:PATH`.
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
    /// Reads `http://[USER:PASSWORD@]HOST[:PORT]`, or the same with `socks5` or `socks5h`, of which a variable or a file may
    /// leave out the scheme, and have a line end behind it.
    ///
    /// # Errors
    /// [`ProxyError`] says what is wrong, and nothing of the password.
    pub fn parse(text: &str) -> Result<Self, ProxyError> {
        let text = text.trim_ascii();
        match text.len() {
            0 => return Err(ProxyError::Empty),
            1..=MAX_URL => {}
            bytes => return Err(ProxyError::TooLong(bytes)),
        }
        let (kind, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                let is_meant = |kind: &ProxyKind| scheme.eq_ignore_ascii_case(kind.scheme());
                let kind = ProxyKind::ALL.into_iter().find(is_meant);
                (kind.ok_or_else(|| ProxyError::Scheme(scheme.into()))?, rest)
            }
            // What stands there instead may be a password.
            Some(_) => return Err(ProxyError::Path),
            None => (ProxyKind::Http, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        if authority.contains(['/', '?', '#']) {
            return Err(ProxyError::Path);
        }
        let (host, port) = host_and_port(authority)?;
        Ok(Self {
            kind,
            host,
            port: port.unwrap_or_else(|| kind.usual_port()),
            credentials: user.map(|user| ProxyCredentials::parse(kind, user)).transpose()?,
            direct: Vec::new(),
        })
    }

    /// The proxy at `HOST:PORT` that is asked by SOCKS 5 for names as they are.
    ///
    /// # Errors
    /// [`ProxyError`] for what is no host and port.
    pub fn socks(address: &str, credentials: Option<ProxyCredentials>) -> Result<Self, ProxyError> {
        let (host, port) = host_and_port(address)?;
        Ok(Self {
            kind: ProxyKind::Socks5h,
            host,
            port: port.ok_or(ProxyError::NoPort)?,
            credentials,
            direct: Vec::new(),
        })
    }

    /// Whether `host` is reached without it.
    pub fn spares(&self, host: &Host) -> bool {
        self.direct.iter().any(|pattern| pattern.matches(host))
    }
}

/// A host, and a port if there is one.
fn host_and_port(authority: &str) -> Result<(Host, Option<u16>), ProxyError> {
    let brackets = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority.get(brackets..).and_then(|end| end.rfind(':')) {
        Some(colon) => authority.split_at(brackets + colon),
        None => (authority, ""),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => Some(port.parse().ok().filter(|port| *port != 0).ok_or(ProxyError::Port)?),
        None => None,
    };
    Ok((Host::parse(host).map_err(ProxyError::Host)?, port))
}

impl ProxyCredentials {
    fn parse(kind: ProxyKind, user: &str) -> Result<Self, ProxyError> {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let name = Zeroizing::new(unescape(name).ok_or(ProxyError::Credentials)?);
        let password = Zeroizing::new(unescape(password).ok_or(ProxyError::Credentials)?);
        if name.chars().chain(password.chars()).any(char::is_control) {
            return Err(ProxyError::Credentials);
        }
        match kind {
            // The first colon ends the name (RFC 7617, 2).
            ProxyKind::Http if name.contains(':') => Err(ProxyError::Credentials),
            ProxyKind::Http => Ok(Self { name, password }),
            ProxyKind::Socks5 | ProxyKind::Socks5h => Self::for_socks(&name, &password),
        }
    }

    /// Those that SOCKS can say; a password may be empty, as many servers let it be.
    ///
    /// # Errors
    /// `LongCredentials` for any others.
    pub fn for_socks(name: &str, password: &str) -> Result<Self, ProxyError> {
        if name.is_empty() || name.len().max(password.len()) > MAX_OF_SOCKS {
            return Err(ProxyError::LongCredentials);
        }
        Ok(Self {
            name: Zeroizing::new(name.to_owned()),
            password: Zeroizing::new(password.to_owned()),
        })
    }

    /// The name, for whoever says it to the proxy.
    pub fn expose_name(&self) -> &str {
        &self.name
    }

    /// The password, likewise.
    pub fn expose_password(&self) -> &str {
        &self.password
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
        write!(f, "{}://{}:{}", self.kind.scheme(), self.host, self.port)
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
            Self::Scheme(_) => {
                "proxies are asked over plain TCP, by `CONNECT` (`http://HOST:PORT`) or by SOCKS 5 (`socks5://HOST:PORT`, or \
                 `socks5h` where the proxy is to resolve names)"
            }
            Self::LongCredentials => "write `socks5://USER:PASSWORD@HOST:PORT` with the name that the proxy knows",
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
