//! Which hosts a rule is about.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use psl::Psl as _;

use crate::error::{ErrorKind, Explained};
use crate::network::cidr::Cidr;
use crate::network::host::{Host, HostError};
use crate::network::name::DomainName;

/// The hosts of a rule: `example.com`, `*.example.com`, `192.0.2.1`, `[2001:db8::1]`, `10.0.0.0/8`, `[fd00::]/8`.
///
/// Names and addresses never match each other: a rule for an address says nothing about the names that resolve to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum HostPattern {
    /// This name alone.
    Name(DomainName),
    /// Its subdomains at any depth, and not the name itself.
    Below(DomainName),
    /// The addresses of a network, or one address.
    Network(Cidr),
}

/// Text that is no pattern of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// It is `*`.
    #[error("`*` would mean every host")]
    Everything,
    /// It has a `*` anywhere but in front.
    #[error("`*` stands in front of a name and means all of its subdomains")]
    Wildcard,
    /// It is an IPv6 address without brackets.
    #[error("an IPv6 address stands in brackets")]
    Brackets(Ipv6Addr),
    /// The number of leading bits is none.
    #[error("`/{0}` is no number of leading bits")]
    Prefix(String),
    /// The address of a network is abbreviated, or a name.
    #[error("the address of a network is written in full")]
    Network,
    /// Bits are set after the prefix, so that it does not say which network is meant.
    #[error("the address has bits set after its first {}", network.prefix())]
    HostBits {
        /// The network that has those leading bits.
        network: Cidr,
    },
    /// The host itself cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// How specific a pattern is; of patterns that match the same host, the greater one says more about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity(usize);

impl HostPattern {
    /// Reads a pattern of hosts alone, without ports and protocol.
    ///
    /// # Errors
    /// [`HostPatternError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        if text == "*" {
            return Err(HostPatternError::Everything);
        }
        if let Some(base) = text.strip_prefix("*.") {
            let base = refuse_wildcard(base)?.parse::<DomainName>()?;
            return Ok(Self::Below(base));
        }
        if let Some((address, prefix)) = refuse_wildcard(text)?.split_once('/') {
            return parse_network(address, prefix).map(Self::Network);
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Err(HostPatternError::Brackets(address));
        }
        Ok(match Host::parse(text)? {
            Host::Name(name) => Self::Name(name),
            Host::Address(address) => Self::Network(Cidr::single(address)),
        })
    }

    /// Whether `host` is meant.
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Name(own), Host::Name(name)) => own == name,
            (Self::Below(base), Host::Name(name)) => name.is_below(base),
            (Self::Network(network), Host::Address(address)) => network.contains(*address),
            _ => false,
        }
    }

    /// Whether every host that `other` means is meant.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(own), Self::Name(other)) => own == other,
            (Self::Below(base), Self::Name(name)) => name.is_below(base),
            (Self::Below(base), Self::Below(other)) => other == base || other.is_below(base),
            (Self::Network(own), Self::Network(other)) => own.covers(other),
            _ => false,
        }
    }

    /// Whether any host is meant by both: of two patterns that share one, one covers the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// How specific it is: an exact name more than any wildcard, a longer base or prefix more than a shorter one.
    pub fn specificity(&self) -> Specificity {
        Specificity(match self {
            Self::Name(_) => usize::MAX,
            Self::Below(base) => base.as_str().len(),
            Self::Network(network) => usize::from(network.prefix()),
        })
    }

    /// Whether it means the hosts of people who have nothing to do with each other: the subdomains of a public suffix
    /// (<https://publicsuffix.org>, private section included; every top-level domain is taken for one), or every
    /// address.
    pub fn is_too_wide(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Below(base) => is_public_suffix(base),
            Self::Network(network) => network.prefix() == 0,
        }
    }
}

/// Whether names right below `base` may belong to anybody. Asked with a label in front, because of suffixes such as
/// `*.kawasaki.jp`.
fn is_public_suffix(base: &DomainName) -> bool {
    let below = format!("*.{base}");
    let suffix = psl::List.suffix(below.as_bytes());
    suffix.is_none_or(|suffix| suffix.as_bytes().len() >= base.as_str().len())
}

fn refuse_wildcard(text: &str) -> Result<&str, HostPatternError> {
    if text.contains('*') {
        return Err(HostPatternError::Wildcard);
    }
    Ok(text)
}

fn parse_network(address: &str, prefix: &str) -> Result<Cidr, HostPatternError> {
    let bracketed = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: IpAddr = match bracketed {
        Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6),
        None => address.parse::<Ipv4Addr>().map(IpAddr::V4),
    }
    .map_err(|_| without_brackets(address))?;
    let wrong_prefix = || HostPatternError::Prefix(prefix.to_owned());
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit()) && (prefix == "0" || !prefix.starts_with('0'));
    let bits: u8 = prefix.parse().ok().filter(|_| is_number).ok_or_else(wrong_prefix)?;
    let network = Cidr::containing(address, bits).ok_or_else(wrong_prefix)?;
    if network.first() != address.to_canonical() {
        return Err(HostPatternError::HostBits { network });
    }
    Ok(network)
}

/// Why the address of a network could not be read.
fn without_brackets(address: &str) -> HostPatternError {
    match address.parse() {
        Ok(address) => HostPatternError::Brackets(address),
        Err(_) => HostPatternError::Network,
    }
}

impl Explained for HostPatternError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Everything => "name the hosts, such as example.com or *.example.com".to_owned(),
            Self::Wildcard => "write `*.example.com`, or each name".to_owned(),
            Self::Brackets(address) => format!("write [{address}]"),
            Self::Prefix(_) => "IPv4 addresses have 32 bits, IPv6 addresses 128".to_owned(),
            Self::Network => "write a network as 10.0.0.0/8 or [fd00::]/8".to_owned(),
            Self::HostBits { network } => format!("write {network}"),
            Self::Host(error) => return error.hint(),
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Below(base) => write!(f, "*.{base}"),
            Self::Network(network) => network.fmt(f),
        }
    }
}
